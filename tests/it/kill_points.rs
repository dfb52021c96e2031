//! A worker that is killed, at every point where it matters: another attempt makes the object, whole and once.

use std::time::Duration;

use engine::config::output::{JsonLinesCodec, Output};
use serde_json::json;

use crate::exports;
use crate::s3_proxy::{Fault, Operation, S3Proxy};
use crate::services::Store;
use crate::temporal::{Bench, end_of, running_queries, until};

/// Rows that make four parts.
const ROWS: u64 = 300_000;

/// Lets the worker come to the `nth` request of a kind, kills it there, and lets another worker take over.
async fn killed_at(operation: Operation, nth: u32, fault: Fault) {
    let what = format!("{operation:?} {nth} {fault:?}");
    let proxy = S3Proxy::start(Store::SeaweedFs).await;
    proxy.breaks(operation, nth - 1, Fault::Delayed(Duration::ZERO));
    proxy.breaks(operation, 1, fault);
    let endpoint = proxy.connection().endpoint_url.expect("an endpoint").to_string();
    let mut bench = Bench::to(Some(endpoint)).await;
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until(&format!("the worker is at {what}"), || (proxy.held() == 1).then_some(()));
    bench.end_worker("KILL");
    bench.start_worker();
    let (status, described) = end_of(&bench.name);
    assert_eq!(status, "COMPLETED", "{what}: {described}");

    let run = bench.runs().remove(0);
    assert_eq!(
        (&run["status"], &run["rows"], &run["attempt"]),
        (&json!("Completed"), &json!(ROWS), &json!(2)),
        "{what}"
    );
    let keys = bench.bucket.keys().await;
    assert_eq!(keys, [run["files"][0]["key"].as_str().expect("a key")], "{what}");
    let source = format!(
        "SELECT number AS id, toDateTime64('2026-01-01 00:00:00', 6, 'UTC') AS at, repeat('x', 100) AS text FROM numbers({ROWS})"
    );
    exports::assert_clickhouse_reads(&bench.bucket, &keys[0], Output::JsonLines(JsonLinesCodec::Uncompressed), &source);
    // Nobody is left to abort what the killed one had opened; everything else is gone.
    let opened_before =
        u32::from(operation != Operation::Create && fault != Fault::HeldAfter || operation == Operation::Part);
    assert!(bench.bucket.uploads().await.len() <= opened_before as usize, "{what}");
    assert!(!running_queries().contains(&bench.name), "{what}: a query still runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_opens_the_upload() {
    killed_at(Operation::Create, 1, Fault::HeldBefore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_part() {
    killed_at(Operation::Part, 2, Fault::HeldAfter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_last_part_and_before_completing() {
    killed_at(Operation::Complete, 1, Fault::HeldBefore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_completing_and_its_reply() {
    killed_at(Operation::Complete, 1, Fault::HeldAfter).await;
}
