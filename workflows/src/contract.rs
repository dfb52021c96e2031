//! What the workflow and its activities say to each other.

#![allow(missing_debug_implementations, reason = "the SDK's macros make marker types without it")]

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use temporalio_macros::activity_definitions;
use temporalio_sdk::activities::ActivityError;

use crate::bounds::Bounds;

/// The name of the workflow.
pub const WORKFLOW: &str = "s3-export";

/// The task queue that workers poll unless they are told otherwise.
pub const TASK_QUEUE: &str = "batch-exports";

/// The name of the activity that notes a run's start.
pub const START_ACTIVITY: &str = "start_batch_export_run";

/// The name of the activity that exports an interval.
pub const INSERT_ACTIVITY: &str = "insert_into_s3_activity";

/// The name of the activity that notes a run's end.
pub const FINISH_ACTIVITY: &str = "finish_batch_export_run";

/// The activities of `s3-export`, declared for the workflow and implemented in the crate `activities`.
#[derive(Debug)]
pub struct ExportActivities;

#[activity_definitions]
#[allow(clippy::unimplemented, reason = "the SDK's form of a declaration without a body")]
impl ExportActivities {
    /// Notes that a run begins.
    #[activity(name = START_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub fn start_batch_export_run(_: StartInput) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Exports the interval.
    #[activity(name = INSERT_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub fn insert_into_s3_activity(_: InsertInput) -> Result<InsertOutput, ActivityError> {
        unimplemented!()
    }

    /// Notes how a run ended.
    #[activity(name = FINISH_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub fn finish_batch_export_run(_: FinishInput) -> Result<(), ActivityError> {
        unimplemented!()
    }
}

/// Which run it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The run's id, made of the export and its interval.
    pub run_id: String,
    /// The export's id.
    pub export_id: String,
    /// The interval.
    pub interval: Bounds,
    /// When the workflow's execution began: tells executions of the same run apart.
    pub started_at: Timestamp,
}

/// The input of the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartInput {
    /// Which run.
    pub run: RunInfo,
}

/// The input of the insert.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct InsertInput {
    /// Which run.
    pub run: RunInfo,
    /// The longest that this attempt may take, since the server's own timer is not told to a living worker. Unit:
    /// milliseconds.
    pub start_to_close_ms: u64,
    /// The workflow's input as it came. It may hold keys, so it is left out of `Debug`.
    pub input: Value,
}

impl fmt::Debug for InsertInput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("InsertInput")
            .field("run", &self.run)
            .field("start_to_close_ms", &self.start_to_close_ms)
            .finish_non_exhaustive()
    }
}

/// One object that a run published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedFile {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// Rows in it.
    pub rows: u64,
    /// Its size. Unit: bytes.
    pub bytes: u64,
}

/// The result of the insert.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsertOutput {
    /// Rows in all files.
    pub records_completed: u64,
    /// Bytes of all files.
    pub bytes_exported: u64,
    /// The objects that are visible now.
    pub files: Vec<ExportedFile>,
    /// Values whose text wasn't UTF-8 and was repaired.
    pub repaired_values: u64,
    /// Rows that a plugin left out, those among them that it failed on too.
    #[serde(default)]
    pub rows_left_out: u64,
    /// Rows that a plugin failed on, left out or written as they were.
    #[serde(default)]
    pub rows_failed: u64,
    /// The number of the attempt that succeeded, from 1.
    pub attempt: u32,
}

/// The progress of one attempt: details of heartbeats, failures and cancellations. Small, and never needed to be right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunProgress {
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// Rows decoded from the source.
    pub rows_read: u64,
    /// Rows whose bytes the destination has acknowledged.
    pub rows_written: u64,
    /// Bytes that the destination has acknowledged.
    pub bytes_written: u64,
    /// Parts that the destination has acknowledged.
    pub parts_written: u64,
    /// Requests to the destination that were tried again.
    pub retries: u64,
    /// The most rows that attempts before this one have read, so that it isn't forgotten with their heartbeats.
    #[serde(default)]
    pub rows_seen: u64,
    /// The uploads that are open, for the next attempt to abort.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_uploads: Vec<String>,
}

/// How a run ended. The names are the reference system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunStatus {
    /// The object is visible, or there was nothing to write.
    Completed,
    /// Somebody cancelled it.
    Cancelled,
    /// A retry wouldn't help.
    Failed,
    /// A retry might help, and no more attempts are allowed.
    FailedRetryable,
}

impl RunStatus {
    /// The status as it is written everywhere.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Cancelled => "Cancelled",
            Self::Failed => "Failed",
            Self::FailedRetryable => "FailedRetryable",
        }
    }
}

/// How a run ended, and what it left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub status: RunStatus,
    /// The number of the last attempt, as far as it is known; 0 when none began.
    pub attempt: u32,
    /// What is visible: nothing, unless the status is [`RunStatus::Completed`].
    pub output: InsertOutput,
    /// The kind of the error.
    pub error_kind: Option<String>,
    /// The error's sentence.
    pub error: Option<String>,
}

/// The input of the finish: the whole record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishInput {
    /// Which run.
    pub run: RunInfo,
    /// How it ended.
    pub outcome: Outcome,
}

/// The result of the workflow, in the reference system's words where it has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportResult {
    /// The run's id.
    pub run_id: String,
    /// How it ended.
    pub status: RunStatus,
    /// The first instant of the interval.
    pub data_interval_start: Timestamp,
    /// The first instant after the interval.
    pub data_interval_end: Timestamp,
    /// Rows in all files.
    pub records_completed: u64,
    /// Bytes of all files.
    pub bytes_exported: u64,
    /// The objects.
    pub files: Vec<ExportedFile>,
    /// Values whose text wasn't UTF-8 and was repaired.
    pub repaired_values: u64,
    /// Rows that a plugin left out, those among them that it failed on too.
    #[serde(default)]
    pub rows_left_out: u64,
    /// Rows that a plugin failed on, left out or written as they were.
    #[serde(default)]
    pub rows_failed: u64,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The error as `Kind: sentence`.
    pub error: Option<String>,
}

impl ExportResult {
    /// The result of a run with this outcome.
    #[must_use]
    pub fn new(run: &RunInfo, outcome: &Outcome) -> Self {
        Self {
            run_id: run.run_id.clone(),
            status: outcome.status,
            data_interval_start: run.interval.start,
            data_interval_end: run.interval.end,
            records_completed: outcome.output.records_completed,
            bytes_exported: outcome.output.bytes_exported,
            files: outcome.output.files.clone(),
            repaired_values: outcome.output.repaired_values,
            rows_left_out: outcome.output.rows_left_out,
            rows_failed: outcome.output.rows_failed,
            attempt: outcome.attempt,
            error: outcome.full_error(),
        }
    }
}

impl Outcome {
    /// The error as `Kind: sentence`.
    #[must_use]
    pub fn full_error(&self) -> Option<String> {
        let error = self.error.as_deref()?;
        Some(match &self.error_kind {
            Some(kind) => format!("{kind}: {error}"),
            None => error.to_owned(),
        })
    }
}
