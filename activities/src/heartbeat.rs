//! The lease of an attempt: heartbeats that the server has acknowledged.
//!
//! Owns the time of the last acknowledgement and the orders that follow from the server's answers. Does not own the
//! stop itself: the attempt and the engine obey it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::pipeline::progress::Progress;
use engine::run::Fence;
use engine::stop::Stop;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use workflows::contract::RunProgress;

use crate::observer::RunObserver;
use crate::task::{Answer, Task};

/// The longest pause between heartbeats: so long a cancellation may take to arrive.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The shortest pause between heartbeats.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// How long the server may take to confirm the right to publish, where no heartbeat timeout says it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);

/// The lease of one attempt.
///
/// # Invariants
/// A lease is counted from the moment its heartbeat was *sent*, and ends after four fifths of the heartbeat timeout: the
/// rest is for killing the query and aborting the upload before the next attempt may start. Once it has ended, the stop
/// is given, and [`confirm`](Fence::confirm) never succeeds again.
pub(crate) struct Lease {
    task: Arc<dyn Task>,
    observer: Arc<dyn RunObserver>,
    attempt: u32,
    rows_seen: u64,
    timeout: Option<Duration>,
    stop: Stop,
    progress: Arc<Progress>,
    acknowledged: Mutex<Instant>,
    cancel_requested: AtomicBool,
}

/// What a lease is made of.
pub(crate) struct LeaseParts {
    /// The way to the server.
    pub(crate) task: Arc<dyn Task>,
    /// Hears of every answer.
    pub(crate) observer: Arc<dyn RunObserver>,
    /// The attempt's number.
    pub(crate) attempt: u32,
    /// The most rows that attempts before it have read.
    pub(crate) rows_seen: u64,
    /// The heartbeat timeout, if the activity has one.
    pub(crate) timeout: Option<Duration>,
    /// The order to stop the attempt.
    pub(crate) stop: Stop,
    /// The attempt's counters.
    pub(crate) progress: Arc<Progress>,
}

impl Lease {
    /// A lease that begins now: the server has just handed out the attempt.
    pub(crate) fn new(parts: LeaseParts) -> Arc<Self> {
        let LeaseParts { task, observer, attempt, rows_seen, timeout, stop, progress } = parts;
        Arc::new(Self {
            task,
            observer,
            attempt,
            rows_seen,
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            stop,
            progress,
            acknowledged: Mutex::new(Instant::now()),
            cancel_requested: AtomicBool::new(false),
        })
    }

    /// Keeps the lease from a task of its own until the returned guard is dropped.
    pub(crate) fn keep(self: &Arc<Self>) -> Keeper {
        let lease = Arc::clone(self);
        Keeper(tokio::spawn(async move {
            tokio::join!(lease.beat_for_ever(), lease.watch());
        }))
    }

    /// Whether the server has said that somebody wants the workflow to stop.
    pub(crate) fn is_cancel_requested(&self) -> bool {
        self.cancel_requested.load(Ordering::Acquire)
    }

    /// The attempt's progress as details.
    pub(crate) fn details(&self) -> RunProgress {
        let now = self.progress.snapshot();
        RunProgress {
            attempt: self.attempt,
            rows_read: now.rows_read,
            rows_written: now.rows_written,
            bytes_written: now.bytes_written,
            parts_written: now.parts_written,
            retries: now.retries,
            rows_seen: self.rows_seen,
            open_uploads: self.progress.open_uploads().borrow().iter().map(|id| id.to_string()).collect(),
        }
    }

    /// Sends one heartbeat and does what the answer asks for.
    pub(crate) async fn beat(&self) -> Answer {
        let sent = Instant::now();
        let answer = self.task.heartbeat(self.details(), self.patience()).await;
        self.observer.heartbeat(!matches!(answer, Answer::Lost | Answer::Unreachable(_)));
        match &answer {
            Answer::Acknowledged => self.acknowledge(sent),
            Answer::CancelRequested => {
                self.acknowledge(sent);
                self.cancel_requested.store(true, Ordering::Release);
                self.stop.cancel();
            }
            Answer::Paused => {
                self.acknowledge(sent);
                self.stop.stop(ErrorKind::Shutdown, "the activity was paused or reset in Temporal");
            }
            Answer::Lost => {
                self.stop.stop(ErrorKind::Shutdown, "the server has given this attempt up, another one takes over");
            }
            Answer::Unreachable(why) => tracing::warn!(attempt = self.attempt, why, "heartbeat not acknowledged"),
        }
        answer
    }

    async fn beat_for_ever(&self) {
        let mut uploads = self.progress.open_uploads();
        loop {
            self.task.record(self.details()).await;
            self.beat().await;
            tokio::select! {
                () = tokio::time::sleep(self.pause()) => {}
                // The server is to know of an upload before anything can happen to this process. The sender lives as long
                // as the lease.
                _ = uploads.changed() => {}
            }
        }
    }

    /// Waits until the lease has ended and gives the stop.
    async fn watch(&self) {
        let Some(timeout) = self.timeout else { return };
        let term = timeout.mul_f64(0.8);
        loop {
            let end = self.acknowledged() + term;
            if Instant::now() >= end {
                break;
            }
            tokio::time::sleep_until(end).await;
        }
        self.stop.stop(
            ErrorKind::Shutdown,
            "the server did not acknowledge a heartbeat in time, so another attempt may start",
        );
    }

    fn acknowledge(&self, sent: Instant) {
        let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *acknowledged = sent.max(*acknowledged);
    }

    fn acknowledged(&self) -> Instant {
        *self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pause between heartbeats: several fit into the timeout.
    fn pause(&self) -> Duration {
        self.timeout.map_or(MAX_PAUSE, |timeout| (timeout / 5).clamp(MIN_PAUSE, MAX_PAUSE))
    }

    /// How long one heartbeat waits for its answer.
    fn patience(&self) -> Duration {
        self.timeout.map_or(MAX_PAUSE, |timeout| (timeout / 5).clamp(MIN_PAUSE, 2 * MAX_PAUSE))
    }

    async fn ask(&self) -> Result<()> {
        let give_up = Instant::now() + self.timeout.map_or(CONFIRM_TIMEOUT, |timeout| timeout.min(CONFIRM_TIMEOUT));
        loop {
            if self.stop.is_stopped() {
                return Err(self.stop.error());
            }
            let answer = self.beat().await;
            if self.stop.is_stopped() {
                return Err(self.stop.error());
            }
            if answer == Answer::Acknowledged {
                return Ok(());
            }
            if Instant::now() >= give_up {
                return Err(Error::new(
                    ErrorKind::Shutdown,
                    "the server did not confirm that this attempt may publish, so nothing was published",
                ));
            }
            tokio::time::sleep(MIN_PAUSE).await;
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lease")
            .field("attempt", &self.attempt)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

impl Fence for Lease {
    fn confirm(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.ask())
    }
}

/// Ends the heartbeats when it is dropped.
#[derive(Debug)]
pub(crate) struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::observer::NoObserver;

    /// A server that gives these answers, and the last one again and again.
    #[derive(Debug)]
    struct Script(Mutex<VecDeque<Answer>>);

    impl Task for Script {
        fn heartbeat(&self, _: RunProgress, patience: Duration) -> BoxFuture<'_, Answer> {
            Box::pin(async move {
                let answer = {
                    let mut answers = self.0.lock().expect("no panic");
                    if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
                };
                match answer.expect("a script") {
                    Answer::Unreachable(why) => {
                        tokio::time::sleep(patience).await;
                        Answer::Unreachable(why)
                    }
                    answer => answer,
                }
            })
        }

        fn record(&self, _: RunProgress) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    fn lease(answers: impl IntoIterator<Item = Answer>, timeout: Option<u64>) -> (Arc<Lease>, Stop) {
        let stop = Stop::new();
        let lease = Lease::new(LeaseParts {
            task: Arc::new(Script(Mutex::new(answers.into_iter().collect()))),
            observer: Arc::new(NoObserver),
            attempt: 3,
            rows_seen: 0,
            timeout: timeout.map(Duration::from_secs),
            stop: stop.clone(),
            progress: Arc::new(Progress::new()),
        });
        (lease, stop)
    }

    fn unreachable() -> Answer {
        Answer::Unreachable("no route".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn an_acknowledged_lease_lives_on() {
        let (lease, stop) = lease([Answer::Acknowledged], Some(10));
        let _keeper = lease.keep();
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(!stop.is_stopped());
        lease.confirm().await.expect("the right to publish");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unheard_lease_ends_before_the_timeout_that_lets_the_next_attempt_start() {
        let (lease, stop) = lease([Answer::Acknowledged, Answer::Acknowledged, unreachable()], Some(10));
        let began = Instant::now();
        let _keeper = lease.keep();
        let error = stop.stopped().await;
        // The last acknowledged heartbeat was sent after one pause of two seconds.
        assert_eq!(began.elapsed().as_secs(), 2 + 8);
        assert_eq!(error.kind(), ErrorKind::Shutdown);
        assert!(error.is_retryable());
        assert_eq!(lease.confirm().await.expect_err("no right").kind(), ErrorKind::Shutdown);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_timeout_silence_does_not_end_it_but_nothing_is_published() {
        let (lease, stop) = lease([unreachable()], None);
        let _keeper = lease.keep();
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(!stop.is_stopped());
        let error = lease.confirm().await.expect_err("no answer");
        assert!(error.message().contains("nothing was published"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancellation_is_told_from_a_lost_attempt() {
        let (lease, stop) = lease([Answer::CancelRequested], Some(10));
        let _keeper = lease.keep();
        assert_eq!(stop.stopped().await.kind(), ErrorKind::Cancelled);
        assert!(lease.is_cancel_requested());

        for answer in [Answer::Lost, Answer::Paused] {
            let (lease, stop) = self::lease([answer], Some(10));
            let _keeper = lease.keep();
            assert_eq!(stop.stopped().await.kind(), ErrorKind::Shutdown);
            assert!(!lease.is_cancel_requested());
            lease.confirm().await.expect_err("no right to publish");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_right_to_publish_survives_a_lost_answer_but_not_a_refusal() {
        let (lease, _stop) = lease([unreachable(), Answer::Acknowledged], Some(10));
        lease.confirm().await.expect("the second answer counts");
        let (lease, stop) = self::lease([unreachable(), Answer::CancelRequested], Some(10));
        assert_eq!(lease.confirm().await.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        assert!(stop.is_stopped());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_keeper_ends_the_heartbeats() {
        let (lease, stop) = lease([unreachable()], Some(10));
        drop(lease.keep());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!stop.is_stopped());
    }
}
