//! The job queue of a worker: where jobs are kept, what they do, and their end.

mod clean_up;
pub(crate) mod configuration;
pub(crate) mod lone_plugins;
pub(crate) mod metrics;
mod past_run;
pub(crate) mod places;
pub(crate) mod plugin_host;
pub(crate) mod status;
pub(crate) mod temporal;
mod webhook;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activities::{ExportResolver, RunEnded};
use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use engine::config::connections::Surroundings;
use engine::config::load;
use engine::transform::Transforms;
use futures::future::BoxFuture;
use jobs::consumer::Consumer;
use jobs::dead_letter::DeadLetters;
use jobs::flow::Flow;
use jobs::handler::Dispatcher;
use jobs::job::Job;
use jobs::observer::Observer;
use jobs::provider::Durability;
use jobs::queue::Queue;
use jobs::repeating::Repeating;
use jobs::spool::Spool;
use sha2::{Digest as _, Sha256};
use temporalio_client::Client;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::clean_up::CleanUp;
use self::configuration::{JobsConfig, RawJobs};
use self::metrics::JobsMetrics;
use self::plugin_host::PluginHost;
use self::status::JobsStatus;
use self::temporal::{RetryFailed, Starter};
use self::webhook::{Webhook, WebhookHandler};
use crate::Process;
use crate::cli::ConnectionsArgs;
use crate::configuration::{load_connections, read, reader_beside};
use crate::exit::Failure;

/// How many jobs, and how many bytes of them, may be in hand before no more are taken.
const MAX_IN_HAND: u64 = 1_000;
const MAX_BYTES_IN_HAND: u64 = 64 * 1024 * 1024;

/// What jobs at work leave of the grace at most, so that what they were doing can still be noted as undone.
const NOTING: Duration = Duration::from_secs(2);

/// How often the places are asked what they hold, for metrics and the status port.
const STATUS_INTERVAL: Duration = Duration::from_secs(15);

/// Reads the file of jobs, or takes what works without anything else.
pub(crate) fn load_jobs(
    file: Option<&Path>,
    connections: &ConnectionsArgs,
    process: &Process,
) -> Result<JobsConfig, Failure> {
    let Some(path) = file else { return Ok(JobsConfig::embedded(configuration::DEFAULT_FOLDER)) };
    let text = read(path)?;
    let connections = load_connections(connections, path.parent(), &process.variables)?;
    let read_file = reader_beside(path);
    let surroundings = Surroundings { variables: &process.variables, read_file: &read_file };
    let name = path.display().to_string();
    Ok(load::file(&name, &text, surroundings, |raw: RawJobs| raw.validate(&connections, surroundings))?)
}

/// The queue of a worker, and whoever handles its jobs.
#[derive(Debug)]
pub(crate) struct JobQueue {
    queue: Queue,
    ends: RunEnds,
    spool: Spool,
    plugins: PluginHost,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    /// Looks after broken providers to the very end: what is in memory has to go somewhere.
    _watch: AbortOnDropHandle<()>,
}

impl JobQueue {
    /// Starts to take and to handle jobs.
    ///
    /// # Errors
    /// When there is no place where jobs survive, with every place's reason; or a plugin can't be set up.
    pub(crate) async fn start(
        config: &JobsConfig,
        temporal: Client,
        resolver: Arc<ExportResolver>,
        metrics: Arc<JobsMetrics>,
        grace: Duration,
    ) -> anyhow::Result<Self> {
        let places = places::open(config)?;
        metrics.watch_memory(places.memory);
        let observer: Arc<dyn Observer> = Arc::<JobsMetrics>::clone(&metrics);
        let queue = Queue::start(places.providers, Arc::clone(&observer)).await.context("the job queue")?;
        let plugins = PluginHost::start(&config.plugins, Arc::new(queue.clone())).await?;
        let spool = Spool::new(config.folder.join("spool"));
        match spool.replay(&queue).await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!(jobs, "jobs that nobody took at the last end are back in the queue"),
            Err(error) => tracing::error!(%error, "jobs of an earlier process stay in their file"),
        }
        let stop = CancellationToken::new();
        let work = plugins.with_jobs(dispatcher(config, temporal, resolver, places.dead, observer)?);
        let consumer = Consumer::new(
            Arc::new(Repeating::new(Arc::new(work), queue.clone())),
            Flow::new(MAX_IN_HAND, MAX_BYTES_IN_HAND),
            config.concurrency.get(),
            stop.clone(),
            grace.saturating_sub(NOTING.min(grace / 4)),
        );
        let tasks = vec![
            tokio::spawn({
                let queue = queue.clone();
                async move { queue.consume(&consumer).await }
            }),
            tokio::spawn(note_status(queue.clone(), metrics, stop.clone())),
        ];
        let watch = AbortOnDropHandle::new(tokio::spawn({
            let queue = queue.clone();
            async move { queue.watch(CancellationToken::new()).await }
        }));
        let ends = RunEnds {
            queue: queue.clone(),
            webhooks: config.webhooks.clone(),
            retry_failed: config.retry_failed.clone(),
        };
        Ok(Self { queue, ends, spool, plugins, stop, tasks, _watch: watch })
    }

    /// Where the ends of runs are told.
    pub(crate) fn run_ends(&self) -> RunEnds {
        self.ends.clone()
    }

    /// The plugins that exports may ask for.
    pub(crate) fn transforms(&self) -> Transforms {
        self.plugins.transforms()
    }

    /// Begins no more jobs, and keeps those that wait in memory where they survive. Those that runs make at their ends are
    /// still taken.
    pub(crate) fn wind_up(&self) {
        self.stop.cancel();
        self.queue.wind_up(&self.spool);
    }

    /// Stops in good order: no new jobs, those at work end until `deadline`, and what is in memory is kept. A provider that
    /// doesn't answer holds nothing up: what it handed out comes again.
    pub(crate) async fn stop(self, deadline: Instant) {
        self.wind_up();
        for mut task in self.tasks {
            match timeout_at(deadline, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "a task of the job queue ended badly"),
                Err(_late) => {
                    tracing::warn!("jobs at work did not end in time; they will be handled again");
                    task.abort();
                }
            }
        }
        self.plugins.close(deadline).await;
        if let Err(error) = self.queue.close(&self.spool).await {
            tracing::error!(%error, "jobs in memory are lost");
        }
    }
}

fn dispatcher(
    config: &JobsConfig,
    temporal: Client,
    resolver: Arc<ExportResolver>,
    dead: Arc<dyn DeadLetters>,
    observer: Arc<dyn Observer>,
) -> anyhow::Result<Dispatcher> {
    let webhooks = WebhookHandler::new(&config.webhooks)?;
    let clean_up = CleanUp::new(temporal.clone(), resolver);
    let starter = Arc::new(Starter::new(temporal));
    Ok(Dispatcher::new(dead)
        .with_observer(observer)
        .with_handler(webhook::JOB, Arc::new(webhooks))
        .with_handler(clean_up::JOB, Arc::new(clean_up))
        .with_handler(temporal::START, Arc::<Starter>::clone(&starter))
        .with_handler(temporal::RETRY, starter))
}

/// Notes what every place holds, again and again, until the order to stop.
async fn note_status(queue: Queue, metrics: Arc<JobsMetrics>, stop: CancellationToken) {
    loop {
        metrics.note_status(JobsStatus::of(&queue).await);
        if stop.run_until_cancelled(tokio::time::sleep(STATUS_INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// Tells those of the ends of runs who want to hear of them.
#[derive(Debug, Clone)]
pub(crate) struct RunEnds {
    queue: Queue,
    webhooks: Vec<Webhook>,
    retry_failed: Option<RetryFailed>,
}

impl activities::RunEnds for RunEnds {
    fn note<'a>(&'a self, end: RunEnded<'a>) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let retry = self.retry_failed.iter().filter_map(|retry| retry.job(&end));
            let jobs =
                self.webhooks.iter().filter_map(|webhook| webhook.job(&end)).chain(retry).chain(clean_up::job(&end));
            let jobs = jobs.collect::<Result<Vec<Job>, _>>();
            let jobs = jobs.map_err(|error| error.to_string())?;
            if jobs.is_empty() {
                return Ok(());
            }
            self.queue.enqueue(&jobs, Durability::Persistent).await.map(drop).map_err(|error| error.to_string())
        })
    }
}

/// A key of a length that a job may have.
fn short_key(kind: &str, parts: &[&str]) -> String {
    let digest = Sha256::digest(parts.join("\n"));
    format!("{kind}:{}", BASE64_URL_SAFE_NO_PAD.encode(digest))
}
