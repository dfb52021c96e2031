//! Who does the work, and what becomes of a job after an attempt.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff;
use crate::dead_letter::DeadLetters;
use crate::error::ProviderError;
use crate::job::{Job, JobId};
use crate::observer::{Execution, NoObserver, Observer};
use crate::recent::Recent;

/// How long an attempt may take.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// How long putting a job among the dead may take.
const BURY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a job waits that could not be put among the dead.
const DEAD_LETTER_PAUSE: Duration = Duration::from_secs(60);

/// How long a job waits that is at work already, from another provider or because it was sent twice.
const TWIN_PAUSE: Duration = Duration::from_secs(1);

/// How many jobs that are gone are remembered, so that the same job from two providers runs once.
const REMEMBERED: usize = 10_000;

/// Does the work of all jobs with one name.
pub trait Handler: Send + Sync {
    /// Does it once. A job may come again after it was done: the work must bear that.
    ///
    /// # Errors
    /// Whatever kept it from being done.
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Why an attempt was in vain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Backoff,
    After(Duration),
    NotBefore(Duration),
    NotYet(Duration),
    Never,
}

impl Failure {
    /// One that may pass: the job is tried again, later and later.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::Backoff }
    }

    /// One that stays: the job joins the dead at once.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::Never }
    }

    /// What the work needs isn't there, and nothing of it was tried: that is no attempt, and the job comes again after this
    /// time, as often as it takes.
    pub fn not_yet(message: impl Into<String>, delay: Duration) -> Self {
        Self { message: message.into(), retry: Retry::NotYet(delay) }
    }

    /// Tried again after this time, instead of the usual.
    #[must_use]
    pub fn retry_after(self, delay: Duration) -> Self {
        Self { retry: Retry::After(delay), ..self }
    }

    /// Not tried again before this time has passed, nor sooner than usual.
    #[must_use]
    pub fn not_before(self, delay: Duration) -> Self {
        Self { retry: Retry::NotBefore(delay), ..self }
    }
}

/// What becomes of a job after an attempt; its provider does it.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is done, or among the dead: the provider deletes it.
    Gone,
    /// It takes the place of the job that was handled.
    Again(Box<Job>),
}

/// What is done with jobs that are claimed.
pub trait Work: Send + Sync + fmt::Debug {
    /// Does it with one job, and never fails: what went wrong is part of the verdict.
    fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict>;

    /// Puts a job among the dead; when that can't be done now, the job stays.
    fn bury(&self, job: Job) -> BoxFuture<'_, Verdict>;
}

/// Hands jobs to their handlers.
pub struct Dispatcher {
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    dead: Arc<dyn DeadLetters>,
    observer: Arc<dyn Observer>,
    seen: Mutex<Seen>,
}

/// Jobs that this process knows.
struct Seen {
    done: Recent<JobId>,
    at_work: HashSet<JobId>,
}

/// A job at work; dropping it says that it isn't any more.
struct AtWork<'a> {
    seen: &'a Mutex<Seen>,
    id: JobId,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        lock(self.seen).at_work.remove(&self.id);
    }
}

impl Dispatcher {
    /// A dispatcher without handlers, whose dead go to `dead`.
    #[must_use]
    pub fn new(dead: Arc<dyn DeadLetters>) -> Self {
        let seen = Mutex::new(Seen { done: Recent::new(REMEMBERED), at_work: HashSet::new() });
        let observer = Arc::new(NoObserver);
        Self { handlers: BTreeMap::new(), dead, observer, seen }
    }

    /// Gives all jobs with this name to `handler`.
    #[must_use]
    pub fn with_handler(mut self, name: &str, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(name.to_owned(), handler);
        self
    }

    /// Reports every attempt to `observer`.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// A handler's panic and delay are failures of that job alone.
    async fn attempt_once(&self, job: Job) -> Verdict {
        let id = job.id;
        if lock(&self.seen).done.contains(&id) {
            tracing::info!(job = %id, name = job.name, "the job was done before and came again");
            return Verdict::Gone;
        }
        if !lock(&self.seen).at_work.insert(id) {
            tracing::info!(job = %id, name = job.name, "the job is at work and came again");
            return Verdict::Again(Box::new(later(job, TWIN_PAUSE)));
        }
        let _at_work = AtWork { seen: &self.seen, id };
        let (name, began) = (self.known_name(&job.name), Instant::now());
        let outcome = self.try_once(&job).await;
        let took = began.elapsed();
        let (verdict, end) = match outcome {
            Ok(()) => (Verdict::Gone, Execution::Done),
            Err(failure) => match self.failed(job, failure).await {
                Verdict::Gone => (Verdict::Gone, Execution::Died),
                again @ Verdict::Again(_) => (again, Execution::Failed),
            },
        };
        self.observer.executed(name, end, took);
        if verdict == Verdict::Gone {
            lock(&self.seen).done.insert(id);
        }
        verdict
    }

    /// The name for metrics, of which there are as many as handlers.
    fn known_name(&self, name: &str) -> &str {
        self.handlers.get_key_value(name).map_or("unknown", |(name, _)| name)
    }

    async fn bury_once(&self, job: Job) -> Verdict {
        let id = job.id;
        let late = |_| Err(ProviderError::new("dead letters", format!("did not answer within {BURY_TIMEOUT:?}")));
        match tokio::time::timeout(BURY_TIMEOUT, self.dead.bury(&job)).await.unwrap_or_else(late) {
            Ok(()) => {
                tracing::error!(job = %id, name = job.name, error = job.last_error, "the job joins the dead letters");
                Verdict::Gone
            }
            Err(error) => {
                tracing::warn!(job = %id, %error, "the job can't be put among the dead letters yet");
                Verdict::Again(Box::new(later(job, DEAD_LETTER_PAUSE)))
            }
        }
    }

    async fn try_once(&self, job: &Job) -> Result<(), Failure> {
        let handler = self.handlers.get(&job.name);
        let handler =
            Arc::clone(handler.ok_or_else(|| Failure::new(format!("nobody handles jobs named `{}`", job.name)))?);
        let owned = job.clone();
        // In a task of its own, so that its panic isn't ours; it ends with this attempt.
        let task = AbortOnDropHandle::new(tokio::spawn(async move { handler.handle(&owned).await }));
        match tokio::time::timeout(TIME_LIMIT, task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(Failure::new(format!("the handler panicked: {error}"))),
            Err(_late) => Err(Failure::new(format!("the handler did not end within {TIME_LIMIT:?}"))),
        }
    }

    async fn failed(&self, job: Job, failure: Failure) -> Verdict {
        let attempts = job.attempts.saturating_add(u16::from(!matches!(failure.retry, Retry::NotYet(_))));
        tracing::warn!(job = %job.id, name = job.name, attempts, error = failure.message, "an attempt failed");
        // Not every provider keeps the character 0.
        let job = Job { attempts, last_error: Some(failure.message.replace('\0', "")), ..job };
        let pause = match failure.retry {
            Retry::Never => return self.bury_once(job).await,
            Retry::NotYet(delay) => delay,
            _ if attempts >= job.max_attempts => return self.bury_once(job).await,
            Retry::After(delay) => delay,
            Retry::NotBefore(delay) => delay.max(backoff::delay(attempts)),
            Retry::Backoff => backoff::delay(attempts),
        };
        Verdict::Again(Box::new(later(job, pause)))
    }
}

fn later(job: Job, pause: Duration) -> Job {
    let run_at = Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX);
    job.run_at(run_at)
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work for Dispatcher {
    fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict> {
        Box::pin(self.attempt_once(job))
    }

    fn bury(&self, job: Job) -> BoxFuture<'_, Verdict> {
        Box::pin(self.bury_once(job))
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Dispatcher").field("names", &self.handlers.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use serde_json::json;

    use super::*;
    use crate::dead_letter::{DeadLetter, StoredDeadLetters};

    struct Endless;

    impl Handler for Endless {
        fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
            std::future::pending().boxed()
        }
    }

    /// Fails as it was told.
    struct Fails(Failure);

    impl Handler for Fails {
        fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
            std::future::ready(Err(self.0.clone())).boxed()
        }
    }

    /// Keeps nothing.
    #[derive(Debug)]
    struct Broken;

    impl DeadLetters for Broken {
        fn bury<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Result<(), ProviderError>> {
            std::future::ready(Err(ProviderError::new("dead letters", "are full"))).boxed()
        }

        fn list(&self, _: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, ProviderError>> {
            std::future::ready(Ok(Vec::new())).boxed()
        }

        fn get(&self, _: JobId) -> BoxFuture<'_, Result<Option<DeadLetter>, ProviderError>> {
            std::future::ready(Ok(None)).boxed()
        }

        fn remove(&self, _: JobId) -> BoxFuture<'_, Result<(), ProviderError>> {
            std::future::ready(Ok(())).boxed()
        }
    }

    /// What becomes of a job that fails so: how many attempts it has behind it, and in how many seconds it comes again.
    async fn after(failure: Failure, job: Job) -> Option<(u16, f64)> {
        let dispatcher = Dispatcher::new(Arc::new(Broken)).with_handler("fails", Arc::new(Fails(failure)));
        match dispatcher.attempt(job).await {
            Verdict::Again(job) => Some((job.attempts, Timestamp::now().duration_until(job.run_at).as_secs_f64())),
            Verdict::Gone => None,
        }
    }

    #[tokio::test]
    async fn a_failure_says_when_the_job_comes_again() {
        let job = || Job { attempts: 4, ..Job::new("fails", json!(1)).expect("a job") };
        let usual = 100.0..190.0;
        let (attempts, pause) = after(Failure::new("in vain"), job()).await.expect("again");
        assert!(attempts == 5 && usual.contains(&pause), "{attempts} {pause}");
        let soon = Failure::new("in vain").not_before(Duration::ZERO);
        let (attempts, pause) = after(soon, job()).await.expect("again");
        assert!(attempts == 5 && usual.contains(&pause), "who is asked to wait is not called more often: {pause}");
        let (_, pause) =
            after(Failure::new("in vain").not_before(Duration::from_secs(900)), job()).await.expect("again");
        assert!((890.0..901.0).contains(&pause), "{pause}");
        let last = Job { attempts: 25, ..job() };
        let (attempts, pause) =
            after(Failure::not_yet("away", Duration::from_secs(60)), last).await.expect("again, however often");
        assert!(attempts == 25 && (59.0..61.0).contains(&pause), "{attempts} {pause}");
    }

    #[tokio::test]
    async fn a_job_that_cannot_be_put_among_the_dead_stays() {
        let job = Job::new("fails", json!(1)).expect("a job");
        let (_, pause) = after(Failure::fatal("hopeless"), job).await.expect("it stays");
        assert!((58.0..61.0).contains(&pause), "{pause}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_an_end_is_in_vain() {
        let dead = Arc::new(StoredDeadLetters::new(Arc::new(InMemory::new()), Path::default()));
        let dispatcher = Dispatcher::new(dead).with_handler("endless", Arc::new(Endless));
        let verdict = dispatcher.attempt(Job::new("endless", json!(1)).expect("a job")).await;
        let Verdict::Again(job) = verdict else { panic!("it is to be tried again") };
        assert_eq!((job.attempts, job.last_error.as_deref()), (1, Some("the handler did not end within 300s")));
    }
}
