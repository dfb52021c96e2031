//! The next occurrences of jobs that repeat.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::handler::{Verdict, Work};
use crate::job::Job;
use crate::provider::Durability;
use crate::queue::Queue;

/// How long a job waits whose next occurrence nobody takes.
const PAUSE: Duration = Duration::from_secs(5);

/// Puts the next occurrence of a job that repeats into the queue, before this one is attempted: whatever becomes of it, the
/// next one is there. It has the same id however often that happens.
#[derive(Debug)]
pub struct Repeating {
    work: Arc<dyn Work>,
    queue: Queue,
}

impl Repeating {
    /// Has the jobs themselves done by `work`.
    #[must_use]
    pub fn new(work: Arc<dyn Work>, queue: Queue) -> Self {
        Self { work, queue }
    }

    async fn attempt_once(&self, job: Job) -> Verdict {
        // A clock that is ahead of ours may have handed it out: the next one comes after this one all the same.
        match job.occurrence(Timestamp::now().max(job.run_at)) {
            Ok(None) => {}
            Ok(Some(next)) => {
                if let Err(error) = self.queue.enqueue(&[next], Durability::Persistent).await {
                    tracing::warn!(job = %job.id, name = job.name, %error, "the next occurrence of a job must wait");
                    let run_at = Timestamp::now().checked_add(PAUSE).unwrap_or(Timestamp::MAX);
                    return Verdict::Again(Box::new(job.run_at(run_at)));
                }
            }
            Err(error) => tracing::error!(job = %job.id, name = job.name, %error, "the job doesn't come again"),
        }
        self.work.attempt(job).await
    }
}

impl Work for Repeating {
    fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict> {
        self.attempt_once(job).boxed()
    }

    fn bury(&self, job: Job) -> BoxFuture<'_, Verdict> {
        self.work.bury(job)
    }
}
