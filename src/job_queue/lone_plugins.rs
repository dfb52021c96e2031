//! Plugins of a process that does no jobs: what they put into the queue is for workers.

use std::sync::Arc;
use std::time::Duration;

use engine::transform::{TransformConfig, Transforms};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jobs::job::Job;
use jobs::observer::NoObserver;
use jobs::queue::Queue;
use jobs::spool::Spool;
use plugins::outbox::Outbox;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::configuration::JobsConfig;
use super::places;
use super::plugin_host::PluginHost;
use crate::exit::{Exit, Failure};

/// How long plugins may take to end.
const ENDING: Duration = Duration::from_secs(30);

/// The plugin of one run, with the queue that its jobs go to.
#[derive(Debug)]
pub(crate) struct LonePlugins {
    host: PluginHost,
    queue: Queue,
    spool: Spool,
    watch: JoinHandle<()>,
}

impl LonePlugins {
    /// Starts the plugin that an export asks for. Jobs go to places that a worker can see, never to this process's memory.
    ///
    /// # Errors
    /// When there is no place where jobs survive; or the plugin can't be set up.
    pub(crate) async fn start(config: &JobsConfig, transform: &TransformConfig) -> Result<Self, Failure> {
        let providers = places::open(config)?.on_disk().cloned().collect();
        let queue = Queue::start(providers, Arc::new(NoObserver)).await;
        let queue = queue.map_err(|error| Failure::new(Exit::Temporary, "JobsUnavailable", error.to_string()))?;
        let host = start(config, transform, Arc::new(queue.clone())).await?;
        let watch = tokio::spawn({
            let queue = queue.clone();
            async move { queue.watch(CancellationToken::new()).await }
        });
        Ok(Self { host, queue, spool: Spool::new(config.folder.join("spool")), watch })
    }

    /// See [`PluginHost::transforms`].
    pub(crate) fn transforms(&self) -> Transforms {
        self.host.transforms()
    }

    /// Ends the plugin, and waits until its jobs are in the queue.
    pub(crate) async fn close(self) {
        self.host.close(Instant::now() + ENDING).await;
        self.watch.abort();
        if let Err(error) = self.queue.close(&self.spool).await {
            tracing::error!(%error, "jobs of the plugin are lost");
        }
    }
}

/// Starts the plugin that an export asks for, to see whether it starts. Its jobs are refused.
///
/// # Errors
/// When it can't be set up.
pub(crate) async fn try_plugin(config: &JobsConfig, transform: &TransformConfig) -> Result<PluginHost, Failure> {
    start(config, transform, Arc::new(NoJobs)).await
}

async fn start(
    config: &JobsConfig,
    transform: &TransformConfig,
    outbox: Arc<dyn Outbox>,
) -> Result<PluginHost, Failure> {
    let asked_for = config.plugins.iter().filter(|plugin| plugin.name == transform.name).cloned().collect::<Vec<_>>();
    let started = PluginHost::start(&asked_for, outbox).await;
    started.map_err(|error| Failure::new(Exit::Config, "Plugin", error.to_string()))
}

/// Takes no jobs.
struct NoJobs;

impl Outbox for NoJobs {
    fn enqueue(&self, _: Job) -> BoxFuture<'_, Result<(), String>> {
        async { Err("a check takes no jobs".to_owned()) }.boxed()
    }
}
