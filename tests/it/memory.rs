//! What a run holds at most, measured on the real program's process: its own limit, in the worst cases there are.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::report::report;
use crate::s3_proxy::{Fault, Operation, S3Proxy};
use crate::services::{Bucket, Store};

const MIB: u64 = 1024 * 1024;

/// The limit of every run here.
const LIMIT_MIB: u64 = 256;

/// What became of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) document: Value,
    /// The most that the process held besides its own code. Unit: bytes.
    pub(crate) peak_bytes: u64,
}

/// Runs an export in a process of its own; `settings` and `pipeline` are YAML of one line.
pub(crate) async fn run(bucket: &Bucket, endpoint: Option<&str>, export: &Export<'_>) -> Measured {
    let folder = tempfile::tempdir().expect("a folder");
    let mut yaml =
        format!("version: 1\nname: memory\ninterval: day\nsource:\n  model: sql\n  query: >-\n    {}\n", export.query);
    let Export { settings, pipeline, format, codec, source, .. } = export;
    writeln!(yaml, "  settings: {settings}\n  {source}\ndestination:\n  bucket: {}", bucket.name).expect("text");
    writeln!(yaml, "  file_format: {format}\n  compression: {codec}\npipeline: {pipeline}").expect("text");
    std::fs::write(folder.path().join("export.yaml"), yaml).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_batch-export"));
    command.args(["-o", "json", "run", "export.yaml", "--interval-end", "2026-01-02"]);
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    bucket.store.give_to(&mut command);
    if let Some(endpoint) = endpoint {
        command.env("AWS_ENDPOINT_URL_S3", endpoint);
    }
    let mut child = command.spawn().expect("starts");
    let peak_bytes = watch(&mut child).await;
    let output = child.wait_with_output().expect("ends");
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    Measured { document, peak_bytes }
}

/// An export, in the words of its file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export<'a> {
    pub(crate) query: &'a str,
    pub(crate) settings: &'a str,
    pub(crate) pipeline: &'a str,
    pub(crate) format: &'a str,
    pub(crate) codec: &'a str,
    /// More of the source, a line.
    pub(crate) source: &'a str,
}

/// Looks at a process until it ends; returns the most memory it has held besides the pages of its program's file.
async fn watch(child: &mut Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().expect("a child").is_none() {
        if let Some(now) = held_bytes(Path::new(&status)) {
            peak = peak.max(now);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    peak
}

/// The high-water mark, which nobody can miss between two looks, without what the program's file has in memory.
fn held_bytes(status: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(status).ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    };
    Some((field("VmHWM:")?.saturating_sub(field("RssFile:")?)) * 1024)
}

/// Runs a query in two kinds of output, and holds each to the limit.
async fn stays_under_the_limit(what: &str, outputs: [(&str, &str); 2], query: &str, settings: &str, rows: u64) {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let pipeline = format!("{{memory_limit: {LIMIT_MIB}MiB}}");
    for (format, codec) in outputs {
        let export = Export { query, settings, pipeline: &pipeline, format, codec, source: "" };
        assert_measured(what, &export, &run(&bucket, None, &export).await, rows);
    }
}

fn assert_measured(what: &str, export: &Export<'_>, measured: &Measured, rows: u64) {
    let peak = measured.peak_bytes / MIB;
    let output = format!("{}, {}", export.format, export.codec);
    report(
        &format!("memory {what} {output}"),
        &json!({"what": what, "output": output, "peak_mib": peak, "limit_mib": LIMIT_MIB}),
    );
    assert_eq!(measured.document["run"]["rows"], rows, "{export:?}: {}", measured.document);
    assert!(peak <= LIMIT_MIB, "{peak} MiB: {export:?}");
    // So that nobody takes a process that wasn't looked at for one that holds nothing.
    assert!(peak > 20, "{peak} MiB: {export:?}");
}

/// Text that no codec makes smaller.
const NOISE: &str = "randomPrintableASCII";

fn large_rows(mebibytes: u64) -> String {
    format!(
        "SELECT number AS id, {NOISE}(if(number % 2500 = 1700, {mebibytes} * 1048576, 200)) AS text \
         FROM numbers(10000) WHERE now() > {{interval_end}}"
    )
}

#[tokio::test]
async fn rows_of_40_mib_among_small_ones() {
    let outputs = [("Parquet", "zstd"), ("JSONLines", "none")];
    stays_under_the_limit("rows of 40 MiB among small ones", outputs, &large_rows(40), "{max_block_size: 500}", 10_000)
        .await;
}

/// One that can't be held is named by row, column and size, whether it came in a message that could be held or not; with
/// a higher limit it passes.
#[tokio::test]
async fn rows_that_are_too_large_are_named() {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    for (mebibytes, limit, passes) in [(30, 128, false), (100, 128, false), (48, 256, false), (48, 320, true)] {
        let pipeline = format!("{{memory_limit: {limit}MiB}}");
        let query = large_rows(mebibytes);
        let settings = "{max_block_size: 500}";
        let export =
            Export { query: &query, settings, pipeline: &pipeline, format: "JSONLines", codec: "none", source: "" };
        let Measured { document, peak_bytes } = run(&bucket, None, &export).await;
        assert!(peak_bytes <= limit * MIB, "{} MiB of {limit}", peak_bytes / MIB);
        assert_eq!(document["run"]["rows"] == 10_000, passes, "{document}");
        if !passes {
            let message = document["error"]["message"].as_str().expect("a message");
            let named = format!("row 1701 is too large: its column `text` has {mebibytes}.0 MiB");
            assert!(message.starts_with(&named) && message.contains("pipeline.memory_limit"), "{message}");
            assert_eq!(document["error"]["kind"], "Data");
            assert_eq!((bucket.keys().await.len(), bucket.uploads().await.len()), (0, 0));
        }
    }
}

#[tokio::test]
async fn four_hundred_columns() {
    let columns = (0..200).map(|n| format!("{NOISE}(40, {n}) AS text{n}, number * {n} AS number{n}"));
    let columns = columns.collect::<Vec<_>>().join(", ");
    let query = format!("SELECT {columns} FROM numbers(40000) WHERE now() > {{interval_end}}");
    stays_under_the_limit("400 columns", [("Parquet", "none"), ("JSONLines", "zstd")], &query, "{}", 40_000).await;
}

#[tokio::test]
async fn a_hundred_thousand_tiny_messages() {
    let query =
        format!("SELECT number AS id, {NOISE}(100) AS text FROM numbers(100000) WHERE now() > {{interval_end}}");
    stays_under_the_limit(
        "100,000 messages of one row",
        [("Parquet", "zstd"), ("JSONLines", "gzip")],
        &query,
        "{max_block_size: 1}",
        100_000,
    )
    .await;
}

/// What grows while it is written: numbers spelled out, text full of escapes, text that is repaired.
#[tokio::test]
async fn rows_that_grow_as_they_are_written() {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let plain = format!("{{memory_limit: {LIMIT_MIB}MiB}}");
    for (what, value, replace) in [
        ("arrays of fractions", "arrayMap(n -> -1.0 / (n + number), range(200))", ""),
        ("arrays of small numbers", "arrayMap(n -> toUInt8(n % 100 + 100), range(2000))", ""),
        ("text of control characters", "repeat('\\x01', 2000)", ""),
        ("text that is repaired", "repeat('\\xff', 2000)", "invalid_utf8: replace"),
    ] {
        let query = format!("SELECT number AS id, {value} AS value FROM numbers(60000) WHERE now() > {{interval_end}}");
        let formats = if replace.is_empty() {
            &[("JSONLines", "none")][..]
        } else {
            &[("JSONLines", "none"), ("Parquet", "zstd")]
        };
        for &(format, codec) in formats {
            let export = Export { query: &query, settings: "{}", pipeline: &plain, format, codec, source: replace };
            assert_measured(what, &export, &run(&bucket, None, &export).await, 60_000);
        }
    }
}

/// A fast source and a slow store: the rows wait where they are, not here.
#[tokio::test]
async fn a_slow_store() {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let query =
        format!("SELECT number AS id, {NOISE}(1000) AS text FROM numbers(300000) WHERE now() > {{interval_end}}");
    let proxy = S3Proxy::start(Store::SeaweedFs).await;
    proxy.breaks(Operation::Part, u32::MAX, Fault::Delayed(Duration::from_millis(1500)));
    let endpoint = proxy.connection().endpoint_url.expect("an endpoint");
    let pipeline = format!("{{memory_limit: {LIMIT_MIB}MiB}}");
    for (format, codec) in [("Parquet", "none"), ("JSONLines", "none")] {
        let export = Export { query: &query, settings: "{}", pipeline: &pipeline, format, codec, source: "" };
        assert_measured("a slow store", &export, &run(&bucket, Some(endpoint.as_str()), &export).await, 300_000);
    }
}
