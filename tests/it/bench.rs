//! A worker's process with a corner of every service for itself, and what Temporal's own command line says of its runs.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::services::{Bucket, Store, required};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(90);

/// Rows that take several seconds, so that there is a half-way.
pub(crate) const MANY_ROWS: u64 = 6_000_000;

/// A worker's process with a task queue, a bucket and a record of its own.
pub(crate) struct Bench {
    pub(crate) name: String,
    folder: PathBuf,
    pub(crate) bucket: Bucket,
    /// Where workers find services, if not where the environment says.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The Temporal server for the command line, if not where the environment says.
    pub(crate) server: Option<String>,
    /// More of the worker's command line.
    pub(crate) arguments: Vec<String>,
    worker: Option<Child>,
    /// The status port of the latest worker.
    status: Option<SocketAddr>,
    /// Workers that were left to themselves.
    left: Vec<Child>,
    workers_started: u32,
}

impl Bench {
    /// With a worker that is started.
    pub(crate) async fn new() -> Self {
        Self::with(Vec::new()).await
    }

    /// With a worker that reaches services by other ways.
    pub(crate) async fn with(variables: Vec<(&'static str, String)>) -> Self {
        let mut bench = Self::without_worker(variables).await;
        bench.start_worker();
        bench
    }

    /// Nothing is started yet.
    pub(crate) async fn without_worker(variables: Vec<(&'static str, String)>) -> Self {
        Self::on(Store::SeaweedFs, variables).await
    }

    /// With a bucket in this store; nothing is started yet.
    pub(crate) async fn on(store: Store, variables: Vec<(&'static str, String)>) -> Self {
        let name = format!("it-{}", uuid::Uuid::new_v4().simple());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder).expect("a folder");
        Self {
            name,
            folder,
            bucket: Bucket::fresh(store).await,
            variables,
            server: None,
            arguments: Vec::new(),
            worker: None,
            status: None,
            left: Vec::new(),
            workers_started: 0,
        }
    }

    /// Starts a worker and waits until it takes work.
    pub(crate) fn start_worker(&mut self) {
        self.start_worker_with(&[]);
    }

    /// The same with more variables, for this one alone.
    pub(crate) fn start_worker_with(&mut self, variables: &[(&'static str, String)]) {
        let status = free_address();
        self.workers_started += 1;
        let log = std::fs::File::create(self.log_file(self.workers_started)).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_batch-export"));
        command.args(["worker", "--task-queue", &self.name, "--status-address", &status.to_string(), "--runs"]);
        command.arg(self.runs_file()).args(&self.arguments).current_dir(&self.folder).stdin(Stdio::null()).stderr(log);
        self.bucket.store.give_to(&mut command);
        command.envs(self.variables.iter().chain(variables).map(|(name, value)| (name, value)));
        self.worker = Some(command.spawn().expect("a worker"));
        self.status = Some(status);
        until("the worker is ready", || get(status, "/readyz").filter(|answer| answer.starts_with("HTTP/1.1 200")));
    }

    /// Sends a signal and waits for the worker's end.
    pub(crate) fn end_worker(&mut self, signal: &str) -> std::process::ExitStatus {
        self.signal_worker(signal);
        self.worker.take().expect("a worker").wait().expect("an end")
    }

    pub(crate) fn runs_file(&self) -> PathBuf {
        self.folder.join("runs.db")
    }

    /// What the latest worker's status port answers.
    pub(crate) fn status(&self, path: &str) -> String {
        get(self.status.expect("a worker"), path).expect("an answer")
    }

    pub(crate) fn metrics(&self) -> String {
        self.status("/metrics")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file of the bench.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether Temporal knows a workflow.
    pub(crate) fn is_known(&self, workflow_id: &str) -> bool {
        let mut command = Command::new(temporal_program());
        command.args(["workflow", "describe", "--workflow-id", workflow_id]);
        command.output().expect("the temporal command line").status.success()
    }

    /// Gives workers a file of connections.
    pub(crate) fn write_connections(&mut self, yaml: &str) {
        let file = self.folder.join("connections.yaml");
        std::fs::write(&file, yaml).expect("a file");
        self.arguments.extend(["--connections".to_owned(), file.display().to_string()]);
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

    /// Starts a run with the bench's name as its workflow's id.
    pub(crate) fn start(&self, input: &Value) {
        self.start_as(&self.name, input);
    }

    /// Starts a run.
    pub(crate) fn start_as(&self, workflow_id: &str, input: &Value) {
        let text = input.to_string();
        let what = ["workflow", "start", "--type", "s3-export", "--task-queue", &self.name];
        self.temporal(&[&what[..], &["--workflow-id", workflow_id, "--input", &text]].concat());
    }

    /// Runs Temporal's own command line, against the server that the worker was given.
    pub(crate) fn temporal(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(temporal_program());
        if let Some(address) = &self.server {
            command.env("TEMPORAL_ADDRESS", address);
        }
        let output = command.args(arguments).output().expect("the temporal command line");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "temporal {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn describe(&self, workflow_id: &str) -> Value {
        let text = self.temporal(&["workflow", "describe", "--workflow-id", workflow_id, "--output", "json"]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits for the end of the run that has the bench's name and returns its status and its description.
    pub(crate) fn end(&self) -> (String, Value) {
        self.end_of(&self.name)
    }

    /// Waits for a run's end and returns its status and its description.
    pub(crate) fn end_of(&self, workflow_id: &str) -> (String, Value) {
        until_known(&format!("{workflow_id} ends"), || {
            let described = self.describe(workflow_id);
            let status = described["workflowExecutionInfo"]["status"].as_str().unwrap_or_default();
            let status = status.trim_start_matches("WORKFLOW_EXECUTION_STATUS_").to_owned();
            if status == "RUNNING" { Err(described.to_string()) } else { Ok((status, described)) }
        })
    }

    /// Waits until an attempt has written something, and so is half-way.
    pub(crate) fn wait_half_way(&self) {
        until("the run is half-way", || {
            let described = self.describe(&self.name);
            let text = described["pendingActivities"].to_string();
            (text.contains("STARTED") && text.contains("heartbeatDetails") && self.has_progress(&described))
                .then_some(())
        });
    }

    /// Waits until the server has heard which upload is open.
    pub(crate) fn wait_upload_known(&self) {
        until("a heartbeat names the upload", || {
            let described = self.describe(&self.name);
            described["pendingActivities"].to_string().contains("open_uploads").then_some(())
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

    /// Sends a signal that doesn't end the worker.
    pub(crate) fn signal_worker(&self, signal: &str) {
        send_signal(self.worker.as_ref().expect("a worker").id(), signal);
    }

    /// Leaves the worker to itself, so that another one can be started; returns its process.
    pub(crate) fn leave_worker(&mut self) -> u32 {
        let worker = self.worker.take().expect("a worker");
        let id = worker.id();
        self.left.push(worker);
        id
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

/// Sends a signal to a process of ours.
pub(crate) fn send_signal(process: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &process.to_string()]).status().expect("kill");
    assert!(sent.success(), "{signal} to {process}");
}

/// Temporal's own program, command line and server in one.
pub(crate) fn temporal_program() -> PathBuf {
    PathBuf::from(required("BATCH_EXPORT_PYTHON")).with_file_name("temporal")
}

/// Asks again and again until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_known(what, || ask().ok_or_else(String::new))
}

/// The same, with a word about what there is instead.
fn until_known<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(instead) => assert!(Instant::now() < give_up, "waited in vain until {what}: {instead}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub(crate) fn free_address() -> SocketAddr {
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
