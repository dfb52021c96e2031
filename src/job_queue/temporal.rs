//! Runs that are started by jobs: those that were asked for while Temporal was away, and intervals that failed.

use std::time::Duration;

use activities::RunEnded;
use engine::config::validate::Check;
use futures::future::BoxFuture;
use jiff::Timestamp;
use jobs::error::InvalidJob;
use jobs::handler::{Failure, Handler};
use jobs::job::{Job, KeyMode};
use runs::RunStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use temporalio_client::errors::WorkflowStartError;
use temporalio_client::{Client, UntypedWorkflow, WorkflowIdReusePolicy, WorkflowStartOptions};
use temporalio_common::data_converters::{PayloadConverter, RawValue};
use workflows::contract;

use super::configuration::RawRetryFailed;
use super::past_run::PastRun;
use super::short_key;

/// The name of jobs that start a run.
pub(crate) const START: &str = "start-run";

/// The name of jobs that start a run again that failed.
pub(super) const RETRY: &str = "retry-run";

/// What stands between a workflow's id and the number of the retry.
const RETRY_MARK: &str = "-retry-";

/// When nobody says it: an hour, three times.
const DEFAULT_AFTER: Duration = Duration::from_hours(1);
const DEFAULT_TIMES: u32 = 3;

/// A run to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartRun {
    /// The workflow's id. Where one has it already, it is this run: nothing more is started.
    pub(crate) workflow_id: String,
    /// The task queue.
    pub(crate) task_queue: String,
    /// The workflow's input, without secrets.
    pub(crate) input: Value,
}

impl StartRun {
    /// Starts it; returns the execution's id. `reuse` says what follows from an earlier run with the id.
    ///
    /// # Errors
    /// Temporal's, `AlreadyStarted` among them.
    pub(crate) async fn start(
        &self,
        client: &Client,
        reuse: WorkflowIdReusePolicy,
    ) -> Result<String, WorkflowStartError> {
        let options = WorkflowStartOptions::new(&self.task_queue, &self.workflow_id).id_reuse_policy(reuse).build();
        let input = RawValue::from_value(&self.input, &PayloadConverter::default());
        let handle = client.start_workflow(UntypedWorkflow::new(contract::WORKFLOW), input, options).await?;
        Ok(handle.info().run_id.clone().unwrap_or_default())
    }

    /// Makes an input that of the interval that ends then; a schedule's names none.
    pub(crate) fn set_interval_end(input: &mut Value, end: Timestamp) {
        if let Value::Object(fields) = input {
            fields.insert("data_interval_end".to_owned(), json!(end));
        }
    }
}

/// A run that failed, to be started again with the input that Temporal has of it.
#[derive(Debug, Serialize, Deserialize)]
struct RetryRun {
    #[serde(flatten)]
    failed: PastRun,
    interval_end: Timestamp,
    number: u32,
}

/// How intervals that failed are tried again.
#[derive(Debug, Clone)]
pub(crate) struct RetryFailed {
    after: Duration,
    times: u32,
    statuses: Vec<RunStatus>,
}

impl RetryFailed {
    pub(super) fn validate(check: &mut Check, raw: &RawRetryFailed) -> Option<Self> {
        let after = raw.after.map_or(DEFAULT_AFTER, |after| after.0);
        let times = raw.times.unwrap_or(DEFAULT_TIMES);
        if times == 0 {
            check.fault("retry_failed.times", "must be at least 1; leave retry_failed out for none");
        }
        let failures = [RunStatus::Failed, RunStatus::FailedRetryable];
        let statuses = raw.statuses.as_ref().map_or_else(
            || Some(failures.to_vec()),
            |words| {
                let parsed = words.iter().map(|word| match word.parse::<RunStatus>() {
                    Ok(status) if failures.contains(&status) => Ok(status),
                    _ => Err(format!("{word:?} is no failure; write Failed or FailedRetryable")),
                });
                check.take("retry_failed.statuses", parsed.collect::<Result<Vec<_>, _>>())
            },
        );
        Some(Self { after, times, statuses: statuses? })
    }

    /// The job that starts a run again, if it is one that failed and wasn't started again often enough.
    pub(super) fn job(&self, end: &RunEnded<'_>) -> Option<Result<Job, InvalidJob>> {
        let run = end.record;
        let workflow_id = run.workflow_id.as_deref().filter(|_| self.statuses.contains(&run.status))?;
        let (original, retried) = split(workflow_id);
        if retried >= self.times {
            tracing::error!(run = run.run_id, retried, "the interval failed again; nobody tries it any more");
            return None;
        }
        let number = retried + 1;
        let failed = PastRun { workflow_id: workflow_id.to_owned(), execution_id: end.execution_id.to_owned() };
        let payload = json!(RetryRun { failed, interval_end: run.interval_end, number });
        let key = short_key(RETRY, &[original, &number.to_string(), end.execution_id]);
        let job = Job::new(RETRY, payload).and_then(|job| job.with_key(key, KeyMode::Replace));
        Some(job.map(|job| {
            let due = job.run_at.checked_add(self.after).unwrap_or(Timestamp::MAX);
            job.run_at(due)
        }))
    }
}

/// A workflow's id without the number of its retry, and that number.
fn split(workflow_id: &str) -> (&str, u32) {
    let retried = workflow_id.rsplit_once(RETRY_MARK).and_then(|(id, number)| Some((id, number.parse().ok()?)));
    retried.unwrap_or((workflow_id, 0))
}

/// Starts runs.
#[derive(Clone)]
pub(super) struct Starter {
    client: Client,
}

impl Starter {
    pub(super) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whoever starts it twice starts it once, as far as `reuse` says.
    async fn start(&self, run: &StartRun, reuse: WorkflowIdReusePolicy) -> Result<(), Failure> {
        match run.start(&self.client, reuse).await {
            Ok(_) => tracing::info!(workflow = run.workflow_id, "a job started this run"),
            Err(WorkflowStartError::AlreadyStarted { .. }) => {
                tracing::info!(workflow = run.workflow_id, "the run was started before");
            }
            Err(error) => return Err(Failure::new(format!("Temporal doesn't start {}: {error}", run.workflow_id))),
        }
        Ok(())
    }

    /// Starts it again for the same interval.
    async fn retry(&self, retry: &RetryRun) -> Result<(), Failure> {
        let (task_queue, mut input) = retry.failed.beginning(&self.client).await?;
        StartRun::set_interval_end(&mut input, retry.interval_end);
        let (original, _) = split(&retry.failed.workflow_id);
        let workflow_id = format!("{original}{RETRY_MARK}{}", retry.number);
        // It may have been tried in vain before, when the same run was started again by hand and failed again.
        let reuse = WorkflowIdReusePolicy::AllowDuplicateFailedOnly;
        self.start(&StartRun { workflow_id, task_queue, input }, reuse).await
    }

    async fn do_job(&self, job: &Job) -> Result<(), Failure> {
        let wrong = |error: serde_json::Error| Failure::fatal(format!("this is no {}: {error}", job.name));
        if job.name == RETRY {
            self.retry(&RetryRun::deserialize(&job.payload).map_err(wrong)?).await
        } else {
            // The id is made for this request alone.
            let run = StartRun::deserialize(&job.payload).map_err(wrong)?;
            self.start(&run, WorkflowIdReusePolicy::RejectDuplicate).await
        }
    }
}

impl Handler for Starter {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.do_job(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_counted_by_the_id() {
        assert_eq!(split("orders-2026-01-01T00:00:00Z"), ("orders-2026-01-01T00:00:00Z", 0));
        assert_eq!(split("orders-retry-2"), ("orders", 2));
        assert_eq!(split("orders-retry-soon"), ("orders-retry-soon", 0));
    }
}
