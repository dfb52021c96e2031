//! Whether a run would work, step by step, by the run's own code.
//!
//! Owns the order of the steps and what each one proves. Does not own how they are shown, nor the trying itself: that is
//! the source's and the sink's.
//!
//! The source is asked for its version and described, never read. The destination gets a multipart upload with the
//! export's own key, encryption and checksums, one part, and an abort: nothing becomes visible and nothing has to be
//! deleted, so the credentials need no more than a run needs.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::config::export::{Encryption, ExportConfig};
use crate::error::{Error, Result};
use crate::interval::Interval;
use crate::run::RunIdentity;
use crate::sink::client::S3Client;
use crate::sink::key::object_key;
use crate::sink::metadata::Ownership;
use crate::sink::object::{ObjectSink as _, PartNumber};
use crate::sink::probe::{StoreCapabilities, Support, probe};
use crate::sink::retry::RetryPolicy;
use crate::sink::s3_object::{Aborted, ObjectSpec, S3Object};
use crate::source::control;
use crate::source::stream::PlannedQuery;
use crate::source::transport::Transport;
use crate::source::type_name::type_name;
use crate::stop::Stop;
use crate::transform::Transforms;

/// What a check may do to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// Nothing becomes visible: an upload is opened and aborted.
    #[default]
    NoTrace,
    /// Small objects are written under the prefix and deleted again, to find out what the store honors.
    Full,
}

/// What a check found.
#[derive(Debug, Default, Serialize)]
pub struct CheckReport {
    /// The steps, in their order.
    pub steps: Vec<CheckStep>,
    /// The columns that would be written; empty when the query could not be planned.
    pub columns: Vec<CheckedColumn>,
    /// What the store honors; `None` unless that was asked for and found.
    pub store: Option<StoreCapabilities>,
    #[serde(skip)]
    failures: Vec<Error>,
}

/// One step of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckStep {
    /// What was tried.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found; for a failure, with the way out.
    pub message: String,
    /// The kind of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It works.
    Ok,
    /// It works, but somebody should know something.
    Warning,
    /// It doesn't work.
    Failed,
    /// It was not tried.
    Skipped,
}

/// A column, with the type it has and the type that is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedColumn {
    /// The column's name.
    pub name: String,
    /// ClickHouse's type.
    pub source_type: String,
    /// The type that is written, such as `Timestamp(ms, UTC)`.
    pub written_type: String,
    /// Whether it may be null.
    pub nullable: bool,
    /// Whether JSONLines writes it as a nested value.
    pub holds_json: bool,
}

/// Checks an export for a window. Both sides are tried, whatever the other one says.
///
/// # Cancel safety
/// Dropping it may leave an upload open, and with [`Depth::Full`] small objects.
pub async fn check(export: &ExportConfig, interval: &Interval, depth: Depth, transforms: &Transforms) -> CheckReport {
    let mut report = CheckReport::default();
    if let Some(transform) = &export.transform
        && report.take("plugin", transforms.find(transform)).is_some()
    {
        let on_error = transform.on_error.as_str();
        let message = format!("`{}` sees each row; what becomes of those that it fails on: {on_error}", transform.name);
        report.note("plugin", Outcome::Ok, message);
    }
    report.source(export, interval).await;
    report.destination(export, interval, depth).await;
    report
}

impl CheckReport {
    /// The failures, in the order of the steps; empty when everything works.
    #[must_use]
    pub fn failures(&self) -> &[Error] {
        &self.failures
    }

    async fn source(&mut self, export: &ExportConfig, interval: &Interval) {
        let source = &export.source;
        let query_id = format!("batch-export-check-{}", uuid::Uuid::new_v4());
        let connected = async {
            let transport = Transport::new(&source.connection)?;
            let version = control::version(&transport, &query_id).await?;
            Ok((transport, version))
        };
        let Some((transport, version)) = self.take("source", connected.await) else {
            return self.skip("query", "the source has to answer first");
        };
        self.note("source", Outcome::Ok, format!("ClickHouse {version} at {}", source.connection.url));
        let planned = PlannedQuery::prepare(&transport, export, interval, &query_id).await;
        let Some(planned) = self.take("query", planned) else { return };
        self.columns = planned
            .plan
            .columns()
            .iter()
            .map(|column| CheckedColumn {
                name: column.name().to_owned(),
                source_type: column.source_type.clone(),
                written_type: type_name(column.field.data_type()),
                nullable: column.field.is_nullable(),
                holds_json: column.holds_json,
            })
            .collect();
        self.note("query", Outcome::Ok, format!("{} columns, all of which can be written", self.columns.len()));
    }

    async fn destination(&mut self, export: &ExportConfig, interval: &Interval, depth: Depth) {
        let spec = spec(export, interval);
        let client = S3Client::connect(&export.destination.connection).await;
        let (spec, client) = match (self.take("key", spec), self.take("credentials", client)) {
            (Some(spec), Some(client)) => (spec, client),
            _ => {
                self.skip("upload", "key and credentials are needed first");
                return self.skip("store", "key and credentials are needed first");
            }
        };
        self.note("key", Outcome::Ok, spec.uri());
        self.note("credentials", Outcome::Ok, format!("found, for {}", client.endpoint()));
        if self.upload(client.clone(), spec).await.is_none() {
            return self.skip("store", "an upload has to work first");
        }
        match depth {
            Depth::Full => self.store(&client, export).await,
            Depth::NoTrace => {
                self.skip("store", "what it honors shows only by writing and deleting objects: --probe does")
            }
        }
    }

    /// Opens an upload as a run would, sends one part and aborts.
    async fn upload(&mut self, client: S3Client, spec: ObjectSpec) -> Option<()> {
        let uri = spec.uri();
        let object = S3Object::with_policy(client, spec, Stop::new(), Arc::default(), RetryPolicy::CHECK);
        let part = object.upload_part(PartNumber::FIRST, Bytes::from_static(b"batch-export check\n")).await;
        let aborted = object.abort_upload().await;
        self.take("upload", part)?;
        match self.take("upload", aborted)? {
            Aborted::Denied(upload_id) => self.note(
                "upload",
                Outcome::Warning,
                format!(
                    "{uri} takes an upload, but the credentials may not abort it, so {upload_id} is left over; \
                     give them s3:AbortMultipartUpload, or the bucket a lifecycle rule for incomplete uploads"
                ),
            ),
            Aborted::Done | Aborted::Nothing => {
                self.note("upload", Outcome::Ok, format!("{uri} takes an upload, which was aborted again"));
            }
        }
        Some(())
    }

    async fn store(&mut self, client: &S3Client, export: &ExportConfig) {
        let destination = &export.destination;
        let found = probe(client, &destination.bucket, folder(&destination.prefix)).await;
        let Some(found) = self.take("store", found) else { return };
        if matches!(destination.encryption, Some(Encryption::Aes256)) && found.encryption_aes256 != Support::Yes {
            let refusal = Error::config("the store does not encrypt objects with AES256; remove encryption");
            self.take::<()>("encryption", Err(refusal));
        }
        let (outcome, message) = if found.fenced {
            (Outcome::Ok, "a late attempt can't replace what its successor published")
        } else {
            (
                Outcome::Warning,
                "the store does not look at conditions on Complete: only the question to Temporal right before it keeps a \
                 late attempt from replacing what its successor published",
            )
        };
        self.note("store", outcome, message);
        self.store = Some(found);
    }

    fn note(&mut self, name: &'static str, outcome: Outcome, message: impl Into<String>) {
        self.steps.push(CheckStep { name, outcome, message: message.into(), kind: None });
    }

    fn skip(&mut self, name: &'static str, why: &str) {
        self.note(name, Outcome::Skipped, why);
    }

    /// The value, or a failed step.
    fn take<T>(&mut self, name: &'static str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let kind = Some(error.kind().as_str());
                self.steps.push(CheckStep { name, outcome: Outcome::Failed, message: error.to_string(), kind });
                self.failures.push(error);
                None
            }
        }
    }
}

/// The object that a run of this window would write.
fn spec(export: &ExportConfig, interval: &Interval) -> Result<ObjectSpec> {
    let destination = &export.destination;
    let table = export.source.model.table_name();
    let key = object_key(&destination.prefix, destination.key_layout, &export.id, table, interval, export.output)?;
    let identity =
        RunIdentity { run_id: "check".to_owned(), execution_id: "check".to_owned(), attempt: 1, interval: *interval };
    Ok(ObjectSpec::new(destination, key, export.output, Ownership::new(&export.id, &identity)))
}

/// The part of a prefix template in front of its first variable, up to a `/`.
fn folder(prefix: &str) -> &str {
    match prefix.find(['{', '}']) {
        Some(variable) => &prefix[..prefix[..variable].rfind('/').map_or(0, |slash| slash + 1)],
        None => prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_store_is_tried_where_no_variable_stands() {
        for (prefix, expected) in
            [("", ""), ("a/b", "a/b"), ("a/{year}/b", "a/"), ("a/b-{year}", "a/"), ("{table}", "")]
        {
            assert_eq!(folder(prefix), expected, "{prefix}");
        }
    }

    #[test]
    fn a_report_tells_its_failures() {
        let mut report = CheckReport::default();
        report.note("source", Outcome::Ok, "ClickHouse");
        assert!(report.failures().is_empty());
        assert_eq!(report.take("key", Ok(1)), Some(1));
        report.take::<()>("key", Err(Error::config("no key")));
        report.skip("store", "no key");
        let shown = serde_json::to_value(&report).expect("can be shown");
        assert_eq!(
            shown["steps"],
            serde_json::json!([
                { "name": "source", "outcome": "ok", "message": "ClickHouse" },
                { "name": "key", "outcome": "failed", "message": "no key", "kind": "Config" },
                { "name": "store", "outcome": "skipped", "message": "no key" },
            ])
        );
        assert_eq!(report.failures().iter().map(Error::kind).collect::<Vec<_>>(), [ErrorKind::Config]);
    }
}
