//! The workflow `s3-export` on a real Temporal server: started by the command line, by a schedule and by a backfill,
//! cancelled, told to stop and killed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, MANY_ROWS, running_queries, until};
use crate::exports::{self, Table};

#[tokio::test]
async fn a_workflow_that_is_started_by_the_command_line_exports_its_interval() {
    let bench = Bench::new().await;
    bench.start(&bench.input(1_000, json!({"file_format": "Parquet", "compression": "zstd"})));
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    let keys = bench.bucket.keys().await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    let run = bench.runs().remove(0);
    assert_eq!(run["status"], "Completed");
    assert_eq!(run["rows"], 1_000);
    assert_eq!(run["interval_start"], "2026-01-01T00:00:00Z");
    assert_eq!(run["files"][0]["key"], keys[0].as_str());
    let metadata = bench.temporal(&["workflow", "metadata", "--workflow-id", &bench.name]);
    assert!(metadata.contains("- rows: 1,000"), "{metadata}");
}

#[tokio::test]
async fn a_schedule_and_its_backfill_give_every_run_its_own_interval() {
    let bench = Bench::new().await;
    let input = bench.input(10, json!({"data_interval_end": null})).to_string();
    let schedule = ["--schedule-id", bench.name.as_str()];
    let mut create = vec!["schedule", "create", "--interval", "1h", "--paused", "--overlap-policy", "AllowAll"];
    create.extend([
        "--type",
        "s3-export",
        "--task-queue",
        &bench.name,
        "--workflow-id",
        &bench.name,
        "--input",
        &input,
    ]);
    create.extend(schedule);
    bench.temporal(&create);
    let mut backfill = vec!["schedule", "backfill", "--overlap-policy", "AllowAll"];
    backfill.extend(["--start-time", "2026-01-01T00:30:00Z", "--end-time", "2026-01-01T03:30:00Z"]);
    backfill.extend(schedule);
    bench.temporal(&backfill);
    let finished = |count: usize| {
        until("the runs end", || {
            let runs = bench.runs();
            (runs.len() == count && runs.iter().all(|run| run["status"] == "Completed")).then_some(runs)
        })
    };
    until("the record exists", || bench.runs_file().exists().then_some(()));
    let mut bounds =
        finished(3).iter().map(|run| (run["interval_start"].clone(), run["interval_end"].clone())).collect::<Vec<_>>();
    bounds.sort_by_key(|(start, _)| start.to_string());
    let hour = |hour: u32| json!(format!("2026-01-01T0{hour}:00:00Z"));
    assert_eq!(bounds, [0, 1, 2].map(|start| (hour(start), hour(start + 1))));

    bench.temporal(&["schedule", "trigger", "--overlap-policy", "AllowAll", schedule[0], schedule[1]]);
    let latest = finished(4).remove(0);
    assert!(latest["interval_end"].as_str().is_some_and(|end| !end.contains('.')), "{latest}");
    bench.temporal(&["schedule", "delete", schedule[0], schedule[1]]);
    assert_eq!(bench.bucket.keys().await.len(), 4);
}

#[tokio::test]
async fn a_schedule_runs_an_export_by_itself() {
    let bench = Bench::new().await;
    let input = bench.input(10, json!({"data_interval_end": null, "interval": "every 1 minutes"})).to_string();
    let mut create = vec!["schedule", "create", "--interval", "2s", "--overlap-policy", "AllowAll"];
    create.extend(["--schedule-id", &bench.name, "--type", "s3-export", "--task-queue", &bench.name]);
    create.extend(["--workflow-id", &bench.name, "--input", &input]);
    bench.temporal(&create);
    let runs = until("two runs end", || {
        let runs = bench.runs().into_iter().filter(|run| run["status"] == "Completed").collect::<Vec<_>>();
        (runs.len() >= 2).then_some(runs)
    });
    bench.temporal(&["schedule", "delete", "--schedule-id", &bench.name]);
    assert_ne!(runs[0]["interval_end"], runs[1]["interval_end"]);
}

#[tokio::test]
async fn an_input_that_is_refused_fails_the_workflow_once_and_says_why() {
    let bench = Bench::new().await;
    bench.start(&bench.input(10, json!({"max_file_size_mb": 5, "bucket": "x", "aws_secret_access_key": "hunter2"})));
    let (status, described) = bench.end();
    assert_eq!(status, "FAILED");
    let history = bench.temporal(&["workflow", "show", "--workflow-id", &bench.name]);
    for fault in
        ["`max_file_size_mb` is not supported yet", "did you mean `bucket_name`?", "`aws_access_key_id` is required"]
    {
        assert!(history.contains(fault), "{fault} is missing in {history}");
    }
    assert!(!history.contains("hunter2") && !bench.log().contains("hunter2"), "{described}");
    assert!(bench.bucket.keys().await.is_empty());
}

#[tokio::test]
async fn a_run_that_fails_for_good_fails_the_workflow_at_its_first_attempt() {
    let bench = Bench::new().await;
    bench.start(&bench.input(10, json!({"bucket_name": "it-no-such-bucket"})));
    let (status, _) = bench.end();
    assert_eq!(status, "FAILED");
    let run = bench.runs().remove(0);
    assert_eq!(
        (&run["status"], &run["error_kind"], &run["attempt"]),
        (&json!("Failed"), &json!("NotFound"), &json!(1))
    );
}

#[tokio::test]
async fn a_cancellation_half_way_leaves_nothing_but_its_record() {
    let bench = Bench::new().await;
    bench.start(&bench.input(100 * MANY_ROWS, json!({})));
    bench.wait_half_way();
    bench.temporal(&["workflow", "cancel", "--workflow-id", &bench.name]);
    let (status, _) = bench.end();
    assert_eq!(status, "CANCELED");
    assert!(bench.bucket.keys().await.is_empty());
    assert!(bench.bucket.uploads().await.is_empty());
    until("the query is gone", || (!running_queries().contains(&bench.name)).then_some(()));
    let run = bench.runs().remove(0);
    assert_eq!((&run["status"], &run["rows"]), (&json!("Cancelled"), &json!(0)));
    assert!(run["finished_at"].is_string(), "{run}");
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_hands_its_run_over() {
    let mut bench = Bench::new().await;
    bench.start(&bench.input(MANY_ROWS, json!({})));
    bench.wait_half_way();
    let told = Instant::now();
    let ended = bench.end_worker("TERM");
    assert!(ended.success(), "{}", bench.log());
    assert!(told.elapsed() < Duration::from_secs(25));
    assert!(bench.bucket.uploads().await.is_empty());
    assert!(bench.bucket.keys().await.is_empty());
    until("the query is gone", || (!running_queries().contains(&bench.name)).then_some(()));
    bench.start_worker();
    let (status, _) = bench.end();
    assert_eq!(status, "COMPLETED");
    let run = bench.runs().remove(0);
    assert_eq!((&run["attempt"], &run["rows"]), (&json!(2), &json!(MANY_ROWS)));
}

#[tokio::test]
async fn a_worker_that_is_killed_is_followed_by_another_attempt() {
    let mut bench = Bench::new().await;
    bench.start(&bench.input(MANY_ROWS, json!({})));
    bench.wait_half_way();
    bench.end_worker("KILL");
    bench.start_worker();
    let (status, _) = bench.end();
    assert_eq!(status, "COMPLETED");
    assert_eq!(bench.bucket.keys().await.len(), 1);
    let run = bench.runs().remove(0);
    assert_eq!((&run["attempt"], &run["rows"]), (&json!(2), &json!(MANY_ROWS)));
}

/// Whoever lets rows disappear between two tries of a run is told, unless the export says that this is in order.
#[tokio::test]
async fn a_window_that_shrinks_fails_the_run_unless_that_is_allowed() {
    let bench = Bench::new().await;
    let table = Table::of("SELECT number AS id FROM numbers(1000)").await;
    let all = format!("SELECT id FROM {} WHERE {{interval_end}} > toDateTime(0)", table.name);
    let fewer = format!("{all} AND id < 800");
    let steps = [
        (&all, "fail", "COMPLETED", 1_000),
        (&all, "fail", "FAILED", 0),
        (&all, "allow", "COMPLETED", 900),
        // What was published is what counts from then on, and another query counts for itself.
        (&all, "fail", "COMPLETED", 900),
        (&fewer, "fail", "COMPLETED", 800),
    ];
    for (query, policy, expected, rows) in steps {
        bench.start(&bench.input(0, json!({"query": query, "fewer_rows": policy})));
        let (status, described) = bench.end();
        assert_eq!(status, expected, "{described}");
        let run = bench.runs().remove(0);
        assert_eq!((&run["rows"], &run["attempt"]), (&json!(rows), &json!(1)));
        if expected == "FAILED" {
            assert_eq!(run["error_kind"], "Data");
            let error = run["error"].as_str().expect("an error");
            assert!(error.contains("900 rows now") && error.contains("read 1000"), "{error}");
            assert!(bench.bucket.uploads().await.is_empty());
        }
        assert_eq!(bench.bucket.keys().await.len(), 1);
        exports::query(&format!("ALTER TABLE {} DELETE WHERE id >= 900 SETTINGS mutations_sync = 1", table.name)).await;
    }
}
