//! The three activities of `s3-export`.

#![allow(missing_debug_implementations, reason = "the SDK's macros make marker types without it")]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::error::{Error, Result};
use engine::interval::Interval;
use engine::pipeline::progress::Progress;
use engine::run::{RunIdentity, RunReport};
use engine::stop::Stop;
use jiff::Timestamp;
use runs::{RunFile, RunRecord, RunStatus, RunStore};
use temporalio_macros::activities;
use temporalio_sdk::ApplicationFailure;
use temporalio_sdk::activities::{ActivityContext, ActivityError};
use tokio_util::sync::CancellationToken;
use workflows::contract::{self, ExportedFile, FinishInput, InsertInput, InsertOutput, RunInfo, StartInput};
use workflows::payload::S3ExportInput;

use crate::attempt::Attempt;
use crate::exporter::{Exporter, Resolver};
use crate::failure::to_activity_error;
use crate::heartbeat::{Lease, LeaseParts};
use crate::history::{RecordedHistory, last_heartbeat};
use crate::observer::{AttemptEnd, RunEnd, RunEnded, RunEnds, RunObserver};
use crate::task::TaskFactory;

/// What the activities work with. Everything is shared by all runs of the process.
#[derive(Clone)]
pub struct Parts {
    /// The engine.
    pub exporter: Arc<dyn Exporter>,
    /// Makes exports of inputs.
    pub resolver: Arc<dyn Resolver>,
    /// The record of runs.
    pub store: RunStore,
    /// Hears of attempts and runs.
    pub observer: Arc<dyn RunObserver>,
    /// Hears of the ends of runs, and misses none.
    pub ends: Arc<dyn RunEnds>,
    /// Makes an attempt's way to the server.
    pub tasks: TaskFactory,
    /// Is cancelled when the worker goes down: attempts stop, and their failures are retryable.
    pub shutdown: CancellationToken,
}

impl fmt::Debug for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Parts")
            .field("exporter", &self.exporter)
            .field("resolver", &self.resolver)
            .finish_non_exhaustive()
    }
}

/// The activities of `s3-export`, for registration with a worker.
#[derive(Debug)]
pub struct Activities {
    parts: Parts,
}

#[activities]
impl Activities {
    /// Notes that a run begins. A record that can't be written doesn't hold the run up: the end writes it whole.
    #[activity(name = contract::START_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub async fn start_batch_export_run(
        self: Arc<Self>,
        context: ActivityContext,
        input: StartInput,
    ) -> Result<(), ActivityError> {
        note_start(&self.parts.store, &begun(&input.run, &context, RunStatus::Starting, 0)).await;
        Ok(())
    }

    /// Exports the interval: one attempt.
    #[activity(name = contract::INSERT_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub async fn insert_into_s3_activity(
        self: Arc<Self>,
        context: ActivityContext,
        input: InsertInput,
    ) -> Result<InsertOutput, ActivityError> {
        self.insert(&context, &input).await
    }

    /// Notes how a run ended. It fails when that can't be noted, in the record or by those who want to hear of it, so that
    /// Temporal tries it again.
    #[activity(name = contract::FINISH_ACTIVITY)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub async fn finish_batch_export_run(
        self: Arc<Self>,
        context: ActivityContext,
        input: FinishInput,
    ) -> Result<(), ActivityError> {
        let record = ended(&input, &context);
        self.parts.store.finish(&record).await.map_err(|error| {
            tracing::warn!(run = %record.run_id, error = &error as &dyn std::error::Error, "the end of a run was not noted");
            unnoted("RunStore", error.to_string())
        })?;
        let execution_id = context.info().workflow_run_id.as_deref().unwrap_or_default();
        self.parts.ends.note(RunEnded { record: &record, execution_id }).await.map_err(|error| {
            tracing::warn!(run = %record.run_id, error, "nobody could be told yet that a run ended");
            unnoted("RunEnds", error)
        })?;
        tracing::info!(run = %record.run_id, status = %record.status, rows = record.rows, bytes = record.bytes, "the run ended");
        self.parts.observer.run_ended(&RunEnd {
            export_id: &input.run.export_id,
            status: input.outcome.status,
            error_kind: input.outcome.error_kind.as_deref(),
            interval_end: input.run.interval.end,
            took: Timestamp::now().duration_since(input.run.started_at).try_into().unwrap_or_default(),
        });
        Ok(())
    }
}

impl Activities {
    /// Activities that work with these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts }
    }

    async fn insert(&self, context: &ActivityContext, input: &InsertInput) -> Result<InsertOutput, ActivityError> {
        let attempt = context.info().attempt;
        let stop = Stop::new();
        let earlier = last_heartbeat(context);
        let rows_seen = earlier.rows_read.max(earlier.rows_seen);
        // It stays in this attempt's heartbeats until it is aborted, so that it can't be forgotten.
        let progress = Arc::new(Progress::with_leftovers(earlier.open_uploads.iter().map(String::as_str)));
        let lease = Lease::new(LeaseParts {
            task: (self.parts.tasks)(context),
            observer: Arc::clone(&self.parts.observer),
            attempt,
            rows_seen,
            timeout: context.info().heartbeat_timeout,
            stop: stop.clone(),
            progress: Arc::clone(&progress),
        });
        let _keeper = lease.keep();
        let surroundings = Attempt {
            context,
            shutdown: &self.parts.shutdown,
            lease: &lease,
            stop: &stop,
            progress: &progress,
            observer: &self.parts.observer,
            start_to_close: Duration::from_millis(input.start_to_close_ms),
        };
        match self.attempt(surroundings, input, attempt, rows_seen).await {
            Ok(report) => Ok(output(report, attempt)),
            Err(error) => {
                log(&error, &input.run, attempt);
                Err(to_activity_error(&error, lease.details(), lease.is_cancel_requested()))
            }
        }
    }

    async fn attempt(
        &self,
        attempt: Attempt<'_>,
        input: &InsertInput,
        number: u32,
        rows_seen: u64,
    ) -> Result<RunReport> {
        let export = S3ExportInput::from_json(&input.input).and_then(|export| self.parts.resolver.resolve(&export));
        let export = export.map_err(|faults| Error::config(faults.join("; ")))?;
        let interval = Interval::new(input.run.interval.start, input.run.interval.end)?;
        // Only an activity without a workflow has no id of one, and this one always runs in a workflow.
        let execution_id = attempt.context.info().workflow_run_id.clone().unwrap_or_default();
        let identity = RunIdentity { run_id: input.run.run_id.clone(), execution_id, attempt: number, interval };
        let running = begun(&input.run, attempt.context, RunStatus::Running, number);
        let store = self.parts.store.clone();
        // The data doesn't wait for the record.
        tokio::spawn(async move { note_start(&store, &running).await });

        let memory_bytes = export.limits.memory_bytes;
        let watch = Watch::start(&self.parts.observer, &input.run.export_id, memory_bytes);
        let history = RecordedHistory::new(&self.parts.store, &identity.run_id, &export.source, rows_seen);
        let result = attempt.run(Arc::clone(&self.parts.exporter), export, identity, history.clone()).await;
        match &result {
            Ok(report) => history.published(report.rows).await,
            Err(_) => history.saw(attempt.progress.snapshot().rows_read).await,
        }
        watch.end(match &result {
            Ok(_) => AttemptEnd::Completed,
            Err(error) => AttemptEnd::Failed(error.kind()),
        });
        result
    }
}

/// Tells the observer of an attempt's start and, whatever happens, of its end.
struct Watch<'a> {
    observer: &'a Arc<dyn RunObserver>,
    export_id: &'a str,
    memory_bytes: u64,
    began: Instant,
    end: AttemptEnd,
}

impl<'a> Watch<'a> {
    fn start(observer: &'a Arc<dyn RunObserver>, export_id: &'a str, memory_bytes: u64) -> Self {
        observer.attempt_started(export_id, memory_bytes);
        let end = AttemptEnd::Failed(engine::error::ErrorKind::Shutdown);
        Self { observer, export_id, memory_bytes, began: Instant::now(), end }
    }

    fn end(mut self, end: AttemptEnd) {
        self.end = end;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.observer.attempt_ended(self.export_id, self.memory_bytes, self.end, self.began.elapsed());
    }
}

fn unnoted(kind: &str, message: String) -> ActivityError {
    ActivityError::application(ApplicationFailure::builder(message).type_name(kind.to_owned()).build())
}

async fn note_start(store: &RunStore, record: &RunRecord) {
    if let Err(error) = store.start(record).await {
        tracing::warn!(run = %record.run_id, error = &error as &dyn std::error::Error, "the start of a run was not noted");
    }
}

/// Everything about the failure, for operators; a stop that somebody wanted is no error.
fn log(error: &Error, run: &RunInfo, attempt: u32) {
    if matches!(error.kind(), engine::error::ErrorKind::Cancelled | engine::error::ErrorKind::Shutdown) {
        tracing::info!(run = %run.run_id, attempt, reason = %error, "the attempt was stopped");
    } else {
        tracing::error!(run = %run.run_id, attempt, ?error, retryable = error.is_retryable(), "the attempt failed");
    }
}

fn output(report: RunReport, attempt: u32) -> InsertOutput {
    InsertOutput {
        records_completed: report.rows,
        bytes_exported: report.bytes,
        files: report
            .files
            .into_iter()
            .map(|file| ExportedFile { bucket: file.bucket, key: file.key, rows: file.rows, bytes: file.bytes })
            .collect(),
        repaired_values: report.repaired_values,
        rows_left_out: report.rows_left_out,
        rows_failed: report.rows_failed,
        attempt,
    }
}

/// The record of a run that has begun.
fn begun(run: &RunInfo, context: &ActivityContext, status: RunStatus, attempt: u32) -> RunRecord {
    RunRecord {
        run_id: run.run_id.clone(),
        export_id: run.export_id.clone(),
        workflow_id: context.info().workflow_id.clone(),
        interval_start: run.interval.start,
        interval_end: run.interval.end,
        status,
        attempt,
        rows: 0,
        bytes: 0,
        files: Vec::new(),
        error_kind: None,
        error: None,
        started_at: run.started_at,
        finished_at: None,
    }
}

/// The record of a run that has ended.
fn ended(input: &FinishInput, context: &ActivityContext) -> RunRecord {
    let outcome = &input.outcome;
    let status = match outcome.status {
        contract::RunStatus::Completed => RunStatus::Completed,
        contract::RunStatus::Cancelled => RunStatus::Cancelled,
        contract::RunStatus::Failed => RunStatus::Failed,
        contract::RunStatus::FailedRetryable => RunStatus::FailedRetryable,
    };
    let files = outcome.output.files.iter();
    RunRecord {
        rows: outcome.output.records_completed,
        bytes: outcome.output.bytes_exported,
        files: files
            .map(|file| RunFile {
                bucket: file.bucket.clone(),
                key: file.key.clone(),
                rows: file.rows,
                bytes: file.bytes,
            })
            .collect(),
        error_kind: outcome.error_kind.clone(),
        error: outcome.error.clone(),
        finished_at: Some(Timestamp::now()),
        ..begun(&input.run, context, status, outcome.attempt)
    }
}

#[cfg(test)]
mod tests;
