//! The requests about one object, each tried once, and what their failures mean for it.
//!
//! Owns what goes into a request, and the answer to "did it become visible?" when a reply was lost. Does not own which
//! request comes when: see [`S3Object`](super::s3_object::S3Object).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, ServerSideEncryption};
use bytes::Bytes;

use super::classify::Failure;
use super::client::{COMPLETE_TIMEOUT, S3Client, SMALL_REQUEST_TIMEOUT, upload_timeout};
use super::existing::head;
use super::object::{PartNumber, StoredObject};
use super::result_check::CompleteReply;
use super::retry::{RetryPolicy, Tries};
use super::s3_object::{ObjectSpec, PUBLISH_GRACE, Precondition};
use crate::config::connection::S3Checksums;
use crate::config::export::Encryption;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::progress::Progress;
use crate::stop::Stop;

/// What a request needs, shared with the task that creates the upload.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) client: S3Client,
    pub(super) spec: ObjectSpec,
    pub(super) policy: RetryPolicy,
    pub(super) stop: Stop,
    pub(super) progress: Arc<Progress>,
    /// The store doesn't know conditions: it was asked once and refused.
    pub(super) unconditional: AtomicBool,
}

impl Requests {
    pub(super) fn tries(&self, grace: Duration) -> Tries<'_> {
        Tries { policy: self.policy, stop: &self.stop, progress: &self.progress, grace }
    }

    /// Says what was being done; an order to stop needs no such words.
    pub(super) fn doing(&self, what: &str, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Shutdown => error,
            _ => error.context(format!("{what} {}", self.spec.uri())),
        }
    }

    /// The values of `If-None-Match` and `If-Match`.
    fn conditions(&self) -> (Option<String>, Option<String>) {
        match &self.spec.precondition {
            _ if self.unconditional.load(Ordering::Relaxed) => (None, None),
            Precondition::None => (None, None),
            Precondition::Absent => (Some("*".to_owned()), None),
            Precondition::Unchanged(etag) => (None, Some(etag.clone())),
        }
    }

    /// Gives conditions up on a store that doesn't know them, and says whether that is a reason to try once more.
    pub(super) fn give_up_conditions(&self, failure: &Failure) -> bool {
        let refused = failure.status == Some(501) && self.conditions() != (None, None);
        if refused {
            tracing::warn!(uri = self.spec.uri(), "the store does not know conditional writes; it is written without");
            self.unconditional.store(true, Ordering::Relaxed);
        }
        refused
    }

    fn encryption(&self) -> (Option<ServerSideEncryption>, Option<String>) {
        match &self.spec.encryption {
            None => (None, None),
            Some(Encryption::Aes256) => (Some(ServerSideEncryption::Aes256), None),
            Some(Encryption::Kms { key_id }) => (Some(ServerSideEncryption::AwsKms), key_id.clone()),
        }
    }

    fn checksum(&self) -> Option<ChecksumAlgorithm> {
        (self.client.checksums() == S3Checksums::WhenSupported).then_some(ChecksumAlgorithm::Crc32)
    }

    pub(super) async fn create(&self) -> Result<String> {
        // An upload that is being created is waited for, or nobody could abort it.
        self.tries(PUBLISH_GRACE).run(|| self.try_create()).await.map_err(|failure| failure.error)
    }

    async fn try_create(&self) -> Result<String, Failure> {
        let spec = &self.spec;
        let (encryption, kms_key_id) = self.encryption();
        let request = self
            .client
            .sdk()
            .create_multipart_upload()
            .bucket(&spec.bucket)
            .key(&spec.key)
            .content_type(spec.content_type)
            .set_metadata(Some(spec.owner.to_metadata()))
            .set_server_side_encryption(encryption)
            .set_ssekms_key_id(kms_key_id)
            .set_checksum_algorithm(self.checksum());
        let reply = self.client.send(&spec.bucket, &spec.key, SMALL_REQUEST_TIMEOUT, request.send()).await?;
        reply.upload_id.filter(|id| !id.is_empty()).ok_or_else(|| self.no_result())
    }

    pub(super) async fn try_part(
        &self,
        id: &str,
        number: PartNumber,
        body: Bytes,
    ) -> Result<(String, Option<String>), Failure> {
        let spec = &self.spec;
        let timeout = upload_timeout(body.len());
        let operation = self
            .client
            .sdk()
            .upload_part()
            .bucket(&spec.bucket)
            .key(&spec.key)
            .upload_id(id)
            .part_number(i32::try_from(number.get()).unwrap_or(i32::MAX))
            .set_checksum_algorithm(self.checksum())
            .body(ByteStream::from(body))
            .customize();
        let protected = self.client.endpoint().is_encrypted();
        let operation = if protected { operation.disable_payload_signing() } else { operation };
        let reply = self.client.send(&spec.bucket, &spec.key, timeout, operation.send()).await?;
        let etag = reply.e_tag.filter(|etag| !etag.is_empty()).ok_or_else(|| self.no_result())?;
        Ok((etag, reply.checksum_crc32))
    }

    pub(super) async fn try_put(&self, body: Bytes) -> Result<StoredObject, Failure> {
        let spec = &self.spec;
        let timeout = upload_timeout(body.len());
        let (encryption, kms_key_id) = self.encryption();
        let (if_none_match, if_match) = self.conditions();
        let operation = self
            .client
            .sdk()
            .put_object()
            .bucket(&spec.bucket)
            .key(&spec.key)
            .content_type(spec.content_type)
            .set_metadata(Some(spec.owner.to_metadata()))
            .set_server_side_encryption(encryption)
            .set_ssekms_key_id(kms_key_id)
            .set_if_none_match(if_none_match)
            .set_if_match(if_match)
            .set_checksum_algorithm(self.checksum())
            .body(ByteStream::from(body))
            .customize();
        let protected = self.client.endpoint().is_encrypted();
        let operation = if protected { operation.disable_payload_signing() } else { operation };
        let reply = self.client.send(&spec.bucket, &spec.key, timeout, operation.send()).await?;
        let etag = reply.e_tag.filter(|etag| !etag.is_empty()).ok_or_else(|| self.no_result())?;
        Ok(StoredObject { etag: Some(etag) })
    }

    pub(super) async fn try_complete(
        &self,
        id: &str,
        parts: CompletedMultipartUpload,
    ) -> Result<StoredObject, Failure> {
        let spec = &self.spec;
        let (if_none_match, if_match) = self.conditions();
        let operation = self
            .client
            .sdk()
            .complete_multipart_upload()
            .bucket(&spec.bucket)
            .key(&spec.key)
            .upload_id(id)
            .multipart_upload(parts)
            .set_if_none_match(if_none_match)
            .set_if_match(if_match)
            .customize()
            .interceptor(CompleteReply);
        let reply = self.client.send(&spec.bucket, &spec.key, COMPLETE_TIMEOUT, operation.send()).await?;
        Ok(StoredObject { etag: reply.e_tag })
    }

    pub(super) async fn try_abort(&self, id: &str) -> Result<(), Failure> {
        let spec = &self.spec;
        let request =
            self.client.sdk().abort_multipart_upload().bucket(&spec.bucket).key(&spec.key).upload_id(id).send();
        self.client.send(&spec.bucket, &spec.key, SMALL_REQUEST_TIMEOUT, request).await.map(drop)
    }

    /// A reply of success without what it must carry.
    fn no_result(&self) -> Failure {
        self.client.no_result(&self.spec.bucket, &self.spec.key)
    }

    /// Whether what lies under the key is something else than what lay there before.
    fn is_new(&self, etag: &Option<String>) -> bool {
        !matches!((&self.spec.precondition, etag), (Precondition::Unchanged(before), Some(now)) if before == now)
    }

    /// Decides what a failure to publish means, where an earlier try may have taken effect: looks at the object.
    ///
    /// It is ours when its metadata names this very attempt and its size is what was sent.
    pub(super) async fn settle(&self, failure: Failure, num_bytes: u64) -> Result<StoredObject> {
        let stopped = matches!(failure.error.kind(), ErrorKind::Cancelled | ErrorKind::Shutdown);
        if stopped || !(failure.ambiguous || failure.is("NoSuchUpload")) {
            return Err(failure.error);
        }
        let tries = self.tries(Duration::ZERO);
        let spec = &self.spec;
        match tries.run(|| head(&self.client, &spec.bucket, &spec.key)).await {
            Ok(found) if self.is_new(&found.etag) && spec.owner.wrote(&found.metadata) && found.bytes == num_bytes => {
                tracing::debug!(uri = spec.uri(), "the reply was lost, but the object is there");
                Ok(StoredObject { etag: found.etag })
            }
            Ok(_) => Err(failure.error),
            Err(unknown) if unknown.error.kind() == ErrorKind::NotFound => Err(failure.error),
            Err(unknown) => {
                tracing::warn!(uri = spec.uri(), error = ?unknown.error, "can't tell whether the object became visible");
                Err(failure.error)
            }
        }
    }
}
