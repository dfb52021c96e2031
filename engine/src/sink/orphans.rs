//! Uploads that nobody knows any more: of killed processes, and of replies that were lost.

use std::ops::Range;

use aws_sdk_s3::types::MultipartUpload;
use jiff::Timestamp;

use super::classify::{Failure, is_denied};
use super::client::{S3Client, SMALL_REQUEST_TIMEOUT};
use super::key::uri;
use crate::error::{ErrorKind, Result};

/// What became of the uploads to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orphans {
    /// So many were aborted.
    Aborted(usize),
    /// The credentials may not list uploads, or abort them.
    Denied,
}

/// Aborts the uploads to `key` that were opened within `opened`. Whoever calls this knows that none of them is alive.
///
/// # Errors
/// What the table says; a missing bucket or a missing permission is none.
///
/// # Cancel safety
/// May be dropped; what was aborted stays aborted.
pub async fn abort_orphans(client: &S3Client, bucket: &str, key: &str, opened: &Range<Timestamp>) -> Result<Orphans> {
    match try_abort(client, bucket, key, opened).await {
        Ok(aborted) => Ok(Orphans::Aborted(aborted)),
        Err(failure) if failure.error.kind() == ErrorKind::NotFound => Ok(Orphans::Aborted(0)),
        Err(failure) if is_denied(&failure.error) => Ok(Orphans::Denied),
        Err(failure) => Err(failure.error.context(format!("look for uploads to {}", uri(bucket, key)))),
    }
}

async fn try_abort(client: &S3Client, bucket: &str, key: &str, opened: &Range<Timestamp>) -> Result<usize, Failure> {
    let mut aborted = 0;
    let (mut key_marker, mut id_marker) = (None, None);
    loop {
        let request = client.sdk().list_multipart_uploads().bucket(bucket).prefix(key);
        let request = request.set_key_marker(key_marker.take()).set_upload_id_marker(id_marker.take());
        let page = client.send(bucket, key, SMALL_REQUEST_TIMEOUT, request.send()).await?;
        for id in page.uploads().iter().filter(|upload| is_orphan(upload, key, opened)).filter_map(|it| it.upload_id())
        {
            let request = client.sdk().abort_multipart_upload().bucket(bucket).key(key).upload_id(id).send();
            match client.send(bucket, key, SMALL_REQUEST_TIMEOUT, request).await {
                Ok(_) => aborted += 1,
                // Somebody else was faster.
                Err(failure) if failure.is("NoSuchUpload") => {}
                Err(failure) => return Err(failure),
            }
        }
        if page.is_truncated() != Some(true) || page.next_key_marker().is_none_or(|next| next > key) {
            return Ok(aborted);
        }
        key_marker = page.next_key_marker().map(str::to_owned);
        id_marker = page.next_upload_id_marker().map(str::to_owned);
    }
}

/// A prefix finds longer keys as well; and what was opened before or since is another run's. A store that doesn't say when is
/// taken at its word that there is an upload.
fn is_orphan(upload: &MultipartUpload, key: &str, opened: &Range<Timestamp>) -> bool {
    let seconds = opened.start.as_second()..=opened.end.as_second();
    upload.key() == Some(key) && upload.initiated().is_none_or(|at| seconds.contains(&at.secs()))
}
