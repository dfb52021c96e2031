//! What lies under a key already.
//!
//! Owns the one look at the store that tells. Does not own what follows from it: with the reference system's keys two
//! exports may share one, and then the run must not replace the other's object.

use super::classify::{Failure, is_denied};
use super::client::{S3Client, SMALL_REQUEST_TIMEOUT};
use super::key::uri;
use super::metadata::Ownership;
use super::retry::{RetryPolicy, Tries};
use super::s3_object::Precondition;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::progress::Progress;
use crate::stop::Stop;

/// What lies under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// An object.
    Object(ExistingObject),
    /// The credentials may write it but not look at it, which is fine.
    Unreadable,
}

/// An object that lies under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingObject {
    /// The store's name for its content, for an `If-Match`.
    pub etag: Option<String>,
    /// Its size. Unit: bytes.
    pub bytes: u64,
    /// Who wrote it.
    pub writer: Writer,
}

/// Who wrote an object, as far as its metadata tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    /// An export of ours, by its escaped id.
    Export(String),
    /// Somebody else, who left other metadata.
    Foreign,
    /// It has no metadata: another tool's, or the store drops it.
    Unknown,
}

/// Looks at what lies under a key, by one HEAD.
///
/// # Errors
/// What the table says, but a missing or unreadable object is none.
///
/// # Cancel safety
/// May be dropped; it changes nothing.
pub async fn find_existing(
    client: &S3Client,
    bucket: &str,
    key: &str,
    stop: &Stop,
    progress: &Progress,
) -> Result<Existing> {
    let tries = Tries { policy: RetryPolicy::RUN, stop, progress, grace: std::time::Duration::ZERO };
    let outcome = tries.run(|| head(client, bucket, key)).await;
    match outcome {
        Ok(head) => Ok(Existing::Object(ExistingObject {
            etag: head.etag,
            bytes: head.bytes,
            writer: match Ownership::export_id_in(&head.metadata) {
                Some(id) => Writer::Export(id.clone()),
                None if head.metadata.is_empty() => Writer::Unknown,
                None => Writer::Foreign,
            },
        })),
        Err(failure) if failure.error.kind() == ErrorKind::NotFound => Ok(Existing::Nothing),
        Err(failure) if is_denied(&failure.error) => Ok(Existing::Unreadable),
        Err(failure) => Err(failure.error.context(format!("look at {}", uri(bucket, key)))),
    }
}

impl Existing {
    /// What must still hold of the key when our object becomes visible; nothing where we couldn't look.
    #[must_use]
    pub fn precondition(&self) -> Precondition {
        match self {
            Self::Nothing => Precondition::Absent,
            Self::Object(ExistingObject { etag: Some(etag), .. }) => Precondition::Unchanged(etag.clone()),
            Self::Object(_) | Self::Unreadable => Precondition::None,
        }
    }

    /// Refuses to replace what another export, or somebody else, wrote. What can't be told passes: the reference
    /// system's own objects have no metadata, and some stores drop it.
    ///
    /// # Errors
    /// `Config`, with the other export's id.
    pub fn require_replaceable(&self, owner: &Ownership, uri: &str) -> Result<()> {
        let Self::Object(object) = self else { return Ok(()) };
        match &object.writer {
            Writer::Export(id) if owner.is_export(id) => Ok(()),
            Writer::Unknown => {
                tracing::info!(uri, "replaces an object that doesn't say who wrote it");
                Ok(())
            }
            Writer::Export(id) => Err(Error::config(format!(
                "{uri} belongs to the export {id}; give each export a prefix of its own, or use the default key layout"
            ))),
            Writer::Foreign => Err(Error::config(format!(
                "{uri} was not written by batch-export; remove it, or give the export a prefix of its own"
            ))),
        }
    }
}

/// The answer to a HEAD, as far as we use it.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) etag: Option<String>,
    pub(super) bytes: u64,
    pub(super) metadata: std::collections::HashMap<String, String>,
}

/// One try of a HEAD.
pub(super) async fn head(client: &S3Client, bucket: &str, key: &str) -> Result<Head, Failure> {
    let request = client.sdk().head_object().bucket(bucket).key(key).send();
    let reply = client.send(bucket, key, SMALL_REQUEST_TIMEOUT, request).await?;
    Ok(Head {
        etag: reply.e_tag,
        bytes: reply.content_length.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default(),
        metadata: reply.metadata.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::scripted::{Scripted, Step};

    async fn found(step: Step) -> Result<Existing> {
        let server = Scripted::steps(vec![step]).await;
        find_existing(&server.client().await, "bucket", "key", &Stop::new(), &Progress::new()).await
    }

    #[tokio::test]
    async fn missing_and_unreadable_objects_are_no_errors() {
        assert_eq!(found(Step::reply(404, "")).await.expect("is an answer"), Existing::Nothing);
        assert_eq!(found(Step::reply(403, "")).await.expect("is an answer"), Existing::Unreadable);
        let error = found(Step::reply(301, "")).await.expect_err("is somewhere else");
        assert!(error.message().starts_with("look at s3://bucket/key: "), "{error}");
    }

    #[tokio::test]
    async fn the_writer_is_told_by_the_metadata() {
        for (header, writer) in [
            (None, Writer::Unknown),
            (Some(("x-amz-meta-tool", "theirs")), Writer::Foreign),
            (Some(("x-amz-meta-export-id", "export~2F1")), Writer::Export("export~2F1".to_owned())),
        ] {
            let step = Step::etag("e");
            let step = if let Some((name, value)) = header { step.with_header(name, value) } else { step };
            let Existing::Object(object) = found(step).await.expect("is there") else { panic!("an object") };
            assert_eq!((object.writer, object.etag.as_deref()), (writer, Some("\"e\"")));
        }
    }
}
