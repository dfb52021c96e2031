//! The threads that encode, apart from those that wait for the network.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// As many threads as CPUs, shared by all runs of a process. On them, work may take as long as it takes; on the async
/// threads it would keep heartbeats waiting.
#[derive(Debug, Clone)]
pub(crate) struct CpuPool(Arc<ThreadPool>);

impl CpuPool {
    pub(crate) fn new(threads: usize) -> Result<Self> {
        ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("encode-{index}"))
            .build()
            .map(|pool| Self(Arc::new(pool)))
            .map_err(|error| Error::internal("the encoding threads can't be started").with_source(error))
    }

    /// Runs `work` on the pool.
    ///
    /// # Cancel safety
    /// Work that has not begun when the future is dropped never begins; work that has goes on to its end, unheard.
    ///
    /// # Errors
    /// What `work` returns; `Internal` when it panics, which ends this run only.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.0.spawn(move || {
            if !sender.is_closed() {
                let result =
                    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)));
                // Nobody listens any more when the run was cancelled meanwhile.
                let _unheard = sender.send(result);
            }
        });
        receiver.await.unwrap_or_else(|_dropped| Err(Error::internal("an encoding thread went away")))
    }
}

/// Work on `num_bytes` of memory up to this size is done where it comes up: handing it over would cost more.
const SMALL_BYTES: u64 = 64 * 1024;

/// Runs `work` on `num_bytes` of memory beside the async threads, and beside the pool too, whose blocks would take it too
/// long: what reads must not wait for what encodes.
///
/// # Cancel safety
/// Work that has begun goes on to its end, unheard.
///
/// # Errors
/// What `work` returns; `Internal` when it panics.
pub(crate) async fn run_beside<T: Send + 'static>(
    num_bytes: u64,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if num_bytes <= SMALL_BYTES {
        return work();
    }
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => Err(panicked(&*panic)),
        Err(_cancelled) => Err(Error::internal("a thread that cuts blocks went away")),
    })
}

/// The error of a task that panicked.
pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Error::internal(format!("a task of the run panicked: {text}; please report this"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_pool_goes_on() {
        let pool = CpuPool::new(1).expect("one thread");
        let error = pool.run::<()>(|| panic!("boom {}", 7)).await.expect_err("panicked");
        assert!(error.message().contains("boom 7"), "{error}");
        assert_eq!(pool.run(|| Ok(2)).await.expect("works"), 2);
        let error = run_beside::<()>(SMALL_BYTES + 1, || panic!("boom {}", 8)).await.expect_err("panicked");
        assert!(error.message().contains("boom 8"), "{error}");
    }
}
