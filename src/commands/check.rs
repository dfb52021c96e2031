//! `check`: whether a run would work, step by step, by the run's own code.
//!
//! Both sides are tried, whatever the other one says. The store is tried with small objects that are deleted again.

use engine::config::validate::Export;
use engine::error::Error;
use engine::sink::client::S3Client;
use engine::sink::probe::{self, StoreCapabilities, Support};
use engine::source::control;
use engine::source::stream::PlannedQuery;
use engine::source::transport::Transport;
use jiff::{Timestamp, Unit};
use serde::Serialize;

use crate::Process;
use crate::cli::CheckArgs;
use crate::configuration::load_export;
use crate::exit::{Failure, FailureReport};
use crate::output;

/// What was tried and found, for machines.
#[derive(Debug, Serialize)]
struct CheckDocument {
    check: CheckReport,
    /// The failure that leads, when something failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FailureReport>,
}

#[derive(Debug, Default, Serialize)]
struct CheckReport {
    export_id: String,
    steps: Vec<Step>,
    columns: Vec<Column>,
    store: Option<StoreCapabilities>,
}

#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    passed: bool,
    detail: String,
}

/// A column, with the type it has and the type that is written.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    source_type: String,
    written_type: String,
    nullable: bool,
    /// Whether JSONLines writes it as a nested value.
    holds_json: bool,
}

/// Checks an export.
pub(crate) async fn run(arguments: &CheckArgs, process: &Process) -> Result<(), Failure> {
    let export = load_export(&arguments.config, &process.variables)?;
    let mut check = CheckReport { export_id: export.config.id.clone(), ..CheckReport::default() };
    check.pass("configuration", "valid");
    let source = check.source(&export).await;
    let destination = check.destination(&export).await;
    let mut failures = [source, destination].into_iter().filter_map(Result::err);
    // The sides fail each for itself: what may pass on one side doesn't make the other one's failure pass.
    let failure = failures.next().map(|first| failures.fold(Failure::from(first), Failure::with_other));
    let document = CheckDocument { check, error: failure.as_ref().map(|failure| failure.report().clone()) };
    process.output.document(&document, || document.check.text())?;
    failure.map_or(Ok(()), |failure| Err(failure.written()))
}

impl CheckReport {
    fn pass(&mut self, name: &'static str, detail: impl Into<String>) {
        self.steps.push(Step { name, passed: true, detail: detail.into() });
    }

    fn take<T>(&mut self, name: &'static str, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| self.steps.push(Step { name, passed: false, detail: error.to_string() }))
    }

    /// Signing in, the query and its types, for the window that ends now.
    async fn source(&mut self, export: &Export) -> Result<(), Error> {
        let source = &export.config.source;
        let query_id = format!("batch-export-check-{}", Timestamp::now().as_microsecond());
        let transport = self.take("source", Transport::new(&source.connection))?;
        let version = self.take("source", control::version(&transport, &query_id).await)?;
        self.pass("source", format!("ClickHouse {version} at {}", source.connection.url));
        let now = Timestamp::now().round(Unit::Minute).unwrap_or_default();
        let window = self.take("query", export.cadence.interval_ending(now, &export.zone))?;
        let planned = PlannedQuery::prepare(&transport, source, &window, &query_id).await;
        let planned = self.take("query", planned)?;
        self.columns = planned
            .plan
            .columns()
            .iter()
            .map(|column| Column {
                name: column.name().to_owned(),
                source_type: column.source_type.clone(),
                written_type: column.field.data_type().to_string(),
                nullable: column.field.is_nullable(),
                holds_json: column.holds_json,
            })
            .collect();
        self.pass("query", format!("{} columns, all of them can be written", self.columns.len()));
        Ok(())
    }

    /// Signing in, writing and deleting, and what the store honors.
    async fn destination(&mut self, export: &Export) -> Result<(), Error> {
        let destination = &export.config.destination;
        let client = self.take("destination", S3Client::connect(&destination.connection).await)?;
        let tried = probe::probe(&client, &destination.bucket, folder(&destination.prefix)).await;
        let found = self.take("destination", tried)?;
        self.pass(
            "destination",
            format!("bucket {} at {} takes objects and deletes them", destination.bucket, client.endpoint()),
        );
        let fencing = if found.fenced {
            "the store keeps a late attempt from replacing what its successor published"
        } else {
            "the store doesn't keep a late attempt from replacing what its successor published; the last check before \
             publishing is Temporal's"
        };
        self.pass("fencing", fencing);
        if found.encryption_aes256 != Support::Yes && destination.encryption.is_some() {
            let message = "the store doesn't encrypt objects; remove destination.encryption";
            return self.take("encryption", Err(Error::config(message)));
        }
        self.store = Some(found);
        Ok(())
    }

    fn text(&self) -> String {
        let mut lines = self
            .steps
            .iter()
            .map(|step| format!("{:<6} {}: {}", if step.passed { "ok" } else { "FAILED" }, step.name, step.detail))
            .collect::<Vec<_>>();
        if !self.columns.is_empty() {
            lines.push(String::new());
            lines.push(columns(&self.columns));
        }
        lines.join("\n")
    }
}

/// The part of a prefix template in front of its first variable, up to a `/`.
fn folder(prefix: &str) -> &str {
    match prefix.find('{') {
        Some(variable) => &prefix[..prefix[..variable].rfind('/').map_or(0, |slash| slash + 1)],
        None => prefix,
    }
}

/// The columns as people read them.
fn columns(columns: &[Column]) -> String {
    let rows = columns.iter().map(|column| {
        let nullable = if column.nullable { "yes" } else { "no" };
        [column.name.clone(), column.source_type.clone(), column.written_type.clone(), nullable.to_owned()]
    });
    output::table(["COLUMN", "SOURCE TYPE", "WRITTEN TYPE", "NULLABLE"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_tried_where_no_variable_stands() {
        for (prefix, expected) in
            [("", ""), ("a/b", "a/b"), ("a/{year}/b", "a/"), ("a/b-{year}", "a/"), ("{table}", "")]
        {
            assert_eq!(folder(prefix), expected, "{prefix}");
        }
    }
}
