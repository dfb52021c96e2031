//! How long an activity may take and how it is tried again.

use std::time::Duration;

use cadence::Cadence;

/// The longest silence of an activity before another worker takes its run over, unless the export says otherwise.
///
/// Source: the reference system's. The activity heartbeats several times within it.
pub const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_mins(2);

/// The limits of the activity that does an export's run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivityTiming {
    /// The most time for one attempt.
    pub start_to_close: Duration,
    /// The longest silence of an attempt.
    pub heartbeat_timeout: Duration,
    /// How a failed attempt is followed by the next.
    pub retry: RetryTiming,
}

/// When the next attempt starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryTiming {
    /// The wait before the second attempt.
    pub initial_interval: Duration,
    /// The longest wait.
    pub maximum_interval: Duration,
    /// By how much each wait is longer than the one before. At least 1.
    pub backoff_coefficient: f64,
    /// The most attempts; `None` for no end. Never zero.
    pub maximum_attempts: Option<u32>,
}

impl Default for RetryTiming {
    fn default() -> Self {
        Self {
            initial_interval: Duration::from_secs(30),
            maximum_interval: Duration::from_mins(2),
            backoff_coefficient: 2.0,
            maximum_attempts: None,
        }
    }
}

impl ActivityTiming {
    /// The limits of an export that doesn't name its own: the reference system's of 2025, and three days for a week.
    #[must_use]
    pub fn for_cadence(cadence: Cadence) -> Self {
        let minutes = match cadence {
            Cadence::Hour => 2 * 60,
            Cadence::Day => 24 * 60,
            Cadence::Week => 3 * 24 * 60,
            Cadence::Minutes(minutes) => u64::from(minutes.get()).max(20),
        };
        Self {
            start_to_close: Duration::from_mins(minutes),
            heartbeat_timeout: DEFAULT_HEARTBEAT_TIMEOUT,
            retry: RetryTiming::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_follow_the_interval() {
        let minutes = |text: &str| {
            let cadence = text.parse().expect("a cadence");
            ActivityTiming::for_cadence(cadence).start_to_close.as_secs() / 60
        };
        assert_eq!(minutes("hour"), 120);
        assert_eq!(minutes("day"), 1440);
        assert_eq!(minutes("week"), 4320);
        assert_eq!(minutes("every 5 minutes"), 20);
        assert_eq!(minutes("every 45 minutes"), 45);
    }
}
