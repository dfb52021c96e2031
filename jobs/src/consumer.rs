//! The loop that takes due jobs from a provider, has them handled, and settles what became of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::error::ProviderError;
use crate::flow::{Flow, Level};
use crate::handler::{Verdict, Work};
use crate::job::Job;

/// The wait after a failure of the provider, at first and at most.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Who handles a provider's jobs, how many at once, and until when.
#[derive(Debug, Clone)]
pub struct Consumer {
    /// What is done with jobs.
    pub work: Arc<dyn Work>,
    /// Which jobs it takes.
    pub(crate) takes: Takes,
    /// The jobs in hand, which this adds to.
    pub flow: Flow,
    /// How many jobs are at work at once. At least 1.
    pub concurrency: usize,
    /// The order to stop: no new jobs, and those at work end.
    pub stop: CancellationToken,
    /// How long jobs at work may take after the order to stop. Then they are left to be handled again.
    pub grace: Duration,
}

/// Which jobs a consumer takes: the queue says so, provider by provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Those that are due.
    Due,
    /// Those that are due, but for those of serial queues, which run elsewhere.
    DueWithoutQueue,
    /// All, as if they were due: for moving them elsewhere.
    Everything,
}

impl Consumer {
    /// A consumer of all jobs that are due.
    #[must_use]
    pub fn new(work: Arc<dyn Work>, flow: Flow, concurrency: usize, stop: CancellationToken, grace: Duration) -> Self {
        Self { work, takes: Takes::Due, flow, concurrency, stop, grace }
    }
}

/// Jobs that can be claimed and settled one by one.
pub(crate) trait Claims: Send + Sync {
    /// Claims up to `room` jobs that are due at `now`, in their order: at most one of each queue, and none of a queue of which
    /// a job is claimed.
    fn claim(&self, room: usize, now: Timestamp) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>>;

    /// Does what became of a claimed job.
    fn settle<'a>(&'a self, job: &'a Job, verdict: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>>;

    /// Ends when there may be something to claim that there wasn't at the last look.
    fn worth_a_look(&self, last: Timestamp) -> BoxFuture<'_, ()>;
}

/// Handles the jobs of `claims` until the order to stop.
///
/// # Invariants
/// One look at a time. Whatever fails is tried again, later and later, until the order to stop.
///
/// # Cancel safety
/// Dropping the future leaves the jobs at work claimed; their provider says when they come again.
pub(crate) async fn consume(claims: &dyn Claims, consumer: &Consumer) {
    let mut at_work = FuturesUnordered::new();
    let mut levels = consumer.flow.levels();
    let mut pause = MIN_PAUSE;
    while !consumer.stop.is_cancelled() {
        let level = *levels.borrow_and_update();
        let room = room(consumer.concurrency, at_work.len(), level);
        let now = if consumer.takes == Takes::Everything { Timestamp::MAX } else { Timestamp::now() };
        let mut failed = false;
        let mut found = 0;
        if room > 0 {
            let mut claiming = claims.claim(room, now);
            let claimed = loop {
                tokio::select! {
                    claimed = &mut claiming => break claimed,
                    // What ends meanwhile is settled, however long the provider takes.
                    Some(()) = at_work.next() => {}
                }
            };
            match claimed {
                Ok(jobs) => {
                    found = jobs.len();
                    pause = MIN_PAUSE;
                    at_work.extend(jobs.into_iter().map(|job| work(claims, consumer, job)));
                }
                Err(error) => {
                    tracing::warn!(%error, ?pause, "no jobs can be read; trying again");
                    failed = true;
                }
            }
        }
        tokio::select! {
            () = consumer.stop.cancelled() => {}
            Some(()) = at_work.next() => {}
            _ = levels.changed() => {}
            () = tokio::time::sleep(pause), if failed => pause = (pause * 2).min(MAX_PAUSE),
            // Others may have ended while so many were claimed as there was room for: more may wait.
            () = std::future::ready(()), if found == room && self::room(consumer.concurrency, at_work.len(), level) > 0 => {}
            // What was found leaves more behind only when there was no room for it.
            () = claims.worth_a_look(now), if room > found && !failed => {}
        }
    }
    let ending = async { while at_work.next().await.is_some() {} };
    if tokio::time::timeout(consumer.grace, ending).await.is_err() {
        tracing::warn!(grace = ?consumer.grace, "jobs at work did not end in time; they will be handled again");
    }
}

fn room(concurrency: usize, at_work: usize, level: Level) -> usize {
    match level {
        Level::Run => concurrency.saturating_sub(at_work),
        Level::Slow => usize::from(at_work == 0),
        Level::Pause | Level::Stop => 0,
    }
}

/// Has one job handled and settled.
async fn work(claims: &dyn Claims, consumer: &Consumer, job: Job) {
    let _in_hand = consumer.flow.take(1, job.num_bytes() as u64);
    let verdict = consumer.work.attempt(job.clone()).await;
    let mut pause = MIN_PAUSE;
    while let Err(error) = claims.settle(&job, &verdict).await {
        tracing::warn!(job = %job.id, %error, ?pause, "what became of a job can't be noted; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// The jobs to claim of those that are due, in their order: at most one of each queue, and none of a busy one. Where two of
/// one queue are due, the one that was due first goes first, whatever its priority.
pub(crate) fn select<'a>(
    due: impl IntoIterator<Item = &'a Job>,
    room: usize,
    mut busy: HashSet<&'a str>,
) -> Vec<&'a Job> {
    let mut due = due.into_iter().collect::<Vec<_>>();
    due.sort_by_key(|job| (job.run_at, job.id));
    due.retain(|job| job.queue.as_deref().is_none_or(|queue| busy.insert(queue)));
    due.sort_by_key(|job| job.order());
    due.truncate(room);
    due
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use futures::FutureExt as _;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    fn job(name: &str, second: i64, priority: i16, queue: Option<&str>) -> Job {
        let job = Job::new(name, json!(null)).expect("a job").with_priority(priority);
        let job = job.run_at(Timestamp::from_second(second).expect("a time"));
        match queue {
            Some(queue) => job.in_queue(queue).expect("a queue"),
            None => job,
        }
    }

    /// Takes a second for each claim, and hands out jobs in their order.
    #[derive(Default)]
    struct SlowClaims(Mutex<VecDeque<Job>>);

    impl Claims for SlowClaims {
        fn claim(&self, room: usize, _: Timestamp) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let mut jobs = self.0.lock().expect("free");
                let found = room.min(jobs.len());
                Ok(jobs.drain(..found).collect())
            }
            .boxed()
        }

        fn settle<'a>(&'a self, _: &'a Job, _: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>> {
            std::future::ready(Ok(())).boxed()
        }

        fn worth_a_look(&self, _: Timestamp) -> BoxFuture<'_, ()> {
            tokio::time::sleep(Duration::from_secs(1)).boxed()
        }
    }

    /// Each job takes as many milliseconds as its payload says.
    #[derive(Debug)]
    struct Sleeps(mpsc::UnboundedSender<String>);

    impl Work for Sleeps {
        fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict> {
            async move {
                self.0.send(job.name.clone()).expect("somebody listens");
                tokio::time::sleep(Duration::from_millis(job.payload.as_u64().expect("a number"))).await;
                Verdict::Gone
            }
            .boxed()
        }

        fn bury(&self, _: Job) -> BoxFuture<'_, Verdict> {
            std::future::ready(Verdict::Gone).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hands_that_come_free_during_a_claim_are_used() {
        // Of two hands one is busy when the second job is claimed, and free when the claim answers.
        let millis = [("short", 1_500), ("long", 10_000_000), ("next", 1)];
        let jobs = millis.map(|(name, millis)| Job::new(name, json!(millis)).expect("a job"));
        let claims = SlowClaims::default();
        let (begun, mut begins) = mpsc::unbounded_channel();
        let flow = Flow::new(1_000, 1 << 20);
        let consumer = Consumer::new(Arc::new(Sleeps(begun)), flow, 2, CancellationToken::new(), Duration::ZERO);
        claims.0.lock().expect("free").extend(jobs[..1].to_vec());
        let watching = async {
            assert_eq!(begins.recv().await.as_deref(), Some("short"));
            claims.0.lock().expect("free").extend(jobs[1..].to_vec());
            assert_eq!(begins.recv().await.as_deref(), Some("long"));
            tokio::time::timeout(Duration::from_secs(60), begins.recv()).await
        };
        tokio::select! {
            () = consume(&claims, &consumer) => unreachable!("nobody stops it"),
            next = watching => assert_eq!(next.expect("in time").as_deref(), Some("next")),
        }
    }

    #[test]
    fn due_jobs_go_by_priority_and_queues_by_time() {
        let jobs = [
            job("late", 9, 0, None),
            job("urgent", 9, -5, None),
            job("second of q", 2, -9, Some("q")),
            job("first of q", 1, 5, Some("q")),
            job("of busy", 1, 0, Some("busy")),
        ];
        let names =
            |room| select(&jobs, room, HashSet::from(["busy"])).iter().map(|job| job.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(9), ["urgent", "late", "first of q"]);
        assert_eq!(names(1), ["urgent"]);
    }
}
