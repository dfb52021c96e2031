//! Jobs of a provider that stood in go to a better one: copied, acknowledged, and only then deleted.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::handler::{Verdict, Work};
use crate::job::Job;
use crate::provider::Durability;
use crate::queue::{DEADLINE, Queue};

/// How many jobs are moved at once, and the pause of each: live work goes first.
pub(crate) const MOVES: usize = 4;
const MOVE_PAUSE: Duration = Duration::from_millis(10);

/// Moves each job that it is given.
#[derive(Debug)]
pub(crate) struct Mover {
    pub(crate) queue: Queue,
    pub(crate) from: usize,
    pub(crate) work: Arc<dyn Work>,
}

impl Work for Mover {
    fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict> {
        async move {
            tokio::time::sleep(MOVE_PAUSE).await;
            let jobs = std::slice::from_ref(&job);
            let place = self.queue.places(jobs, self.from).await.iter().find(|tier| tier.is_usable());
            match place {
                Some(tier) if tier.try_enqueue(jobs, Durability::Persistent).await.is_ok() => Verdict::Gone,
                Some(_) => Verdict::Again(Box::new(job)),
                None => {
                    // Older ones of its queue are where nobody can reach them now.
                    tokio::time::sleep(DEADLINE).await;
                    Verdict::Again(Box::new(job))
                }
            }
        }
        .boxed()
    }

    fn bury(&self, job: Job) -> BoxFuture<'_, Verdict> {
        self.work.bury(job)
    }
}
