//! `check`: whether a run would work, step by step, by the run's own code.
//!
//! Owns how the engine's report is shown. Does not own what is tried: see [`engine::check`]. Unless `--probe` asks for
//! it, nothing becomes visible in the store, and nothing has to be deleted.

use std::time::Duration;

use engine::check::{CheckReport, CheckedColumn, Depth, Outcome, check};
use engine::config::validate::Export;
use engine::interval::Interval;
use engine::sink::probe::StoreCapabilities;
use jiff::{Timestamp, Unit};
use serde::Serialize;
use tokio::time::Instant;

use crate::Process;
use crate::cli::CheckArgs;
use crate::configuration::load_export;
use crate::exit::{Failure, FailureReport};
use crate::job_queue::load_jobs;
use crate::job_queue::lone_plugins::try_plugin;
use crate::job_queue::plugin_host::PluginHost;
use crate::output;

/// How long the export's plugin may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// What was tried and found, for machines.
#[derive(Debug, Serialize)]
struct CheckDocument<'a> {
    check: NamedReport<'a>,
    /// The failure that leads, when something failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a FailureReport>,
}

/// A report with the export that it is about.
#[derive(Debug, Serialize)]
struct NamedReport<'a> {
    export_id: &'a str,
    #[serde(flatten)]
    report: &'a CheckReport,
}

/// Checks an export for the window that ends now.
pub(crate) async fn run(arguments: &CheckArgs, process: &Process) -> Result<(), Failure> {
    let export = load_export(&arguments.config, &process.variables)?;
    let now = Timestamp::now().round(Unit::Minute).map_err(anyhow::Error::from)?;
    let window = Interval::ending(export.cadence, now, &export.zone)?;
    let depth = if arguments.probe { Depth::Full } else { Depth::NoTrace };
    let host = plugins(arguments, &export, process).await?;
    let report = check(&export.config, &window, depth, &host.transforms()).await;
    host.close(Instant::now() + ENDING).await;
    // The sides fail each for itself: what may pass on one side doesn't make the other one's failure pass.
    let failure = report
        .failures()
        .split_first()
        .map(|(first, others)| others.iter().fold(Failure::from(first), Failure::with_other));
    let document = CheckDocument {
        check: NamedReport { export_id: &export.config.id, report: &report },
        error: failure.as_ref().map(Failure::report),
    };
    process.output.document(&document, || text(&report))?;
    failure.map_or(Ok(()), |failure| Err(failure.written()))
}

/// The plugin that the export asks for, if it does.
async fn plugins(arguments: &CheckArgs, export: &Export, process: &Process) -> Result<PluginHost, Failure> {
    let Some(transform) = &export.config.transform else { return Ok(PluginHost::default()) };
    let config = load_jobs(arguments.jobs.jobs.as_deref(), &arguments.config.connections, process)?;
    try_plugin(&config, transform).await
}

/// A report as people read it.
fn text(report: &CheckReport) -> String {
    let steps = report.steps.iter().map(|step| format!("{:<8} {}: {}", word(step.outcome), step.name, step.message));
    let mut sections = vec![steps.collect::<Vec<_>>().join("\n")];
    if !report.columns.is_empty() {
        sections.push(columns(&report.columns));
    }
    sections.extend(report.store.as_ref().and_then(capabilities));
    sections.join("\n\n")
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    }
}

fn columns(columns: &[CheckedColumn]) -> String {
    let rows = columns.iter().map(|column| {
        let nullable = if column.nullable { "yes" } else { "no" };
        [column.name.clone(), column.source_type.clone(), column.written_type.clone(), nullable.to_owned()]
    });
    output::table(["COLUMN", "SOURCE TYPE", "WRITTEN TYPE", "NULLABLE"], rows)
}

/// What the store honors, under the names that machines read.
fn capabilities(store: &StoreCapabilities) -> Option<String> {
    let found = serde_json::to_value(store).ok()?;
    let rows = found.as_object()?.iter().map(|(name, support)| {
        let support = support.as_str().map_or_else(|| support.to_string(), str::to_owned);
        [name.clone(), support]
    });
    Some(output::table(["STORE", "SUPPORT"], rows))
}

#[cfg(test)]
mod tests {
    use engine::check::CheckStep;
    use engine::sink::probe::Support;

    use super::*;

    #[test]
    fn people_read_steps_columns_and_what_the_store_honors() {
        let mut report = CheckReport::default();
        let step = |outcome, message: &str| CheckStep { name: "key", outcome, message: message.to_owned(), kind: None };
        report.steps = vec![step(Outcome::Ok, "s3://lake/a"), step(Outcome::Failed, "no such bucket")];
        assert_eq!(text(&report), "ok       key: s3://lake/a\nFAILED   key: no such bucket");
        report.store = Some(StoreCapabilities {
            put_if_absent: Support::Yes,
            put_if_unchanged: Support::Yes,
            complete_if_absent: Support::Ignored,
            complete_if_unchanged: Support::Refused,
            minimum_part_size: Support::Yes,
            part_order: Support::Yes,
            unknown_part: Support::Yes,
            checksums: Support::Yes,
            checksums_verified: Support::Yes,
            unsigned_payload: Support::Yes,
            encryption_aes256: Support::Yes,
            missing_bucket_at_create: Support::Yes,
            metadata: Support::Yes,
            complete_twice: Support::Yes,
            fenced: false,
        });
        let shown = text(&report).split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["STORE SUPPORT", "complete_if_absent ignored", "complete_if_unchanged refused", "fenced false"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
