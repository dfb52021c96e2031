//! One object of a run in S3.
//!
//! Owns the requests that make it visible or forget it, and the answer to "did it become visible?" when a reply was
//! lost. Does not own which bytes are which part.
//!
//! Bodies are in memory and go out with a `Content-Length`, never `aws-chunked`: many S3-compatible services refuse
//! that. Over HTTPS the signature leaves the body out, since TLS already protects it; over plain HTTP it is hashed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart, ServerSideEncryption};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::classify::{Failure, is_denied};
use super::client::{COMPLETE_TIMEOUT, S3Client, SMALL_REQUEST_TIMEOUT, upload_timeout};
use super::existing::head;
use super::key::uri;
use super::metadata::Ownership;
use super::object::{ObjectSink, PartNumber, StoredObject, UploadedPart};
use super::result_check::CompleteReply;
use super::retry::{RetryPolicy, Tries};
use super::upload::LazyUpload;
use crate::config::connection::S3Checksums;
use crate::config::export::{DestinationConfig, Encryption};
use crate::config::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::progress::Progress;
use crate::stop::Stop;

/// The longest that an abort may take, whatever the store does.
pub const ABORT_DEADLINE: Duration = Duration::from_secs(30);

/// How long a request that makes the object visible may go on after an order to stop: its outcome should be known.
const PUBLISH_GRACE: Duration = Duration::from_secs(5);

/// What the object is, apart from its bytes.
#[derive(Debug, Clone)]
pub struct ObjectSpec {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The `Content-Type`.
    pub content_type: &'static str,
    /// Who writes it, for its metadata.
    pub owner: Ownership,
    /// Server-side encryption.
    pub encryption: Option<Encryption>,
    /// What must hold of the key when the object becomes visible.
    pub precondition: Precondition,
}

/// What must hold of the key when the object becomes visible, on stores that look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// There is no object (`If-None-Match: *`).
    Absent,
    /// There still is the object with this `ETag` (`If-Match`).
    Unchanged(String),
}

/// One object under construction.
#[derive(Debug)]
pub struct S3Object {
    requests: Arc<Requests>,
    upload: LazyUpload,
    parts: Mutex<BTreeMap<PartNumber, Part>>,
    abort_deadline: Duration,
}

/// What a request needs, shared with the task that creates the upload.
#[derive(Debug)]
struct Requests {
    client: S3Client,
    spec: ObjectSpec,
    policy: RetryPolicy,
    stop: Stop,
    progress: Arc<Progress>,
}

/// What completing needs of an uploaded part.
#[derive(Debug)]
struct Part {
    num_bytes: u64,
    crc32: Option<String>,
}

impl ObjectSpec {
    /// The object of a run, as its destination wants it, without a precondition.
    #[must_use]
    pub fn new(destination: &DestinationConfig, key: String, output: Output, owner: Ownership) -> Self {
        Self {
            bucket: destination.bucket.clone(),
            key,
            content_type: output.content_type(),
            owner,
            encryption: destination.encryption.clone(),
            precondition: Precondition::None,
        }
    }

    /// `s3://bucket/key`.
    #[must_use]
    pub fn uri(&self) -> String {
        uri(&self.bucket, &self.key)
    }

    fn encryption(&self) -> (Option<ServerSideEncryption>, Option<String>) {
        match &self.encryption {
            None => (None, None),
            Some(Encryption::Aes256) => (Some(ServerSideEncryption::Aes256), None),
            Some(Encryption::Kms { key_id }) => (Some(ServerSideEncryption::AwsKms), key_id.clone()),
        }
    }

    /// The values of `If-None-Match` and `If-Match`.
    fn conditions(&self) -> (Option<String>, Option<String>) {
        match &self.precondition {
            Precondition::None => (None, None),
            Precondition::Absent => (Some("*".to_owned()), None),
            Precondition::Unchanged(etag) => (None, Some(etag.clone())),
        }
    }
}

impl S3Object {
    /// An object that nothing was sent for yet.
    #[must_use]
    pub fn new(client: S3Client, spec: ObjectSpec, stop: Stop, progress: Arc<Progress>) -> Self {
        Self::with_policy(client, spec, stop, progress, RetryPolicy::RUN)
    }

    /// The same, with another patience than a run's.
    #[must_use]
    pub fn with_policy(
        client: S3Client,
        spec: ObjectSpec,
        stop: Stop,
        progress: Arc<Progress>,
        policy: RetryPolicy,
    ) -> Self {
        let requests = Arc::new(Requests { client, spec, policy, stop, progress });
        Self { requests, upload: LazyUpload::default(), parts: Mutex::default(), abort_deadline: ABORT_DEADLINE }
    }

    /// What the object is.
    #[must_use]
    pub fn spec(&self) -> &ObjectSpec {
        &self.requests.spec
    }

    async fn upload_id(&self) -> Result<Arc<str>> {
        let requests = Arc::clone(&self.requests);
        self.upload.id(move || async move { requests.create().await }.boxed()).await
    }

    async fn put_once(&self, body: Bytes) -> Result<StoredObject> {
        let requests = &self.requests;
        let num_bytes = body.len() as u64;
        let outcome = requests.tries(PUBLISH_GRACE).run(|| requests.try_put(body.clone())).await;
        match outcome {
            Ok(stored) => Ok(stored),
            Err(failure) => requests.settle(failure, num_bytes).await.map_err(|error| requests.doing("write", error)),
        }
    }

    async fn upload(&self, number: PartNumber, body: Bytes) -> Result<UploadedPart> {
        let requests = &self.requests;
        let doing = |error| requests.doing(&format!("upload part {number} of"), error);
        let upload_id = self.upload_id().await.map_err(doing)?;
        let num_bytes = body.len() as u64;
        let tries = requests.tries(Duration::ZERO);
        let outcome = tries.run(|| requests.try_part(&upload_id, number, body.clone())).await;
        let (etag, crc32) = outcome.map_err(|failure| doing(failure.error))?;
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(number, Part { num_bytes, crc32 });
        Ok(UploadedPart { number, etag })
    }

    async fn complete_once(&self, parts: Vec<UploadedPart>) -> Result<StoredObject> {
        let requests = &self.requests;
        let doing = |error| requests.doing("complete", error);
        let upload_id = self.upload.created().await;
        let upload_id = upload_id.ok_or_else(|| doing(Error::internal("no part was uploaded")))?;
        let (parts, num_bytes) = self.listed(parts).map_err(doing)?;
        let outcome = requests.tries(PUBLISH_GRACE).run(|| requests.try_complete(&upload_id, parts.clone())).await;
        let stored = match outcome {
            Ok(stored) => stored,
            Err(failure) => requests.settle(failure, num_bytes).await.map_err(doing)?,
        };
        self.upload.forget();
        Ok(stored)
    }

    /// The list that Complete sends, checked: numbers 1..n, each one of ours.
    fn listed(&self, parts: Vec<UploadedPart>) -> Result<(CompletedMultipartUpload, u64)> {
        let known = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut completed, mut num_bytes, mut expected) = (Vec::with_capacity(parts.len()), 0, PartNumber::FIRST);
        for UploadedPart { number, etag } in parts {
            let Some(part) = known.get(&number).filter(|_| number == expected) else {
                return Err(Error::internal(format!("part {expected} is expected and part {number} was given")));
            };
            num_bytes += part.num_bytes;
            expected = expected.next();
            let part_number = i32::try_from(number.get()).map_err(|error| Error::internal(error.to_string()))?;
            let crc32 = part.crc32.clone();
            completed
                .push(CompletedPart::builder().part_number(part_number).e_tag(etag).set_checksum_crc32(crc32).build());
        }
        if completed.len() != known.len() {
            let (given, uploaded) = (completed.len(), known.len());
            return Err(Error::internal(format!("{given} parts were given and {uploaded} were uploaded")));
        }
        Ok((CompletedMultipartUpload::builder().set_parts(Some(completed)).build(), num_bytes))
    }

    async fn abort_once(&self) -> Result<()> {
        let Some(upload_id) = self.upload.created().await else {
            return Ok(());
        };
        let requests = &self.requests;
        let never = Stop::new();
        let tries = Tries { policy: RetryPolicy::CLEAN_UP, stop: &never, ..requests.tries(Duration::ZERO) };
        match tries.run(|| requests.try_abort(&upload_id)).await {
            Ok(()) => {}
            Err(failure) if failure.error.kind() == ErrorKind::NotFound || failure.is("NoSuchUpload") => {}
            Err(failure) if is_denied(&failure.error) => {
                tracing::warn!(
                    uri = requests.spec.uri(),
                    %upload_id,
                    "the credentials may not abort uploads, so this one is left over; \
                     give them s3:AbortMultipartUpload, or the bucket a lifecycle rule for incomplete uploads"
                );
            }
            Err(failure) => return Err(failure.error.context(format!("upload id {upload_id}"))),
        }
        self.upload.forget();
        Ok(())
    }
}

impl ObjectSink for S3Object {
    fn put(&self, body: Bytes) -> BoxFuture<'_, Result<StoredObject>> {
        self.put_once(body).boxed()
    }

    fn upload_part(&self, number: PartNumber, body: Bytes) -> BoxFuture<'_, Result<UploadedPart>> {
        self.upload(number, body).boxed()
    }

    fn complete(&self, parts: Vec<UploadedPart>) -> BoxFuture<'_, Result<StoredObject>> {
        self.complete_once(parts).boxed()
    }

    fn abort(&self) -> BoxFuture<'_, Result<()>> {
        async {
            let late = || Error::new(ErrorKind::DestinationUnavailable, "the store did not answer in time");
            let outcome = tokio::time::timeout(self.abort_deadline, self.abort_once()).await;
            outcome.unwrap_or_else(|_| Err(late())).map_err(|error| self.requests.doing("abort the upload of", error))
        }
        .boxed()
    }
}

impl Requests {
    fn tries(&self, grace: Duration) -> Tries<'_> {
        Tries { policy: self.policy, stop: &self.stop, progress: &self.progress, grace }
    }

    /// Says what was being done; an order to stop needs no such words.
    fn doing(&self, what: &str, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Shutdown => error,
            _ => error.context(format!("{what} {}", self.spec.uri())),
        }
    }

    fn checksum(&self) -> Option<ChecksumAlgorithm> {
        (self.client.checksums() == S3Checksums::WhenSupported).then_some(ChecksumAlgorithm::Crc32)
    }

    async fn create(&self) -> Result<String> {
        self.tries(Duration::ZERO).run(|| self.try_create()).await.map_err(|failure| failure.error)
    }

    async fn try_create(&self) -> Result<String, Failure> {
        let spec = &self.spec;
        let (encryption, kms_key_id) = spec.encryption();
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

    async fn try_part(&self, id: &str, number: PartNumber, body: Bytes) -> Result<(String, Option<String>), Failure> {
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

    async fn try_put(&self, body: Bytes) -> Result<StoredObject, Failure> {
        let spec = &self.spec;
        let timeout = upload_timeout(body.len());
        let (encryption, kms_key_id) = spec.encryption();
        let (if_none_match, if_match) = spec.conditions();
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

    async fn try_complete(&self, id: &str, parts: CompletedMultipartUpload) -> Result<StoredObject, Failure> {
        let spec = &self.spec;
        let (if_none_match, if_match) = spec.conditions();
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

    async fn try_abort(&self, id: &str) -> Result<(), Failure> {
        let spec = &self.spec;
        let request =
            self.client.sdk().abort_multipart_upload().bucket(&spec.bucket).key(&spec.key).upload_id(id).send();
        self.client.send(&spec.bucket, &spec.key, SMALL_REQUEST_TIMEOUT, request).await.map(drop)
    }

    /// A reply of success without what it must carry.
    fn no_result(&self) -> Failure {
        self.client.no_result(&self.spec.bucket, &self.spec.key)
    }

    /// Decides what a failure to publish means, where an earlier try may have taken effect: looks at the object.
    ///
    /// It is ours when its metadata names this very attempt and its size is what was sent.
    async fn settle(&self, failure: Failure, num_bytes: u64) -> Result<StoredObject> {
        let stopped = matches!(failure.error.kind(), ErrorKind::Cancelled | ErrorKind::Shutdown);
        if stopped || !(failure.ambiguous || failure.is("NoSuchUpload")) {
            return Err(failure.error);
        }
        let tries = self.tries(Duration::ZERO);
        let spec = &self.spec;
        match tries.run(|| head(&self.client, &spec.bucket, &spec.key)).await {
            Ok(found) if spec.owner.wrote(&found.metadata) && found.bytes == num_bytes => {
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

#[cfg(test)]
mod tests;
