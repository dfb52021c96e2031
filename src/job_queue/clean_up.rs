//! Uploads that a run left open: of killed processes, and of replies that were lost.

use std::sync::Arc;

use activities::{ExportResolver, Resolver as _, RunEnded};
use engine::interval::Interval;
use engine::run::{RunIdentity, clean_up};
use engine::sink::orphans::Orphans;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use jobs::error::InvalidJob;
use jobs::handler::{Failure, Handler};
use jobs::job::{Job, KeyMode};
use runs::RunStatus;
use serde::{Deserialize, Serialize};
use serde_json::json;
use temporalio_client::Client;
use workflows::payload::S3ExportInput;

use super::past_run::PastRun;
use super::short_key;

/// The name of jobs that abort what a run left open.
pub(super) const JOB: &str = "clean-up-uploads";

/// How long after a run's end its last requests may still be on their way.
const PAUSE: SignedDuration = SignedDuration::from_secs(60);

/// A run that is over, with what names its object.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    #[serde(flatten)]
    run: PastRun,
    run_id: String,
    interval_start: Timestamp,
    interval_end: Timestamp,
    /// What was opened before or later is another run's.
    started_at: Timestamp,
    finished_at: Timestamp,
}

/// The job for a run of which something may be left: an attempt ended without a word, or couldn't say whether it aborted.
pub(super) fn job(end: &RunEnded<'_>) -> Option<Result<Job, InvalidJob>> {
    let run = end.record;
    let may_leave = run.attempt > 1 || matches!(run.status, RunStatus::FailedRetryable | RunStatus::Cancelled);
    let workflow_id = run.workflow_id.clone().filter(|_| may_leave)?;
    let finished_at = run.finished_at.unwrap_or_else(Timestamp::now);
    let key = short_key(JOB, &[&workflow_id, end.execution_id]);
    let payload = json!(Left {
        run: PastRun { workflow_id, execution_id: end.execution_id.to_owned() },
        run_id: run.run_id.clone(),
        interval_start: run.interval_start,
        interval_end: run.interval_end,
        started_at: run.started_at,
        finished_at,
    });
    let due = finished_at.saturating_add(PAUSE).unwrap_or(Timestamp::MAX);
    Some(Job::new(JOB, payload).and_then(|job| job.run_at(due).with_key(key, KeyMode::Replace)))
}

/// Aborts what runs left open.
pub(super) struct CleanUp {
    client: Client,
    resolver: Arc<ExportResolver>,
}

impl CleanUp {
    pub(super) const fn new(client: Client, resolver: Arc<ExportResolver>) -> Self {
        Self { client, resolver }
    }

    async fn do_job(&self, job: &Job) -> Result<(), Failure> {
        let fatal = |error: String| Failure::fatal(format!("this is no run to clean up after: {error}"));
        let left = Left::deserialize(&job.payload).map_err(|error| fatal(error.to_string()))?;
        let (_, input) = left.run.beginning(&self.client).await?;
        let export = S3ExportInput::from_json(&input).and_then(|input| self.resolver.resolve(&input));
        let export = export.map_err(|faults| fatal(faults.join("; ")))?;
        let interval =
            Interval::new(left.interval_start, left.interval_end).map_err(|error| fatal(error.to_string()))?;
        let identity = RunIdentity { run_id: left.run_id, execution_id: left.run.execution_id, attempt: 1, interval };
        match clean_up(&export, &identity, &(left.started_at..left.finished_at)).await {
            Ok(Orphans::Aborted(0)) => {}
            Ok(Orphans::Aborted(uploads)) => {
                tracing::info!(run = identity.run_id, uploads, "orphaned uploads are aborted")
            }
            Ok(Orphans::Denied) => tracing::warn!(
                run = identity.run_id,
                "the credentials may not list uploads, so orphaned ones stay; grant s3:ListBucketMultipartUploads and \
                 s3:AbortMultipartUpload, or set a lifecycle rule"
            ),
            Err(error) if error.is_retryable() => return Err(Failure::new(error.to_string())),
            Err(error) => return Err(Failure::fatal(error.to_string())),
        }
        Ok(())
    }
}

impl Handler for CleanUp {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.do_job(job))
    }
}
