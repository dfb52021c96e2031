//! The end of a queue in good order: what is in memory goes where it survives.

use crate::batches::first_batch;
use crate::job::Job;
use crate::provider::Durability;
use crate::queue::Queue;
use crate::spool::{Spool, SpoolError};

impl Queue {
    /// Begins the end, while jobs at work go on: those that wait in memory are kept in the first provider that takes them, else
    /// in `spool`. Returns at once; [`close`](Self::close) waits for it, and keeps what comes into memory meanwhile.
    pub fn wind_up(&self, spool: &Spool) {
        let jobs = self.tiers().iter().flat_map(|tier| tier.provider.take_waiting()).collect::<Vec<_>>();
        let (queue, spool) = (self.clone(), spool.clone());
        self.tasks().spawn(async move {
            if let Err(error) = queue.keep(&jobs, &spool).await {
                tracing::error!(%error, "jobs that waited in memory are lost");
            }
        });
    }

    /// Ends in good order, when the consumer has stopped: waits for the jobs on their way, and keeps all that would end with
    /// the process.
    ///
    /// # Errors
    /// When jobs are lost: nobody took them, and they could not be written either.
    pub async fn close(&self, spool: &Spool) -> Result<(), SpoolError> {
        self.tasks().close();
        self.tasks().wait().await;
        let jobs = self.tiers().iter().flat_map(|tier| tier.provider.take_all()).collect::<Vec<_>>();
        self.keep(&jobs, spool).await
    }

    /// Gives jobs to the providers that take such, batch by batch. One that fails is not asked again.
    async fn keep(&self, jobs: &[Job], spool: &Spool) -> Result<(), SpoolError> {
        let mut rest = jobs;
        for tier in self.tiers().iter().filter(|tier| tier.provider.capabilities().accepts_recovery_flush) {
            let num_before = rest.len();
            while !rest.is_empty() {
                let batch = first_batch(rest);
                if self.ask(tier, batch, Durability::Persistent).await.is_err() {
                    break;
                }
                rest = &rest[batch.len()..];
            }
            self.note_flush(tier.name(), num_before - rest.len());
        }
        if !rest.is_empty() {
            spool.write(rest).await?;
            self.note_flush("spool", rest.len());
        }
        Ok(())
    }

    fn note_flush(&self, to: &str, num_jobs: usize) {
        if num_jobs > 0 {
            tracing::info!(to, jobs = num_jobs, "jobs in memory are kept there");
            self.observer().flushed(to, num_jobs);
        }
    }
}
