//! The workflow `s3-export` on a real Temporal server: a worker's process, started by the command line, by a schedule and
//! by a backfill, cancelled, told to stop and killed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::services::{Bucket, Store, required};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(90);

/// Rows that take several seconds, so that there is a half-way.
const MANY_ROWS: u64 = 6_000_000;

/// A worker's process with a task queue, a bucket and a record of its own.
pub(crate) struct Bench {
    pub(crate) name: String,
    folder: PathBuf,
    pub(crate) bucket: Bucket,
    /// Where workers find services, if not where the environment says.
    pub(crate) variables: Vec<(&'static str, String)>,
    worker: Option<Child>,
    /// Workers that were left to themselves.
    left: Vec<Child>,
    workers_started: u32,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Vec::new()).await
    }

    /// With a worker that reaches services by other ways.
    pub(crate) async fn with(variables: Vec<(&'static str, String)>) -> Self {
        let name = format!("it-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder).expect("a folder");
        let mut bench = Self {
            name,
            folder,
            bucket: Bucket::fresh(Store::SeaweedFs).await,
            variables,
            worker: None,
            left: Vec::new(),
            workers_started: 0,
        };
        bench.start_worker();
        bench
    }

    /// Starts a worker and waits until it takes work.
    pub(crate) fn start_worker(&mut self) {
        let status = free_address();
        self.workers_started += 1;
        let log = std::fs::File::create(self.log_file(self.workers_started)).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-export"));
        command.args(["worker", "--task-queue", &self.name, "--status-address", &status.to_string(), "--runs"]);
        command.arg(self.runs_file()).current_dir(&self.folder).stdin(Stdio::null()).stderr(log);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        self.worker = Some(command.spawn().expect("a worker"));
        until("the worker is ready", || get(status, "/readyz").filter(|answer| answer.starts_with("HTTP/1.1 200")));
    }

    /// Sends a signal and waits for the worker's end.
    pub(crate) fn end_worker(&mut self, signal: &str) -> std::process::ExitStatus {
        let mut worker = self.worker.take().expect("a worker");
        let sent = Command::new("kill").args(["-s", signal, &worker.id().to_string()]).status().expect("kill");
        assert!(sent.success());
        worker.wait().expect("an end")
    }

    fn runs_file(&self) -> PathBuf {
        self.folder.join("runs.db")
    }

    /// An input that exports so many rows.
    pub(crate) fn input(&self, rows: u64, additions: Value) -> Value {
        let mut input = json!({
            "batch_export_id": self.name,
            "bucket_name": self.bucket.name,
            "interval": "hour",
            "data_interval_end": "2026-01-01T01:00:00Z",
            "query": format!(
                "SELECT number AS id, toDateTime64({{interval_start}}, 6, 'UTC') AS at, repeat('x', 100) AS text \
                 FROM numbers({rows}) ORDER BY id"
            ),
            "activity_options": {"heartbeat_timeout": "4s", "retry": {"initial_interval": "1s"}}
        });
        for (name, value) in additions.as_object().expect("an object") {
            input[name.as_str()] = value.clone();
        }
        input
    }

    pub(crate) fn start(&self, input: &Value) {
        let text = input.to_string();
        temporal(&[
            "workflow",
            "start",
            "--type",
            "s3-export",
            "--task-queue",
            &self.name,
            "--workflow-id",
            &self.name,
            "--input",
            &text,
        ]);
    }

    /// Waits until an attempt has written something, and so is half-way.
    fn wait_half_way(&self) {
        until("the run is half-way", || {
            let described = describe(&self.name);
            let text = described["pendingActivities"].to_string();
            (text.contains("STARTED") && text.contains("heartbeatDetails") && self.has_progress(&described))
                .then_some(())
        });
    }

    fn has_progress(&self, described: &Value) -> bool {
        let details = &described["pendingActivities"][0]["heartbeatDetails"];
        // The CLI decodes payloads that are JSON, in one of two shapes.
        let details = if details.is_array() { &details[0] } else { &details["payloads"][0] };
        details["parts_written"].as_u64().is_some_and(|parts| parts > 0)
    }

    /// The record of runs, the latest first.
    pub(crate) fn runs(&self) -> Vec<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_batch-export"))
            .args(["runs", "list", "--output", "json", "--runs"])
            .arg(self.runs_file())
            .output()
            .expect("a list");
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["runs"].as_array().expect("runs").clone()
    }

    /// Leaves the worker to itself, so that another one can be started.
    pub(crate) fn leave_worker(&mut self) {
        self.left.extend(self.worker.take());
    }

    fn log_file(&self, worker: u32) -> PathBuf {
        self.folder.join(format!("worker-{worker}.log"))
    }

    /// What all workers logged, one after the other.
    pub(crate) fn log(&self) -> String {
        let logs = (1..=self.workers_started).map(|worker| std::fs::read_to_string(self.log_file(worker)));
        logs.map(Result::unwrap_or_default).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        for worker in self.left.iter_mut().chain(&mut self.worker) {
            // It may have ended already.
            drop(worker.kill());
            drop(worker.wait());
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Runs Temporal's own command line.
fn temporal(arguments: &[&str]) -> String {
    let program = PathBuf::from(required("BATCH_EXPORT_PYTHON")).with_file_name("temporal");
    let output = Command::new(&program).args(arguments).output().expect("the temporal command line");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "temporal {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn describe(workflow_id: &str) -> Value {
    let text = temporal(&["workflow", "describe", "--workflow-id", workflow_id, "--output", "json"]);
    serde_json::from_str(&text).expect("JSON")
}

/// Waits for a workflow's end and returns its status and its description.
pub(crate) fn end_of(workflow_id: &str) -> (String, Value) {
    until("the workflow ends", || {
        let described = describe(workflow_id);
        let status = described["workflowExecutionInfo"]["status"].as_str()?;
        let status = status.trim_start_matches("WORKFLOW_EXECUTION_STATUS_").to_owned();
        (status != "RUNNING").then_some((status, described))
    })
}

/// Asks again and again until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// One HTTP request, as text; `None` when nothing answers.
fn request(address: SocketAddr, head: &str, body: &str) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    write!(stream, "{head} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    request(address, &format!("GET {path}"), "")
}

/// The ids of the queries that run on ClickHouse now.
pub(crate) fn running_queries() -> String {
    let url = required("CLICKHOUSE_URL");
    let address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    let (user, password) = (required("CLICKHOUSE_USER"), required("CLICKHOUSE_PASSWORD"));
    let head = format!("POST /?user={user}&password={password}");
    request(address, &head, "SELECT query_id FROM system.processes").expect("ClickHouse answers")
}

#[tokio::test]
async fn a_workflow_that_is_started_by_the_command_line_exports_its_interval() {
    let bench = Bench::new().await;
    bench.start(&bench.input(1_000, json!({"file_format": "Parquet", "compression": "zstd"})));
    let (status, described) = end_of(&bench.name);
    assert_eq!(status, "COMPLETED", "{described}");
    let keys = bench.bucket.keys().await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    let run = bench.runs().remove(0);
    assert_eq!(run["status"], "Completed");
    assert_eq!(run["rows"], 1_000);
    assert_eq!(run["interval_start"], "2026-01-01T00:00:00Z");
    assert_eq!(run["files"][0]["key"], keys[0].as_str());
    let metadata = temporal(&["workflow", "metadata", "--workflow-id", &bench.name]);
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
    temporal(&create);
    let mut backfill = vec!["schedule", "backfill", "--overlap-policy", "AllowAll"];
    backfill.extend(["--start-time", "2026-01-01T00:30:00Z", "--end-time", "2026-01-01T03:30:00Z"]);
    backfill.extend(schedule);
    temporal(&backfill);
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

    temporal(&["schedule", "trigger", "--overlap-policy", "AllowAll", schedule[0], schedule[1]]);
    let latest = finished(4).remove(0);
    assert!(latest["interval_end"].as_str().is_some_and(|end| !end.contains('.')), "{latest}");
    temporal(&["schedule", "delete", schedule[0], schedule[1]]);
    assert_eq!(bench.bucket.keys().await.len(), 4);
}

#[tokio::test]
async fn a_schedule_runs_an_export_by_itself() {
    let bench = Bench::new().await;
    let input = bench.input(10, json!({"data_interval_end": null, "interval": "every 1 minutes"})).to_string();
    let mut create = vec!["schedule", "create", "--interval", "2s", "--overlap-policy", "AllowAll"];
    create.extend(["--schedule-id", &bench.name, "--type", "s3-export", "--task-queue", &bench.name]);
    create.extend(["--workflow-id", &bench.name, "--input", &input]);
    temporal(&create);
    let runs = until("two runs end", || {
        let runs = bench.runs().into_iter().filter(|run| run["status"] == "Completed").collect::<Vec<_>>();
        (runs.len() >= 2).then_some(runs)
    });
    temporal(&["schedule", "delete", "--schedule-id", &bench.name]);
    assert_ne!(runs[0]["interval_end"], runs[1]["interval_end"]);
}

#[tokio::test]
async fn an_input_that_is_refused_fails_the_workflow_once_and_says_why() {
    let bench = Bench::new().await;
    bench.start(&bench.input(10, json!({"max_file_size_mb": 5, "bucket": "x", "aws_secret_access_key": "hunter2"})));
    let (status, described) = end_of(&bench.name);
    assert_eq!(status, "FAILED");
    let history = temporal(&["workflow", "show", "--workflow-id", &bench.name]);
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
    let (status, _) = end_of(&bench.name);
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
    temporal(&["workflow", "cancel", "--workflow-id", &bench.name]);
    let (status, _) = end_of(&bench.name);
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
    let (status, _) = end_of(&bench.name);
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
    let (status, _) = end_of(&bench.name);
    assert_eq!(status, "COMPLETED");
    assert_eq!(bench.bucket.keys().await.len(), 1);
    let run = bench.runs().remove(0);
    assert_eq!((&run["attempt"], &run["rows"]), (&json!(2), &json!(MANY_ROWS)));
}

/// Whoever lets rows disappear between two tries of a run is told, unless the export says that this is in order.
#[tokio::test]
async fn a_window_that_shrinks_fails_the_run_unless_that_is_allowed() {
    let bench = Bench::new().await;
    let statuses = [
        (1_000, json!({}), "COMPLETED"),
        (900, json!({}), "FAILED"),
        (900, json!({"fewer_rows": "allow"}), "COMPLETED"),
    ];
    for (rows, additions, expected) in statuses {
        bench.start(&bench.input(rows, additions));
        let (status, described) = end_of(&bench.name);
        assert_eq!(status, expected, "{described}");
        let run = bench.runs().remove(0);
        if expected == "FAILED" {
            assert_eq!((&run["error_kind"], &run["attempt"]), (&json!("Data"), &json!(1)));
            let error = run["error"].as_str().expect("an error");
            assert!(error.contains("900 rows now") && error.contains("read 1000"), "{error}");
            assert!(bench.bucket.uploads().await.is_empty());
        }
        assert_eq!(bench.bucket.keys().await.len(), 1);
    }
}
