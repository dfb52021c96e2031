//! One activity task, as the Temporal server sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use temporalio_client::errors::AsyncActivityError;
use temporalio_client::{ActivityIdentifier, AsyncActivityHandle, Client, RetryOptions, RpcOptions};
use temporalio_common::protos::TaskToken;
use temporalio_sdk::activities::ActivityContext;
use workflows::contract::RunProgress;

/// What the server answered to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The attempt goes on.
    Acknowledged,
    /// Somebody asked the workflow to stop.
    CancelRequested,
    /// Somebody paused or reset the activity: this attempt is to end, and another one comes.
    Paused,
    /// The attempt is not the current one any more.
    Lost,
    /// There was no answer.
    Unreachable(String),
}

/// A way to the server for one attempt.
pub trait Task: Send + Sync + fmt::Debug {
    /// Sends a heartbeat and waits for the server's answer, at most as long as given.
    fn heartbeat(&self, progress: RunProgress, patience: Duration) -> BoxFuture<'_, Answer>;

    /// Tells the SDK that the attempt is alive, or it would time the attempt out on its own.
    fn record(&self, progress: RunProgress) -> BoxFuture<'_, ()>;
}

/// Makes the way to the server for an attempt.
pub type TaskFactory = Arc<dyn Fn(&ActivityContext) -> Arc<dyn Task> + Send + Sync>;

/// The way to a real server.
///
/// The SDK's own heartbeat only queues: throttled, its errors merely logged, and a lost connection never surfaces. So
/// this one goes through the client, and its answer counts.
pub struct TemporalTask {
    context: ActivityContext,
    handle: AsyncActivityHandle<Client>,
}

impl TemporalTask {
    /// The way of an attempt, through its worker's own connection.
    #[must_use]
    pub fn new(context: &ActivityContext) -> Self {
        let token = TaskToken::from(context.info().task_token.clone());
        let handle = context.client().get_async_activity_handle(ActivityIdentifier::from_task_token(token));
        Self { context: context.clone(), handle }
    }

    /// A factory of these.
    #[must_use]
    pub fn factory() -> TaskFactory {
        Arc::new(|context| Arc::new(Self::new(context)))
    }
}

impl fmt::Debug for TemporalTask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TemporalTask")
            .field("activity", &self.context.info().activity_id)
            .finish_non_exhaustive()
    }
}

impl Task for TemporalTask {
    fn heartbeat(&self, progress: RunProgress, patience: Duration) -> BoxFuture<'_, Answer> {
        let options = RpcOptions::builder().timeout(patience).retry_options(RetryOptions::no_retries()).build();
        Box::pin(async move {
            // The client's timeout is the server's deadline; a connection that swallows everything needs one of ours.
            match tokio::time::timeout(patience, self.handle.heartbeat(Some(progress), options)).await {
                Ok(Ok(response)) if response.cancel_requested => Answer::CancelRequested,
                Ok(Ok(response)) if response.activity_paused || response.activity_reset => Answer::Paused,
                Ok(Ok(_)) => Answer::Acknowledged,
                Ok(Err(AsyncActivityError::NotFound(_))) => Answer::Lost,
                Ok(Err(error)) => Answer::Unreachable(error.to_string()),
                Err(_) => Answer::Unreachable(format!("no answer within {patience:?}")),
            }
        })
    }

    fn record(&self, progress: RunProgress) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.context.record_heartbeat(progress).await {
                tracing::debug!(%error, "the SDK did not take a heartbeat");
            }
        })
    }
}
