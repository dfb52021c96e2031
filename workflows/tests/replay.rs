//! Histories that real runs left, replayed against the workflow's code of today.
//!
//! A change of the workflow that a running execution would not survive fails here. To record a history:
//! see `examples/record_history.rs`.

#![allow(clippy::expect_used, reason = "a test's helper fails its test")]

use temporalio_client::WorkflowHistory;
use temporalio_sdk::workflow_replayer::{WorkflowReplayError, WorkflowReplayer, WorkflowReplayerOptions};
use workflows::contract::INSERT_ACTIVITY;
use workflows::s3_export::S3Export;

const COMPLETED: &str = include_str!("histories/completed.json");

async fn replay(history: &str) -> Result<(), WorkflowReplayError> {
    let history = WorkflowHistory::from_json(history.as_bytes()).expect("a history");
    let options = WorkflowReplayerOptions::new().register_workflow::<S3Export>().expect("one workflow").build();
    WorkflowReplayer::new(options).expect("a replayer").replay_workflow(history).await
}

#[tokio::test]
async fn recorded_runs_replay() {
    for (name, history) in [
        ("completed", COMPLETED),
        ("started by a schedule's backfill", include_str!("histories/scheduled.json")),
        ("cancelled half-way", include_str!("histories/cancelled.json")),
        ("failed", include_str!("histories/failed.json")),
        ("refused", include_str!("histories/refused.json")),
    ] {
        replay(history).await.unwrap_or_else(|error| panic!("the history of a run that was {name}: {error}"));
    }
}

#[tokio::test]
async fn a_history_of_another_workflow_does_not_replay() {
    let other = COMPLETED.replace(INSERT_ACTIVITY, "insert_into_gcs_activity");
    replay(&other).await.expect_err("another activity");
}
