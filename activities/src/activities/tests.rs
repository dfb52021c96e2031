use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use engine::config::connection::ClickHouseConnection;
use engine::config::export::{DestinationConfig, ExportConfig, FewerRows, InvalidUtf8, KeyLayout, Model, SourceConfig};
use engine::config::limits::{LimitRequest, PipelineLimits};
use engine::config::output::{Output, ParquetCodec};
use engine::config::secret::Secret;
use engine::error::ErrorKind;
use engine::run::{FileReport, RunContext};
use engine::source::events::EventsModel;
use futures::future::BoxFuture;
use runs::RunFilter;
use serde_json::json;
use temporalio_sdk::testing::{ActivityEnvironment, ActivityEnvironmentError, TestActivityInfoOptions};
use workflows::bounds::Bounds;
use workflows::contract::{Outcome, RunProgress};

use super::*;
use crate::observer::NoObserver;
use crate::task::{Answer, Task};

/// A run in the engine's place.
type Script = Box<dyn Fn(RunContext) -> BoxFuture<'static, Result<RunReport>> + Send + Sync>;

struct Scripted(Script);

impl fmt::Debug for Scripted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scripted")
    }
}

impl Exporter for Scripted {
    fn run<'a>(
        &'a self,
        _: &'a ExportConfig,
        _: &'a RunIdentity,
        context: &'a RunContext,
    ) -> BoxFuture<'a, Result<RunReport>> {
        (self.0)(context.clone())
    }
}

#[derive(Debug)]
struct Fixed;

impl Resolver for Fixed {
    fn resolve(&self, input: &S3ExportInput) -> Result<ExportConfig, Vec<String>> {
        let connection = ClickHouseConnection {
            url: "http://localhost:8123".parse().expect("a URL"),
            user: "default".to_owned(),
            password: Secret::new(""),
            database: "default".to_owned(),
            ca_file: None,
            connect_timeout: Duration::from_secs(1),
            first_byte_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
        };
        let model = EventsModel {
            team_id: 2,
            include_events: Vec::new(),
            exclude_events: Vec::new(),
            table: "events".to_owned(),
            lookback_days: 7,
        };
        Ok(ExportConfig {
            id: input.export_id.clone(),
            source: SourceConfig {
                connection,
                model: Model::Events(model),
                settings: BTreeMap::new(),
                invalid_utf8: InvalidUtf8::Replace,
                fewer_rows: FewerRows::Fail,
            },
            destination: DestinationConfig {
                connection: engine::config::connection::S3Connection::default(),
                bucket: input.destination.bucket.clone(),
                prefix: String::new(),
                key_layout: KeyLayout::Default,
                encryption: None,
                write_empty: false,
            },
            output: Output::Parquet(ParquetCodec::Zstd),
            limits: PipelineLimits::derive(&LimitRequest::default(), 2).expect("defaults"),
            transform: None,
        })
    }
}

/// A server that gives these answers, and the last one again and again.
#[derive(Debug)]
struct Answers(Mutex<VecDeque<Answer>>);

impl Task for Answers {
    fn heartbeat(&self, _: RunProgress, _: Duration) -> BoxFuture<'_, Answer> {
        let mut answers = self.0.lock().expect("no panic");
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(std::future::ready(answer.expect("an answer")))
    }

    fn record(&self, _: RunProgress) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What the last heartbeat of an earlier attempt says.
const ROWS_IN_HEARTBEAT: u64 = 5;
const UPLOADS_IN_HEARTBEAT: [&str; 2] = ["left-open", "another-upload"];

/// A worker's process around one activity.
struct Bench {
    _folder: tempfile::TempDir,
    store: RunStore,
    shutdown: CancellationToken,
    environment: ActivityEnvironment,
}

impl Bench {
    async fn new(
        answers: impl IntoIterator<Item = Answer>,
        attempt: u32,
        run: impl Fn(RunContext) -> BoxFuture<'static, Result<RunReport>> + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = RunStore::open(folder.path().join("runs.db")).await.expect("a store");
        let shutdown = CancellationToken::new();
        let task: Arc<dyn Task> = Arc::new(Answers(Mutex::new(answers.into_iter().collect())));
        let activities = Activities::new(Parts {
            exporter: Arc::new(Scripted(Box::new(run))),
            resolver: Arc::new(Fixed),
            store: store.clone(),
            observer: Arc::new(NoObserver),
            ends: Arc::new(NoObserver),
            tasks: Arc::new(move |_| Arc::clone(&task)),
            shutdown: shutdown.clone(),
        });
        let info =
            TestActivityInfoOptions::builder().attempt(attempt).heartbeat_timeout(Duration::from_secs(10)).build();
        let open_uploads = UPLOADS_IN_HEARTBEAT.map(str::to_owned).to_vec();
        let kept = RunProgress { rows_read: ROWS_IN_HEARTBEAT, open_uploads, ..RunProgress::default() };
        let environment =
            ActivityEnvironment::builder_with_default().info(info).heartbeat_details(kept).expect("details");
        let environment = environment.register_activities(activities).build();
        Self { _folder: folder, store, shutdown, environment }
    }

    async fn insert(&self, input: InsertInput) -> Result<InsertOutput, ActivityError> {
        match self.environment.run(Activities::insert_into_s3_activity, input).await {
            Ok(output) => Ok(output),
            Err(ActivityEnvironmentError::Activity(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }

    async fn runs(&self) -> Vec<RunRecord> {
        self.store.list(&RunFilter::default()).await.expect("a list")
    }
}

fn run_info() -> RunInfo {
    let at = |text: &str| text.parse().expect("an instant");
    let interval = Bounds { start: at("2026-01-01T00:00:00Z"), end: at("2026-01-01T01:00:00Z") };
    RunInfo {
        run_id: interval.run_id("orders"),
        export_id: "orders".to_owned(),
        interval,
        started_at: at("2026-01-01T01:00:00Z"),
    }
}

fn input() -> InsertInput {
    InsertInput {
        run: run_info(),
        start_to_close_ms: 3_600_000,
        input: json!({"batch_export_id": "orders", "team_id": 2, "bucket_name": "lake"}),
    }
}

fn report() -> RunReport {
    let file = FileReport {
        bucket: "lake".to_owned(),
        key: "orders/a.parquet".to_owned(),
        rows: 10,
        bytes: 100,
        parts: 0,
        etag: None,
    };
    RunReport { rows: 10, bytes: 100, files: vec![file], repaired_values: 1, rows_left_out: 3, rows_failed: 2 }
}

/// A run that ends when it is told to.
fn obedient(context: RunContext) -> BoxFuture<'static, Result<RunReport>> {
    Box::pin(async move { Err(context.stop.stopped().await) })
}

fn application(error: ActivityError) -> ApplicationFailure {
    match error {
        ActivityError::Application(failure) => *failure,
        other => panic!("an application failure, not {other:?}"),
    }
}

#[tokio::test]
async fn a_run_that_succeeds_reports_what_it_published() {
    let bench = Bench::new([Answer::Acknowledged], 2, |context| {
        Box::pin(async move {
            context.fence.confirm().await?;
            Ok(report())
        })
    })
    .await;
    let output = bench.insert(input()).await.expect("an output");
    assert_eq!((output.records_completed, output.bytes_exported, output.attempt), (10, 100, 2));
    assert_eq!(output.files[0].key, "orders/a.parquet");
    assert_eq!((output.repaired_values, output.rows_left_out, output.rows_failed), (1, 3, 2));
}

#[tokio::test]
async fn an_input_that_is_refused_is_not_retried_and_never_quoted() {
    let bench = Bench::new([Answer::Acknowledged], 1, obedient).await;
    let refused = InsertInput { input: json!({"bucket_name": "lake", "aws_secret_access_key": "hunter2"}), ..input() };
    let failure = application(bench.insert(refused).await.expect_err("a refusal"));
    assert_eq!(failure.type_name(), Some("Config"));
    assert!(failure.is_non_retryable());
    assert!(failure.to_string().contains("`batch_export_id` is required"), "{failure}");
    assert!(!format!("{failure} {:?}", input()).contains("hunter2"));
}

#[tokio::test]
async fn a_cancellation_stops_the_run_and_ends_as_one() {
    let bench = Bench::new([Answer::Acknowledged, Answer::CancelRequested], 1, obedient).await;
    let error = bench.insert(input()).await.expect_err("a cancellation");
    assert!(matches!(error, ActivityError::Cancelled { .. }), "{error:?}");
}

#[tokio::test]
async fn the_sdks_cancellation_is_a_shutdown_unless_the_server_knows_better() {
    for (answer, cancelled) in [(Answer::Acknowledged, false), (Answer::CancelRequested, true)] {
        let bench = Bench::new([answer], 1, obedient).await;
        bench.environment.cancel();
        let error = bench.insert(input()).await.expect_err("a stop");
        assert_eq!(matches!(error, ActivityError::Cancelled { .. }), cancelled, "{error:?}");
    }
}

#[tokio::test]
async fn a_shutdown_is_a_retryable_failure() {
    let bench = Bench::new([Answer::Acknowledged], 1, obedient).await;
    bench.shutdown.cancel();
    let failure = application(bench.insert(input()).await.expect_err("a stop"));
    assert_eq!(failure.type_name(), Some("Shutdown"));
    assert!(!failure.is_non_retryable());
}

#[tokio::test]
async fn an_attempt_ends_itself_before_the_server_does() {
    let bench = Bench::new([Answer::Acknowledged], 1, obedient).await;
    let brief = InsertInput { start_to_close_ms: 100, ..input() };
    let failure = application(bench.insert(brief).await.expect_err("a deadline"));
    assert!(!failure.is_non_retryable());
    assert!(failure.to_string().contains("raise activity_options.start_to_close"), "{failure}");
}

#[tokio::test]
async fn a_panic_fails_this_run_only_and_is_retried() {
    let bench = Bench::new([Answer::Acknowledged], 1, |_| Box::pin(async { panic!("hunter2") })).await;
    let failure = application(bench.insert(input()).await.expect_err("a panic"));
    assert_eq!(failure.type_name(), Some("Internal"));
    assert!(!failure.is_non_retryable());
    assert!(!failure.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_dropped_activity_stops_its_run() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let bench = Bench::new([Answer::Acknowledged], 1, move |context| {
        let sender = sender.lock().expect("no panic").take();
        Box::pin(async move {
            let error = context.stop.stopped().await;
            let kind = error.kind();
            sender.expect("one run").send(kind).expect("a receiver");
            Err(error)
        })
    })
    .await;
    let running = tokio::time::timeout(Duration::from_millis(50), bench.insert(input())).await;
    running.expect_err("still running");
    assert_eq!(receiver.await, Ok(ErrorKind::Shutdown));
}

#[tokio::test]
async fn start_and_finish_keep_the_record() {
    let bench = Bench::new([Answer::Acknowledged], 1, obedient).await;
    let start = StartInput { run: run_info() };
    bench.environment.run(Activities::start_batch_export_run, start).await.expect("a start");
    assert_eq!(bench.runs().await[0].status, RunStatus::Starting);
    let outcome = Outcome {
        status: contract::RunStatus::Completed,
        attempt: 1,
        output: output(report(), 1),
        error_kind: None,
        error: None,
    };
    let finish = FinishInput { run: run_info(), outcome };
    bench.environment.run(Activities::finish_batch_export_run, finish).await.expect("a finish");
    let record = bench.runs().await.remove(0);
    assert_eq!((record.status, record.rows, record.bytes), (RunStatus::Completed, 10, 100));
    assert_eq!(record.workflow_id.as_deref(), Some("test"));
    assert!(record.finished_at.is_some());
}

#[tokio::test]
async fn a_start_that_cannot_be_noted_holds_nothing_up_and_a_finish_is_tried_again() {
    let bench = Bench::new([Answer::Acknowledged], 1, obedient).await;
    bench.store.close().await;
    let start = StartInput { run: run_info() };
    bench.environment.run(Activities::start_batch_export_run, start).await.expect("best effort");
    let outcome = Outcome {
        status: contract::RunStatus::Cancelled,
        attempt: 0,
        output: InsertOutput::default(),
        error_kind: None,
        error: None,
    };
    let finish = FinishInput { run: run_info(), outcome };
    let error = bench.environment.run(Activities::finish_batch_export_run, finish).await.expect_err("no store");
    let ActivityEnvironmentError::Activity(error) = error else { panic!("{error}") };
    assert!(!application(error).is_non_retryable());
}

/// The heartbeat that survived counts, and what a failed attempt noted, also for a later execution.
#[tokio::test]
async fn an_attempt_hears_how_many_rows_the_earlier_ones_read() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let bench = Bench::new([Answer::Acknowledged], 2, move |context| {
        let hears = Arc::clone(&hears);
        Box::pin(async move {
            let rows = context.history.most_rows().await;
            hears.lock().expect("no panic").push(rows);
            Err(Error::internal("fails"))
        })
    })
    .await;
    bench.insert(input()).await.expect_err("fails");
    let selected = Fixed.resolve(&S3ExportInput::from_json(&input().input).expect("an input")).expect("an export");
    bench.store.saw(&run_info().run_id, &selected.source.selection(), 70).await.expect("a write");
    bench.insert(input()).await.expect_err("fails");
    assert_eq!(*heard.lock().expect("no panic"), [ROWS_IN_HEARTBEAT, 70]);
}

/// They are aborted first, and stay in the heartbeats until then, or the attempt after a second kill wouldn't know of them.
#[tokio::test]
async fn an_attempt_hears_which_uploads_earlier_ones_left_open() {
    let bench = Bench::new([Answer::Acknowledged], 2, move |context| {
        Box::pin(async move { Err(Error::internal(context.progress.open_uploads().borrow().join(" "))) })
    })
    .await;
    let failure = application(bench.insert(input()).await.expect_err("fails"));
    assert_eq!(failure.to_string(), UPLOADS_IN_HEARTBEAT.join(" "));
}
