//! `jobs`: deferred work, and what became of it.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use jobs::batches::first_batch;
use jobs::dead_letter::DeadLetter;
use jobs::error::{InvalidJob, ProviderError};
use jobs::job::{Job, JobId, JobKey, KeyMode, MAX_PAYLOAD_BYTES};
use jobs::observer::NoObserver;
use jobs::provider::{Durability, Provider};
use jobs::queue::{Queue, QueueError, StartError};
use jobs::repetition::Repetition;
use serde::Serialize;
use serde_json::Value;

use crate::Process;
use crate::cli::{EnqueueArgs, JobsCommand, JobsCommandArgs, JobsListArgs, KeyModeArg};
use crate::configuration::read_stdin;
use crate::exit::{Exit, Failure};
use crate::job_queue::load_jobs;
use crate::job_queue::places::{self, Places};
use crate::job_queue::status::JobsStatus;
use crate::output;

/// How many jobs are moved at a time.
const BATCH: usize = 100;

/// A job and who has it.
#[derive(Debug, Serialize)]
struct Found {
    provider: String,
    #[serde(flatten)]
    job: Job,
}

#[derive(Debug, Serialize)]
struct JobsDocument {
    jobs: Vec<Found>,
    /// Why some providers' jobs aren't among them.
    errors: Vec<String>,
}

#[derive(Debug, Serialize)]
struct JobDocument<'a> {
    job: &'a Found,
}

#[derive(Debug, Serialize)]
struct DeadDocument<'a> {
    dead: &'a [DeadLetter],
}

#[derive(Debug, Serialize)]
struct DeadJobDocument<'a> {
    dead: &'a DeadLetter,
}

#[derive(Debug, Serialize)]
struct StatusDocument<'a> {
    #[serde(flatten)]
    status: &'a JobsStatus,
}

/// What was done with a job.
#[derive(Debug, Serialize)]
struct Done {
    id: JobId,
    /// `enqueued`, `retried`, `cancelled` or `moved`.
    done: &'static str,
    /// The job that takes its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_id: Option<JobId>,
    /// Who has it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
}

#[derive(Debug, Serialize)]
struct DoneDocument<'a> {
    jobs: &'a [Done],
}

/// Does what was asked for.
pub(crate) async fn run(arguments: &JobsCommandArgs, process: &Process) -> Result<(), Failure> {
    let config = load_jobs(arguments.jobs.jobs.as_deref(), &arguments.connections, process)?;
    let places = places::open(&config)?;
    match &arguments.command {
        JobsCommand::Status => status(&places, process).await,
        JobsCommand::List(arguments) => list(&places, arguments, process).await,
        JobsCommand::Show(arguments) => show(&places, arguments.id, process).await,
        JobsCommand::Enqueue(arguments) => enqueue(&places, arguments, process).await,
        JobsCommand::Retry(arguments) => retry(&places, &arguments.ids, process).await,
        JobsCommand::Cancel(arguments) => cancel(&places, &arguments.ids, process).await,
        JobsCommand::Drain(arguments) => drain(&places, &arguments.provider, process).await,
        JobsCommand::Dead(arguments) => dead(&places, limit(arguments.limit), process).await,
    }
}

async fn status(places: &Places, process: &Process) -> Result<(), Failure> {
    let queue = start(places.on_disk().cloned().collect()).await?;
    let status = JobsStatus::of(&queue).await;
    process.output.document(&StatusDocument { status: &status }, || status_table(&status))?;
    Ok(())
}

fn status_table(status: &JobsStatus) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let rows = status.providers.iter().map(|provider| {
        [
            provider.name.clone(),
            provider.breaker.as_str().to_owned(),
            number(provider.due),
            number(provider.scheduled),
            provider.oldest_due.map(second).unwrap_or_default(),
            provider.error.clone().unwrap_or_default(),
        ]
    });
    output::table(["PROVIDER", "BREAKER", "DUE", "SCHEDULED", "OLDEST DUE", "ERROR"], rows)
}

async fn list(places: &Places, arguments: &JobsListArgs, process: &Process) -> Result<(), Failure> {
    let (mut jobs, mut errors) = (Vec::new(), Vec::new());
    for provider in chosen(places, arguments.provider.as_deref())? {
        match provider.waiting(limit(arguments.limit)).await {
            Ok(found) => {
                jobs.extend(found.into_iter().map(|job| Found { provider: provider.name().to_owned(), job }));
            }
            Err(error) => {
                tracing::warn!(%error, "its jobs are not among those that follow");
                errors.push(error.to_string());
            }
        }
    }
    if jobs.is_empty() && !errors.is_empty() {
        return Err(temporary(errors.join("; ")));
    }
    if process.output.is_stream() {
        return Ok(jobs.iter().try_for_each(|job| process.output.document(&JobDocument { job }, String::new))?);
    }
    let document = JobsDocument { jobs, errors };
    process.output.document(&document, || table(&document.jobs))?;
    Ok(())
}

fn table(jobs: &[Found]) -> String {
    if jobs.is_empty() {
        return "no jobs wait".to_owned();
    }
    let rows = jobs.iter().map(|Found { provider, job }| {
        [
            job.id.to_string(),
            job.name.clone(),
            second(job.run_at),
            format!("{}/{}", job.attempts, job.max_attempts),
            provider.clone(),
            first_line(job.last_error.as_deref()),
        ]
    });
    output::table(["JOB", "NAME", "DUE", "ATTEMPTS", "PROVIDER", "LAST ERROR"], rows)
}

async fn show(places: &Places, id: JobId, process: &Process) -> Result<(), Failure> {
    if let Some((provider, job)) = find(places, id).await? {
        let found = Found { provider: provider.name().to_owned(), job };
        process.output.document(&JobDocument { job: &found }, || pretty(&found))?;
        return Ok(());
    }
    let letter = places.dead.get(id).await.map_err(unavailable)?.ok_or_else(|| no_job(id))?;
    process.output.document(&DeadJobDocument { dead: &letter }, || pretty(&letter))?;
    Ok(())
}

async fn enqueue(places: &Places, arguments: &EnqueueArgs, process: &Process) -> Result<(), Failure> {
    let payload = payload(&arguments.payload)?;
    let job = job(arguments, payload).map_err(|error| Failure::new(Exit::Usage, "Usage", error.to_string()))?;
    let queue = start(places.on_disk().cloned().collect()).await?;
    let receipt = queue.enqueue(std::slice::from_ref(&job), Durability::Persistent).await.map_err(refused)?;
    done(&[Done { id: job.id, done: "enqueued", new_id: None, provider: Some(receipt.provider) }], process)
}

/// A payload that is given, or comes from stdin: an argument has room for 128 KiB only.
fn payload(given: &str) -> Result<Value, Failure> {
    let text = if given == "-" { read_stdin("payload", MAX_PAYLOAD_BYTES)? } else { given.to_owned() };
    serde_json::from_str(&text).map_err(|error| {
        let message = format!("the payload is no JSON: {error}; a text needs quotes of its own");
        Failure::new(Exit::Usage, "Usage", message)
    })
}

fn job(arguments: &EnqueueArgs, payload: Value) -> Result<Job, InvalidJob> {
    let mut job = Job::new(&arguments.name, payload)?
        .with_priority(arguments.priority)
        .with_max_attempts(arguments.max_attempts)?;
    if let Some(run_at) = arguments.run_in.or(arguments.at) {
        job = job.run_at(run_at);
    }
    if let Some(queue) = &arguments.queue {
        job = job.in_queue(queue)?;
    }
    if let Some(cron) = &arguments.cron {
        job = job.repeated(Repetition::new(cron, &arguments.timezone)?)?;
    }
    if let Some(key) = &arguments.key {
        job = job.with_key(
            key,
            match arguments.key_mode {
                KeyModeArg::Replace => KeyMode::Replace,
                KeyModeArg::KeepRunTime => KeyMode::KeepRunTime,
                KeyModeArg::Skip => KeyMode::Skip,
            },
        )?;
    }
    Ok(job)
}

/// A new job takes the place of each, and is there before the old one goes.
async fn retry(places: &Places, ids: &[JobId], process: &Process) -> Result<(), Failure> {
    let queue = start(places.on_disk().cloned().collect()).await?;
    let mut all = Vec::new();
    for id in ids {
        let letter = places.dead.get(*id).await.map_err(unavailable)?;
        let waiting = if letter.is_none() { find(places, *id).await? } else { None };
        let job = match (&letter, &waiting) {
            (Some(letter), _) => letter.revive(),
            (None, Some((_, job))) => Job { id: JobId::new(), ..job.clone() }.run_now(),
            (None, None) => return Err(no_job(*id)),
        };
        // It takes the place of the one that waits, and not its time.
        let key = job.key.clone().map(|key| JobKey { mode: KeyMode::Replace, ..key });
        let job = Job { key, ..job };
        let receipt = queue.enqueue(std::slice::from_ref(&job), Durability::Persistent).await.map_err(refused)?;
        match &waiting {
            Some((provider, _)) => drop(provider.remove(&[*id]).await.map_err(unavailable)?),
            None => places.dead.remove(*id).await.map_err(unavailable)?,
        }
        all.push(Done { id: *id, done: "retried", new_id: Some(job.id), provider: Some(receipt.provider) });
    }
    done(&all, process)
}

async fn cancel(places: &Places, ids: &[JobId], process: &Process) -> Result<(), Failure> {
    let mut all = Vec::new();
    for id in ids {
        let mut provider = None;
        for candidate in places.on_disk() {
            if candidate.remove(&[*id]).await.map_err(unavailable)? > 0 {
                provider = Some(candidate.name().to_owned());
            }
        }
        if provider.is_none() {
            places.dead.get(*id).await.map_err(unavailable)?.ok_or_else(|| no_job(*id))?;
            places.dead.remove(*id).await.map_err(unavailable)?;
        }
        all.push(Done { id: *id, done: "cancelled", new_id: None, provider });
    }
    done(&all, process)
}

/// Copies jobs first and removes them then: one that is interrupted runs twice, and none is lost.
async fn drain(places: &Places, name: &str, process: &Process) -> Result<(), Failure> {
    let from = chosen(places, Some(name))?;
    let others = places.on_disk().filter(|provider| provider.name() != name).cloned().collect::<Vec<_>>();
    if others.is_empty() {
        let message = format!("there is no other provider than {name}; add one to the file of jobs");
        return Err(Failure::new(Exit::Config, "Config", message));
    }
    let queue = start(others).await?;
    let (mut all, mut moved) = (Vec::new(), HashSet::new());
    for provider in from {
        loop {
            let waiting = provider.waiting(BATCH).await.map_err(unavailable)?;
            let jobs = first_batch(&waiting);
            if jobs.is_empty() {
                break;
            }
            if !jobs.iter().all(|job| moved.insert(job.id)) {
                let message = format!("a worker brings jobs back to {name}; take it out of the workers' files first");
                return Err(temporary(message));
            }
            let receipt = queue.enqueue(jobs, Durability::Persistent).await.map_err(refused)?;
            let ids = jobs.iter().map(|job| job.id).collect::<Vec<_>>();
            if provider.remove(&ids).await.map_err(unavailable)? == 0 {
                let message = format!("{} jobs of {name} are at work and stay there; try again later", ids.len());
                return Err(temporary(message));
            }
            let done = |id| Done { id, done: "moved", new_id: None, provider: Some(receipt.provider.clone()) };
            all.extend(ids.into_iter().map(done));
        }
    }
    done(&all, process)
}

async fn dead(places: &Places, limit: usize, process: &Process) -> Result<(), Failure> {
    let letters = places.dead.list(limit).await.map_err(unavailable)?;
    if process.output.is_stream() {
        let mut letters = letters.iter();
        return Ok(letters.try_for_each(|dead| process.output.document(&DeadJobDocument { dead }, String::new))?);
    }
    process.output.document(&DeadDocument { dead: &letters }, || {
        if letters.is_empty() {
            return "no dead letters".to_owned();
        }
        let rows = letters.iter().map(|DeadLetter { job, died_at }| {
            let attempts = format!("{}/{}", job.attempts, job.max_attempts);
            [job.id.to_string(), job.name.clone(), second(*died_at), attempts, first_line(job.last_error.as_deref())]
        });
        output::table(["JOB", "NAME", "DIED", "ATTEMPTS", "LAST ERROR"], rows)
    })?;
    Ok(())
}

fn chosen<'a>(places: &'a Places, name: Option<&str>) -> Result<Vec<&'a Arc<dyn Provider>>, Failure> {
    let found = places.on_disk().filter(|provider| name.is_none_or(|name| provider.name() == name)).collect::<Vec<_>>();
    if found.is_empty() {
        let known = places.on_disk().map(|provider| provider.name()).collect::<Vec<_>>().join(", ");
        let message = format!("no provider {:?} keeps jobs on a disk; there are {known}", name.unwrap_or_default());
        return Err(Failure::not_found(message));
    }
    Ok(found)
}

async fn start(providers: Vec<Arc<dyn Provider>>) -> Result<Queue, Failure> {
    Queue::start(providers, Arc::new(NoObserver)).await.map_err(|error: StartError| temporary(error.to_string()))
}

/// A waiting job, and who has it.
async fn find(places: &Places, id: JobId) -> Result<Option<(&Arc<dyn Provider>, Job)>, Failure> {
    for provider in places.on_disk() {
        if let Some(job) = provider.find(id).await.map_err(unavailable)? {
            return Ok(Some((provider, job)));
        }
    }
    Ok(None)
}

fn done(all: &[Done], process: &Process) -> Result<(), Failure> {
    let line = |done: &Done| {
        let became = done.new_id.map(|id| format!(" as {id}")).unwrap_or_default();
        let place = done.provider.as_ref().map(|provider| format!(" in {provider}")).unwrap_or_default();
        format!("{} {}{became}{place}", done.id, done.done)
    };
    process.output.document(&DoneDocument { jobs: all }, || {
        if all.is_empty() { "no jobs wait".to_owned() } else { all.iter().map(line).collect::<Vec<_>>().join("\n") }
    })?;
    Ok(())
}

fn no_job(id: JobId) -> Failure {
    Failure::not_found(format!("no job {id} waits or is dead; it may be done, or in a worker's memory"))
}

fn unavailable(error: ProviderError) -> Failure {
    temporary(error.to_string())
}

fn refused(error: QueueError) -> Failure {
    match error {
        QueueError::Invalid(error) => Failure::new(Exit::Usage, "Usage", error.to_string()),
        error => temporary(error.to_string()),
    }
}

fn temporary(message: String) -> Failure {
    Failure::new(Exit::Temporary, "JobsUnavailable", message)
}

fn limit(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn first_line(text: Option<&str>) -> String {
    text.and_then(|text| text.lines().next()).unwrap_or_default().to_owned()
}

fn pretty(document: &impl Serialize) -> String {
    // What was JSON before is JSON again.
    serde_json::to_string_pretty(document).unwrap_or_default()
}
