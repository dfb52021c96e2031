//! `worker`: runs exports for Temporal until told to stop.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::Process;
use crate::cli::{ConnectionsArgs, JobsArgs};
use crate::configuration::{cpus, load_connections};
use crate::exit::Failure;
use crate::job_queue::load_jobs;
use crate::worker::{self, WorkerSettings};

/// `worker`. Temporal's address, namespace, TLS and keys come from its own variables (`TEMPORAL_ADDRESS`,
/// `TEMPORAL_NAMESPACE`, …) or from a profile in `temporal.toml`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) connections: ConnectionsArgs,
    /// The task queue to take work from.
    #[arg(long, value_name = "NAME", env = "BATCH_EXPORT_TASK_QUEUE", default_value = workflows::contract::TASK_QUEUE)]
    pub(crate) task_queue: String,
    /// Where /healthz and /metrics are served.
    #[arg(long, value_name = "ADDRESS", env = "BATCH_EXPORT_STATUS_ADDRESS", default_value = "127.0.0.1:9464")]
    pub(crate) status_address: SocketAddr,
    /// The database of runs, made when it doesn't exist; one file per host.
    #[arg(long, value_name = "FILE", env = "BATCH_EXPORT_RUNS", default_value = "batch-export-runs.db")]
    pub(crate) runs: PathBuf,
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
    /// How many runs are at work at once; each may hold its export's memory limit.
    #[arg(long, value_name = "COUNT", env = "BATCH_EXPORT_MAX_CONCURRENT_RUNS", default_value = "4")]
    pub(crate) max_concurrent_runs: NonZeroU32,
    /// How long runs may clean up after SIGTERM before the process ends anyway. Unit: seconds.
    #[arg(long, value_name = "SECONDS", env = "BATCH_EXPORT_SHUTDOWN_GRACE", default_value = "25")]
    pub(crate) shutdown_grace: NonZeroU32,
}

/// Runs the worker.
pub(crate) async fn run(arguments: WorkerArgs, process: &Process) -> Result<(), Failure> {
    let jobs = load_jobs(arguments.jobs.jobs.as_deref(), &arguments.connections, process)?;
    let settings = WorkerSettings {
        jobs,
        connections: load_connections(&arguments.connections, Some(Path::new("")), &process.variables)?,
        cpus: cpus(),
        task_queue: arguments.task_queue,
        status_address: arguments.status_address,
        runs: arguments.runs,
        max_concurrent_runs: arguments.max_concurrent_runs,
        shutdown_grace: Duration::from_secs(u64::from(arguments.shutdown_grace.get())),
    };
    Ok(worker::run(settings).await?)
}
