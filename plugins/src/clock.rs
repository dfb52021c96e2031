//! How long the call at work may still take, for the thread that is at work and for those who wait for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No call is at work.
const IDLE: u64 = u64::MAX;

/// The deadline of the call at work.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// After the origin, or [`IDLE`]. Unit: microseconds.
    deadline: AtomicU64,
    /// The call at work was interrupted.
    was_interrupted: AtomicBool,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), deadline: AtomicU64::new(IDLE), was_interrupted: AtomicBool::new(false) }
    }

    /// A call begins.
    pub(crate) fn start(&self, limit: Duration) {
        let deadline = self.now().saturating_add(micros(limit)).min(IDLE - 1);
        self.was_interrupted.store(false, Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    /// It has ended.
    pub(crate) fn stop(&self) {
        self.deadline.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the call must end now.
    pub(crate) fn is_over(&self) -> bool {
        self.now() >= self.deadline.load(Ordering::Relaxed)
    }

    /// The same, noted: the engine ends the call in the middle.
    pub(crate) fn interrupt(&self) -> bool {
        let is_over = self.is_over();
        if is_over {
            self.was_interrupted.store(true, Ordering::Relaxed);
        }
        is_over
    }

    /// Whether the engine ended the call in the middle.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.was_interrupted.load(Ordering::Relaxed)
    }

    /// What is left for the call; nothing when there is none.
    pub(crate) fn left(&self) -> Duration {
        match self.deadline.load(Ordering::Relaxed) {
            IDLE => Duration::ZERO,
            deadline => Duration::from_micros(deadline.saturating_sub(self.now())),
        }
    }

    /// How long the call at work is over its deadline already.
    pub(crate) fn overdue(&self) -> Duration {
        Duration::from_micros(self.now().saturating_sub(self.deadline.load(Ordering::Relaxed)))
    }

    fn now(&self) -> u64 {
        micros(self.origin.elapsed())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(IDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_time_and_idleness_has_none() {
        let clock = Clock::new();
        assert!(!clock.is_over() && !clock.interrupt() && clock.overdue().is_zero() && clock.left().is_zero());
        clock.start(Duration::from_secs(60));
        assert!(!clock.is_over() && clock.left() > Duration::from_secs(59));
        clock.start(Duration::ZERO);
        assert!(clock.is_over() && !clock.was_interrupted());
        assert!(clock.interrupt() && clock.was_interrupted() && clock.left().is_zero());
        clock.start(Duration::MAX);
        assert!(!clock.was_interrupted() && !clock.is_over());
        clock.stop();
        assert!(clock.overdue().is_zero());
    }
}
