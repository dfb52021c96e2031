//! The one mapping from the engine's errors to Temporal's failures.

use engine::error::{Error, ErrorKind};
use temporalio_sdk::ApplicationFailure;
use temporalio_sdk::activities::ActivityError;
use workflows::contract::RunProgress;

/// How many attempts an error may use up that nobody can explain. Counted by the activity's attempt number, since the
/// retry policy knows one limit for all errors. The number is the reference system's.
pub const INTERNAL_ATTEMPTS: u32 = 15;

/// The failure of an attempt.
///
/// The failure's type is the error's kind, its message the sentence for the user; causes stay in the worker's log, since
/// they may quote what a library was given.
pub(crate) fn to_activity_error(error: &Error, progress: RunProgress, cancel_requested: bool) -> ActivityError {
    if error.kind() == ErrorKind::Cancelled && cancel_requested {
        return ActivityError::cancelled_with_details(progress);
    }
    let failure = ApplicationFailure::builder(sentence(error, progress.attempt))
        .type_name(error.kind().as_str().to_owned())
        .non_retryable(!may_retry(error, progress.attempt))
        .maybe_next_retry_delay(error.retry_after())
        .details(progress)
        .build();
    ActivityError::application(failure)
}

/// Whether the next attempt may start: the engine's word, up to the cap for errors that nobody can explain.
fn may_retry(error: &Error, attempt: u32) -> bool {
    error.is_retryable() && !(is_unexplained(error) && attempt >= INTERNAL_ATTEMPTS)
}

/// Whether every retryable failure of the group is one that nobody can explain.
fn is_unexplained(error: &Error) -> bool {
    let explained = |kind: ErrorKind| kind.is_retryable() && kind != ErrorKind::Internal;
    !explained(error.kind()) && error.others().iter().all(is_unexplained)
}

fn sentence(error: &Error, attempt: u32) -> String {
    let mut sentence = error.message().to_owned();
    if !error.others().is_empty() {
        sentence.push_str(&format!(" (and {} more in the worker's log)", error.others().len()));
    }
    if error.is_retryable() && !may_retry(error, attempt) {
        sentence.push_str(&format!("; given up after {attempt} attempts, see the worker's log"));
    }
    sentence
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn failure(error: &Error, attempt: u32) -> ApplicationFailure {
        match to_activity_error(error, RunProgress { attempt, ..RunProgress::default() }, false) {
            ActivityError::Application(failure) => *failure,
            other => panic!("an application failure, not {other:?}"),
        }
    }

    #[test]
    fn the_kind_names_the_failure_and_decides_about_its_retry() {
        for (kind, retried) in [
            (ErrorKind::Config, false),
            (ErrorKind::Auth, false),
            (ErrorKind::NotFound, false),
            (ErrorKind::Data, false),
            (ErrorKind::Cancelled, false),
            (ErrorKind::SourceUnavailable, true),
            (ErrorKind::DestinationUnavailable, true),
            (ErrorKind::Shutdown, true),
            (ErrorKind::Internal, true),
        ] {
            let failure = failure(&Error::new(kind, "why"), 1);
            assert_eq!(failure.type_name(), Some(kind.as_str()));
            assert_eq!(failure.is_non_retryable(), !retried, "{kind}");
            assert_eq!(failure.to_string(), "why");
        }
    }

    #[test]
    fn an_unexplained_error_is_given_up_at_the_cap_and_an_outage_is_not() {
        assert!(!failure(&Error::internal("odd"), INTERNAL_ATTEMPTS - 1).is_non_retryable());
        let given_up = failure(&Error::internal("odd"), INTERNAL_ATTEMPTS);
        assert!(given_up.is_non_retryable());
        assert_eq!(given_up.to_string(), "odd; given up after 15 attempts, see the worker's log");
        let outage = || Error::new(ErrorKind::SourceUnavailable, "down");
        assert!(!failure(&outage(), 1_000).is_non_retryable());
        assert!(!failure(&Error::internal("odd").with_others(vec![outage()]), 1_000).is_non_retryable());
        assert!(failure(&Error::data("bad").with_others(vec![Error::internal("odd")]), 1_000).is_non_retryable());
    }

    #[test]
    fn carries_the_wait_that_the_other_side_asked_for_and_no_causes() {
        let error = Error::new(ErrorKind::DestinationUnavailable, "slow down")
            .with_retry_after(Duration::from_secs(7))
            .with_source(std::io::Error::other("hunter2"));
        let failure = failure(&error, 1);
        assert_eq!(failure.next_retry_delay(), Some(Duration::from_secs(7)));
        assert!(std::error::Error::source(failure.source_error()).is_none());
        assert!(!failure.to_string().contains("hunter2"));
    }

    #[test]
    fn only_a_cancellation_that_the_server_asked_for_is_one() {
        let progress = RunProgress::default;
        assert!(matches!(to_activity_error(&Error::cancelled(), progress(), true), ActivityError::Cancelled { .. }));
        assert!(matches!(to_activity_error(&Error::cancelled(), progress(), false), ActivityError::Application(_)));
        assert!(matches!(to_activity_error(&Error::data("bad"), progress(), true), ActivityError::Application(_)));
    }
}
