//! How long and how often the activities of a run are tried.

use std::time::Duration;

use cadence::{Cadence, MIN_HEARTBEAT_TIMEOUT};
use temporalio_common::RetryPolicy;

use crate::fields::Fields;

/// Options of the insert: the reference system's values by interval, unless the export overrides them.
///
/// # Invariants
/// Nothing is zero but `maximum_attempts`, where zero is the policy's own word for no limit; the heartbeat timeout is at
/// least [`MIN_HEARTBEAT_TIMEOUT`] and no longer than `start_to_close`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InsertOptions {
    /// The longest that one attempt may take.
    pub start_to_close: Duration,
    /// The longest silence of an attempt before the next one may start.
    pub heartbeat_timeout: Duration,
    /// The wait before the second attempt.
    pub initial_interval: Duration,
    /// The longest wait between attempts.
    pub maximum_interval: Duration,
    /// By how much the wait grows from attempt to attempt.
    pub backoff_coefficient: f64,
    /// How many attempts there are; 0 for no limit.
    pub maximum_attempts: u32,
}

/// The heartbeat timeout of an export that doesn't name one.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an attempt to note a run's start or end may take. The store gives up sooner by itself; a worker that is killed
/// meanwhile holds the run up for this long. The reference system allows five minutes.
const RECORD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the start of a run may hold up the run itself, all attempts together.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl InsertOptions {
    /// The reference system's options for an interval.
    #[must_use]
    pub fn for_cadence(cadence: Cadence) -> Self {
        const HOUR: Duration = Duration::from_secs(3_600);
        let start_to_close = match cadence {
            Cadence::Hour => 2 * HOUR,
            Cadence::Day => 24 * HOUR,
            Cadence::Week => 72 * HOUR,
            Cadence::Minutes(_) => cadence.usual_length().max(Duration::from_secs(20 * 60)),
        };
        Self {
            start_to_close,
            heartbeat_timeout: HEARTBEAT_TIMEOUT,
            initial_interval: Duration::from_secs(30),
            maximum_interval: Duration::from_secs(120),
            backoff_coefficient: 2.0,
            maximum_attempts: 0,
        }
    }

    /// The options of an input: those of its interval, with what `activity_options` overrides.
    pub(crate) fn read(fields: &mut Fields<'_>, cadence: Cadence) -> Self {
        let mut options = Self::for_cadence(cadence);
        let Some(mut given) = fields.object("activity_options") else { return options };
        if let Some(span) = given.duration("start_to_close") {
            options.start_to_close = span;
        }
        match given.duration("heartbeat_timeout") {
            Some(span) => options.heartbeat_timeout = span,
            None => options.heartbeat_timeout = options.heartbeat_timeout.min(options.start_to_close),
        }
        if options.heartbeat_timeout < MIN_HEARTBEAT_TIMEOUT {
            let least = humantime::format_duration(MIN_HEARTBEAT_TIMEOUT);
            given.fault("heartbeat_timeout", &format!("must be at least {least}"));
        }
        if options.heartbeat_timeout > options.start_to_close {
            given.fault("heartbeat_timeout", "must not be longer than start_to_close");
        }
        if let Some(mut retry) = given.object("retry") {
            options.read_retry(&mut retry);
            retry.finish();
        }
        given.finish();
        options
    }

    fn read_retry(&mut self, retry: &mut Fields<'_>) {
        let initial = retry.duration("initial_interval");
        let maximum = retry.duration("maximum_interval");
        self.initial_interval = initial.unwrap_or(self.initial_interval);
        self.maximum_interval = maximum.unwrap_or_else(|| self.maximum_interval.max(self.initial_interval));
        if maximum.is_some() && initial.is_none() {
            self.initial_interval = self.initial_interval.min(self.maximum_interval);
        }
        if self.maximum_interval < self.initial_interval {
            retry.fault("maximum_interval", "must not be shorter than initial_interval");
        }
        if let Some(coefficient) = retry.coefficient("backoff_coefficient") {
            self.backoff_coefficient = coefficient;
        }
        if let Some(attempts) = retry.positive("maximum_attempts") {
            self.maximum_attempts = attempts;
        }
    }

    /// The retry policy of the insert. What isn't worth a retry says so itself: the policy names no error types.
    #[must_use]
    pub fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy::builder()
            .initial_interval(self.initial_interval)
            .maximum_interval(self.maximum_interval)
            .backoff_coefficient(self.backoff_coefficient)
            .maximum_attempts(self.maximum_attempts)
            .build()
    }
}

/// How long noting a run's start may take: one attempt and all together. A run goes on without it.
pub(crate) const fn start_timeouts() -> (Duration, Duration) {
    (Duration::from_secs(20), START_TIMEOUT)
}

/// How long one attempt to note a run's end may take.
pub(crate) const fn finish_timeout() -> Duration {
    RECORD_TIMEOUT
}

/// The retry policy of the activities that keep the run's record: the reference system's, without a limit.
pub(crate) fn record_retry_policy() -> RetryPolicy {
    RetryPolicy::builder().initial_interval(Duration::from_secs(10)).maximum_interval(Duration::from_secs(60)).build()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::fields::Faults;

    fn read(value: Value) -> (InsertOptions, Vec<String>) {
        let faults = Faults::default();
        let object = Map::from_iter([("activity_options".to_owned(), value)]);
        let options = InsertOptions::read(&mut Fields::new(object, &faults), Cadence::Hour);
        (options, faults.into_sentences())
    }

    #[test]
    fn attempts_are_as_long_as_the_reference_systems() {
        let minutes = |name: &str| {
            let cadence = name.parse().expect("a cadence");
            InsertOptions::for_cadence(cadence).start_to_close.as_secs() / 60
        };
        assert_eq!(minutes("hour"), 120);
        assert_eq!(minutes("day"), 24 * 60);
        assert_eq!(minutes("week"), 72 * 60);
        assert_eq!(minutes("every 5 minutes"), 20);
        assert_eq!(minutes("every 45 minutes"), 45);
    }

    #[test]
    fn an_export_overrides_what_it_names_and_no_more() {
        let (options, faults) = read(json!({
            "start_to_close": "3h", "heartbeat_timeout": 30, "retry": {"initial_interval": "1s", "maximum_attempts": 3}
        }));
        assert!(faults.is_empty(), "{faults:?}");
        let expected = InsertOptions {
            start_to_close: Duration::from_secs(3 * 3_600),
            heartbeat_timeout: Duration::from_secs(30),
            initial_interval: Duration::from_secs(1),
            maximum_attempts: 3,
            ..InsertOptions::for_cadence(Cadence::Hour)
        };
        assert_eq!(options, expected);
        assert_eq!(options.retry_policy().maximum_attempts(), 3);
    }

    #[test]
    fn contradictions_are_refused() {
        let (_, faults) = read(json!({
            "start_to_close": "10s", "heartbeat_timeout": "11s",
            "retry": {"initial_interval": "2m", "maximum_interval": "1m", "backoff_coefficient": 0.5, "attempts": 3}
        }));
        assert_eq!(
            faults,
            [
                "`activity_options.heartbeat_timeout` must not be longer than start_to_close",
                "`activity_options.retry.maximum_interval` must not be shorter than initial_interval",
                "`activity_options.retry.backoff_coefficient` must be a number from 1",
                "`activity_options.retry.attempts` is not a known field; did you mean \
                 `activity_options.retry.maximum_attempts`?",
            ]
        );
        let (_, faults) = read(json!({"heartbeat_timeout": "1s"}));
        assert_eq!(faults, ["`activity_options.heartbeat_timeout` must be at least 2s"]);
        let (options, faults) = read(json!({"start_to_close": "1m"}));
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(options.heartbeat_timeout, Duration::from_secs(60));
    }
}
