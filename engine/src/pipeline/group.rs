//! Tasks that stand and fall together.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::cpu::panicked;
use crate::error::{self, Error, Result};
use crate::stop::Stop;

/// A group of tasks: the first failure stops all, every end is awaited, one error comes out.
#[derive(Debug, Clone)]
pub(crate) struct TaskGroup {
    stop: Stop,
    token: CancellationToken,
    tracker: TaskTracker,
    failures: Arc<Mutex<Vec<Error>>>,
}

impl TaskGroup {
    /// A group that also stops when `stop` says so.
    pub(crate) fn new(stop: &Stop) -> Self {
        Self { stop: stop.clone(), token: stop.child_token(), tracker: TaskTracker::new(), failures: Arc::default() }
    }

    /// A group of other tasks that stops with this one, and this one with it, but whose end can be awaited alone.
    pub(crate) fn sibling(&self) -> Self {
        Self { tracker: TaskTracker::new(), ..self.clone() }
    }

    /// Starts a task. Its failure, a panic too, stops the group.
    pub(crate) fn spawn(&self, task: impl Future<Output = Result<()>> + Send + 'static) {
        let group = self.clone();
        let guarded = async move {
            let result = AssertUnwindSafe(task).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)));
            if let Err(error) = result {
                group.failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                group.token.cancel();
            }
        };
        self.tracker.spawn(guarded.in_current_span());
    }

    /// Waits for `future`, but no longer than the group goes on.
    ///
    /// # Errors
    /// `Cancelled` when the group stops first; it doesn't count as a failure of its own.
    pub(crate) async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.token.run_until_cancelled(future).await.ok_or_else(Error::cancelled)
    }

    /// Stops the group and waits for the end of every task; what they still say is not heard.
    pub(crate) async fn stop(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// What made a stopped group end, when `last` is the error that its owner saw: a failure of one of its tasks leads
    /// over the cancellations that it caused, and the order to stop over cancellations alone.
    pub(crate) fn reason(&self, last: Error) -> Error {
        let mut failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        failures.push(last);
        match error::group(failures) {
            Some(error) if error.kind() != error::ErrorKind::Cancelled => error,
            _ if self.stop.is_stopped() => self.stop.error(),
            Some(error) => error,
            None => Error::cancelled(),
        }
    }

    /// Waits for the end of every task.
    ///
    /// # Errors
    /// The group's error: see [`error::group`]; the order to stop, when that was the reason.
    pub(crate) async fn wait(&self) -> Result<()> {
        self.tracker.close();
        self.tracker.wait().await;
        let failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        match error::group(failures) {
            None if self.stop.is_stopped() => Err(self.stop.error()),
            None => Ok(()),
            Some(error) => Err(self.reason(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[tokio::test]
    async fn one_failure_stops_all_and_leads() {
        let group = TaskGroup::new(&Stop::new());
        for _ in 0..3 {
            let inner = group.clone();
            group.spawn(async move { inner.unless_stopped(std::future::pending()).await });
        }
        group.spawn(async { Err(Error::data("bad row")) });
        let error = group.wait().await.expect_err("failed");
        assert_eq!((error.kind(), error.others().len()), (ErrorKind::Data, 0));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let group = TaskGroup::new(&Stop::new());
        group.spawn(async { panic!("boom") });
        assert!(group.wait().await.expect_err("panicked").message().contains("boom"));
    }

    #[tokio::test]
    async fn the_order_to_stop_is_the_error() {
        let stop = Stop::new();
        let group = TaskGroup::new(&stop);
        let inner = group.clone();
        group.spawn(async move { inner.unless_stopped(std::future::pending()).await });
        stop.shut_down();
        assert_eq!(group.wait().await.expect_err("stopped").kind(), ErrorKind::Shutdown);
    }
}
