//! Jobs that nobody could do: kept until somebody looks at them.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutPayload};
use serde::{Deserialize, Serialize};

use crate::error::ProviderError;
use crate::job::{Job, JobId};

/// A dead job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The job, as it was after its last attempt.
    pub job: Job,
    /// When it was given up.
    pub died_at: Timestamp,
}

impl DeadLetter {
    /// The job as a new one, due now and never tried: for trying again what somebody has repaired.
    #[must_use]
    pub fn revive(&self) -> Job {
        Job { id: JobId::new(), attempts: 0, stalls: 0, last_error: None, ..self.job.clone() }.run_now()
    }
}

/// Where dead jobs are kept.
pub trait DeadLetters: Send + Sync + fmt::Debug {
    /// Keeps a dead job. It is gone from its provider only after this.
    fn bury<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), ProviderError>>;

    /// Those that are kept, the oldest job first.
    fn list(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, ProviderError>>;

    /// One of them.
    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<DeadLetter>, ProviderError>>;

    /// Forgets one.
    fn remove(&self, id: JobId) -> BoxFuture<'_, Result<(), ProviderError>>;
}

/// Dead jobs as objects, each named by its id.
pub struct StoredDeadLetters {
    store: Arc<dyn ObjectStore>,
    folder: Path,
}

impl StoredDeadLetters {
    /// Dead jobs in a folder of `store`.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, folder: Path) -> Self {
        Self { store, folder }
    }

    fn path(&self, id: JobId) -> Path {
        self.folder.clone().join(format!("{id}.json"))
    }

    async fn read(&self, path: &Path) -> Result<Option<DeadLetter>, ProviderError> {
        let read = async { self.store.get(path).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed("can't be read", error)),
        }
    }
}

impl DeadLetters for StoredDeadLetters {
    fn bury<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), ProviderError>> {
        async move {
            let letter = DeadLetter { job: job.clone(), died_at: Timestamp::now() };
            let bytes = serde_json::to_vec(&letter).map_err(|error| failed("can't be written as JSON", error))?;
            let put = self.store.put(&self.path(job.id), PutPayload::from(bytes)).await;
            put.map(|_| ()).map_err(|error| failed("can't be written", error))
        }
        .boxed()
    }

    fn list(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, ProviderError>> {
        async move {
            let objects: Vec<_> = self
                .store
                .list(Some(&self.folder))
                .map_ok(|object| object.location)
                .try_collect()
                .await
                .map_err(|error| failed("can't be listed", error))?;
            // Ids ascend with time, and so do names.
            let mut paths = objects;
            paths.sort_unstable();
            let mut letters = Vec::new();
            for path in paths.iter().take(limit) {
                letters.extend(self.read(path).await?);
            }
            Ok(letters)
        }
        .boxed()
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<DeadLetter>, ProviderError>> {
        async move { self.read(&self.path(id)).await }.boxed()
    }

    fn remove(&self, id: JobId) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            match self.store.delete(&self.path(id)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(failed("can't be deleted", error)),
            }
        }
        .boxed()
    }
}

impl fmt::Debug for StoredDeadLetters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoredDeadLetters").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn failed(doing: &str, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::new("dead letters", format!("{doing}: {error}")).with_source(error)
}
