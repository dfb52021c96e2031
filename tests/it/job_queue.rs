//! Deferred work by the worker and the command line: webhooks, runs that are started later, and what became of jobs.

use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::{Bench, MANY_ROWS, until};
use crate::cli::{Folder, Run};
use crate::services::required;

/// Keeps what is sent to it; refuses the first calls.
pub(crate) struct Receiver {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Receiver {
    pub(crate) async fn start(refused: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook?token=s3cret", listener.local_addr().expect("an address"));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // Else the caller died in the middle.
                let Some(request) = read_call(&mut stream).await else { continue };
                let number = {
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    heard.push((Instant::now(), request));
                    heard.len()
                };
                let answer = if number <= refused { "503 Unavailable\r\nretry-after: 1" } else { "204 No Content" };
                // A caller that is gone doesn't matter here.
                drop(stream.write_all(format!("HTTP/1.1 {answer}\r\nconnection: close\r\n\r\n").as_bytes()).await);
            }
        });
        Self { url, calls }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls_with_times().into_iter().map(|(_, call)| call).collect()
    }

    /// What was sent, and when.
    pub(crate) fn calls_with_times(&self) -> Vec<(Instant, String)> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One call; `None` when the caller goes away before it is whole.
pub(crate) async fn read_call(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !is_whole(&request) {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => request.extend_from_slice(&bytes[..read]),
        }
    }
    Some(String::from_utf8_lossy(&request).into_owned())
}

/// The id of the job that calls.
pub(crate) fn job_of(call: &str) -> String {
    call.lines().find_map(|line| line.strip_prefix("webhook-id: ")).expect("an id").trim().to_owned()
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

impl Bench {
    /// Gives workers a file of jobs, whose folder and schema are this bench's own. More providers may come first in what is
    /// added.
    pub(crate) fn write_jobs(&mut self, additions: &str) {
        let yaml = format!(
            "version: 1\nproviders:\n  - type: memory\n  - type: postgres\n    url: ${{BATCH_EXPORT_TEST_POSTGRES_URL}}\n    \
             schema: {}\n  - type: files\n{additions}",
            self.name
        );
        self.write_jobs_file(&yaml);
    }

    /// Gives workers a file of jobs.
    pub(crate) fn write_jobs_file(&mut self, yaml: &str) {
        std::fs::write(self.file("jobs.yaml"), yaml).expect("a file");
        self.arguments.extend(["--jobs".to_owned(), self.file("jobs.yaml").display().to_string()]);
    }

    /// The payload of a job that calls the webhook `ops`, of an invented run.
    pub(crate) fn call_of(&self, number: usize) -> String {
        let run = json!({
            "run_id": format!("run {number}"), "export_id": self.name, "workflow_id": null, "status": "Cancelled",
            "interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-01T01:00:00Z", "attempt": 1, "rows": 0, "bytes": 0,
            "files": [], "error_kind": null, "error": null, "started_at": "2026-01-01T00:00:00Z", "finished_at": null,
        });
        json!({"webhook": "ops", "run": run}).to_string()
    }

    /// Whether no job waits where other processes can see it.
    pub(crate) fn has_no_jobs(&self) -> bool {
        parsed(&self.jobs(&["list"]))["jobs"].as_array().is_some_and(Vec::is_empty)
    }

    /// Whether no job was given up.
    pub(crate) fn has_no_dead(&self) -> bool {
        parsed(&self.jobs(&["dead"]))["dead"].as_array().is_some_and(Vec::is_empty)
    }

    /// Runs the program's `jobs` on the worker's file.
    pub(crate) fn jobs(&self, arguments: &[&str]) -> Run {
        self.jobs_with(arguments, &[])
    }

    /// The same with more variables.
    pub(crate) fn jobs_with(&self, arguments: &[&str], variables: &[(&'static str, String)]) -> Run {
        let arguments = [&["jobs", "--jobs", "jobs.yaml", "-o", "json"], arguments].concat();
        Run::new(&self.program_output_with(&arguments, variables))
    }

    fn program(&self, arguments: &[&str]) -> Run {
        Run::new(&self.program_output(arguments))
    }

    fn program_output(&self, arguments: &[&str]) -> Output {
        self.program_output_with(arguments, &[])
    }

    fn program_output_with(&self, arguments: &[&str], variables: &[(&'static str, String)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-export"));
        command.args(arguments).current_dir(self.folder()).stdin(Stdio::null());
        self.bucket.store.give_to(&mut command);
        command.envs(self.variables.iter().chain(variables).map(|(name, value)| (name, value)));
        command.output().expect("the program starts")
    }
}

pub(crate) fn parsed(run: &Run) -> Value {
    assert_eq!(run.code, Some(0), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_hears_of_a_run_though_it_was_away() {
    let receiver = Receiver::start(2).await;
    let mut bench =
        Bench::without_worker(vec![("HOOK", receiver.url.clone()), ("HOOK_KEY", "whsec_aGlkZGVuLWtleQ==".to_owned())])
            .await;
    bench
        .write_jobs("webhooks:\n  - name: ops\n    url: ${HOOK}\n    secret: ${HOOK_KEY}\n    statuses: [Completed]\n");
    bench.start_worker();
    bench.start(&bench.input(1_000, json!({})));
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    until("the third call comes", || (receiver.calls().len() >= 3).then_some(()));
    let calls = receiver.calls();
    let id = |call: &str| call.lines().find(|line| line.starts_with("webhook-id: ")).map(str::to_owned);
    assert!(id(&calls[0]).is_some() && calls.iter().all(|call| id(call) == id(&calls[0])), "{calls:?}");
    assert!(calls[2].contains("webhook-signature: v1,"), "{calls:?}");
    let (_, body) = calls[2].split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&body["type"], &body["data"]["status"]), (&json!("run.ended"), &json!("Completed")));
    assert_eq!((&body["data"]["rows"], &body["data"]["export_id"]), (&json!(1_000), &json!(bench.name)));
    assert!(!bench.log().contains("s3cret") && !bench.log().contains("aGlkZGVu"), "an address may hold a token");
    until("the job is gone", || {
        let waiting = parsed(&bench.jobs(&["list"]));
        waiting["jobs"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let metrics = bench.metrics();
    for line in [
        "jobqueue_enqueue_total{provider=\"postgres\",outcome=\"accepted\"} 1",
        "jobqueue_executions_total{job=\"webhook\",outcome=\"failed\"} 2",
        "jobqueue_executions_total{job=\"webhook\",outcome=\"done\"} 1",
        "jobqueue_breaker_state{provider=\"files\"} 0",
        "jobqueue_lease_held{provider=\"files\"} ",
        "jobqueue_depth{provider=\"postgres\",state=\"due\"} ",
    ] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }

    // Somebody who wants to see whether calls arrive.
    parsed(&bench.jobs(&["enqueue", "webhook", "{\"webhook\": \"ops\"}"]));
    until("the ping comes", || (receiver.calls().len() >= 4).then_some(()));
    let calls = receiver.calls();
    let (_, body) = calls[3].split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&body["type"], &body["data"]), (&json!("ping"), &json!({})));
}

#[tokio::test]
async fn an_interval_that_failed_is_tried_again_later() {
    let mut bench = Bench::without_worker(Vec::new()).await;
    bench.write_jobs("retry_failed: {after: 1s, times: 2}\n");
    bench.start_worker();
    bench.start(&bench.input(10, json!({"bucket_name": "it-no-such-bucket"})));
    assert_eq!(bench.end().0, "FAILED");
    let retried = |number: u32| format!("{}-retry-{number}", bench.name);
    until("it is started again", || bench.is_known(&retried(1)).then_some(()));
    assert_eq!(bench.end_of(&retried(1)).0, "FAILED");
    until("it is started once more", || bench.is_known(&retried(2)).then_some(()));
    assert_eq!(bench.end_of(&retried(2)).0, "FAILED");
    until("nobody tries it any more", || bench.log().contains("nobody tries it any more").then_some(()));
    assert!(!bench.is_known(&retried(3)));
}

#[tokio::test]
async fn a_run_that_is_asked_for_while_temporal_is_away_starts_later() {
    let mut bench = Bench::without_worker(Vec::new()).await;
    bench.write_jobs("");
    let mut input = bench.input(1_000, json!({}));
    input.as_object_mut().expect("an object").remove("data_interval_end");
    std::fs::write(bench.file("input.json"), input.to_string()).expect("a file");
    let start = |more: &[&str]| {
        let common = ["runs", "start", "input.json", "--interval-end", "2026-01-01T01:00:00Z", "-o", "json"];
        [&common[..], &["--task-queue", &bench.name], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let (now, later) = (start(&[]), start(&["--defer", "--jobs", "jobs.yaml"]));
    let words = |arguments: &[String]| arguments.iter().map(String::clone).collect::<Vec<_>>();
    let address = std::mem::replace(&mut bench.variables, vec![("TEMPORAL_ADDRESS", "127.0.0.1:1".to_owned())]);
    let run = |bench: &Bench, arguments: &[String]| {
        let arguments = words(arguments);
        bench.program(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refused = run(&bench, &now);
    assert_eq!((refused.code, &refused.error()["kind"]), (Some(5), &json!("TemporalUnavailable")), "{refused:?}");
    let deferred = parsed(&run(&bench, &later));
    assert_eq!((&deferred["outcome"], &deferred["provider"]), (&json!("deferred"), &json!("postgres")));
    let workflow = deferred["workflow_id"].as_str().expect("an id").to_owned();

    // Keys don't go into a job.
    let with_keys = json!({"aws_access_key_id": "a", "aws_secret_access_key": "hunter2"});
    std::fs::write(bench.file("input.json"), bench.input(1, with_keys).to_string()).expect("a file");
    let refused = run(&bench, &later);
    assert!(refused.code == Some(78) && !refused.stdout.contains("hunter2"), "{refused:?}");
    std::fs::write(bench.file("input.json"), input.to_string()).expect("a file");

    bench.variables = address;
    bench.start_worker();
    until("a job starts it", || bench.is_known(&workflow).then_some(()));
    assert_eq!(bench.end_of(&workflow).0, "COMPLETED");
    let started = parsed(&run(&bench, &now));
    assert_eq!(started["outcome"], "started");
    assert_eq!(bench.end_of(started["workflow_id"].as_str().expect("an id")).0, "COMPLETED");
}

#[tokio::test]
async fn jobs_are_shown_tried_again_moved_and_removed() {
    let mut bench = Bench::without_worker(Vec::new()).await;
    bench.write_jobs("");
    let enqueued = |arguments: &[&str]| {
        let done = parsed(&bench.jobs(&[&["enqueue"], arguments].concat()));
        (done["jobs"][0]["id"].as_str().expect("an id").to_owned(), done["jobs"][0]["provider"].clone())
    };
    let (later, provider) =
        enqueued(&["nobody", r#"{"a": 1}"#, "--in", "3 weeks", "--key", "k", "--max-attempts", "1"]);
    assert_eq!(provider, "postgres");
    let (replaced, _) =
        enqueued(&["nobody", "2", "--at", "2030-01-01T00:00:00Z", "--key", "k", "--key-mode", "keep-run-time"]);
    let listed = parsed(&bench.jobs(&["list"]));
    assert_eq!((listed["jobs"].as_array().map(Vec::len), &listed["jobs"][0]["payload"]), (Some(1), &json!(2)));
    assert_eq!(bench.jobs(&["show", &later]).code, Some(3), "it was replaced");
    assert_eq!(parsed(&bench.jobs(&["show", &replaced]))["job"]["provider"], "postgres");

    // The copy takes the place of the one that waits, whatever its key says, and there is one at every moment.
    let (skips, _) = enqueued(&["nobody", "--in", "1 week", "--key", "s", "--key-mode", "skip"]);
    let retried = parsed(&bench.jobs(&["retry", &skips]));
    let retried = retried["jobs"][0]["new_id"].as_str().expect("an id").to_owned();
    assert_eq!(bench.jobs(&["show", &skips]).code, Some(3));
    assert_eq!(parsed(&bench.jobs(&["show", &retried]))["job"]["key"]["key"], "s");
    parsed(&bench.jobs(&["cancel", &retried]));

    let (yearly, _) = enqueued(&["nobody", "--cron", "@yearly", "--timezone", "Europe/Berlin"]);
    assert_eq!(
        enqueued(&["nobody", "--cron", "@yearly", "--timezone", "Europe/Berlin"]).0,
        yearly,
        "it is there already"
    );
    assert_eq!(parsed(&bench.jobs(&["show", &yearly]))["job"]["repetition"]["cron"], "@yearly");
    parsed(&bench.jobs(&["cancel", &yearly]));

    let moved = parsed(&bench.jobs(&["drain", "postgres"]));
    assert_eq!((&moved["jobs"][0]["id"], &moved["jobs"][0]["provider"]), (&json!(replaced), &json!("files")));
    let status = parsed(&bench.jobs(&["status"]));
    assert_eq!((&status["providers"][0]["scheduled"], &status["providers"][1]["scheduled"]), (&json!(0), &json!(1)));
    assert_eq!(parsed(&bench.jobs(&["cancel", &replaced]))["jobs"][0]["done"], "cancelled");
    assert_eq!(bench.jobs(&["cancel", &replaced]).code, Some(3), "it is gone");

    let (dies, _) = enqueued(&["nobody", "--max-attempts", "1"]);
    bench.start_worker();
    let dead = until("the job nobody handles is dead", || {
        let dead = parsed(&bench.jobs(&["dead"]));
        dead["dead"].get(0).cloned()
    });
    assert_eq!(
        (&dead["job"]["id"], &dead["job"]["last_error"]),
        (&json!(dies), &json!("nobody handles jobs named `nobody`"))
    );
    let revived = parsed(&bench.jobs(&["retry", &dies]));
    let revived = revived["jobs"][0]["new_id"].as_str().expect("an id").to_owned();
    until("it dies again, under its new id", || {
        let dead = parsed(&bench.jobs(&["dead"]));
        (dead["dead"][0]["job"]["id"] == revived.as_str()).then_some(())
    });
    assert_eq!(parsed(&bench.jobs(&["show", &revived]))["dead"]["job"]["name"], "nobody");
    let status = bench.status("/jobs");
    assert!(status.contains("\"mode\":\"normal\"") && status.contains("\"name\":\"postgres\""), "{status}");
}

/// Whoever is called doesn't answer, and the worker ends in time all the same; the call comes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_hangs_does_not_hold_up_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/hook", silent.local_addr().expect("an address"));
    let mut bench = Bench::without_worker(vec![("HOOK", url)]).await;
    bench.write_jobs("webhooks: [{name: ops, url: \"${HOOK}\"}]\n");
    bench.arguments.extend(["--shutdown-grace".to_owned(), "3".to_owned()]);
    bench.start_worker();
    bench.start(&bench.input(10, json!({})));
    assert_eq!(bench.end().0, "COMPLETED");
    let _calling = silent.accept().await.expect("a call");
    let begin = Instant::now();
    assert!(bench.end_worker("TERM").success(), "{}", bench.log());
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    until("the call waits again", || parsed(&bench.jobs(&["list"]))["jobs"].get(0).cloned());
}

#[tokio::test]
async fn an_upload_that_nobody_knows_is_aborted_after_the_run() {
    let mut bench = Bench::without_worker(Vec::new()).await;
    bench.write_jobs("");
    bench.start_worker();
    bench.start(&bench.input(10, json!({})));
    assert_eq!(bench.end().0, "COMPLETED");
    assert!(parsed(&bench.jobs(&["list"]))["jobs"].as_array().is_some_and(Vec::is_empty), "nothing can be left");
    let key = bench.bucket.keys().await.remove(0);
    let again = format!("{}-again", bench.name);
    bench.start_as(&again, &bench.input(100 * MANY_ROWS, json!({})));
    until("the run is in the record", || bench.runs().iter().any(|run| run["status"] == "Running").then_some(()));
    bench.bucket.open_upload(&key).await;
    bench.bucket.open_upload(&format!("{key}.other")).await;
    bench.temporal(&["workflow", "cancel", "--workflow-id", &again]);
    assert_eq!(bench.end_of(&again).0, "CANCELED");
    let waiting = until("a job is to clean up", || parsed(&bench.jobs(&["list"]))["jobs"].get(0).cloned());
    assert_eq!((&waiting["name"], &waiting["payload"]["workflow_id"]), (&json!("clean-up-uploads"), &json!(again)));
    parsed(&bench.jobs(&["retry", waiting["id"].as_str().expect("an id")]));
    until("the job is done", || {
        parsed(&bench.jobs(&["list"]))["jobs"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert_eq!(bench.bucket.uploads().await, [format!("{key}.other")], "what is another's stays");
    assert!(parsed(&bench.jobs(&["dead"]))["dead"].as_array().is_some_and(Vec::is_empty));
}

/// The last resort, alone: it has no place for dead letters.
#[tokio::test]
async fn clickhouse_keeps_jobs_where_nothing_else_does() {
    let mut bench = Bench::without_worker(Vec::new()).await;
    let yaml = format!("version: 1\nproviders: [{{type: clickhouse, table: \"{}\"}}]\n", bench.name);
    std::fs::write(bench.file("jobs.yaml"), yaml).expect("a file");
    bench.arguments.extend(["--jobs".to_owned(), bench.file("jobs.yaml").display().to_string()]);
    let enqueued = parsed(&bench.jobs(&["enqueue", "nobody", "{\"a\": 1}", "--max-attempts", "1"]));
    assert_eq!(enqueued["jobs"][0]["provider"], "clickhouse");
    let listed = parsed(&bench.jobs(&["list"]));
    assert_eq!(
        (&listed["jobs"][0]["id"], &listed["jobs"][0]["payload"]),
        (&enqueued["jobs"][0]["id"], &json!({"a": 1}))
    );
    bench.start_worker();
    let dead = until("the job nobody handles is dead", || parsed(&bench.jobs(&["dead"]))["dead"].get(0).cloned());
    assert_eq!(dead["job"]["id"], enqueued["jobs"][0]["id"]);
    assert!(parsed(&bench.jobs(&["list"]))["jobs"].as_array().is_some_and(Vec::is_empty));
    assert!(bench.end_worker("TERM").success(), "{}", bench.log());
}

#[test]
fn what_is_wrong_with_jobs_is_said_in_one_sentence() {
    let folder = Folder::new("jobs");
    let variables = [("CLICKHOUSE_URL", "http://127.0.0.1:1"), ("BATCH_EXPORT_JOBS", "jobs.yaml")];
    let embedded = |arguments: &[&str]| folder.run_with(arguments, &[]);
    for (arguments, code, sentence) in [
        (&["jobs", "enqueue", "a", "{"][..], 2, "is no JSON"),
        (&["jobs", "enqueue", "a", "1", "--in", "3 fortnights"], 2, "unknown time unit `fortnights`"),
        (&["jobs", "enqueue", "a", "1", "--at", "tomorrow"], 2, "is no time"),
        (&["jobs", "enqueue", "a", "--cron", "* *"], 2, "the pattern `* *`"),
        (&["jobs", "enqueue", "a", "--cron", "@daily", "--timezone", "Mars"], 2, "`Mars` isn't a time zone"),
        (&["jobs", "enqueue", "", "1"], 2, "the job's name"),
        (&["jobs", "enqueue", "a", "\"\\u0000\""], 2, "the character 0"),
        (&["jobs", "show", "x"], 2, "is no id of a job"),
        (&["jobs", "show", "019ad1c4-0000-7000-8000-000000000000"], 3, "no job 019ad1c4"),
        (&["jobs", "drain", "kafka"], 3, "there are files"),
        (&["jobs", "drain", "files"], 78, "no other provider"),
    ] {
        let run = embedded(arguments);
        assert_eq!(run.code, Some(code), "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(sentence), "{arguments:?}: {run:?}");
    }
    for (payload, code, sentence) in [
        (format!("\"{}\"", "x".repeat(300_000)), 0, ""),
        (format!("\"{}\"", "x".repeat(2_000_000)), 2, "more than 1048576 bytes"),
        ("{".to_owned(), 2, "the payload is no JSON"),
    ] {
        std::fs::write(folder.0.join("payload.json"), payload).expect("a file");
        let stdin = std::fs::File::open(folder.0.join("payload.json")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-export"));
        command.args(["jobs", "enqueue", "a", "-"]).current_dir(&folder.0).stdin(stdin);
        let run = Run::new(&command.output().expect("the program starts"));
        assert!(run.code == Some(code) && run.stderr.contains(sentence), "{run:?}");
    }

    let cases = [
        (
            "providers:\n  - type: kafka\n",
            "\"kafka\" is unknown; write memory, postgres, s3, gcs, azure, clickhouse or files",
        ),
        ("providers:\n  - {type: gcs}\n  - {type: azure, account: a, bucket: b}\n", "providers[1].container"),
        ("providers:\n  - {type: gcs}\n  - {type: azure, account: a, bucket: b}\n", "providers[0].bucket"),
        ("providers:\n  - {type: clickhouse, connection: nowhere}\n", "providers[0].connection"),
        ("providers:\n  - {type: azure, account: a, container: c, access_key: hunter2}\n", "providers[0].access_key"),
        ("providers:\n  - type: memory\n", "needs one that keeps jobs on a disk"),
        (
            "providers:\n  - {type: files, folder: jobs}\n  - {type: files, name: other, folder: jobs}\n",
            "providers[1]: keeps jobs where \"files\" does; leave one of them out",
        ),
        ("providers:\n  - type: files\n    bucket: b\n", "doesn't belong to files; its fields are folder"),
        ("providers:\n  - type: files\n  - type: files\n", "\"files\" is taken"),
        ("providers:\n  - type: postgres\n    url: postgres://me:hunter2@db/x\n", "providers[0].url"),
        ("providers:\n  - type: s3\n", "providers[0].bucket: is missing"),
        ("webhooks:\n  - name: ops\n", "webhooks[0].url: is missing"),
        ("webhooks:\n  - name: ops\n    url: nowhere\n", "isn't a web address"),
        ("webhooks:\n  - {name: ops, url: \"http://x\", statuses: [Done]}\n", "Done is not a run status"),
        ("retry_failed: {times: 0}\n", "retry_failed.times: must be at least 1"),
        ("concurrency: 0\n", "concurrency: must be at least 1"),
        ("folders: x\n", "folders"),
    ];
    for (yaml, sentence) in cases {
        folder.file("jobs.yaml", &format!("version: 1\n{yaml}"));
        let run = folder.run_with(&["jobs", "list"], &variables);
        assert_eq!(run.code, Some(78), "{yaml}: {run:?}");
        assert!(run.stderr.contains(sentence) && !run.stderr.contains("hunter2"), "{yaml}: {run:?}");
    }
    let postgres = "version: 1\nproviders:\n  - type: postgres\n    url: ${URL}\n";
    folder.file("jobs.yaml", postgres);
    let url = required("BATCH_EXPORT_TEST_POSTGRES_URL");
    let wrong = format!("{}nobody_made_this", url.trim_end_matches("batch_export"));
    let run = folder.run_with(&["jobs", "enqueue", "a"], &[("BATCH_EXPORT_JOBS", "jobs.yaml"), ("URL", &wrong)]);
    assert!(run.code == Some(5) && run.stderr.contains("nobody_made_this"), "{run:?}");
}
