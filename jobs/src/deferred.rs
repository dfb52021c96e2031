//! A provider, and dead letters, that can be made only when what they need answers: credentials, or a region.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::OnceCell;

use crate::consumer::Consumer;
use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::error::{EnqueueError, ProviderError};
use crate::job::{Job, JobId};
use crate::provider::{Capabilities, Depth, Provider};

/// How long whoever consumes waits before it tries again to make the provider.
const PAUSE: Duration = Duration::from_secs(2);

/// Makes what is deferred.
pub type Make<T> = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<T>, ProviderError>> + Send + Sync>;

/// What is made by the first request that needs it, and as often as that fails, by the next.
struct Lazy<T: ?Sized> {
    make: Make<T>,
    made: OnceCell<Arc<T>>,
}

impl<T: ?Sized> Lazy<T> {
    fn new(make: Make<T>) -> Self {
        Self { make, made: OnceCell::new() }
    }

    async fn get(&self) -> Result<&Arc<T>, ProviderError> {
        self.made.get_or_try_init(|| (self.make)()).await
    }
}

/// A provider that is made when it is needed.
pub struct Deferred {
    name: String,
    capabilities: Capabilities,
    provider: Lazy<dyn Provider>,
}

impl Deferred {
    /// A provider that `make` makes; its name and capabilities are known before.
    #[must_use]
    pub fn new(name: impl Into<String>, capabilities: Capabilities, make: Make<dyn Provider>) -> Self {
        Self { name: name.into(), capabilities, provider: Lazy::new(make) }
    }

    async fn get(&self) -> Result<&Arc<dyn Provider>, ProviderError> {
        self.provider.get().await
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Deferred").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Dead letters whose place is made when it is needed.
pub struct DeferredDeadLetters(Lazy<dyn DeadLetters>);

impl DeferredDeadLetters {
    /// Dead letters in what `make` makes.
    #[must_use]
    pub fn new(make: Make<dyn DeadLetters>) -> Self {
        Self(Lazy::new(make))
    }
}

impl fmt::Debug for DeferredDeadLetters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeferredDeadLetters").finish_non_exhaustive()
    }
}

impl DeadLetters for DeferredDeadLetters {
    fn bury<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), ProviderError>> {
        async move { self.0.get().await?.bury(job).await }.boxed()
    }

    fn list(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, ProviderError>> {
        async move { self.0.get().await?.list(limit).await }.boxed()
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<DeadLetter>, ProviderError>> {
        async move { self.0.get().await?.get(id).await }.boxed()
    }

    fn remove(&self, id: JobId) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move { self.0.get().await?.remove(id).await }.boxed()
    }
}

impl Provider for Deferred {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        async { self.get().await?.probe().await }.boxed()
    }

    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>> {
        async move { self.get().await?.enqueue(jobs).await }.boxed()
    }

    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            loop {
                match self.get().await {
                    Ok(provider) => return provider.consume(consumer).await,
                    Err(error) => tracing::debug!(provider = self.name, %error, "no jobs are read yet"),
                }
                if consumer.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                    return Ok(());
                }
            }
        }
        .boxed()
    }

    fn waiting(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        async move { self.get().await?.waiting(limit).await }.boxed()
    }

    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>> {
        async move { self.get().await?.find(id).await }.boxed()
    }

    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>> {
        async move { self.get().await?.remove(ids).await }.boxed()
    }

    fn take_waiting(&self) -> Vec<Job> {
        self.provider.made.get().map(|provider| provider.take_waiting()).unwrap_or_default()
    }

    fn take_all(&self) -> Vec<Job> {
        self.provider.made.get().map(|provider| provider.take_all()).unwrap_or_default()
    }

    fn holds_lease(&self) -> Option<bool> {
        self.provider.made.get().and_then(|provider| provider.holds_lease())
    }

    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>> {
        async { self.get().await?.holds_serial().await }.boxed()
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>> {
        async { self.get().await?.depth().await }.boxed()
    }
}
