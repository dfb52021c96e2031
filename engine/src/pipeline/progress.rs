//! What a run has done so far, readable from outside while it works.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::budget::ByteBudget;

/// How many open uploads are remembered, the newest: heartbeats carry them, and must stay small.
const MAX_OPEN_UPLOADS: usize = 16;

/// Counters and gauges of one attempt: liveness and progress, never correctness. The counters only grow.
#[derive(Debug, Default)]
pub struct Progress {
    rows_read: AtomicU64,
    rows_left_out: AtomicU64,
    rows_failed: AtomicU64,
    source_bytes: AtomicU64,
    rows_written: AtomicU64,
    bytes_written: AtomicU64,
    parts_written: AtomicU64,
    retries: AtomicU64,
    queued_blocks: AtomicU64,
    open_uploads: watch::Sender<Vec<Arc<str>>>,
    budget: OnceLock<ByteBudget>,
}

/// One look at [`Progress`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProgressSnapshot {
    /// Rows decoded from the source.
    pub rows_read: u64,
    /// Rows that a plugin left out.
    #[serde(default)]
    pub rows_left_out: u64,
    /// Rows that a plugin failed on.
    #[serde(default)]
    pub rows_failed: u64,
    /// Bytes received from the source.
    pub source_bytes: u64,
    /// Rows whose bytes the destination has acknowledged, as far as whole parts tell.
    pub rows_written: u64,
    /// Bytes that the destination has acknowledged.
    pub bytes_written: u64,
    /// Parts that the destination has acknowledged.
    pub parts_written: u64,
    /// Requests to the destination that were tried again.
    pub retries: u64,
    /// Blocks in the queue now.
    #[serde(default)]
    pub queued_blocks: u64,
    /// Bytes held now of the source and of what is being encoded, in the reader, the queue and the consumers' hands.
    #[serde(default)]
    pub held_bytes: u64,
}

impl Progress {
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counters at zero, and the uploads that earlier attempts had open when they were last heard of: the run aborts them
    /// before anything else.
    #[must_use]
    pub fn with_leftovers<'a>(upload_ids: impl IntoIterator<Item = &'a str>) -> Self {
        Self { open_uploads: watch::Sender::new(upload_ids.into_iter().map(Arc::from).collect()), ..Self::default() }
    }

    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            rows_read: self.rows_read.load(Ordering::Relaxed),
            rows_left_out: self.rows_left_out.load(Ordering::Relaxed),
            rows_failed: self.rows_failed.load(Ordering::Relaxed),
            source_bytes: self.source_bytes.load(Ordering::Relaxed),
            rows_written: self.rows_written.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            parts_written: self.parts_written.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            queued_blocks: self.queued_blocks.load(Ordering::Relaxed),
            held_bytes: self.budget.get().map_or(0, ByteBudget::held),
        }
    }

    /// The uploads that are open now, oldest first, and every change of them: whoever comes after a killed process can
    /// abort them then. Besides the run's own these are the ones of earlier attempts that could not be aborted.
    #[must_use]
    pub fn open_uploads(&self) -> watch::Receiver<Vec<Arc<str>>> {
        self.open_uploads.subscribe()
    }

    /// Notes an upload that is open now.
    pub(crate) fn upload_opened(&self, upload_id: Arc<str>) {
        self.open_uploads.send_modify(|open| {
            open.push(upload_id);
            let too_many = open.len().saturating_sub(MAX_OPEN_UPLOADS);
            open.drain(..too_many);
        });
    }

    /// Notes that an upload is complete or aborted.
    pub(crate) fn upload_closed(&self, upload_id: &str) {
        self.open_uploads.send_modify(|open| open.retain(|id| **id != *upload_id));
    }

    pub(crate) fn add_read(&self, rows: u64, bytes: u64) {
        self.rows_read.fetch_add(rows, Ordering::Relaxed);
        self.source_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_transformed(&self, rows_left_out: u64, rows_failed: u64) {
        self.rows_left_out.fetch_add(rows_left_out, Ordering::Relaxed);
        self.rows_failed.fetch_add(rows_failed, Ordering::Relaxed);
    }

    pub(crate) fn add_part(&self, rows: u64, bytes: u64) {
        self.rows_written.fetch_add(rows, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.parts_written.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one request that is tried again.
    pub(crate) fn add_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn watch_budget(&self, budget: &ByteBudget) {
        self.budget.get_or_init(|| budget.clone());
    }

    pub(crate) fn block_queued(&self) {
        self.queued_blocks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn block_taken(&self) {
        self.queued_blocks.fetch_sub(1, Ordering::Relaxed);
    }
}
