//! A worker that is killed at every point where it matters, or cut off: another attempt makes the object, whole and once.

use std::time::{Duration, Instant};

use engine::config::output::{JsonLinesCodec, Output};
use serde_json::json;

use crate::bench::{Bench, running_queries, send_signal, until};
use crate::exports::{self, STORES};
use crate::report::Score;
use crate::s3_proxy::{Fault, Operation, S3Proxy};
use crate::services::{Store, temporal_address};
use crate::tcp_proxy::TcpProxy;
use crate::temporal_server::TemporalServer;

/// Rows that make four parts.
const ROWS: u64 = 300_000;

/// The second attempt's record and object, and nothing else that is visible or runs.
async fn assert_whole_by_the_second(bench: &Bench, what: &str) {
    assert_eq!(assert_whole(bench, what).await, 2, "{what}");
}

/// The record and the object, and nothing else that is visible or runs; returns the attempt that made it.
async fn assert_whole(bench: &Bench, what: &str) -> u64 {
    let run = bench.runs().remove(0);
    assert_eq!((&run["status"], &run["rows"]), (&json!("Completed"), &json!(ROWS)), "{what}");
    let keys = bench.bucket.keys().await;
    assert_eq!(keys, [run["files"][0]["key"].as_str().expect("a key")], "{what}");
    let source = format!(
        "SELECT number AS id, toDateTime64('2026-01-01 00:00:00', 6, 'UTC') AS at, repeat('x', 100) AS text FROM numbers({ROWS})"
    );
    exports::assert_clickhouse_reads(&bench.bucket, &keys[0], Output::JsonLines(JsonLinesCodec::Uncompressed), &source);
    assert!(!running_queries().contains(&bench.name), "{what}: a query still runs");
    run["attempt"].as_u64().expect("a number")
}

/// A point at which a worker ends or isn't heard.
fn tried(what: &str) -> Score {
    let mut score = Score::new(&format!("kill-points {what}"));
    score.tried(what);
    score
}

/// Lets the worker come to the `nth` request of a kind, kills it there, and lets another worker take over.
async fn killed_at(what: &str, operation: Operation, nth: u32, fault: Fault) {
    let mut score = tried(what);
    let proxy = S3Proxy::start(Store::SeaweedFs).await;
    proxy.breaks(operation, nth - 1, Fault::Delayed(Duration::ZERO));
    proxy.breaks(operation, 1, fault);
    let endpoint = proxy.connection().endpoint_url.expect("an endpoint").to_string();
    let mut bench = Bench::with(vec![("AWS_ENDPOINT_URL_S3", endpoint)]).await;
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until(&format!("the worker is at {what}"), || (proxy.held() == 1).then_some(()));
    if operation != Operation::Create && fault != Fault::HeldAfter || operation == Operation::Part {
        bench.wait_upload_known();
    }
    bench.end_worker("KILL");
    bench.start_worker();
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{what}: {described}");

    assert_whole_by_the_second(&bench, what).await;
    // What the killed one had opened, its successor has aborted.
    assert_eq!(bench.bucket.uploads().await, [""; 0], "{what}");
    score.survived(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_opens_the_upload() {
    killed_at("killed before it opens the upload", Operation::Create, 1, Fault::HeldBefore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_part() {
    killed_at("killed after a part", Operation::Part, 2, Fault::HeldAfter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_last_part_and_before_completing() {
    killed_at("killed after the last part, before completing", Operation::Complete, 1, Fault::HeldBefore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_completing_and_its_reply() {
    killed_at("killed between completing and its reply", Operation::Complete, 1, Fault::HeldAfter).await;
}

/// A heartbeat is on its way, and unanswered, when the worker is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_a_heartbeat() {
    let mut score = tried("killed during a heartbeat");
    let s3 = S3Proxy::start(Store::SeaweedFs).await;
    s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::ZERO));
    s3.breaks(Operation::Part, 1, Fault::HeldBefore);
    let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
    let temporal = TcpProxy::start(temporal_address()).await;
    let mut bench =
        Bench::with(vec![("AWS_ENDPOINT_URL_S3", endpoint), ("TEMPORAL_ADDRESS", temporal.address.clone())]).await;
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until("the worker is at its second part", || (s3.held() == 1).then_some(()));
    bench.wait_upload_known();
    temporal.cut();
    until("a heartbeat has no answer", || bench.log().contains("heartbeat not acknowledged").then_some(()));
    bench.end_worker("KILL");
    bench.variables.retain(|(name, _)| *name != "TEMPORAL_ADDRESS");
    bench.start_worker();
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    assert_whole_by_the_second(&bench, "during a heartbeat").await;
    assert_eq!(bench.bucket.uploads().await, [""; 0]);
    score.survived("killed during a heartbeat");
}

/// A store that takes longer to abort than the worker may take to end: the worker ends all the same and says so, and its
/// successor cleans up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_stop_with_too_little_time() {
    let mut score = tried("told to stop with too little time");
    let s3 = S3Proxy::start(Store::SeaweedFs).await;
    s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::ZERO));
    s3.breaks(Operation::Part, 1, Fault::HeldBefore);
    s3.breaks(Operation::Abort, 1, Fault::HeldBefore);
    let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
    let mut bench = Bench::without_worker(vec![("AWS_ENDPOINT_URL_S3", endpoint)]).await;
    bench.arguments = ["--shutdown-grace", "1"].map(str::to_owned).to_vec();
    bench.start_worker();
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until("the worker is at its second part", || (s3.held() == 1).then_some(()));
    bench.wait_upload_known();
    let told = Instant::now();
    let ended = bench.end_worker("TERM");
    assert!(!ended.success() && told.elapsed() < Duration::from_secs(10), "{ended} after {:?}", told.elapsed());
    assert!(bench.log().contains("raise --shutdown-grace"), "{}", bench.log());
    bench.start_worker();
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    assert_whole_by_the_second(&bench, "too little time").await;
    assert_eq!(bench.bucket.uploads().await, [""; 0]);
    score.survived("told to stop with too little time");
}

/// Temporal's server goes down in the middle of a run and comes back: whoever can't be heard stops, and the run is
/// completed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporals_server_is_stopped_and_started() {
    let mut score = tried("Temporal's server stopped and started");
    let s3 = S3Proxy::start(Store::SeaweedFs).await;
    s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::ZERO));
    s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::from_secs(6)));
    let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
    let mut server = TemporalServer::new();
    server.start();
    let variables = vec![("AWS_ENDPOINT_URL_S3", endpoint), ("TEMPORAL_ADDRESS", server.address.clone())];
    let mut bench = Bench::without_worker(variables).await;
    bench.server = Some(server.address.clone());
    bench.start_worker();
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until("the worker is at its second part", || (s3.seen(Operation::Part) >= 2).then_some(()));
    server.stop();
    until("the attempt has stopped", || bench.log().contains("did not acknowledge a heartbeat").then_some(()));
    server.start();
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    assert_whole_by_the_second(&bench, "the server was stopped").await;
    assert_eq!(bench.bucket.uploads().await, [""; 0]);
    assert_eq!(s3.seen(Operation::Complete), 1);
    score.survived("Temporal's server stopped and started");
}

/// A worker that is frozen, as a machine is that is moved, and wakes up when its successor has published: it finds that it
/// may not, and its parts gone, on a store that looks at conditions and on one that doesn't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_until_its_successor_has_published() {
    for store in STORES {
        let what = format!("frozen until its successor has published, {store:?}");
        let mut score = tried(&what);
        let s3 = S3Proxy::start(store).await;
        // The first attempt is frozen in its third part.
        s3.breaks(Operation::Part, 2, Fault::Delayed(Duration::ZERO));
        s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::from_secs(3)));
        let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
        let mut bench = Bench::on(store, vec![("AWS_ENDPOINT_URL_S3", endpoint)]).await;
        bench.start_worker();
        bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
        until("the worker is at its third part", || (s3.seen(Operation::Part) >= 3).then_some(()));
        bench.signal_worker("STOP");
        let frozen = bench.leave_worker();
        bench.start_worker();
        let (status, described) = bench.end();
        assert_eq!(status, "COMPLETED", "{what}: {described}");
        let etag = bench.bucket.etags().await;
        send_signal(frozen, "CONT");
        until("it has given up", || bench.log().contains("the attempt was stopped").then_some(()));
        // The server may have given an attempt to the frozen worker, which still polls.
        assert!(assert_whole(&bench, &what).await >= 2, "{what}");
        assert_eq!(
            (bench.bucket.etags().await, s3.seen(Operation::Complete)),
            (etag, 1),
            "{what}: only one may publish"
        );
        assert_eq!(bench.bucket.uploads().await, [""; 0], "{what}");
        score.survived(&what);
    }
}

/// A worker that Temporal no longer hears, and that S3 still does, stops by itself and cleans up: its successor is the
/// only one that publishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_from_temporal_but_not_from_s3() {
    let what = "cut off from Temporal but not from S3";
    let mut score = tried(what);
    let s3 = S3Proxy::start(Store::SeaweedFs).await;
    // The first attempt is in the middle of its parts when it is cut off, and would go on to complete.
    s3.breaks(Operation::Part, 2, Fault::Delayed(Duration::ZERO));
    s3.breaks(Operation::Part, 1, Fault::Delayed(Duration::from_secs(8)));
    let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
    let temporal = TcpProxy::start(temporal_address()).await;
    let mut bench =
        Bench::with(vec![("AWS_ENDPOINT_URL_S3", endpoint), ("TEMPORAL_ADDRESS", temporal.address.clone())]).await;
    bench.start(&bench.input(ROWS, json!({"file_format": "JSONLines", "compression": null})));
    until("the worker is at its third part", || (s3.seen(Operation::Part) >= 3).then_some(()));
    temporal.cut();
    bench.leave_worker();
    bench.variables.retain(|(name, _)| *name != "TEMPORAL_ADDRESS");
    bench.start_worker();
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{what}: {described}");
    until("the one that was cut off gave up", || bench.log().contains("did not acknowledge a heartbeat").then_some(()));
    assert_whole_by_the_second(&bench, what).await;
    until("it cleaned up", || (s3.seen(Operation::Abort) >= 1).then_some(()));
    assert_eq!(bench.bucket.uploads().await, [""; 0], "{what}");
    assert_eq!(s3.seen(Operation::Complete), 1, "{what}: only one may publish");
    score.survived(what);
}
