//! The worker's process: Temporal's connection, the engine, the record of runs, the status port, and their end.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use activities::{Activities, ExportResolver, Parts, TemporalTask};
use anyhow::{Context as _, anyhow};
use engine::config::connections::Connections;
use engine::run::Engine;
use runs::RunStore;
use temporalio_common::telemetry::metrics::CoreMeter;
use temporalio_common::telemetry::{PrometheusExporterOptions, TelemetryOptions, start_prometheus_metric_exporter};
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::runtime::worker_tuner::{FixedSizeSlotSupplier, TunerHolder};
use temporalio_sdk::{Runtime, Worker, WorkerOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workflows::s3_export::S3Export;

use crate::allocator;
use crate::job_queue::JobQueue;
use crate::job_queue::configuration::JobsConfig;
use crate::metrics::Metrics;
use crate::status::{Health, Phase, Status};
use crate::temporal::connect;

/// The longest time for which the SDK holds a heartbeat back. Heartbeats of ours are acknowledged on their own; the SDK's
/// only have to be fresh enough for its own timer.
const HEARTBEAT_THROTTLE: Duration = Duration::from_secs(5);

/// How long jobs have to end after runs that took all of the grace.
const JOBS_ENDING: Duration = Duration::from_secs(2);

/// How many workflow tasks are at work at once. They take no time.
const WORKFLOW_TASKS: usize = 100;

/// What a worker is started with.
#[derive(Debug)]
pub(crate) struct WorkerSettings {
    /// The connections that inputs may name.
    pub(crate) connections: Connections,
    /// Where jobs are kept and what they are for.
    pub(crate) jobs: JobsConfig,
    /// How many CPUs there are.
    pub(crate) cpus: u32,
    /// The task queue to poll.
    pub(crate) task_queue: String,
    /// Where the status port is opened.
    pub(crate) status_address: SocketAddr,
    /// The database of runs.
    pub(crate) runs: PathBuf,
    /// How many activities are at work at once.
    pub(crate) max_concurrent_runs: NonZeroU32,
    /// How long runs may clean up.
    pub(crate) shutdown_grace: Duration,
}

/// Runs a worker until a signal ends it.
///
/// # Errors
/// One sentence about what is missing or unreachable, or that runs didn't end within the grace.
pub(crate) async fn run(settings: WorkerSettings) -> anyhow::Result<()> {
    // From here on a signal is never lost, however early it comes.
    let mut signals = Signals::new()?;
    let health = Health::default();
    let metrics = Arc::new(Metrics::new());
    let (runtime, sdk_metrics) = start_runtime()?;
    let status = Status { health: health.clone(), metrics: Arc::clone(&metrics), sdk_metrics: Some(sdk_metrics) };
    let server = status.bind(settings.status_address).await?;
    tracing::info!(address = %server.address()?, "status port open");
    let _server = AbortOnDrop(tokio::spawn(server.run()));

    let client = tokio::select! {
        client = connect() => client?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the connection to Temporal");
            return Ok(());
        }
    };
    let store = RunStore::open(&settings.runs).await?;
    let shutdown = CancellationToken::new();
    let engine = Engine::new()?;
    allocator::keep_within_limits(engine.clone())?;
    let resolver = Arc::new(ExportResolver::new(settings.connections.clone(), settings.cpus));
    let jobs = JobQueue::start(
        &settings.jobs,
        client.clone(),
        Arc::clone(&resolver),
        Arc::clone(metrics.jobs()),
        settings.shutdown_grace,
    )
    .await?;
    let activities = Activities::new(Parts {
        exporter: Arc::new(engine.with_transforms(jobs.transforms())),
        resolver,
        store: store.clone(),
        observer: metrics,
        ends: Arc::new(jobs.run_ends()),
        tasks: TemporalTask::factory(),
        shutdown: shutdown.clone(),
    });
    let mut worker = Worker::new(&runtime, client, options(&settings, activities)?)?;
    let stop_polling = worker.shutdown_handle();
    let mut work = std::pin::pin!(worker.run());
    health.enter(Phase::Ready);
    tracing::info!(task_queue = %settings.task_queue, "taking runs from Temporal");

    let mut deadline = None;
    let outcome = tokio::select! {
        outcome = &mut work => outcome.context("the worker ended"),
        name = signals.next() => {
            health.enter(Phase::Stopping);
            deadline = Some(Instant::now() + settings.shutdown_grace);
            tracing::info!(signal = name, grace = ?settings.shutdown_grace, "stopping: no new runs, and those at work end");
            stop_polling();
            jobs.wind_up();
            shutdown.cancel();
            wind_up(&mut work, &mut signals, settings.shutdown_grace).await
        }
    };
    health.enter(Phase::Stopping);
    // After the runs, whose ends make jobs, and within the same time; but jobs that wait in memory need a moment.
    let deadline =
        deadline.unwrap_or_else(|| Instant::now() + settings.shutdown_grace).max(Instant::now() + JOBS_ENDING);
    tokio::select! {
        () = jobs.stop(deadline) => {}
        name = signals.next() => tracing::warn!(signal = name, "jobs at work will be handled again, and those in memory are lost"),
    }
    store.close().await;
    outcome
}

/// Waits for the runs at work, at most as long as the grace or until the next signal.
async fn wind_up<E>(
    work: impl Future<Output = Result<(), E>>,
    signals: &mut Signals,
    grace: Duration,
) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    tokio::select! {
        ended = tokio::time::timeout(grace, work) => match ended {
            Ok(ended) => ended.context("the worker failed while it stopped"),
            Err(_) => Err(anyhow!("runs did not end within {grace:?} after the order to stop; raise --shutdown-grace")),
        },
        name = signals.next() => Err(anyhow!("ended at once by a second signal, {name}")),
    }
}

/// The SDK's runtime on ours, and the private port of its metrics.
fn start_runtime() -> anyhow::Result<(Runtime, SocketAddr)> {
    let exporter = start_prometheus_metric_exporter(
        PrometheusExporterOptions::builder()
            .socket_addr(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .counters_total_suffix(true)
            .unit_suffix(true)
            .use_seconds_for_durations(true)
            .build(),
    )
    .context("can't open the private port of the SDK's metrics")?;
    let meter: Arc<dyn CoreMeter> = exporter.meter;
    let telemetry = TelemetryOptions::builder().metrics(meter).build();
    let options = RuntimeOptions::builder().telemetry_options(telemetry).build().map_err(|error| anyhow!(error))?;
    Ok((Runtime::from_current_tokio(options)?, exporter.bound_addr))
}

fn options(settings: &WorkerSettings, activities: Activities) -> anyhow::Result<WorkerOptions> {
    let runs = usize::try_from(settings.max_concurrent_runs.get()).unwrap_or(usize::MAX);
    let tuner = TunerHolder::builder()
        .workflow_task_slot_supplier(FixedSizeSlotSupplier::new(WORKFLOW_TASKS))
        .activity_task_slot_supplier(FixedSizeSlotSupplier::new(runs))
        .local_activity_task_slot_supplier(FixedSizeSlotSupplier::new(1))
        .nexus_task_slot_supplier(FixedSizeSlotSupplier::new(1))
        .build();
    Ok(WorkerOptions::new(settings.task_queue.as_str())
        .tuner(tuner)
        .max_heartbeat_throttle_interval(HEARTBEAT_THROTTLE)
        .default_heartbeat_throttle_interval(HEARTBEAT_THROTTLE)
        .graceful_shutdown_period(settings.shutdown_grace)
        .register_workflow::<S3Export>()?
        .register_activities(activities)
        .build())
}

/// The signals that end the worker.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("can't listen to signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ends a task when it is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
