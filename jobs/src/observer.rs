//! Where the queue reports what it does, for metrics.

use std::fmt;
use std::time::Duration;

/// How an attempt at a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// It is done.
    Done,
    /// It was in vain, and comes again.
    Failed,
    /// It was in vain, and was the last: the job is among the dead.
    Died,
}

impl Execution {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Died => "died",
        }
    }
}

/// Hears of every job of this process. Calls are short and never block.
pub trait Observer: Send + Sync + fmt::Debug {
    /// A provider was asked to take jobs; `outcome` is `accepted` or the name of the error.
    fn enqueued(&self, provider: &str, outcome: &'static str, took: Duration);

    /// `to` took jobs that `from` should have; `reason` is the name of the error.
    fn failed_over(&self, from: &str, to: &str, reason: &'static str);

    /// An attempt at a job has ended.
    fn executed(&self, job: &str, end: Execution, took: Duration);

    /// So many jobs of memory were kept by `to` when the process ended.
    fn flushed(&self, to: &str, jobs: usize);
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn enqueued(&self, _: &str, _: &'static str, _: Duration) {}
    fn failed_over(&self, _: &str, _: &str, _: &'static str) {}
    fn executed(&self, _: &str, _: Execution, _: Duration) {}
    fn flushed(&self, _: &str, _: usize) {}
}
