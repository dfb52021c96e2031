//! `runs`: the record of what ran.

use indicatif::{HumanBytes, HumanCount};
use runs::{RunFilter, RunRecord, RunStore};
use serde::Serialize;

use crate::Process;
use crate::cli::RunsListArgs;
use crate::exit::Failure;
use crate::output;

/// All runs that were found.
#[derive(Debug, Serialize)]
struct RunsDocument<'a> {
    runs: &'a [RunRecord],
}

/// One run, as one line.
#[derive(Debug, Serialize)]
struct RunDocument<'a> {
    run: &'a RunRecord,
}

/// Lists runs, the latest first.
pub(crate) async fn list(arguments: &RunsListArgs, process: &Process) -> Result<(), Failure> {
    if !arguments.runs.exists() {
        let message =
            format!("there is no database of runs {}; a worker or run --runs makes it", arguments.runs.display());
        return Err(Failure::not_found(message));
    }
    let filter = RunFilter {
        export_id: arguments.export.clone(),
        status: arguments.status,
        since: arguments.since,
        limit: Some(arguments.limit),
    };
    let store = RunStore::open(&arguments.runs).await.map_err(anyhow::Error::from)?;
    let found = store.list(&filter).await.map_err(anyhow::Error::from);
    store.close().await;
    let found = found?;
    if process.output.is_stream() {
        for run in &found {
            process.output.document(&RunDocument { run }, String::new)?;
        }
        return Ok(());
    }
    process.output.document(&RunsDocument { runs: &found }, || table(&found))?;
    Ok(())
}

/// Runs as people read them.
fn table(found: &[RunRecord]) -> String {
    if found.is_empty() {
        return "no runs".to_owned();
    }
    let rows = found.iter().map(|run| {
        [
            run.run_id.clone(),
            run.status.to_string(),
            run.interval_start.to_string(),
            run.interval_end.to_string(),
            HumanCount(run.rows).to_string(),
            HumanBytes(run.bytes).to_string(),
            run.attempt.to_string(),
            run.started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            error(run),
        ]
    });
    let header = ["RUN", "STATUS", "INTERVAL START", "INTERVAL END", "ROWS", "BYTES", "ATTEMPT", "STARTED", "ERROR"];
    output::table(header, rows)
}

/// The first line of a run's error.
fn error(run: &RunRecord) -> String {
    let Some(error) = run.error.as_deref() else { return String::new() };
    let line = error.lines().next().unwrap_or_default();
    match &run.error_kind {
        Some(kind) => format!("{kind}: {line}"),
        None => line.to_owned(),
    }
}
