//! A run that has ended, as Temporal remembers it.

use jobs::handler::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use temporalio_client::errors::WorkflowInteractionError;
use temporalio_client::{Client, WorkflowExecutionInfo, WorkflowFetchHistoryOptions};
use temporalio_common::protos::temporal::api::history::v1::history_event::Attributes;

/// One execution of a workflow. Jobs know this of a run, and not its input, which may hold keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PastRun {
    /// The workflow's id.
    pub(super) workflow_id: String,
    /// Which of its executions.
    pub(super) execution_id: String,
}

impl PastRun {
    /// The task queue and the input with which it was started.
    pub(super) async fn beginning(&self, client: &Client) -> Result<(String, Value), Failure> {
        let info = WorkflowExecutionInfo::builder()
            .namespace(client.options().namespace.clone())
            .workflow_id(self.workflow_id.clone())
            .run_id(self.execution_id.clone())
            .build();
        let history = info.bind_untyped(client.clone()).fetch_history(WorkflowFetchHistoryOptions::default());
        let events = history.into_events().await.map_err(|error| match error {
            WorkflowInteractionError::NotFound(_) => {
                Failure::fatal(format!("Temporal doesn't remember the run {} any more", self.workflow_id))
            }
            error => Failure::new(format!("Temporal doesn't tell the input of {}: {error}", self.workflow_id)),
        })?;
        let started = events.into_iter().next().and_then(|event| event.attributes);
        let Some(Attributes::WorkflowExecutionStartedEventAttributes(started)) = started else {
            return Err(Failure::fatal(format!("the history of {} has no start", self.workflow_id)));
        };
        let payload = started.input.and_then(|input| input.payloads.into_iter().next()).unwrap_or_default();
        // Serde's own message may quote the input, and with it a key.
        let input = serde_json::from_slice(&payload.data)
            .map_err(|_| Failure::fatal(format!("the input of {} is no JSON", self.workflow_id)))?;
        Ok((started.task_queue.map(|queue| queue.name).unwrap_or_default(), input))
    }
}
