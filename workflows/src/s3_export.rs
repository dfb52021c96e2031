//! The workflow `s3-export`: start run, insert into S3, finish run, which always runs.

#![allow(missing_debug_implementations, reason = "the SDK's macros make marker types without it")]

use jiff::Timestamp;
use serde_json::Value;
use temporalio_common::data_converters::RawValue;
use temporalio_common::search_attributes::{SearchAttributeKey, Timestamp as AttributeTimestamp};
use temporalio_common::{ActivityCloseTimeouts, MemoValue, Priority};
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ActivityCancellationType, ActivityOptions, ApplicationFailure, WorkflowCancellationToken, WorkflowContext,
    WorkflowResult, WorkflowTermination,
};

use crate::contract::{
    ExportActivities, ExportResult, FinishInput, InsertInput, Outcome, RunInfo, RunStatus, StartInput,
};
use crate::options;
use crate::outcome::CancelRequest;
use crate::payload::S3ExportInput;
use crate::{contract, details};

/// The time for which a schedule started the workflow, without jitter and without the delay of a backfill.
const SCHEDULED_START: SearchAttributeKey<AttributeTimestamp> =
    SearchAttributeKey::datetime("TemporalScheduledStartTime");

/// One run of one export.
///
/// # Invariants
/// The finish runs whatever happened to the insert, and a cancellation doesn't reach it. A run that failed fails the
/// workflow, and a cancelled one ends it as cancelled: neither looks green.
#[workflow]
#[derive(Debug, Default)]
pub struct S3Export;

#[workflow_methods]
impl S3Export {
    /// Runs it. The input is taken raw: a typed one that doesn't fit would fail the workflow task again and again,
    /// where the workflow is to fail once and say why.
    #[run(name = contract::WORKFLOW)]
    #[allow(missing_docs, reason = "the macro drops the documentation of the constant it makes")]
    pub async fn run(ctx: &mut WorkflowContext<Self>, input: RawValue) -> WorkflowResult<ExportResult> {
        let plan = Plan::new(ctx, &input).map_err(|faults| refused(&faults))?;
        ctx.set_current_details(details::markdown(&plan.run, None));
        start(ctx, &plan).await;
        let outcome = insert(ctx, &plan).await;
        ctx.set_current_details(details::markdown(&plan.run, Some(&outcome)));
        finish(ctx, &plan, &outcome).await;
        end(&plan.run, &outcome)
    }
}

/// What a run is going to do, known before its first activity.
struct Plan {
    run: RunInfo,
    input: Value,
    options: options::InsertOptions,
}

impl Plan {
    fn new(ctx: &WorkflowContext<S3Export>, input: &RawValue) -> Result<Self, Vec<String>> {
        let input = decode(input).map_err(|fault| vec![fault])?;
        let export = S3ExportInput::from_json(&input)?;
        let interval = export.bounds(scheduled_start(ctx)).map_err(|fault| vec![fault])?;
        let started_at = ctx.info().start_time().or_else(|| ctx.workflow_time());
        let run = RunInfo {
            run_id: interval.run_id(&export.export_id),
            export_id: export.export_id,
            interval,
            started_at: started_at.and_then(|time| Timestamp::try_from(time).ok()).unwrap_or(interval.end),
        };
        Ok(Self { run, input, options: export.options })
    }
}

/// The one JSON object of an input.
fn decode(input: &RawValue) -> Result<Value, String> {
    let [payload] = input.payloads.as_slice() else {
        return Err(format!("the workflow takes one JSON object as its input, not {}", input.payloads.len()));
    };
    // Serde's own message may quote the input, and with it a key.
    serde_json::from_slice(&payload.data).map_err(|_| "the input is not valid JSON".to_owned())
}

/// The scheduled time, in whole seconds: a schedule that is triggered by hand adds the moment's fraction.
fn scheduled_start(ctx: &WorkflowContext<S3Export>) -> Option<Timestamp> {
    let scheduled = ctx.search_attributes().get(&SCHEDULED_START)?;
    Timestamp::from_second(scheduled.seconds()).ok()
}

/// The failure of an input: once, with every fault.
fn refused(faults: &[String]) -> WorkflowTermination {
    let message = format!("the input of {} is refused: {}", contract::WORKFLOW, faults.join("; "));
    WorkflowTermination::failed_application(
        ApplicationFailure::builder(message).type_name("Config".to_owned()).non_retryable(true).build(),
    )
}

/// Notes the start, for at most a minute. The run goes on without it: its record is written whole at the end.
async fn start(ctx: &WorkflowContext<S3Export>, plan: &Plan) {
    let (start_to_close, schedule_to_close) = options::start_timeouts();
    let options = ActivityOptions::with_close_timeouts(ActivityCloseTimeouts::ScheduleAndStartToClose {
        schedule_to_close,
        start_to_close,
    })
    .retry_policy(options::record_retry_policy())
    .priority(ahead_of_inserts())
    .cancellation_token(WorkflowCancellationToken::new())
    .summary(details::summary(&plan.run))
    .build();
    let input = StartInput { run: plan.run.clone() };
    // A start that fails has been logged by its worker and by Temporal; there is nobody else to tell.
    let _unnoted = ctx.execute_activity(ExportActivities::start_batch_export_run, input, options).await.is_err();
}

async fn insert(ctx: &WorkflowContext<S3Export>, plan: &Plan) -> Outcome {
    if let Some(request) = cancel_request(ctx) {
        return Outcome::cancelled(0, request.reason.as_deref());
    }
    let options = ActivityOptions::with_start_to_close_timeout(plan.options.start_to_close)
        .heartbeat_timeout(plan.options.heartbeat_timeout)
        .retry_policy(plan.options.retry_policy())
        .cancellation_type(ActivityCancellationType::WaitCancellationCompleted)
        .summary(details::summary(&plan.run))
        .build();
    let input = InsertInput {
        run: plan.run.clone(),
        start_to_close_ms: u64::try_from(plan.options.start_to_close.as_millis()).unwrap_or(u64::MAX),
        input: plan.input.clone(),
    };
    match ctx.execute_activity(ExportActivities::insert_into_s3_activity, input, options).await {
        Ok(output) => Outcome::completed(output),
        Err(error) => Outcome::of_error(&error, cancel_request(ctx).as_ref()),
    }
}

/// Notes the end, under a token of its own, so that a cancellation of the workflow doesn't reach it.
async fn finish(ctx: &WorkflowContext<S3Export>, plan: &Plan, outcome: &Outcome) {
    let options = ActivityOptions::with_start_to_close_timeout(options::finish_timeout())
        .retry_policy(options::record_retry_policy())
        .priority(ahead_of_inserts())
        .cancellation_token(WorkflowCancellationToken::new())
        .summary(format!("{} {}", details::summary(&plan.run), outcome.status.as_str()))
        .build();
    let input = FinishInput { run: plan.run.clone(), outcome: outcome.clone() };
    // It is tried until it succeeds; whatever ends it otherwise doesn't change how the run ended.
    let _unnoted = ctx.execute_activity(ExportActivities::finish_batch_export_run, input, options).await.is_err();
    let memo = [
        ("export", plan.run.export_id.clone()),
        ("interval", plan.run.interval.to_string()),
        ("outcome", details::markdown(&plan.run, Some(outcome))),
    ];
    // A memo of texts always converts.
    let _unnoted = ctx.upsert_memo(memo.map(|(name, text)| (name, Some(MemoValue::new(text))))).is_err();
}

/// Starts and ends go before inserts that wait for a worker: they take no time, and a run isn't over without its end.
fn ahead_of_inserts() -> Priority {
    Priority::builder().priority_key(1).build()
}

fn cancel_request(ctx: &WorkflowContext<S3Export>) -> Option<CancelRequest> {
    let token = ctx.cancellation_token();
    token.is_cancelled().then(|| CancelRequest { reason: token.reason() })
}

/// Ends the workflow as its run ended.
fn end(run: &RunInfo, outcome: &Outcome) -> WorkflowResult<ExportResult> {
    let result = ExportResult::new(run, outcome);
    match outcome.status {
        RunStatus::Completed => Ok(result),
        RunStatus::Cancelled => Err(WorkflowTermination::cancelled_with_details(result)),
        RunStatus::Failed | RunStatus::FailedRetryable => {
            let failure = ApplicationFailure::builder(outcome.error.clone().unwrap_or_default())
                .maybe_type_name(outcome.error_kind.clone())
                .non_retryable(outcome.status == RunStatus::Failed)
                .details(result)
                .build();
            Err(WorkflowTermination::failed_application(failure))
        }
    }
}
