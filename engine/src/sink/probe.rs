//! What a store really does, found by trying.
//!
//! Owns the full probe, which writes small objects under a prefix and deletes them again: it fills the documentation's
//! store matrix and a check that was asked to be thorough. Does not own the light check, which leaves no trace: see
//! [`crate::check`].

use std::sync::{Mutex, PoisonError};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, ServerSideEncryption};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::classify::Failure;
use super::client::{COMPLETE_TIMEOUT, S3Client, SMALL_REQUEST_TIMEOUT};
use super::existing::head;
use super::result_check::CompleteReply;
use crate::error::Result;

/// What a store does with one thing that it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// It does it.
    Yes,
    /// It takes the request and does as if it hadn't been asked.
    Ignored,
    /// It refuses the request.
    Refused,
}

/// What a store does, as far as exports depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCapabilities {
    /// `If-None-Match: *` on the single PUT.
    pub put_if_absent: Support,
    /// `If-Match` on the single PUT.
    pub put_if_unchanged: Support,
    /// `If-None-Match: *` on Complete.
    pub complete_if_absent: Support,
    /// `If-Match` on Complete.
    pub complete_if_unchanged: Support,
    /// Parts under 5 MiB, but for the last, are refused.
    pub minimum_part_size: Support,
    /// A list of parts that isn't in order is refused.
    pub part_order: Support,
    /// A part that was never uploaded is refused.
    pub unknown_part: Support,
    /// CRC32 checksums are taken, on PUT and in multipart uploads.
    pub checksums: Support,
    /// A body that doesn't fit its checksum is refused.
    pub checksums_verified: Support,
    /// Bodies may be left out of the signature.
    pub unsigned_payload: Support,
    /// Server-side encryption with `AES256`.
    pub encryption_aes256: Support,
    /// An upload into a bucket that doesn't exist is refused when it is created, not only at its end.
    pub missing_bucket_at_create: Support,
    /// HEAD returns the object's metadata.
    pub metadata: Support,
    /// Completing an upload for the second time succeeds, instead of `NoSuchUpload`.
    pub complete_twice: Support,
    /// A late attempt can't replace what its successor published: both conditions on Complete hold.
    pub fenced: bool,
}

/// Tries what a store does, with small objects under `prefix` that it deletes at its end.
///
/// # Errors
/// What the table says, when the store can't be tried at all. A store's refusal of one thing is no error.
///
/// # Cancel safety
/// Dropping it leaves its small objects and perhaps an upload behind, all under `prefix`.
pub async fn probe(client: &S3Client, bucket: &str, prefix: &str) -> Result<StoreCapabilities> {
    let probe = Probe {
        client,
        bucket,
        prefix: format!("{}batch-export-probe-{}", join(prefix), uuid::Uuid::new_v4()),
        written: Mutex::default(),
    };
    let found = probe.everything().await;
    probe.clean_up().await;
    found.map_err(|failure| failure.error.context(format!("probe {}", client.endpoint())))
}

fn join(prefix: &str) -> String {
    let prefix = prefix.trim_matches('/');
    if prefix.is_empty() { String::new() } else { format!("{prefix}/") }
}

struct Probe<'a> {
    client: &'a S3Client,
    bucket: &'a str,
    prefix: String,
    written: Mutex<Vec<String>>,
}

/// What one request asks for beside its body.
#[derive(Debug, Default, Clone, Copy)]
struct Asked<'a> {
    if_none_match: Option<&'a str>,
    if_match: Option<&'a str>,
    checksum: bool,
    wrong_checksum: bool,
    unsigned: bool,
    encrypted: bool,
}

const WRONG_ETAG: &str = "\"00000000000000000000000000000000\"";

impl Probe<'_> {
    async fn everything(&self) -> Result<StoreCapabilities, Failure> {
        let complete_if_absent = on("complete_if_absent", self.condition_on_complete("a", true).await)?;
        let complete_if_unchanged = on("complete_if_unchanged", self.condition_on_complete("b", false).await)?;
        Ok(StoreCapabilities {
            put_if_absent: on("put_if_absent", self.condition_on_put("c", true).await)?,
            put_if_unchanged: on("put_if_unchanged", self.condition_on_put("d", false).await)?,
            complete_if_absent,
            complete_if_unchanged,
            minimum_part_size: on("minimum_part_size", self.bad_list("e", &[1, 2]).await)?,
            part_order: on("part_order", self.bad_list("f", &[2, 1]).await)?,
            unknown_part: on("unknown_part", self.bad_list("g", &[1, 3]).await)?,
            checksums: on("checksums", self.checksums("h").await)?,
            checksums_verified: on("checksums_verified", self.wrong_checksum("i").await)?,
            unsigned_payload: on("unsigned_payload", self.unsigned("j").await)?,
            encryption_aes256: on("encryption_aes256", self.encryption("k").await)?,
            missing_bucket_at_create: on("missing_bucket_at_create", self.missing_bucket().await)?,
            metadata: on("metadata", self.metadata("l").await)?,
            complete_twice: on("complete_twice", self.complete_twice("m").await)?,
            fenced: complete_if_absent == Support::Yes && complete_if_unchanged == Support::Yes,
        })
    }

    async fn wrong_checksum(&self, name: &str) -> Result<Support, Failure> {
        refused_is_yes(self.put(name, Asked { wrong_checksum: true, ..Asked::default() }).await.map(drop))
    }

    async fn unsigned(&self, name: &str) -> Result<Support, Failure> {
        taken_is_yes(self.put(name, Asked { unsigned: true, ..Asked::default() }).await.map(drop))
    }

    fn key(&self, name: &str) -> String {
        let key = format!("{}/{name}", self.prefix);
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(key.clone());
        key
    }

    /// Whether a PUT's condition is looked at: one that holds must pass, one that doesn't must not.
    async fn condition_on_put(&self, name: &str, absent: bool) -> Result<Support, Failure> {
        let fresh = Asked { if_none_match: absent.then_some("*"), ..Asked::default() };
        let Some(etag) = optional(self.put(name, fresh).await)? else { return Ok(Support::Refused) };
        if absent {
            return condition_kept(self.put(name, fresh).await.map(drop));
        }
        let right = Asked { if_match: Some(&etag), ..Asked::default() };
        if optional(self.put(name, right).await)?.is_none() {
            return Ok(Support::Refused);
        }
        condition_kept(self.put(name, Asked { if_match: Some(WRONG_ETAG), ..Asked::default() }).await.map(drop))
    }

    async fn condition_on_complete(&self, name: &str, absent: bool) -> Result<Support, Failure> {
        let fresh = Asked { if_none_match: absent.then_some("*"), ..Asked::default() };
        let Some(etag) = optional(self.upload(name, fresh, &[1]).await)? else { return Ok(Support::Refused) };
        if absent {
            return condition_kept(self.upload(name, fresh, &[1]).await.map(drop));
        }
        let right = Asked { if_match: Some(&etag), ..Asked::default() };
        if optional(self.upload(name, right, &[1]).await)?.is_none() {
            return Ok(Support::Refused);
        }
        condition_kept(
            self.upload(name, Asked { if_match: Some(WRONG_ETAG), ..Asked::default() }, &[1]).await.map(drop),
        )
    }

    async fn bad_list(&self, name: &str, numbers: &[i32]) -> Result<Support, Failure> {
        refused_is_yes(self.upload(name, Asked::default(), numbers).await.map(drop))
    }

    async fn checksums(&self, name: &str) -> Result<Support, Failure> {
        let asked = Asked { checksum: true, ..Asked::default() };
        match taken_is_yes(self.put(name, asked).await.map(drop))? {
            Support::Yes => taken_is_yes(self.upload(name, asked, &[1]).await.map(drop)),
            other => Ok(other),
        }
    }

    async fn encryption(&self, name: &str) -> Result<Support, Failure> {
        let asked = Asked { encrypted: true, ..Asked::default() };
        match self.put(name, asked).await {
            Ok(_) => {}
            // SeaweedFS without an encryption key answers 500.
            Err(failure) if is_refusal(&failure) || failure.status == Some(500) => return Ok(Support::Refused),
            Err(failure) => return Err(failure),
        }
        let key = self.key(name);
        let request = self.client.sdk().head_object().bucket(self.bucket).key(&key).send();
        let head = self.client.send(self.bucket, &key, SMALL_REQUEST_TIMEOUT, request).await?;
        let encrypted = head.server_side_encryption == Some(ServerSideEncryption::Aes256);
        Ok(if encrypted { Support::Yes } else { Support::Ignored })
    }

    async fn missing_bucket(&self) -> Result<Support, Failure> {
        let bucket = format!("batch-export-no-such-bucket-{}", uuid::Uuid::new_v4().simple());
        let key = "probe";
        let request = self.client.sdk().create_multipart_upload().bucket(&bucket).key(key).send();
        let outcome = self.client.send(&bucket, key, SMALL_REQUEST_TIMEOUT, request).await;
        if let Ok(reply) = &outcome {
            let id = reply.upload_id().unwrap_or_default();
            let request = self.client.sdk().abort_multipart_upload().bucket(&bucket).key(key).upload_id(id).send();
            self.client.send(&bucket, key, SMALL_REQUEST_TIMEOUT, request).await.ok();
        }
        refused_is_yes(outcome.map(drop))
    }

    async fn metadata(&self, name: &str) -> Result<Support, Failure> {
        self.put(name, Asked::default()).await?;
        let found = head(self.client, self.bucket, &self.key(name)).await?;
        let kept = found.metadata.get("export-id").is_some_and(|id| id == "probe~7E");
        Ok(if kept { Support::Yes } else { Support::Ignored })
    }

    async fn complete_twice(&self, name: &str) -> Result<Support, Failure> {
        let key = self.key(name);
        let id = self.create(&key, Asked::default()).await?;
        let part = self.part(&key, &id, 1, Asked::default()).await?;
        self.complete(&key, &id, vec![part.clone()], Asked::default()).await?;
        taken_is_yes(self.complete(&key, &id, vec![part], Asked::default()).await.map(drop))
    }

    async fn put(&self, name: &str, asked: Asked<'_>) -> Result<String, Failure> {
        let key = self.key(name);
        let operation = self
            .client
            .sdk()
            .put_object()
            .bucket(self.bucket)
            .key(&key)
            .metadata("export-id", "probe~7E")
            .set_if_none_match(asked.if_none_match.map(str::to_owned))
            .set_if_match(asked.if_match.map(str::to_owned))
            .set_checksum_algorithm(asked.checksum.then_some(ChecksumAlgorithm::Crc32))
            .set_checksum_crc32(asked.wrong_checksum.then(|| "AAAAAA==".to_owned()))
            .set_server_side_encryption(asked.encrypted.then_some(ServerSideEncryption::Aes256))
            .body(ByteStream::from_static(b"probe"))
            .customize();
        let operation = if asked.unsigned { operation.disable_payload_signing() } else { operation };
        let reply = self.client.send(self.bucket, &key, SMALL_REQUEST_TIMEOUT, operation.send()).await?;
        Ok(reply.e_tag.unwrap_or_default())
    }

    /// Uploads parts 1 and, for a list of two, 2, of some bytes each; then completes with the given list.
    async fn upload(&self, name: &str, asked: Asked<'_>, numbers: &[i32]) -> Result<String, Failure> {
        let key = self.key(name);
        let id = self.create(&key, asked).await?;
        let outcome = async {
            let one = self.part(&key, &id, 1, asked).await?;
            let mut list = Vec::new();
            for number in numbers {
                list.push(match number {
                    1 => one.clone(),
                    2 => self.part(&key, &id, 2, asked).await?,
                    unknown => CompletedPart::builder().part_number(*unknown).e_tag(WRONG_ETAG).build(),
                });
            }
            self.complete(&key, &id, list, asked).await
        };
        let outcome = outcome.await;
        if outcome.is_err() {
            let request =
                self.client.sdk().abort_multipart_upload().bucket(self.bucket).key(&key).upload_id(&id).send();
            self.client.send(self.bucket, &key, SMALL_REQUEST_TIMEOUT, request).await.ok();
        }
        outcome
    }

    async fn create(&self, key: &str, asked: Asked<'_>) -> Result<String, Failure> {
        let algorithm = asked.checksum.then_some(ChecksumAlgorithm::Crc32);
        let request = self.client.sdk().create_multipart_upload().bucket(self.bucket).key(key);
        let request = request.set_checksum_algorithm(algorithm).send();
        let reply = self.client.send(self.bucket, key, SMALL_REQUEST_TIMEOUT, request).await?;
        Ok(reply.upload_id.unwrap_or_default())
    }

    async fn part(&self, key: &str, id: &str, number: i32, asked: Asked<'_>) -> Result<CompletedPart, Failure> {
        let request = self
            .client
            .sdk()
            .upload_part()
            .bucket(self.bucket)
            .key(key)
            .upload_id(id)
            .part_number(number)
            .set_checksum_algorithm(asked.checksum.then_some(ChecksumAlgorithm::Crc32))
            .body(ByteStream::from(Bytes::from_static(b"probe")))
            .send();
        let reply = self.client.send(self.bucket, key, SMALL_REQUEST_TIMEOUT, request).await?;
        let part = CompletedPart::builder().part_number(number).set_e_tag(reply.e_tag);
        Ok(part.set_checksum_crc32(reply.checksum_crc32).build())
    }

    async fn complete(
        &self,
        key: &str,
        id: &str,
        list: Vec<CompletedPart>,
        asked: Asked<'_>,
    ) -> Result<String, Failure> {
        let list = CompletedMultipartUpload::builder().set_parts(Some(list)).build();
        let operation = self
            .client
            .sdk()
            .complete_multipart_upload()
            .bucket(self.bucket)
            .key(key)
            .upload_id(id)
            .set_if_none_match(asked.if_none_match.map(str::to_owned))
            .set_if_match(asked.if_match.map(str::to_owned))
            .multipart_upload(list)
            .customize()
            .interceptor(CompleteReply);
        let reply = self.client.send(self.bucket, key, COMPLETE_TIMEOUT, operation.send()).await?;
        Ok(reply.e_tag.unwrap_or_default())
    }

    async fn clean_up(&self) {
        let mut keys = std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let request = self.client.sdk().delete_object().bucket(self.bucket).key(&key).send();
            if let Err(failure) = self.client.send(self.bucket, &key, SMALL_REQUEST_TIMEOUT, request).await {
                tracing::warn!(key, error = ?failure.error, "the probe's object can't be deleted");
            }
        }
    }
}

/// Names the question that a failure ended.
fn on(question: &str, outcome: Result<Support, Failure>) -> Result<Support, Failure> {
    outcome.map_err(|failure| Failure { error: failure.error.context(question), ..failure })
}

/// Whether the store itself refused: a definite answer, other than a fault that passes or a missing permission.
fn is_refusal(failure: &Failure) -> bool {
    failure
        .status
        .is_some_and(|status| (400..500).contains(&status) && !matches!(status, 401 | 403 | 408 | 429) || status == 501)
}

/// A refusal is an answer; any other failure ends the probe.
fn optional<T>(outcome: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(failure) if is_refusal(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Something that must be taken.
fn taken_is_yes(outcome: Result<(), Failure>) -> Result<Support, Failure> {
    Ok(if optional(outcome)?.is_some() { Support::Yes } else { Support::Refused })
}

/// Something that must be refused.
fn refused_is_yes(outcome: Result<(), Failure>) -> Result<Support, Failure> {
    Ok(if optional(outcome)?.is_some() { Support::Ignored } else { Support::Yes })
}

/// A condition that doesn't hold.
fn condition_kept(outcome: Result<(), Failure>) -> Result<Support, Failure> {
    match outcome {
        Ok(()) => Ok(Support::Ignored),
        Err(failure) if matches!(failure.status, Some(409 | 412)) || failure.is("PreconditionFailed") => {
            Ok(Support::Yes)
        }
        Err(failure) if is_refusal(&failure) => Ok(Support::Refused),
        Err(failure) => Err(failure),
    }
}
