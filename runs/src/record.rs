//! One run, as it is remembered.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where a run stands. The names are the reference system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunStatus {
    /// The run is known, and its export hasn't begun.
    Starting,
    /// An attempt is at work, or the next one is waited for.
    Running,
    /// The object is visible, or there was nothing to write.
    Completed,
    /// Somebody cancelled it; nothing of it is visible.
    Cancelled,
    /// It failed for a reason that a retry doesn't mend.
    Failed,
    /// It failed for a reason that a retry may mend, and the allowed attempts are used up.
    FailedRetryable,
}

impl RunStatus {
    /// Every status, for help texts and parsers.
    pub const ALL: [Self; 6] =
        [Self::Starting, Self::Running, Self::Completed, Self::Cancelled, Self::Failed, Self::FailedRetryable];

    /// The status as it is written everywhere.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Cancelled => "Cancelled",
            Self::Failed => "Failed",
            Self::FailedRetryable => "FailedRetryable",
        }
    }

    /// Whether the run has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Starting | Self::Running)
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A text that names no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given} is not a run status; use one of {}", RunStatus::ALL.map(RunStatus::as_str).join(", "))]
pub struct UnknownStatus {
    given: String,
}

impl FromStr for RunStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownStatus { given: text.to_owned() })
    }
}

/// One object that a run published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// Rows in it.
    pub rows: u64,
    /// Its size. Unit: bytes.
    pub bytes: u64,
}

/// One run: an interval of an export with its outcome.
///
/// # Invariants
/// `finished_at` is set when the status is final. `error_kind` and `error` are set for failures and cancellations only. Nothing here is
/// secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run's id: the export and its interval.
    pub run_id: String,
    /// The export's id.
    pub export_id: String,
    /// The Temporal workflow that ran it; `None` for a run without Temporal.
    pub workflow_id: Option<String>,
    /// The first instant of the interval.
    pub interval_start: Timestamp,
    /// The first instant after the interval.
    pub interval_end: Timestamp,
    /// Where it stands.
    pub status: RunStatus,
    /// The number of the last attempt, from 1; 0 when none has begun.
    pub attempt: u32,
    /// Rows in all files.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The objects that are visible.
    pub files: Vec<RunFile>,
    /// The kind of the error, as the engine names it.
    pub error_kind: Option<String>,
    /// The error's sentence.
    pub error: Option<String>,
    /// When the workflow (or the program, without Temporal) began this run.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_found_by_its_name_in_any_case() {
        for status in RunStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(status.as_str().to_lowercase().parse(), Ok(status));
        }
        let error = "done".parse::<RunStatus>().expect_err("no such status");
        assert!(error.to_string().contains("use one of Starting, Running, Completed"), "{error}");
    }

    #[test]
    fn only_the_first_two_are_not_final() {
        assert_eq!(RunStatus::ALL.map(RunStatus::is_final), [false, false, true, true, true, true]);
    }
}
