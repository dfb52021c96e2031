//! The order to stop a run, with its reason.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind};

/// The order to stop a run. Clones share it; the first reason wins.
///
/// # Cancel safety
/// [`stopped`](Self::stopped) may be dropped and called again.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    token: CancellationToken,
    reason: Arc<OnceLock<(ErrorKind, String)>>,
}

impl Stop {
    /// An order that nobody has given yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Somebody cancelled the run: it must not be tried again.
    pub fn cancel(&self) {
        self.stop(ErrorKind::Cancelled, "the run was cancelled");
    }

    /// The process is going down: the run is to be tried again elsewhere.
    pub fn shut_down(&self) {
        self.stop(ErrorKind::Shutdown, "the worker is shutting down");
    }

    /// Stops the run for a reason of `kind`.
    pub fn stop(&self, kind: ErrorKind, message: &str) {
        self.reason.get_or_init(|| (kind, message.to_owned()));
        self.token.cancel();
    }

    /// Waits for the order.
    pub async fn stopped(&self) -> Error {
        self.token.cancelled().await;
        self.error()
    }

    /// Whether the order was given.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    /// A token that is cancelled with this order, for tasks below it.
    #[must_use]
    pub fn child_token(&self) -> CancellationToken {
        self.token.child_token()
    }

    /// The reason as an error.
    #[must_use]
    pub fn error(&self) -> Error {
        match self.reason.get() {
            Some((kind, message)) => Error::new(*kind, message.clone()),
            None => Error::cancelled(),
        }
    }
}
