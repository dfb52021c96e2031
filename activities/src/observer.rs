//! Where the activities report what they do, for metrics.

use std::fmt;
use std::time::Duration;

use engine::error::ErrorKind;
use engine::pipeline::progress::ProgressSnapshot;
use futures::future::BoxFuture;
use jiff::Timestamp;
use runs::RunRecord;
use workflows::contract::RunStatus;

/// How one attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It published.
    Completed,
    /// It failed, or was stopped, for a reason of this kind.
    Failed(ErrorKind),
}

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub struct RunEnd<'a> {
    /// The export.
    pub export_id: &'a str,
    /// How it ended.
    pub status: RunStatus,
    /// The kind of its error.
    pub error_kind: Option<&'a str>,
    /// The first instant after its interval.
    pub interval_end: Timestamp,
    /// From the start of its workflow to now.
    pub took: Duration,
}

/// Hears of every attempt and run of this process. Calls are short and never block.
pub trait RunObserver: Send + Sync + fmt::Debug {
    /// An attempt begins; its pipeline may hold so many bytes.
    fn attempt_started(&self, export_id: &str, memory_bytes: u64);

    /// An attempt has got from one state of its counters and gauges to another; the last one holds nothing any more.
    fn attempt_progressed(&self, export_id: &str, before: &ProgressSnapshot, now: &ProgressSnapshot);

    /// An attempt has ended; pairs with [`attempt_started`](Self::attempt_started).
    fn attempt_ended(&self, export_id: &str, memory_bytes: u64, end: AttemptEnd, took: Duration);

    /// A run has ended, after all its attempts.
    fn run_ended(&self, end: &RunEnd<'_>);

    /// The server has acknowledged a heartbeat, or not.
    fn heartbeat(&self, acknowledged: bool);
}

/// A run that has ended, with its record.
#[derive(Debug, Clone, Copy)]
pub struct RunEnded<'a> {
    /// What is remembered of it.
    pub record: &'a RunRecord,
    /// The execution of the workflow, which is another one each time that an interval is run.
    pub execution_id: &'a str,
}

/// Hears of the end of every run, after it is in the record and until it says that it has.
pub trait RunEnds: Send + Sync + fmt::Debug {
    /// Notes a run's end. It may come more than once, with the same execution.
    ///
    /// # Errors
    /// A sentence, when it could not be noted; then it comes again.
    fn note<'a>(&'a self, end: RunEnded<'a>) -> BoxFuture<'a, Result<(), String>>;
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl RunObserver for NoObserver {
    fn attempt_started(&self, _: &str, _: u64) {}
    fn attempt_progressed(&self, _: &str, _: &ProgressSnapshot, _: &ProgressSnapshot) {}
    fn attempt_ended(&self, _: &str, _: u64, _: AttemptEnd, _: Duration) {}
    fn run_ended(&self, _: &RunEnd<'_>) {}
    fn heartbeat(&self, _: bool) {}
}

impl RunEnds for NoObserver {
    fn note<'a>(&'a self, _: RunEnded<'a>) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
