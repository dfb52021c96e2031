//! What the end of the insert means for the run.
//!
//! | the insert | the run |
//! |---|---|
//! | succeeded, even after a cancellation came too late | `Completed` |
//! | was cancelled, or failed for a passing reason after somebody cancelled the workflow | `Cancelled` |
//! | failed for a reason that a retry doesn't mend | `Failed` |
//! | failed for a passing reason or timed out, and may not be tried again | `FailedRetryable` |

use temporalio_common::error::{ApplicationFailure, IncomingError, TimeoutError};
use temporalio_sdk::{ActivityExecutionError, TimeoutType};

use crate::contract::{InsertOutput, Outcome, RunProgress, RunStatus};

/// The kind of errors that nobody foresaw.
const INTERNAL: &str = "Internal";

impl Outcome {
    /// The outcome of a successful insert.
    pub(crate) fn completed(output: InsertOutput) -> Self {
        Self { status: RunStatus::Completed, attempt: output.attempt, output, error_kind: None, error: None }
    }

    /// The outcome of a cancellation, with the reason that somebody gave.
    pub(crate) fn cancelled(attempt: u32, reason: Option<&str>) -> Self {
        let error = match reason {
            Some(reason) if !reason.is_empty() => format!("the run was cancelled: {reason}"),
            _ => "the run was cancelled".to_owned(),
        };
        Self::without_output(RunStatus::Cancelled, attempt, "Cancelled", error)
    }

    /// The outcome of an insert that didn't succeed.
    pub(crate) fn of_error(error: &ActivityExecutionError, cancel: Option<&CancelRequest>) -> Self {
        let cancelled = |attempt| Self::cancelled(attempt, cancel.and_then(|request| request.reason.as_deref()));
        match error {
            ActivityExecutionError::Cancelled(error) => {
                cancelled(error.details::<RunProgress>().ok().flatten().map_or(0, |progress| progress.attempt))
            }
            ActivityExecutionError::Failed(failure) => match failure.cause() {
                Some(IncomingError::Application(error)) if error.is_non_retryable() => {
                    Self::of_application(RunStatus::Failed, error)
                }
                Some(IncomingError::Application(error)) if cancel.is_some() => cancelled(attempt_of(error)),
                Some(IncomingError::Application(error)) => Self::of_application(RunStatus::FailedRetryable, error),
                Some(IncomingError::Timeout(error)) if cancel.is_some() => cancelled(attempt_of_timeout(error)),
                Some(IncomingError::Timeout(error)) => Self::of_timeout(error),
                _ => Self::unexpected(&failure.failure().message),
            },
            other => Self::unexpected(&other.to_string()),
        }
    }

    fn of_application(status: RunStatus, error: &ApplicationFailure) -> Self {
        let kind = error.type_name().unwrap_or(INTERNAL);
        Self::without_output(status, attempt_of(error), kind, error.to_string())
    }

    fn of_timeout(error: &TimeoutError) -> Self {
        let sentence = match error.timeout_type() {
            TimeoutType::Heartbeat => "the worker of the last attempt went silent; look whether it was killed",
            TimeoutType::StartToClose => {
                "the last attempt took longer than allowed; raise activity_options.start_to_close"
            }
            _ => "no worker took the run in time; look whether workers poll the task queue",
        };
        Self::without_output(RunStatus::FailedRetryable, attempt_of_timeout(error), "Timeout", sentence.to_owned())
    }

    fn unexpected(message: &str) -> Self {
        Self::without_output(RunStatus::Failed, 0, INTERNAL, format!("an unexpected error has occurred: {message}"))
    }

    fn without_output(status: RunStatus, attempt: u32, kind: &str, error: String) -> Self {
        Self { status, attempt, output: InsertOutput::default(), error_kind: Some(kind.to_owned()), error: Some(error) }
    }
}

/// Somebody asked the workflow to stop.
#[derive(Debug, Clone)]
pub(crate) struct CancelRequest {
    /// Why, if they said so.
    pub(crate) reason: Option<String>,
}

fn attempt_of(error: &ApplicationFailure) -> u32 {
    error.details::<RunProgress>().ok().flatten().map_or(0, |progress| progress.attempt)
}

fn attempt_of_timeout(error: &TimeoutError) -> u32 {
    error.last_heartbeat_details::<RunProgress>().ok().flatten().map_or(0, |progress| progress.attempt)
}
