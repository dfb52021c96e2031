//! A circuit breaker: who failed again and again isn't asked for a while, and comes back by itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row open a breaker.
const FAILURES: u32 = 5;

/// How long it is open before the first probe, and at most.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What a breaker lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything.
    Closed,
    /// Nothing.
    Open,
    /// One probe, which is under way.
    HalfOpen,
}

impl BreakerState {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// Counts failures in a row.
#[derive(Debug)]
pub struct Breaker(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    state: BreakerState,
    failures: u32,
    wait: Duration,
    /// When the next probe may go.
    probe_at: Instant,
}

impl Default for Breaker {
    fn default() -> Self {
        Self(Mutex::new(Inner { state: BreakerState::Closed, failures: 0, wait: MIN_WAIT, probe_at: Instant::now() }))
    }
}

impl Breaker {
    /// What it lets pass now.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.lock().state
    }

    /// Whether a request may go.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state() == BreakerState::Closed
    }

    /// Takes the right to send the one probe, if it is time for it.
    #[must_use]
    pub fn take_probe(&self) -> bool {
        let mut inner = self.lock();
        let is_time = inner.state == BreakerState::Open && Instant::now() >= inner.probe_at;
        if is_time {
            inner.state = BreakerState::HalfOpen;
        }
        is_time
    }

    /// Notes that something worked.
    pub fn succeeded(&self) {
        *self.lock() = Inner { state: BreakerState::Closed, failures: 0, wait: MIN_WAIT, probe_at: Instant::now() };
    }

    /// Notes that something didn't; `true` when that opened the breaker.
    pub fn failed(&self) -> bool {
        let mut inner = self.lock();
        inner.failures = inner.failures.saturating_add(1);
        let opens = inner.state == BreakerState::Closed && inner.failures >= FAILURES;
        if opens || inner.state == BreakerState::HalfOpen {
            inner.open(fastrand::f64());
        }
        opens
    }

    /// Opens it at once: what it guards was found broken.
    pub fn open(&self) {
        self.lock().open(fastrand::f64());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Somewhere in the second half of the wait, so that many processes don't probe at once; the next wait is twice as long.
    fn open(&mut self, chance: f64) {
        self.state = BreakerState::Open;
        self.probe_at = Instant::now() + self.wait.mul_f64(0.5 + chance / 2.0);
        self.wait = (self.wait * 2).min(MAX_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn opens_probes_and_closes() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES - 1 {
            assert!(!breaker.failed());
        }
        breaker.succeeded();
        for _ in 0..FAILURES - 1 {
            assert!(!breaker.failed(), "only failures in a row count");
        }
        assert!(breaker.failed() && !breaker.is_closed());
        assert!(!breaker.take_probe(), "too early");
        tokio::time::advance(MIN_WAIT).await;
        assert!(breaker.take_probe());
        assert!(!breaker.take_probe(), "one probe at a time");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.succeeded();
        assert!(breaker.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_bound() {
        let breaker = Breaker::default();
        breaker.open();
        let mut waits = Vec::new();
        for _ in 0..12 {
            let start = Instant::now();
            while !breaker.take_probe() {
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            waits.push(start.elapsed());
            breaker.failed();
        }
        assert!(waits[0] <= MIN_WAIT && waits[3] > MIN_WAIT * 3, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= MAX_WAIT + Duration::from_secs(1)), "{waits:?}");
    }
}
