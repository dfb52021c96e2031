//! The object that a run writes, as the pipeline sees it.

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::error::Result;

/// The number of a part, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartNumber(u32);

impl PartNumber {
    /// The first part's number.
    pub const FIRST: Self = Self(1);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The number as S3 takes it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PartNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A part that the store has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// The part's number.
    pub number: PartNumber,
    /// What the store calls its content; opaque, never compared with a digest.
    pub etag: String,
}

/// An object that became visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// The store's name for this content, opaque.
    pub etag: Option<String>,
}

/// One object under construction. It becomes visible whole, by [`put`](Self::put) or [`complete`](Self::complete), or
/// not at all.
///
/// # Invariants
/// Either `put` is called once, or `upload_part` for parts 1..n and then `complete` once. The upload is created by the
/// first `upload_part`, so an object of one part never needs one.
///
/// # Errors
/// Every method retries in place what a retry may mend; what it returns is final for this attempt.
pub trait ObjectSink: Send + Sync + fmt::Debug {
    /// Writes the whole object by one request.
    fn put(&self, body: Bytes) -> BoxFuture<'_, Result<StoredObject>>;

    /// Uploads one part; parts may be uploaded at once and in any order.
    fn upload_part(&self, number: PartNumber, body: Bytes) -> BoxFuture<'_, Result<UploadedPart>>;

    /// Makes the object of all its parts, given in ascending order.
    fn complete(&self, parts: Vec<UploadedPart>) -> BoxFuture<'_, Result<StoredObject>>;

    /// Forgets everything uploaded, inside a deadline of its own; does nothing when there is nothing.
    fn abort(&self) -> BoxFuture<'_, Result<()>>;
}
