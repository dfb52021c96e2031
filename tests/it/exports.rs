//! Exports from the real ClickHouse into a bucket of the test's own, and what independent readers make of them.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use engine::config::connection::ClickHouseConnection;
use engine::config::export::{DestinationConfig, ExportConfig, FewerRows, InvalidUtf8, KeyLayout, Model, SourceConfig};
use engine::config::limits::{LimitRequest, PipelineLimits};
use engine::config::output::Output;
use engine::config::secret::Secret;
use engine::error::Result;
use engine::history::NoHistory;
use engine::interval::Interval;
use engine::run::{Engine, RunContext, RunIdentity, RunReport, Unfenced};
use engine::source::template::SqlTemplate;
use engine::source::transport::{Request, Transport};
use engine::stop::Stop;

use crate::services::{Bucket, Store, required};

/// How the engine reaches ClickHouse.
pub(crate) fn clickhouse() -> ClickHouseConnection {
    ClickHouseConnection {
        url: required("CLICKHOUSE_URL").parse().expect("CLICKHOUSE_URL is a URL"),
        user: required("CLICKHOUSE_USER"),
        password: Secret::new(required("CLICKHOUSE_PASSWORD")),
        database: required("CLICKHOUSE_DATABASE"),
        ca_file: None,
        connect_timeout: Duration::from_secs(5),
        first_byte_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
    }
}

/// Where ClickHouse listens: `host:port`.
pub(crate) fn clickhouse_address() -> String {
    let url = clickhouse().url;
    format!("{}:{}", url.host_str().expect("a host"), url.port_or_known_default().expect("a port"))
}

/// Runs a statement and returns its text.
pub(crate) async fn query(sql: &str) -> String {
    let transport = Transport::new(&clickhouse()).expect("a client");
    let request = Request { sql: sql.to_owned(), query_id: uuid::Uuid::new_v4().to_string(), ..Request::default() };
    transport.fetch_text(&request).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).trim().to_owned()
}

/// A table of one test's own, with a column `at` in the test's window.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
}

impl Table {
    /// Makes a table of what `select` selects; its columns must include `id`.
    pub(crate) async fn of(select: &str) -> Self {
        let name = format!("it_{}", uuid::Uuid::new_v4().simple());
        query(&format!("CREATE TABLE {name} ENGINE = MergeTree ORDER BY id AS {select}")).await;
        Self { name }
    }

    /// The rows of the table in the test's window, in order of `id`.
    pub(crate) fn template(&self) -> String {
        format!("SELECT * FROM {} WHERE at >= {{interval_start}} AND at < {{interval_end}} ORDER BY id", self.name)
    }

    /// The same rows for a reader without parameters.
    pub(crate) fn source_sql(&self) -> String {
        format!("SELECT * FROM {}", self.name)
    }
}

/// The day that all tests export.
pub(crate) fn day() -> Interval {
    Interval::new("2026-01-01T00:00:00Z".parse().expect("a time"), "2026-01-02T00:00:00Z".parse().expect("a time"))
        .expect("a day")
}

/// An export of `sql` into a bucket.
pub(crate) fn export(id: &str, sql: &str, output: Output, bucket: &Bucket) -> ExportConfig {
    let request = LimitRequest {
        consumers: Some(3),
        block_rows: Some(1_000),
        part_bytes: Some(5 << 20),
        ..LimitRequest::default()
    };
    ExportConfig {
        id: id.to_owned(),
        source: SourceConfig {
            connection: clickhouse(),
            model: Model::Sql(SqlTemplate::parse(sql).expect("a template")),
            settings: BTreeMap::new(),
            invalid_utf8: InvalidUtf8::Fail,
            fewer_rows: FewerRows::Fail,
        },
        destination: DestinationConfig {
            connection: bucket.store.connection(),
            bucket: bucket.name.clone(),
            prefix: String::new(),
            key_layout: KeyLayout::Default,
            encryption: None,
            write_empty: true,
        },
        output,
        limits: PipelineLimits::derive(&request, 2).expect("fits"),
        transform: None,
    }
}

/// The identity of an export's run over the day, different for every export.
pub(crate) fn identity(export: &ExportConfig) -> RunIdentity {
    RunIdentity {
        run_id: export.id.clone(),
        execution_id: uuid::Uuid::new_v4().to_string(),
        attempt: 1,
        interval: day(),
    }
}

/// The surroundings of a run that `stop` can stop.
pub(crate) fn context(stop: &Stop) -> RunContext {
    RunContext { stop: stop.clone(), progress: Arc::default(), fence: Arc::new(Unfenced), history: Arc::new(NoHistory) }
}

/// Runs an export over the day.
pub(crate) async fn run(export: &ExportConfig) -> Result<RunReport> {
    Engine::new().expect("an engine").run(export, &identity(export), &context(&Stop::new())).await
}

/// Lets ClickHouse's own reader compare an object with its source, column by column.
pub(crate) fn assert_clickhouse_reads(bucket: &Bucket, key: &str, output: Output, source_sql: &str) {
    let object = format!("s3://{}/{key}", bucket.name);
    let mut command = python("dev/verify.py");
    command.args(["--source-sql", source_sql, "--object", &object, "--format", output.format_name()]);
    bucket.store.give_to(&mut command);
    let result = command.output().expect("python runs");
    let said = String::from_utf8_lossy(&[result.stdout, result.stderr].concat()).into_owned();
    assert!(result.status.success(), "{output}: ClickHouse reads something else in {object}:\n{said}");
}

/// What pyarrow reads in objects, one line each: rows, the sum of `id`, and a digest of `text` in order.
pub(crate) fn pyarrow_reads(objects: &[(Output, Vec<u8>)]) -> Vec<String> {
    let folder = std::env::temp_dir().join(format!("batch-export-it-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = python("tests/it/read_back.py");
    for (number, (output, bytes)) in objects.iter().enumerate() {
        let path = folder.join(format!("{number}.{}", output.extension()));
        std::fs::write(&path, bytes).expect("a file");
        command.arg(path);
    }
    let result = command.output().expect("python runs");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    assert!(result.status.success(), "pyarrow: {}", String::from_utf8_lossy(&result.stderr));
    String::from_utf8(result.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// The same line from the source.
pub(crate) async fn source_reads(table: &Table) -> String {
    query(&format!(
        "SELECT concat(toString(count()), ' ', toString(sum(id)), ' ', lower(hex(SHA256(arrayStringConcat(groupArray(text), '\\n'))))) \
         FROM (SELECT id, text FROM {} ORDER BY id) FORMAT TabSeparatedRaw",
        table.name
    ))
    .await
}

fn python(script: &str) -> Command {
    let mut command = Command::new(required("BATCH_EXPORT_PYTHON"));
    command.arg(format!("{}/{script}", env!("CARGO_MANIFEST_DIR")));
    command
}

/// Both stores, for suites that run on each.
pub(crate) const STORES: [Store; 2] = [Store::SeaweedFs, Store::JuiceFs];
