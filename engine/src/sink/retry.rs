//! Retries in place: the same request, built and signed anew, after a growing and jittered pause.
//!
//! Owns how often and how long. Does not own which failures deserve it: [`super::error::TABLE`] does.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::Instant;

use super::classify::Failure;
use super::error::Retry;
use crate::error::Result;
use crate::pipeline::progress::Progress;
use crate::stop::Stop;

/// How often and how long one request is tried in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most tries, the first one included.
    pub max_tries: u32,
    /// The first pause; each further one is about twice as long, with jitter.
    pub min_delay: Duration,
    /// The longest pause.
    pub max_delay: Duration,
    /// No try starts later than this after the first one.
    pub max_total: Duration,
}

impl RetryPolicy {
    /// For the requests of a run: rides out throttling and a restart of the store, then leaves the rest to Temporal.
    pub const RUN: Self = Self {
        max_tries: 8,
        min_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(20),
        max_total: Duration::from_secs(600),
    };

    /// For clean-up, which has a deadline of its own.
    pub(super) const CLEAN_UP: Self = Self {
        max_tries: 5,
        min_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(4),
        max_total: Duration::from_secs(20),
    };

    /// For a check, where somebody waits at the screen.
    pub const CHECK: Self = Self {
        max_tries: 2,
        min_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(1),
        max_total: Duration::from_secs(5),
    };
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::RUN
    }
}

/// What surrounds the tries of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tries<'a> {
    pub(super) policy: RetryPolicy,
    pub(super) stop: &'a Stop,
    pub(super) progress: &'a Progress,
    /// How long a try that is under way may go on after the order to stop.
    pub(super) grace: Duration,
}

impl Tries<'_> {
    /// Calls `attempt` until it succeeds, fails for good, or the policy or the order to stop ends it.
    ///
    /// # Cancel safety
    /// May be dropped; the request under way is then given up.
    ///
    /// # Errors
    /// The last failure, with [`Failure::ambiguous`] set when any try may have taken effect.
    pub(super) async fn run<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let started = Instant::now();
        let mut delays = ExponentialBuilder::new()
            .with_min_delay(self.policy.min_delay)
            .with_max_delay(self.policy.max_delay)
            .with_max_times(usize::try_from(self.policy.max_tries.saturating_sub(1)).unwrap_or(usize::MAX))
            .with_jitter()
            .build();
        let mut ambiguous = false;
        loop {
            let failure = match self.once(attempt()).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            ambiguous |= failure.ambiguous;
            let pause = if failure.retry == Retry::InPlace { delays.next() } else { None };
            let pause = pause.map(|pause| pause.max(failure.error.retry_after().unwrap_or_default()));
            let Some(pause) = pause.filter(|pause| started.elapsed().saturating_add(*pause) <= self.policy.max_total)
            else {
                return Err(Failure { ambiguous, ..failure });
            };
            tracing::debug!(error = ?failure.error, ?pause, "S3 request is tried again");
            self.progress.add_retry();
            tokio::select! {
                biased;
                order = self.stop.stopped() => return Err(Failure { ambiguous, ..Failure::stopped(order) }),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn once<T>(&self, attempt: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if self.stop.is_stopped() {
            return Err(Failure::stopped(self.stop.error()));
        }
        let stopped = async {
            let order = self.stop.stopped().await;
            tokio::time::sleep(self.grace).await;
            order
        };
        tokio::select! {
            biased;
            outcome = attempt => outcome,
            order = stopped => Err(Failure { ambiguous: true, ..Failure::stopped(order) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::error::{Error, ErrorKind};

    const FAST: RetryPolicy = RetryPolicy {
        max_tries: 8,
        min_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(2),
        max_total: Duration::from_secs(60),
    };

    fn failure(retry: Retry) -> Failure {
        Failure {
            error: Error::new(ErrorKind::DestinationUnavailable, "slow down"),
            retry,
            code: None,
            status: None,
            ambiguous: false,
        }
    }

    async fn run(stop: &Stop, progress: &Progress, fails: u32, retry: Retry) -> (Result<u32, Failure>, u32) {
        let calls = AtomicU32::new(0);
        let tries = Tries { policy: FAST, stop, progress, grace: Duration::ZERO };
        let outcome = tries
            .run(|| async {
                let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
                if call <= fails { Err(failure(retry)) } else { Ok(call) }
            })
            .await;
        (outcome, calls.into_inner())
    }

    #[tokio::test]
    async fn tries_again_and_counts() {
        let (stop, progress) = (Stop::new(), Progress::new());
        let (outcome, _) = run(&stop, &progress, 3, Retry::InPlace).await;
        assert_eq!(outcome.expect("the fourth try succeeds"), 4);
        assert_eq!(progress.snapshot().retries, 3);
    }

    #[tokio::test]
    async fn gives_up_after_the_last_try() {
        let (stop, progress) = (Stop::new(), Progress::new());
        let (outcome, calls) = run(&stop, &progress, u32::MAX, Retry::InPlace).await;
        assert!(outcome.is_err());
        assert_eq!((calls, progress.snapshot().retries), (8, 7));
    }

    #[tokio::test]
    async fn does_not_try_again_what_it_should_not() {
        for retry in [Retry::ByTemporal, Retry::Not] {
            let (outcome, calls) = run(&Stop::new(), &Progress::new(), 1, retry).await;
            assert!(outcome.is_err());
            assert_eq!(calls, 1, "{retry:?}");
        }
    }

    #[tokio::test]
    async fn waits_as_long_as_the_store_asks() {
        let (stop, progress) = (Stop::new(), Progress::new());
        let tries = Tries { policy: FAST, stop: &stop, progress: &progress, grace: Duration::ZERO };
        let started = Instant::now();
        let mut asked = false;
        let outcome = tries.run(|| {
            let first = !std::mem::replace(&mut asked, true);
            async move {
                let mut failure = failure(Retry::InPlace);
                failure.error = failure.error.with_retry_after(Duration::from_millis(77));
                if first { Err(failure) } else { Ok(()) }
            }
        });
        outcome.await.expect("the second try succeeds");
        assert!(started.elapsed() >= Duration::from_millis(77));
    }

    #[tokio::test]
    async fn gives_up_before_a_pause_longer_than_its_total() {
        let (stop, progress) = (Stop::new(), Progress::new());
        let tries = Tries { policy: FAST, stop: &stop, progress: &progress, grace: Duration::ZERO };
        let outcome: Result<(), _> = tries
            .run(|| async {
                let mut failure = failure(Retry::InPlace);
                failure.error = failure.error.with_retry_after(Duration::from_secs(3_600));
                Err(failure)
            })
            .await;
        assert_eq!(outcome.expect_err("gives up").error.retry_after(), Some(Duration::from_secs(3_600)));
        assert_eq!(progress.snapshot().retries, 0);
    }

    #[tokio::test]
    async fn an_order_to_stop_ends_pauses_and_tries() {
        let (stop, progress) = (Stop::new(), Progress::new());
        let tries = Tries { policy: FAST, stop: &stop, progress: &progress, grace: Duration::from_millis(50) };
        let started = Instant::now();
        let waiting = tries.run(std::future::pending::<Result<(), Failure>>);
        let (outcome, ()) = tokio::join!(waiting, async { stop.shut_down() });
        let failure = outcome.expect_err("is stopped");
        assert_eq!(failure.error.kind(), ErrorKind::Shutdown);
        assert!(failure.ambiguous);
        assert!(started.elapsed() >= Duration::from_millis(50));

        let (outcome, calls) = run(&stop, &progress, 0, Retry::InPlace).await;
        assert_eq!(outcome.expect_err("stopped before").error.kind(), ErrorKind::Shutdown);
        assert_eq!(calls, 0);
    }
}
