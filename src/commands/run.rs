//! `run`: one interval of an export, here and now, without Temporal.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use activities::history::RecordedHistory;
use engine::config::validate::Export;
use engine::error::{Error, ErrorKind};
use engine::history::{History, NoHistory};
use engine::interval::Interval;
use engine::pipeline::progress::{Progress, ProgressSnapshot};
use engine::run::{Engine, FileReport, RunContext, RunIdentity, RunReport, Unfenced};
use engine::stop::Stop;
use engine::transform::Transforms;
use indicatif::{HumanBytes, HumanCount};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use runs::{RunFile, RunRecord, RunStatus, RunStore};
use serde::Serialize;
use workflows::bounds::Bounds;

use crate::Process;
use crate::allocator;
use crate::cli::RunArgs;
use crate::configuration::load_export;
use crate::exit::{Exit, Failure, FailureReport};
use crate::job_queue::load_jobs;
use crate::job_queue::lone_plugins::LonePlugins;
use crate::output::{Output, SCHEMA_VERSION};
use crate::progress::Display;

/// What a run did, for machines.
#[derive(Debug, Serialize)]
struct RunDocument<'a> {
    run: RunSummary<'a>,
}

#[derive(Debug, Serialize)]
struct RunSummary<'a> {
    run_id: &'a str,
    export_id: &'a str,
    status: RunStatus,
    interval: Interval,
    /// The zone whose days and weeks the interval is made of.
    timezone: Option<&'a str>,
    rows: u64,
    bytes: u64,
    files: &'a [FileReport],
    repaired_values: u64,
    rows_left_out: u64,
    rows_failed: u64,
    retries: u64,
    duration_seconds: f64,
}

/// The summary file: the document of a success or of a failure.
#[derive(Debug, Serialize)]
struct SummaryFile<'a> {
    schema_version: u32,
    run: RunSummary<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a FailureReport>,
}

/// A run that is described, whatever became of it.
struct Run<'a> {
    export: &'a Export,
    identity: RunIdentity,
    started_at: Timestamp,
    started: Instant,
}

/// Runs one interval.
pub(crate) async fn run(arguments: &RunArgs, process: &Process) -> Result<(), Failure> {
    let export = load_export(&arguments.config, &process.variables)?;
    let interval = interval(arguments, &export)?;
    let bounds = Bounds { start: interval.start(), end: interval.end() };
    let run_id = bounds.run_id(&export.config.id);
    let run = Run {
        export: &export,
        identity: RunIdentity { run_id, execution_id: uuid::Uuid::now_v7().to_string(), attempt: 1, interval },
        started_at: Timestamp::now(),
        started: Instant::now(),
    };
    let store = open_store(arguments.runs.as_deref()).await?;
    if let Some(store) = &store {
        note(store.start(&run.record(RunStatus::Running, &RunReport::default(), None)).await);
    }
    let progress = Arc::new(Progress::new());
    let history =
        store.as_ref().map(|store| RecordedHistory::new(store, &run.identity.run_id, &export.config.source, 0));
    let outcome = attempt(&run, history.clone(), arguments, &progress, process).await;
    if let Some(history) = history {
        match &outcome {
            Ok(report) => history.published(report.rows).await,
            Err(_) => history.saw(progress.snapshot().rows_read).await,
        }
    }
    let outcome = outcome.and_then(|report| match report.rows {
        0 if arguments.error_on_empty => {
            let message = format!("the interval {interval} has no rows");
            Err((report, Failure::new(Exit::Empty, "Empty", message)))
        }
        _ => Ok(report),
    });
    finish(&run, outcome, &progress.snapshot(), arguments.summary_file.as_deref(), store, process.output).await
}

/// Writes the outcome everywhere it is wanted.
async fn finish(
    run: &Run<'_>,
    outcome: Result<RunReport, (RunReport, Failure)>,
    counters: &ProgressSnapshot,
    summary_file: Option<&Path>,
    store: Option<RunStore>,
    output: Output,
) -> Result<(), Failure> {
    let (status, report, failure) = match outcome {
        Ok(report) => (RunStatus::Completed, report, None),
        Err((report, failure)) => (status_of(failure.exit), report, Some(failure)),
    };
    if let Some(store) = store {
        note(store.finish(&run.record(status, &report, failure.as_ref())).await);
        store.close().await;
    }
    if let Some(path) = summary_file {
        let error = failure.as_ref().map(Failure::report);
        let summary =
            SummaryFile { schema_version: SCHEMA_VERSION, run: run.summary(status, &report, counters), error };
        write_summary(path, &summary)?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let document = RunDocument { run: run.summary(status, &report, counters) };
    output.document(&document, || run.text(&report))?;
    Ok(())
}

/// One attempt, which Ctrl-C, SIGTERM or the time limit stop.
async fn attempt(
    run: &Run<'_>,
    history: Option<RecordedHistory>,
    arguments: &RunArgs,
    progress: &Arc<Progress>,
    process: &Process,
) -> Result<RunReport, (RunReport, Failure)> {
    let time_limit = arguments.time_limit;
    let failed = |failure: Failure| (RunReport::default(), failure);
    let plugins = plugins(arguments, run.export, process).await.map_err(failed)?;
    let transforms = plugins.as_ref().map_or_else(Transforms::default, LonePlugins::transforms);
    let engine = Engine::new().map_err(|error| failed(error.into()))?.with_transforms(transforms);
    allocator::keep_within_limits(engine.clone()).map_err(|error| failed(anyhow::Error::from(error).into()))?;
    let stop = Stop::new();
    let history = history.map_or_else(|| Arc::new(NoHistory) as Arc<dyn History>, |history| Arc::new(history));
    let context = RunContext { stop: stop.clone(), progress: Arc::clone(progress), fence: Arc::new(Unfenced), history };
    tracing::info!(run_id = run.identity.run_id, interval = %run.identity.interval, "the run starts");
    let display = Display::start(Arc::clone(progress), process);
    let watch = tokio::spawn(stop_on_signal(stop.clone(), time_limit));
    let result = engine.run(&run.export.config, &run.identity, &context).await;
    watch.abort();
    drop(display);
    if let Some(plugins) = plugins {
        plugins.close().await;
    }
    result.map_err(|error| {
        tracing::debug!(?error, "the run failed");
        // In a run without a worker nothing else stops for this reason.
        let is_over_time = time_limit.is_some() && error.kind() == TIME_LIMIT_KIND;
        let failure = Failure::from(error);
        failed(if is_over_time { failure.with_exit(Exit::TimeLimit, "TimeLimit") } else { failure })
    })
}

/// The plugin that the export asks for, if it does.
async fn plugins(arguments: &RunArgs, export: &Export, process: &Process) -> Result<Option<LonePlugins>, Failure> {
    let Some(transform) = &export.config.transform else { return Ok(None) };
    let config = load_jobs(arguments.jobs.jobs.as_deref(), &arguments.config.connections, process)?;
    LonePlugins::start(&config, transform).await.map(Some)
}

/// The kind that tells the time limit from a signal.
const TIME_LIMIT_KIND: ErrorKind = ErrorKind::Shutdown;

/// Stops the run at the first signal or at the time limit; the second signal ends the process without cleaning up.
async fn stop_on_signal(stop: Stop, time_limit: Option<Duration>) {
    let limit = async {
        match time_limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signal() => {
            tracing::warn!("stopping: the query is killed and the upload aborted; a second signal ends at once");
            stop.cancel();
        }
        () = limit => stop.stop(TIME_LIMIT_KIND, "the time limit was reached"),
    }
    signal().await;
    tracing::error!("ended without cleaning up: the query may run on and the upload may be left open");
    std::process::exit(i32::from(Exit::Interrupted as u8));
}

/// Waits for Ctrl-C or SIGTERM.
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};

    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(error) => {
                tracing::warn!(%error, "SIGTERM can't be caught");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => if let Err(error) = result {
            tracing::warn!(%error, "Ctrl-C can't be caught");
            std::future::pending::<()>().await;
        },
        () = terminated => {}
    }
}

/// The window that the arguments ask for.
fn interval(arguments: &RunArgs, export: &Export) -> Result<Interval, Failure> {
    let end = instant("--interval-end", &arguments.interval_end, &export.zone)?;
    let interval = match &arguments.interval_start {
        Some(start) => Interval::new(instant("--interval-start", start, &export.zone)?, end),
        None => Interval::ending(export.cadence, end, &export.zone),
    };
    interval.map_err(|error: Error| Failure::new(Exit::Usage, "Usage", error.message()))
}

/// An instant in RFC 3339, or a date or time of day in `zone`.
fn instant(argument: &str, text: &str, zone: &TimeZone) -> Result<Timestamp, Failure> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant);
    }
    let zoned = match text.parse::<Date>() {
        Ok(date) if !text.contains(['T', ' ', ':']) => date.to_zoned_datetime(zone.clone()),
        _ => text.parse::<DateTime>().and_then(|time| time.to_zoned_datetime(zone.clone())),
    };
    zoned.map(|zoned| zoned.timestamp()).map_err(|_| {
        let message =
            format!("{argument} {text:?} isn't a time; write 2026-01-01T00:00:00Z, or 2026-01-01 in the export's zone");
        Failure::new(Exit::Usage, "Usage", message)
    })
}

fn status_of(exit: Exit) -> RunStatus {
    match exit {
        Exit::Interrupted => RunStatus::Cancelled,
        Exit::Temporary | Exit::TimeLimit => RunStatus::FailedRetryable,
        Exit::Ok | Exit::Empty => RunStatus::Completed,
        _ => RunStatus::Failed,
    }
}

async fn open_store(path: Option<&Path>) -> Result<Option<RunStore>, Failure> {
    match path {
        Some(path) => Ok(Some(RunStore::open(path).await.map_err(anyhow::Error::from)?)),
        None => Ok(None),
    }
}

/// The record of runs is a convenience: a run doesn't fail when it can't be written.
fn note(result: Result<(), runs::StoreError>) {
    if let Err(error) = result {
        tracing::warn!(error = &error as &dyn std::error::Error, "the run was not noted in the database of runs");
    }
}

/// Writes the summary so that a reader sees all of it or nothing.
fn write_summary(path: &Path, summary: &SummaryFile<'_>) -> anyhow::Result<()> {
    use anyhow::Context;

    let mut text = serde_json::to_string_pretty(summary)?;
    text.push('\n');
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, path))
        .with_context(|| format!("write the summary {}", path.display()))
}

impl Run<'_> {
    fn summary<'r>(&'r self, status: RunStatus, report: &'r RunReport, counters: &ProgressSnapshot) -> RunSummary<'r> {
        RunSummary {
            run_id: &self.identity.run_id,
            export_id: &self.export.config.id,
            status,
            interval: self.identity.interval,
            timezone: self.export.zone.iana_name(),
            rows: report.rows,
            bytes: report.bytes,
            files: &report.files,
            repaired_values: report.repaired_values,
            rows_left_out: report.rows_left_out,
            rows_failed: report.rows_failed,
            retries: counters.retries,
            duration_seconds: self.started.elapsed().as_secs_f64(),
        }
    }

    fn record(&self, status: RunStatus, report: &RunReport, failure: Option<&Failure>) -> RunRecord {
        let file = |file: &FileReport| RunFile {
            bucket: file.bucket.clone(),
            key: file.key.clone(),
            rows: file.rows,
            bytes: file.bytes,
        };
        RunRecord {
            run_id: self.identity.run_id.clone(),
            export_id: self.export.config.id.clone(),
            workflow_id: None,
            interval_start: self.identity.interval.start(),
            interval_end: self.identity.interval.end(),
            status,
            attempt: self.identity.attempt,
            rows: report.rows,
            bytes: report.bytes,
            files: report.files.iter().map(file).collect(),
            error_kind: failure.filter(|_| status != RunStatus::Completed).map(|failure| failure.kind().to_owned()),
            error: failure.filter(|_| status != RunStatus::Completed).map(ToString::to_string),
            started_at: self.started_at,
            finished_at: status.is_final().then(Timestamp::now),
        }
    }

    /// What a run did, for people.
    fn text(&self, report: &RunReport) -> String {
        let interval = self.identity.interval;
        let mut text = if report.rows == 0 && report.files.is_empty() && report.rows_left_out == 0 {
            format!("no rows in {interval}: nothing was written, and the destination was not tried")
        } else {
            let seconds = self.started.elapsed().as_secs_f64();
            format!("{} rows, {} in {seconds:.1} s for {interval}", HumanCount(report.rows), HumanBytes(report.bytes))
        };
        for file in &report.files {
            text.push_str(&format!("\ns3://{}/{}", file.bucket, file.key));
        }
        if report.repaired_values > 0 {
            let count = HumanCount(report.repaired_values);
            text.push_str(&format!(
                "\n{count} values were not UTF-8 and were repaired; set source.invalid_utf8 to fail to refuse them"
            ));
        }
        if report.rows_left_out > 0 {
            text.push_str(&format!("\n{} rows were left out by the plugin", HumanCount(report.rows_left_out)));
        }
        if report.rows_failed > 0 {
            let count = HumanCount(report.rows_failed);
            text.push_str(&format!(
                "\n{count} rows failed in the plugin; set plugin.on_error to fail_run to refuse them"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_zone_are_the_exports() {
        let zone = TimeZone::get("Europe/Berlin").expect("a zone");
        let cases = [
            ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("2026-01-01T00:00:00+01:00", "2025-12-31T23:00:00Z"),
            ("2026-01-01", "2025-12-31T23:00:00Z"),
            ("2026-07-01 12:30", "2026-07-01T10:30:00Z"),
            ("2026-07-01T12:30:00", "2026-07-01T10:30:00Z"),
        ];
        for (text, expected) in cases {
            let found = instant("--interval-end", text, &zone).expect(text);
            assert_eq!(found.to_string(), expected, "{text}");
        }
        let failure = instant("--interval-end", "yesterday", &zone).expect_err("no time");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.to_string().contains("--interval-end"), "{failure}");
    }
}
