//! Flow control: how fast jobs may come in, by how many are in hand.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// How fast jobs may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As fast as they come.
    Run,
    /// One at a time.
    Slow,
    /// Not at all for now.
    Pause,
    /// Not at all, and others may have the lease.
    Stop,
}

/// From how much of a limit on a level holds, and from how little it no longer does. Unit: percent. The distance keeps the
/// level from swinging.
const LEVELS: [(Level, u64, u64); 3] = [(Level::Slow, 50, 30), (Level::Pause, 80, 60), (Level::Stop, 100, 80)];

/// Jobs in hand, against limits that several tasks share.
#[derive(Debug, Clone)]
pub struct Flow(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_jobs: u64,
    max_bytes: u64,
    in_hand: Mutex<InHand>,
    level: watch::Sender<Level>,
}

#[derive(Debug, Default)]
struct InHand {
    jobs: u64,
    bytes: u64,
}

/// Jobs in hand; dropping it lets go of them.
#[derive(Debug)]
pub struct FlowPermit {
    flow: Flow,
    jobs: u64,
    bytes: u64,
}

impl Flow {
    /// Limits, each at least 1.
    #[must_use]
    pub fn new(max_jobs: u64, max_bytes: u64) -> Self {
        let level = watch::Sender::new(Level::Run);
        Self(Arc::new(Shared {
            max_jobs: max_jobs.max(1),
            max_bytes: max_bytes.max(1),
            in_hand: Mutex::default(),
            level,
        }))
    }

    /// Takes jobs in hand, whatever the level: who asks is to look at it before.
    #[must_use]
    pub fn take(&self, jobs: u64, bytes: u64) -> FlowPermit {
        self.change(|in_hand| {
            in_hand.jobs += jobs;
            in_hand.bytes += bytes;
        });
        FlowPermit { flow: self.clone(), jobs, bytes }
    }

    /// How fast jobs may come in now.
    #[must_use]
    pub fn level(&self) -> Level {
        *self.0.level.borrow()
    }

    /// The level, and every change of it.
    #[must_use]
    pub fn levels(&self) -> watch::Receiver<Level> {
        self.0.level.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut InHand)) {
        let shared = &self.0;
        let mut in_hand = shared.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut in_hand);
        let percent = |held: u64, limit: u64| held.saturating_mul(100) / limit;
        let fill = percent(in_hand.jobs, shared.max_jobs).max(percent(in_hand.bytes, shared.max_bytes));
        shared.level.send_if_modified(|level| {
            let next = next_level(*level, fill);
            std::mem::replace(level, next) != next
        });
    }
}

impl Drop for FlowPermit {
    fn drop(&mut self) {
        self.flow.change(|in_hand| {
            in_hand.jobs -= self.jobs;
            in_hand.bytes -= self.bytes;
        });
    }
}

/// The highest level that is entered, or that still holds.
fn next_level(now: Level, fill: u64) -> Level {
    let holds = |(level, enter, leave): &(Level, u64, u64)| fill >= *enter || (now >= *level && fill >= *leave);
    LEVELS.iter().rev().find(|level| holds(level)).map_or(Level::Run, |(level, _, _)| *level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_at_once_and_fall_late() {
        let flow = Flow::new(10, 1_000);
        let mut permits = Vec::new();
        let mut rising = Vec::new();
        for _ in 0..10 {
            permits.push(flow.take(1, 1));
            rising.push(flow.level());
        }
        use Level::{Pause, Run, Slow, Stop};
        assert_eq!(rising, [Run, Run, Run, Run, Slow, Slow, Slow, Pause, Pause, Stop]);
        let mut falling = Vec::new();
        while permits.pop().is_some() {
            falling.push(flow.level());
        }
        assert_eq!(falling, [Stop, Stop, Pause, Pause, Slow, Slow, Slow, Run, Run, Run]);
    }

    #[test]
    fn bytes_count_as_well() {
        let flow = Flow::new(10, 1_000);
        let large = flow.take(1, 2_000);
        assert_eq!(flow.level(), Level::Stop);
        drop(large);
        assert_eq!(flow.level(), Level::Run);
    }
}
