//! One object of a run in S3.
//!
//! Owns the order of requests that make it visible or forget it. Does not own which bytes are which part, nor the single
//! requests: see `requests`.
//!
//! Bodies are in memory and go out with a `Content-Length`, never `aws-chunked`: many S3-compatible services refuse
//! that. Over HTTPS the signature leaves the body out, since TLS already protects it; over plain HTTP it is hashed.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::classify::is_denied;
use super::client::S3Client;
use super::key::uri;
use super::metadata::Ownership;
use super::object::{ObjectSink, PartNumber, StoredObject, UploadedPart};
use super::requests::Requests;
use super::retry::{RetryPolicy, Tries};
use super::upload::LazyUpload;
use crate::config::export::{DestinationConfig, Encryption};
use crate::config::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::progress::Progress;
use crate::stop::Stop;

/// The longest that an abort may take, whatever the store does.
pub const ABORT_DEADLINE: Duration = Duration::from_secs(30);

/// How long a request that makes the object visible may go on after an order to stop: its outcome should be known.
pub(super) const PUBLISH_GRACE: Duration = Duration::from_secs(5);

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

/// What came of an abort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aborted {
    /// There was no upload.
    Nothing,
    /// The upload is gone.
    Done,
    /// The credentials may not abort it; the upload with this id is left over.
    Denied(String),
}

/// One object under construction.
#[derive(Debug)]
pub struct S3Object {
    requests: Arc<Requests>,
    upload: LazyUpload,
    parts: Mutex<BTreeMap<PartNumber, Part>>,
    abort_deadline: Duration,
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
        let requests =
            Arc::new(Requests { client, spec, policy, stop, progress, unconditional: AtomicBool::new(false) });
        Self { requests, upload: LazyUpload::default(), parts: Mutex::default(), abort_deadline: ABORT_DEADLINE }
    }

    /// The same, with an upload that an earlier attempt left open: for aborting it.
    #[must_use]
    pub fn with_upload(self, upload_id: &str) -> Self {
        Self { upload: LazyUpload::existing(upload_id), ..self }
    }

    /// What the object is.
    #[must_use]
    pub fn spec(&self) -> &ObjectSpec {
        &self.requests.spec
    }

    async fn upload_id(&self) -> Result<Arc<str>> {
        let requests = Arc::clone(&self.requests);
        let create = async move {
            let upload_id = requests.create().await?;
            requests.progress.upload_opened(Arc::from(upload_id.as_str()));
            Ok(upload_id)
        };
        self.upload.id(move || create.boxed()).await
    }

    /// Forgets the upload: it is complete or aborted.
    fn forget_upload(&self, upload_id: &str) {
        self.upload.forget();
        self.requests.progress.upload_closed(upload_id);
    }

    async fn put_once(&self, body: Bytes) -> Result<StoredObject> {
        let requests = &self.requests;
        let num_bytes = body.len() as u64;
        let publish = || requests.tries(PUBLISH_GRACE);
        let mut outcome = publish().run(|| requests.try_put(body.clone())).await;
        if outcome.as_ref().is_err_and(|failure| requests.give_up_conditions(failure)) {
            outcome = publish().run(|| requests.try_put(body.clone())).await;
        }
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
        let publish = || requests.tries(PUBLISH_GRACE);
        let mut outcome = publish().run(|| requests.try_complete(&upload_id, parts.clone())).await;
        if outcome.as_ref().is_err_and(|failure| requests.give_up_conditions(failure)) {
            outcome = publish().run(|| requests.try_complete(&upload_id, parts.clone())).await;
        }
        let stored = match outcome {
            Ok(stored) => stored,
            Err(failure) => requests.settle(failure, num_bytes).await.map_err(doing)?,
        };
        self.forget_upload(&upload_id);
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

    /// Aborts like [`abort`](ObjectSink::abort), and tells what came of it.
    ///
    /// # Errors
    /// Whatever kept the store from answering, and the deadline.
    pub async fn abort_upload(&self) -> Result<Aborted> {
        let late = || Error::new(ErrorKind::DestinationUnavailable, "the store did not answer in time");
        let outcome = tokio::time::timeout(self.abort_deadline, self.abort_once()).await;
        outcome.unwrap_or_else(|_| Err(late())).map_err(|error| self.requests.doing("abort the upload of", error))
    }

    async fn abort_once(&self) -> Result<Aborted> {
        let Some(upload_id) = self.upload.created().await else {
            return Ok(Aborted::Nothing);
        };
        let requests = &self.requests;
        let never = Stop::new();
        let tries = Tries { policy: RetryPolicy::CLEAN_UP, stop: &never, ..requests.tries(Duration::ZERO) };
        let aborted = match tries.run(|| requests.try_abort(&upload_id)).await {
            Ok(()) => Aborted::Done,
            Err(failure) if failure.error.kind() == ErrorKind::NotFound || failure.is("NoSuchUpload") => Aborted::Done,
            Err(failure) if is_denied(&failure.error) => Aborted::Denied(upload_id.to_string()),
            Err(failure) => return Err(failure.error.context(format!("upload id {upload_id}"))),
        };
        self.forget_upload(&upload_id);
        Ok(aborted)
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
            if let Aborted::Denied(upload_id) = self.abort_upload().await? {
                tracing::warn!(
                    uri = self.spec().uri(),
                    upload_id,
                    "the credentials may not abort uploads, so this one is left over; \
                     give them s3:AbortMultipartUpload, or the bucket a lifecycle rule for incomplete uploads"
                );
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
