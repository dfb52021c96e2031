//! How the job queue stands, as machines and people read it.

use jiff::Timestamp;
use jobs::breaker::BreakerState;
use jobs::queue::{Mode, ProviderStatus, Queue};
use serde::{Serialize, Serializer};

/// The whole queue.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct JobsStatus {
    /// `normal`, `degraded` or `recovering`.
    #[serde(serialize_with = "mode")]
    pub(crate) mode: Mode,
    /// In the order in which they are tried.
    pub(crate) providers: Vec<PlaceStatus>,
}

/// One provider.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PlaceStatus {
    /// Its name.
    pub(crate) name: String,
    /// `closed` when it is asked.
    #[serde(serialize_with = "breaker")]
    pub(crate) breaker: BreakerState,
    /// Whether the process is its one reader; `None` where any number may read.
    pub(crate) holds_lease: Option<bool>,
    /// Jobs that are due.
    pub(crate) due: Option<u64>,
    /// Jobs for later.
    pub(crate) scheduled: Option<u64>,
    /// Since when the oldest due job waits.
    pub(crate) oldest_due: Option<Timestamp>,
    /// Why it can't be told.
    pub(crate) error: Option<String>,
}

impl JobsStatus {
    /// Asks every provider.
    pub(crate) async fn of(queue: &Queue) -> Self {
        let status = queue.status().await;
        let mode = queue.mode(&status);
        Self { mode, providers: status.into_iter().map(PlaceStatus::from).collect() }
    }
}

impl From<ProviderStatus> for PlaceStatus {
    fn from(status: ProviderStatus) -> Self {
        let (depth, error) = match status.depth {
            Ok(depth) => (Some(depth), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            name: status.name,
            breaker: status.breaker,
            holds_lease: status.holds_lease,
            due: depth.map(|depth| depth.due),
            scheduled: depth.map(|depth| depth.scheduled),
            oldest_due: depth.and_then(|depth| depth.oldest_due),
            error,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn mode<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.as_str())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn breaker<S: Serializer>(state: &BreakerState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.as_str())
}
