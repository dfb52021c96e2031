//! `runs start`: a run on Temporal, now or as soon as Temporal is there.

use std::path::Path;
use std::sync::Arc;

use jobs::job::{Job, JobId};
use jobs::observer::NoObserver;
use jobs::provider::Durability;
use jobs::queue::Queue;
use serde::Serialize;
use serde_json::{Value, json};
use temporalio_client::WorkflowIdReusePolicy;
use temporalio_client::errors::WorkflowStartError;
use workflows::payload::S3ExportInput;

use crate::Process;
use crate::cli::RunsStartArgs;
use crate::configuration;
use crate::exit::{Exit, Failure};
use crate::job_queue::temporal::{START, StartRun};
use crate::job_queue::{load_jobs, places};
use crate::temporal::connect;

/// The longest input that is read from stdin: Temporal takes no longer ones. Unit: bytes.
const MAX_INPUT_BYTES: usize = 2 * 1024 * 1024;

/// What became of the request.
#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Started {
    /// The run is Temporal's.
    Started { workflow_id: String, execution_id: String },
    /// A job starts it.
    Deferred { workflow_id: String, job: JobId, provider: String, reason: String },
}

/// Why Temporal didn't start a run.
enum Refusal {
    /// Temporal is away; later it may.
    Away(String),
    /// It says no.
    Final(Failure),
}

/// Starts a run.
pub(crate) async fn run(arguments: &RunsStartArgs, process: &Process) -> Result<(), Failure> {
    let (run, has_keys) = request(arguments)?;
    let started = match start(&run).await {
        Ok(execution_id) => Started::Started { workflow_id: run.workflow_id, execution_id },
        Err(Refusal::Final(failure)) => return Err(failure),
        Err(Refusal::Away(reason)) if arguments.defer => {
            if has_keys {
                let message = format!(
                    "{reason}; and an input with aws_secret_access_key isn't kept as a job: name an s3_connection"
                );
                return Err(Failure::new(Exit::Config, "Config", message));
            }
            defer(run, reason, arguments, process).await?
        }
        Err(Refusal::Away(reason)) => {
            let message = format!("{reason}; with --defer the request is kept until Temporal is there");
            return Err(Failure::new(Exit::Temporary, "TemporalUnavailable", message));
        }
    };
    process.output.document(&started, || text(&started))?;
    Ok(())
}

/// The run that is asked for, and whether its input has keys in it.
fn request(arguments: &RunsStartArgs) -> Result<(StartRun, bool), Failure> {
    let wrong = |message: String| Failure::new(Exit::Config, "Config", message);
    let mut input: Value = serde_json::from_str(&read(&arguments.input)?)
        .map_err(|error| wrong(format!("{} is no JSON: line {}", arguments.input.display(), error.line())))?;
    if let Some(end) = arguments.interval_end {
        StartRun::set_interval_end(&mut input, end);
    }
    let export = S3ExportInput::from_json(&input).map_err(|faults| wrong(faults.join("; ")))?;
    let bounds = export.bounds(None).map_err(|fault| wrong(format!("{fault}; or give --interval-end")))?;
    let workflow_id = arguments.workflow_id.clone().unwrap_or_else(|| format!("{}-{}", export.export_id, bounds.end));
    let run = StartRun { workflow_id, task_queue: arguments.task_queue.clone(), input };
    Ok((run, export.destination.secret_access_key.is_some()))
}

fn read(input: &Path) -> Result<String, Failure> {
    if input == Path::new("-") {
        configuration::read_stdin("input", MAX_INPUT_BYTES)
    } else {
        configuration::read(input)
    }
}

async fn start(run: &StartRun) -> Result<String, Refusal> {
    let client = connect().await.map_err(|error| Refusal::Away(format!("{error:#}")))?;
    match run.start(&client, WorkflowIdReusePolicy::AllowDuplicate).await {
        Ok(execution_id) => Ok(execution_id),
        Err(WorkflowStartError::AlreadyStarted { .. }) => {
            let message = format!("{} is at work already; wait for its end, or give --workflow-id", run.workflow_id);
            Err(Refusal::Final(Failure::new(Exit::Permanent, "AlreadyStarted", message)))
        }
        Err(error) => Err(Refusal::Away(format!("Temporal doesn't start the run: {error}"))),
    }
}

/// Keeps the request as a job. Its workflow's id is used for nothing else, so that it is started once.
async fn defer(
    run: StartRun,
    reason: String,
    arguments: &RunsStartArgs,
    process: &Process,
) -> Result<Started, Failure> {
    let unavailable = |error: String| Failure::new(Exit::Temporary, "JobsUnavailable", error);
    let config = load_jobs(arguments.jobs.jobs.as_deref(), &arguments.connections, process)?;
    let queue = Queue::start(places::open(&config)?.providers, Arc::new(NoObserver)).await;
    let queue = queue.map_err(|error| unavailable(error.to_string()))?;
    let id = JobId::new();
    let workflow_id = format!("{}-{id}", run.workflow_id);
    let payload = json!(StartRun { workflow_id: workflow_id.clone(), ..run });
    let job = Job::new(START, payload).map_err(|error| Failure::new(Exit::Config, "Config", error.to_string()))?;
    let job = Job { id, ..job };
    let receipt =
        queue.enqueue(&[job], Durability::Persistent).await.map_err(|error| unavailable(error.to_string()))?;
    Ok(Started::Deferred { workflow_id, job: id, provider: receipt.provider, reason })
}

fn text(started: &Started) -> String {
    match started {
        Started::Started { workflow_id, execution_id } => format!("{workflow_id} started, execution {execution_id}"),
        Started::Deferred { workflow_id, job, provider, reason } => {
            format!("{reason}\njob {job} in {provider} starts {workflow_id} as soon as Temporal is there")
        }
    }
}
