use std::io;
use std::time::Duration;

use cadence::Cadence;

use super::*;
use crate::config::export::{Encryption, FewerRows, InvalidUtf8, KeyLayout, Model};

fn variables() -> BTreeMap<String, String> {
    [
        ("CLICKHOUSE_URL", "https://ch.example:8443"),
        ("CLICKHOUSE_PASSWORD", "hunter2"),
        ("BUCKET", "exports"),
        ("N", "3"),
        ("CH_PASSWORD", "swordfish"),
        ("S3_SECRET", "tr0ub4dor"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

fn read_file(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("query.sql") => Ok("SELECT a FROM t WHERE at < {interval_end}".to_owned()),
        Some("secret") => Ok("from a file\n".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

fn load(text: &str) -> Result<Export, Faults> {
    let variables = variables();
    let surroundings = Surroundings { variables: &variables, read_file: &read_file };
    let connections = Connections::from_environment(&variables).expect("a connection");
    export("export.yaml", text, &connections, 2, surroundings)
}

fn load_connections(text: &str) -> Result<Connections, Faults> {
    let variables = variables();
    connections("connections.yaml", text, Surroundings { variables: &variables, read_file: &read_file })
}

/// The faults of an export's file, as `path: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = load(text).expect_err("faults");
    faults.faults().iter().map(ToString::to_string).collect()
}

const MINIMAL: &str = "
version: 1
name: events
interval: hour
source: {model: events, team_id: 1}
destination: {bucket: exports}
";

/// The minimal export with one line more, or with one replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(MINIMAL.contains(line), "{line}");
    MINIMAL.replace(line, replacement)
}

#[test]
fn a_minimal_export_gets_the_defaults() {
    let export = load(MINIMAL).expect("valid");
    assert_eq!(export.cadence, Cadence::Hour);
    assert_eq!(export.zone.iana_name(), Some("UTC"));
    assert_eq!(export.timing.start_to_close, Duration::from_hours(2));
    let config = export.config;
    assert_eq!(config.id, "events");
    assert_eq!(config.output.to_string(), "JSONLines");
    assert_eq!(config.source.connection.url.as_str(), "https://ch.example:8443/");
    assert_eq!(config.source.connection.user, "default");
    assert_eq!(config.source.invalid_utf8, InvalidUtf8::Replace);
    assert_eq!(config.source.fewer_rows, FewerRows::Fail);
    assert_eq!(config.destination.prefix, "");
    assert_eq!(config.destination.key_layout, KeyLayout::Default);
    assert!(!config.destination.write_empty);
    let Model::Events(events) = config.source.model else { panic!("events") };
    assert_eq!((events.team_id, events.table.as_str(), events.lookback_days), (1, "events", 7));
}

#[test]
fn every_field_arrives() {
    let export = load(
        "
version: 1
name: big-one
interval: every 5 minutes
timezone: Europe/Berlin
source:
  model: sql
  query_file: query.sql
  settings: {max_threads: 4, allow_experimental_x: true, max_memory_usage: '10000000000'}
  invalid_utf8: fail
  fewer_rows: allow
destination:
  bucket: ${BUCKET}
  prefix: a/{year}/{month}
  file_format: Parquet
  compression: zstd
  key_layout: reference
  encryption: aws:kms
  kms_key_id: k1
  write_empty: true
pipeline:
  memory_limit: 512MiB
  consumers: ${N}
  block_rows: 1000
  block_size: 1 MiB
  buffer_size: 67108864
  part_size: 8MiB
  uploads_in_flight: 2
activity:
  start_to_close: 90m
  heartbeat_timeout: 30s
  retry: {initial_interval: 1s, maximum_interval: 1m, backoff_coefficient: 1.5, maximum_attempts: 4}
",
    )
    .expect("valid");
    assert_eq!(export.cadence.to_string(), "every 5 minutes");
    assert_eq!(export.zone.iana_name(), Some("Europe/Berlin"));
    assert_eq!(export.timing.start_to_close, Duration::from_mins(90));
    assert_eq!(export.timing.retry.maximum_attempts, Some(4));
    let config = export.config;
    assert_eq!(config.destination.bucket, "exports");
    assert_eq!(config.destination.encryption, Some(Encryption::Kms { key_id: Some("k1".to_owned()) }));
    assert_eq!(config.limits.consumers, 3);
    assert_eq!(config.limits.part_bytes, 8 << 20);
    assert_eq!(config.source.settings["allow_experimental_x"], "1");
    assert_eq!(config.source.settings["max_threads"], "4");
    let Model::Sql(template) = config.source.model else { panic!("sql") };
    assert!(template.sql().contains("{interval_end:DateTime64(6, 'UTC')}"));
}

#[test]
fn all_faults_come_at_once_with_carets() {
    let text = "version: 1
name: my export
intervall: hour
source:
  model: events
  team_id: many
  lookback: 3
destination:
  bucket: ${NOPE}
  compression: snappy
pipeline:
  consumers: 0
  part_size: large
";
    let faults = load(text).expect_err("faults");
    assert_eq!(
        faults.to_string(),
        "export.yaml has 9 faults

interval: is missing; use hour, day, week or \"every N minutes\"

name: may hold letters, digits, -, _ and . only, not start with . and be 128 long at most
 --> export.yaml:2:7
  |
2 | name: my export
  |       ^^^^^^^^^

intervall: unknown field; did you mean interval?
 --> export.yaml:3:1
  |
3 | intervall: hour
  | ^^^^^^^^^

source.team_id: must be a whole number
 --> export.yaml:6:12
  |
6 |   team_id: many
  |            ^^^^

source.lookback: unknown field; the fields here are connection, model, team_id, table, include_events, \
exclude_events, lookback_days, query, query_file, settings, invalid_utf8, \
fewer_rows
 --> export.yaml:7:3
  |
7 |   lookback: 3
  |   ^^^^^^^^

destination.bucket: the environment variable NOPE is not set; set it, or write ${NOPE:-default}
 --> export.yaml:9:11
  |
9 |   bucket: ${NOPE}
  |           ^^^^^^^

destination.compression: compression snappy is not supported for file format JSONLines; use one of gzip, brotli, \
zstd or none
  --> export.yaml:10:16
   |
10 |   compression: snappy
   |                ^^^^^^

pipeline.consumers: must be at least 1; zero never means unlimited
  --> export.yaml:12:14
   |
12 |   consumers: 0
   |              ^

pipeline.part_size: must be a size such as 64MiB or a number of bytes
  --> export.yaml:13:14
   |
13 |   part_size: large
   |              ^^^^^"
    );
}

#[test]
fn each_fault_names_its_field_and_the_way_out() {
    let cases = [
        (with("version: 1", "version: 2"), "version: this program knows version 1 only"),
        (with("version: 1\n", ""), "version: is missing; write version: 1"),
        (with("interval: hour", "interval: month"), "interval: \"month\" isn't an interval"),
        (
            with("interval: hour", "interval: hour\ntimezone: Mars/Olympus"),
            "timezone: \"Mars/Olympus\" isn't a time zone",
        ),
        (with("team_id: 1", "team_id: 1, query: x"), "source.query: is for the model sql"),
        (
            with("model: events, team_id: 1", "model: sql, query_file: query.sql, team_id: 1"),
            "source.team_id: is for the model events",
        ),
        (with("model: events, team_id: 1", "model: persons"), "source.model: isn't a model; use events"),
        (with(", team_id: 1", ""), "source.team_id: is missing"),
        (with("model: events, ", ""), "source.model: is missing"),
        (with("team_id: 1", "team_id: 1, table: a.b.c"), "source.table: the table's name"),
        (with("team_id: 1", "team_id: 1, connection: x"), "source.connection: no connection \"x\" under clickhouse"),
        (
            with("team_id: 1", "team_id: 1, settings: {result_overflow_mode: break}"),
            "source.settings.result_overflow_mode: is always throw here",
        ),
        (
            with("team_id: 1", "team_id: 1, include_events: [1]"),
            "source.include_events[0]: must be text; put it in quotes",
        ),
        (with("team_id: 1", "team_id: 1, include_events: x"), "source.include_events: must be a list"),
        (with("team_id: 1", "team_id: 1, invalid_utf8: drop"), "source.invalid_utf8: must be replace or fail"),
        (with("team_id: 1", "team_id: 1, fewer_rows: ignore"), "source.fewer_rows: must be fail or allow"),
        (with("{model: events, team_id: 1}", "{model: sql, query: SELECT 1}"), "source.query: the query uses neither"),
        (with("{model: events, team_id: 1}", "{model: sql, query_file: x}"), "source.query_file: can't read x: "),
        (
            with("{model: events, team_id: 1}", "{model: sql, query: x, query_file: query.sql}"),
            "source.query_file: stands beside",
        ),
        (with("bucket: exports", "bucket: s3://exports"), "destination.bucket: is the bucket's name alone"),
        (with("bucket: exports", "bucket: My_Bucket"), "destination.bucket: isn't a name that S3 allows"),
        (with("bucket: exports", "bucket: '1.2.3.4'"), "destination.bucket: isn't a name that S3 allows"),
        (with("{bucket: exports}", "{}"), "destination.bucket: is missing; name the bucket"),
        (with("bucket: exports", "bucket: exports, prefix: 'a/{foo}'"), "destination.prefix: "),
        (
            with("bucket: exports", "bucket: exports, file_format: CSV"),
            "destination.file_format: file format CSV is not supported",
        ),
        (
            with("bucket: exports", "bucket: exports, encryption: rot13"),
            "destination.encryption: must be AES256 or aws:kms",
        ),
        (
            with("bucket: exports", "bucket: exports, kms_key_id: k"),
            "destination.kms_key_id: needs encryption: aws:kms",
        ),
        (
            with("bucket: exports", "bucket: exports, write_empty: yes!"),
            "destination.write_empty: must be true or false",
        ),
        (
            with("bucket: exports", "bucket: exports, key_layout: flat"),
            "destination.key_layout: must be default or reference",
        ),
        (
            with("version: 1", "version: 1\npipeline: {memory_limit: 1MiB}"),
            "pipeline.memory_limit: the pipeline may hold",
        ),
        (
            with("version: 1", "version: 1\nactivity: {heartbeat_timeout: 1s}"),
            "activity.heartbeat_timeout: must be at least 2s",
        ),
        (
            with("version: 1", "version: 1\nactivity: {heartbeat_timeout: 3h}"),
            "activity.heartbeat_timeout: is longer than start_to_close",
        ),
        (
            with("version: 1", "version: 1\nactivity: {start_to_close: 30}"),
            "activity.start_to_close: must be a duration with its unit",
        ),
        (
            with("version: 1", "version: 1\nactivity: {retry: {maximum_attempts: 0}}"),
            "activity.retry.maximum_attempts: must be at least 1",
        ),
        (
            with("version: 1", "version: 1\nactivity: {retry: {initial_interval: 5m}}"),
            "activity.retry.initial_interval: 5m is longer",
        ),
        (with("version: 1", "version: 1\nactivity: 5"), "activity: must be a mapping with the fields"),
    ];
    for (text, message) in cases {
        let faults = faults(&text);
        assert_eq!(faults.len(), 1, "{message}: {faults:?}");
        assert!(faults[0].starts_with(message), "{message}: {faults:?}");
    }
    assert!(faults("[]")[0].contains("must be a mapping"));
    assert!(faults("")[0].contains("must be a mapping"), "{:?}", faults(""));
    assert!(faults("a: [")[0].contains("isn't valid YAML"));
}

#[test]
fn connections_have_names_and_their_secrets_are_references() {
    let connections = load_connections(
        "
version: 1
clickhouse:
  main: {url: 'https://a.example:8443', user: exporter, password: '${CH_PASSWORD}', database: d, ca_file: ca.pem, idle_timeout: 5m}
  other: {url: 'http://localhost:8123', password_file: secret}
s3:
  lake:
    region: eu-west-1
    access_key_id: AKIA
    secret_access_key: ${S3_SECRET}
    checksums: when_required
  local: {endpoint_url: 'http://localhost:9000', use_virtual_style_addressing: false}
",
    )
    .expect("valid");
    let main = connections.clickhouse(Some("main")).expect("main");
    assert_eq!((main.user.as_str(), main.password.expose(), main.database.as_str()), ("exporter", "swordfish", "d"));
    assert_eq!(main.idle_timeout, Duration::from_mins(5));
    assert_eq!(connections.clickhouse(Some("other")).expect("other").password.expose(), "from a file");
    assert_eq!(connections.clickhouse(None).expect("the environment's").password.expose(), "hunter2");
    let lake = connections.s3(Some("lake")).expect("lake");
    assert_eq!(lake.credentials.expect("keys").secret_access_key.expose(), "tr0ub4dor");
    assert!(connections.s3(Some("local")).expect("local").endpoint_url.is_some());
    assert!(connections.s3(None).expect("the chain").credentials.is_none());
    let debug = format!("{connections:?}");
    for secret in ["swordfish", "hunter2", "tr0ub4dor", "from a file"] {
        assert!(!debug.contains(secret), "{secret}");
    }
    let unknown = connections.s3(Some("lakes")).expect_err("unknown");
    assert_eq!(unknown, "no connection \"lakes\" under s3 in the connections file; there are lake, local");
}

#[test]
fn secrets_in_the_file_are_refused_and_never_shown() {
    let text = "version: 1
clickhouse:
  a: {url: 'https://me:hunter2@host', password: hunter2}
  b:
    url: https://host
    password: pre-hunter2
  c:
    url: https://host
    password: ${NOPE:-hunter2}
  d:
    url: https://host
    password: 12345678
s3:
  e:
    access_key_id: AKIA
    secret_access_key: \"hunter2\"
";
    let faults = load_connections(text).expect_err("faults");
    let shown = format!("{faults} {faults:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("12345678"), "{shown}");
    for path in [
        "clickhouse.a.url",
        "clickhouse.a.password",
        "clickhouse.b.password",
        "clickhouse.c.password",
        "clickhouse.d.password",
    ] {
        assert!(faults.faults().iter().any(|fault| fault.path == path), "{path}: {faults}");
    }
    let secret = faults.faults().iter().find(|fault| fault.path == "s3.e.secret_access_key").expect("a fault");
    assert_eq!(
        secret.message,
        "a secret can't stand in the file; write ${NAME} for an environment variable, or use secret_access_key_file"
    );
}

#[test]
fn faults_of_connections_name_their_fields() {
    let text = "version: 1
clickhouse:
  a: {url: 'ftp://host'}
  b: {url: nonsense}
  c: {}
  d: {url: 'http://host', password_file: nowhere, connect_timeout: 0s}
s3:
  e: {access_key_id: AKIA}
  f: {secret_access_key: '${S3_SECRET}'}
  g: {endpoint_url: 'host:9000', checksums: never}
";
    let faults = load_connections(text).expect_err("faults");
    let paths = faults.faults().iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>();
    assert_eq!(
        paths,
        [
            "clickhouse.a.url",
            "clickhouse.b.url",
            "clickhouse.c.url",
            "clickhouse.d.password_file",
            "clickhouse.d.connect_timeout",
            "s3.e.secret_access_key",
            "s3.f.access_key_id",
            "s3.g.endpoint_url",
            "s3.g.checksums",
        ]
    );
}

#[test]
fn without_a_connection_the_way_out_is_named() {
    let connections = Connections::from_environment(&BTreeMap::new()).expect("nothing wrong");
    assert_eq!(connections.clickhouse(None).expect_err("none"), "is missing; name a connection, or set CLICKHOUSE_URL");
    let bad = BTreeMap::from([("CLICKHOUSE_URL".to_owned(), "https://u:hunter2@host".to_owned())]);
    let faults = Connections::from_environment(&bad).expect_err("a fault");
    assert!(!format!("{faults:?}").contains("hunter2"));
}

#[test]
fn the_query_keeps_its_dollars_and_braces() {
    let text = with(
        "{model: events, team_id: 1}",
        "{model: sql, query: \"SELECT '${BUCKET}', $$a$$ WHERE {interval_start} < {interval_end}\"}",
    );
    let Model::Sql(template) = load(&text).expect("valid").config.source.model else { panic!("sql") };
    assert!(template.sql().starts_with("SELECT '${BUCKET}', $$a$$"), "{}", template.sql());
}
