//! The program against real services: what it prints, and every exit code that needs one.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cli::{Folder, Run};
use crate::exports::STORES;
use crate::services::{Bucket, required};

const VARIABLES: [&str; 8] = [
    "CLICKHOUSE_URL",
    "CLICKHOUSE_USER",
    "CLICKHOUSE_PASSWORD",
    "CLICKHOUSE_DATABASE",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
];

const LONG: &str =
    "SELECT number AS id, sleepEachRow(0.0001) AS slow FROM numbers(100000000) WHERE now() > {interval_end}";

pub(crate) fn environment() -> Vec<(&'static str, String)> {
    VARIABLES.map(|name| (name, required(name))).to_vec()
}

fn folder(test: &str, bucket: &str, query: &str) -> Folder {
    let folder = Folder::new(test);
    let export = format!(
        "version: 1\nname: {test}\ninterval: day\nsource:\n  query: \"{query}\"\ndestination: {{bucket: {bucket}, file_format: Parquet, compression: zstd}}\n"
    );
    folder.file("export.yaml", &export);
    folder
}

fn run(folder: &Folder, arguments: &[&str]) -> Run {
    let environment = environment();
    let variables = environment.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>();
    folder.run_with(&[&["run", "export.yaml", "--interval-end", "2026-01-02"], arguments].concat(), &variables)
}

#[tokio::test]
async fn a_run_prints_its_result_and_nothing_else() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let folder = folder("prints", &bucket.name, "SELECT number AS id FROM numbers(1234) WHERE now() > {interval_end}");
    let done = run(&folder, &["-o", "json", "--summary-file", "summary.json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let document: Value = serde_json::from_str(&done.stdout).expect("JSON only");
    assert_eq!(document["run"]["rows"], 1234);
    assert_eq!(document["run"]["files"][0]["key"].as_str().map(str::to_owned).as_slice(), bucket.keys().await);
    let summary = std::fs::read_to_string(folder.0.join("summary.json")).expect("written");
    assert_eq!(serde_json::from_str::<Value>(&summary).expect("JSON")["run"]["rows"], 1234);
    assert!(!done.stderr.contains(&required("AWS_SECRET_ACCESS_KEY")));
}

#[tokio::test]
async fn an_empty_window_is_9_when_asked_for() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let folder = folder("empty", &bucket.name, "SELECT number AS id FROM numbers(0) WHERE now() > {interval_end}");
    assert_eq!(run(&folder, &[]).code, Some(0));
    assert_eq!(run(&folder, &["--error-on-empty"]).code, Some(9));
    assert_eq!(bucket.keys().await, [""; 0]);
}

#[test]
fn a_missing_bucket_is_7_and_named() {
    let folder = folder("missing", "no-such-bucket", "SELECT 1 AS id WHERE now() > {interval_end}");
    let failed = run(&folder, &["-o", "json"]);
    assert_eq!(failed.code, Some(7), "{failed:?}");
    assert!(failed.error()["message"].as_str().expect("a sentence").contains("no-such-bucket"), "{failed:?}");
}

#[test]
fn an_unreachable_server_is_5() {
    let folder = folder("away", "any", "SELECT 1 AS id WHERE now() > {interval_end}");
    let failed = folder
        .run_with(&["run", "export.yaml", "--interval-end", "2026-01-02"], &[("CLICKHOUSE_URL", "http://127.0.0.1:1")]);
    assert_eq!(failed.code, Some(5), "{failed:?}");
    assert!(failed.stderr.contains("127.0.0.1:1"), "{failed:?}");
}

#[tokio::test]
async fn the_time_limit_is_10_and_leaves_nothing() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let failed = run(&folder("limit", &bucket.name, LONG), &["--time-limit", "1s"]);
    assert_eq!(failed.code, Some(10), "{failed:?}");
    assert_eq!((bucket.keys().await.len(), bucket.uploads().await.len()), (0, 0));
}

#[tokio::test]
async fn ctrl_c_is_130_and_leaves_nothing() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let folder = folder("interrupted", &bucket.name, LONG);
    let child = Command::new(env!("CARGO_BIN_EXE_batch-export"))
        .args(["run", "export.yaml", "--interval-end", "2026-01-02"])
        .current_dir(&folder.0)
        .env_clear()
        .envs(environment())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!((bucket.keys().await.len(), bucket.uploads().await.len()), (0, 0));
}

#[tokio::test]
async fn check_shows_columns_and_finds_a_missing_bucket() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let query = "SELECT generateUUIDv4() AS id, now() AS at WHERE now() > {interval_end}";
    let environment = environment();
    let variables = environment.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>();
    let good = folder("check", &bucket.name, query).run_with(&["check", "export.yaml"], &variables);
    assert_eq!(good.code, Some(0), "{good:?}");
    for shown in ["ok       upload: ", "UUID", "String", "Timestamp(ms, UTC)"] {
        assert!(good.stdout.contains(shown), "{shown}: {good:?}");
    }
    assert_eq!((bucket.keys().await.len(), bucket.uploads().await.len()), (0, 0), "check left something");

    let probed = folder("check-probe", &bucket.name, query).run_with(&["check", "export.yaml", "--probe"], &variables);
    assert_eq!(probed.code, Some(0), "{probed:?}");
    let shown = probed.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = crate::s3::capabilities(&bucket).await;
    assert!(shown.contains("complete_if_absent ") && shown.contains(&format!("fenced {}", found.fenced)), "{probed:?}");
    assert_eq!((bucket.keys().await.len(), bucket.uploads().await.len()), (0, 0), "the probe left something");

    let bad = folder("check-bad", "no-such-bucket", query).run_with(&["check", "export.yaml"], &variables);
    assert_eq!(bad.code, Some(7), "{bad:?}");
    assert!(bad.stdout.contains("FAILED   upload: "), "{bad:?}");
    assert!(format!("{}{}", bad.stdout, bad.stderr).contains("no-such-bucket"), "{bad:?}");

    let bad =
        folder("check-json", "no-such-bucket", query).run_with(&["-o", "json", "check", "export.yaml"], &variables);
    let document: Value = serde_json::from_str(&bad.stdout).expect("JSON only");
    assert_eq!((bad.code, &document["error"]["exit_code"]), (Some(7), &7.into()), "{bad:?}");
    assert_eq!(document["check"]["columns"][1]["written_type"], "Timestamp(ms, UTC)");
    let failed = document["check"]["steps"].as_array().expect("steps").iter().find(|step| step["outcome"] == "failed");
    assert_eq!(failed.map(|step| &step["name"]), Some(&"upload".into()), "{bad:?}");
}
