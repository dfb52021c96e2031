//! The multipart upload that comes into being with its first part.
//!
//! Owns that it is created once, and that its id is known to whoever aborts it, even when the part that asked for it was
//! dropped meanwhile. Does not own the request.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};

use crate::error::{Error, Result};

/// An upload's id, or why there is none; shared by all parts.
type Creation = Shared<BoxFuture<'static, Result<Arc<str>, Arc<Error>>>>;

/// An upload that is created by the first who needs it.
///
/// # Cancel safety
/// The creation runs in a task of its own: dropping everyone who waits for it doesn't lose the id.
#[derive(Default)]
pub(super) struct LazyUpload {
    creation: Mutex<Option<Creation>>,
}

impl LazyUpload {
    /// An upload that exists already.
    pub(super) fn existing(upload_id: &str) -> Self {
        let creation = std::future::ready(Ok(Arc::from(upload_id))).boxed().shared();
        Self { creation: Mutex::new(Some(creation)) }
    }

    /// The upload's id; the first call creates the upload.
    pub(super) async fn id(&self, create: impl FnOnce() -> BoxFuture<'static, Result<String>>) -> Result<Arc<str>> {
        let creation = {
            let mut slot = self.creation.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert_with(|| spawn(create())).clone()
        };
        creation.await.map_err(|error| copy(&error))
    }

    /// The id of the upload, once its creation is over; `None` when nobody asked for one or there is none.
    pub(super) async fn created(&self) -> Option<Arc<str>> {
        let creation = self.creation.lock().unwrap_or_else(PoisonError::into_inner).clone();
        creation?.await.ok()
    }

    /// Forgets the upload: it is complete or aborted.
    pub(super) fn forget(&self) {
        self.creation.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl std::fmt::Debug for LazyUpload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LazyUpload").finish_non_exhaustive()
    }
}

fn spawn(create: BoxFuture<'static, Result<String>>) -> Creation {
    let task = tokio::spawn(create);
    async move {
        match task.await {
            Ok(outcome) => outcome.map(Arc::from).map_err(Arc::new),
            Err(error) => Err(Arc::new(Error::internal("the creation of the upload ended early").with_source(error))),
        }
    }
    .boxed()
    .shared()
}

/// The same error once more, for each part that waited.
fn copy(error: &Arc<Error>) -> Error {
    let copy = Error::new(error.kind(), error.message()).with_source(Arc::clone(error));
    match error.retry_after() {
        Some(delay) => copy.with_retry_after(delay),
        None => copy,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::error::ErrorKind;

    #[tokio::test]
    async fn is_created_once_for_all() {
        let (upload, calls) = (LazyUpload::default(), Arc::new(AtomicU32::new(0)));
        let create = || {
            let calls = Arc::clone(&calls);
            async move {
                tokio::task::yield_now().await;
                Ok(calls.fetch_add(1, Ordering::Relaxed).to_string())
            }
            .boxed()
        };
        assert_eq!(upload.created().await, None);
        let (first, second) = tokio::join!(upload.id(create), upload.id(create));
        assert_eq!((first.expect("an id").as_ref(), second.expect("the same").as_ref()), ("0", "0"));
        assert_eq!(upload.created().await.as_deref(), Some("0"));
        upload.forget();
        assert_eq!(upload.created().await, None);
    }

    #[tokio::test]
    async fn its_id_survives_who_asked_for_it() {
        let upload = LazyUpload::default();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let asking =
            upload.id(|| async { finished.await.map(|()| "7".to_owned()).map_err(|_| Error::cancelled()) }.boxed());
        assert!(asking.now_or_never().is_none(), "the creation is still under way, and its asker is dropped");
        finish.send(()).expect("the creation goes on");
        assert_eq!(upload.created().await.as_deref(), Some("7"));
    }

    #[tokio::test]
    async fn its_failure_reaches_everybody() {
        let upload = LazyUpload::default();
        let fail = || async { Err(Error::new(ErrorKind::NotFound, "no bucket")) }.boxed();
        for _ in 0..2 {
            assert_eq!(upload.id(fail).await.expect_err("fails").kind(), ErrorKind::NotFound);
        }
        assert_eq!(upload.created().await, None);
    }
}
