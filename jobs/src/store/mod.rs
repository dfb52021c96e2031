//! Jobs as objects: in a bucket, or in a folder of this machine.
//!
//! # Layout
//! Under the prefix: `jobs/` and `keyed/` hold one object per job, named by when it is due; `lease/` says who
//! reads; `at-work/` what the reader had in hand when it was last heard of; `corrupt/` what is no job.

mod lease;
mod name;
mod reader;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::sync::Notify;

use self::lease::Leases;
use self::name::{Name, folder};
use self::reader::Reader;
use crate::consumer::{Consumer, consume};
use crate::error::{EnqueueError, ProviderError};
use crate::flow::Level;
use crate::job::{Job, JobId, MAX_PAYLOAD_BYTES};
use crate::provider::{Capabilities, Delivery, Depth, Durability, Locality, Provider, ReadMode, Throughput};
use crate::reads::Reads;

/// How many requests are under way at once.
const REQUESTS: usize = 16;

/// How an object store is used.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Its name as a provider.
    pub name: String,
    /// What every object's name begins with.
    pub prefix: Path,
    /// Where it is.
    pub locality: Locality,
    /// Whether it lists in the order of names, as S3 does: then a look ends with the first job that isn't due.
    pub lists_in_order: bool,
    /// The pause between looks for jobs that others have put there.
    pub poll: Duration,
    /// After so much time without a sign of the reader, another one takes over.
    pub lease_term: Duration,
}

impl StoreOptions {
    /// For a folder of this machine.
    #[must_use]
    pub fn local() -> Self {
        Self {
            name: "files".to_owned(),
            prefix: Path::default(),
            locality: Locality::Local,
            lists_in_order: false,
            poll: Duration::from_millis(500),
            lease_term: Duration::from_secs(10),
        }
    }

    /// For a bucket.
    #[must_use]
    pub fn remote(name: impl Into<String>, prefix: Path) -> Self {
        Self {
            name: name.into(),
            prefix,
            locality: Locality::Remote,
            lists_in_order: true,
            poll: Duration::from_secs(5),
            lease_term: Duration::from_secs(30),
        }
    }
}

impl StoreOptions {
    /// What a store that is used so can do.
    #[must_use]
    pub const fn capabilities(&self) -> Capabilities {
        Capabilities {
            durability: Durability::Persistent,
            locality: self.locality,
            throughput: Throughput::Low,
            read_mode: ReadMode::SingleReader,
            delivery: Delivery::AtLeastOnce,
            max_delay: None,
            accepts_recovery_flush: true,
            max_payload: MAX_PAYLOAD_BYTES,
        }
    }
}

/// Jobs as objects of a store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn ObjectStore>,
    options: StoreOptions,
    /// A job was put here by this process.
    changed: Notify,
    /// Whether this process is the reader.
    reads: AtomicBool,
}

impl Store {
    /// Jobs in `store`. Nothing is sent yet.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, options: StoreOptions) -> Self {
        Self { shared: Arc::new(Shared { store, options, changed: Notify::new(), reads: AtomicBool::new(false) }) }
    }

    fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.shared.store
    }

    fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    fn path(&self, name: &Name) -> Path {
        name.path(&self.options().prefix)
    }

    fn folder(&self, name: &str) -> Path {
        self.options().prefix.clone().join(name)
    }

    fn leases(&self) -> Leases {
        let term = self.options().lease_term;
        Leases { store: Arc::clone(self.objects()), folder: self.folder("lease"), term }
    }

    fn error(&self, doing: &str, error: Error) -> ProviderError {
        ProviderError::new(&self.options().name, format!("{doing}: {error}")).with_source(error)
    }

    /// Writes a job's object; the same job again is the same object.
    async fn put(&self, job: &Job) -> Result<(), ProviderError> {
        let bytes = serde_json::to_vec(job).map_err(|error| {
            ProviderError::new(&self.options().name, format!("can't write the job as JSON: {error}"))
        })?;
        let put = self.objects().put(&self.path(&Name::of(job)), PutPayload::from(bytes)).await;
        put.map(|_| ()).map_err(|error| self.error("can't write a job", error))
    }

    /// Reads a job's object. `None` when it is gone, and when it was no job: then it is moved out of the way.
    async fn get(&self, name: &Name) -> Result<Option<Job>, ProviderError> {
        let path = self.path(name);
        let read = async { self.objects().get(&path).await?.bytes().await };
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.error("can't read a job", error)),
        };
        match serde_json::from_slice::<Job>(&bytes) {
            Ok(job) if job.check().is_ok() && Name::of(&job) == *name => Ok(Some(job)),
            _ => {
                self.quarantine(&path).await?;
                Ok(None)
            }
        }
    }

    /// Moves what is no job to where nobody trips over it.
    async fn quarantine(&self, path: &Path) -> Result<(), ProviderError> {
        tracing::error!(%path, "this object is no job; it is kept in `corrupt`");
        let Some(file) = path.filename() else { return Ok(()) };
        let to = self.folder("corrupt").join(file);
        match self.objects().copy(path, &to).await {
            Ok(()) => self.delete(path).await,
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("can't move what is no job", error)),
        }
    }

    async fn delete(&self, path: &Path) -> Result<(), ProviderError> {
        match self.objects().delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("can't delete a job", error)),
        }
    }

    /// The names in a folder, in their order where the store lists so. Files of other names are moved away.
    fn list(&self, with_key: bool) -> impl Stream<Item = Result<Name, ProviderError>> + Send + '_ {
        let objects = self.objects().list(Some(&self.folder(folder(with_key))));
        objects.map_err(|error| self.error("can't list jobs", error)).try_filter_map(async |object| {
            let name = object.location.filename().and_then(Name::parse);
            if name.is_none() {
                self.quarantine(&object.location).await?;
            }
            Ok(name)
        })
    }

    /// The first names in a folder that are wanted, up to `limit`; with `due`, those only that are due then.
    async fn names(
        &self,
        with_key: bool,
        due: Option<Timestamp>,
        is_wanted: impl Fn(&Name) -> bool + Send,
        limit: usize,
    ) -> Result<Vec<Name>, ProviderError> {
        let mut listed = pin!(self.list(with_key));
        let mut names = BTreeSet::new();
        while let Some(name) = listed.try_next().await? {
            let is_due = due.is_none_or(|due| name.is_due(due));
            if is_due && is_wanted(&name) {
                names.insert(name);
            }
            let is_enough = !is_due || names.len() >= limit;
            if is_enough && self.options().lists_in_order {
                break;
            }
            if names.len() > limit {
                names.pop_last();
            }
        }
        Ok(names.into_iter().collect())
    }

    /// The names of the jobs with these ids.
    async fn names_of(&self, ids: &[JobId]) -> Result<Vec<Name>, ProviderError> {
        let ids = ids.iter().copied().collect::<HashSet<_>>();
        let all = self.list(false).chain(self.list(true));
        all.try_filter(|name| std::future::ready(ids.contains(&name.id))).try_collect().await
    }

    /// Jobs by their names, in that order; those that are gone are left out.
    async fn read_all(&self, names: Vec<Name>) -> Result<Vec<Job>, ProviderError> {
        let reading = futures::stream::iter(names).map(|name| async move { self.get(&name).await });
        let jobs: Vec<Option<Job>> = reading.buffered(REQUESTS).try_collect().await?;
        Ok(jobs.into_iter().flatten().collect())
    }

    /// Writes, reads and deletes an object, as jobs are.
    async fn try_everything(&self) -> Result<(), Error> {
        let path = self.folder("probe").join(JobId::new().to_string());
        self.objects().put(&path, PutPayload::from_static(b"probe")).await?;
        let read = self.objects().get(&path).await?.bytes().await?;
        self.objects().delete(&path).await?;
        if &*read == b"probe" {
            Ok(())
        } else {
            Err(Error::Generic { store: "probe", source: "what was read isn't what was written".into() })
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store itself may show its configuration, and that may hold secrets.
        formatter.debug_struct("Store").field("options", self.options()).finish_non_exhaustive()
    }
}

impl Provider for Store {
    fn name(&self) -> &str {
        &self.options().name
    }

    fn capabilities(&self) -> Capabilities {
        self.options().capabilities()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        async { self.try_everything().await.map_err(|error| self.error("doesn't keep what is written", error)) }.boxed()
    }

    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>> {
        async move {
            let putting = futures::stream::iter(jobs.to_vec()).map(|job| {
                let store = self.clone();
                async move { store.put(&job).await }
            });
            putting.buffer_unordered(REQUESTS).try_collect::<()>().await?;
            self.shared.changed.notify_one();
            Ok(())
        }
        .boxed()
    }

    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            let mut levels = consumer.flow.levels();
            while !consumer.stop.is_cancelled() {
                self.read_under_lease(&consumer).await;
                // Whoever is over its limits leaves the lease to others until it isn't.
                tokio::select! {
                    _ = levels.wait_for(|level| *level < Level::Stop) => {}
                    () = consumer.stop.cancelled() => {}
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn waiting(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        async move {
            let mut names = self.names(false, None, |_| true, limit).await?;
            names.extend(self.names(true, None, |_| true, limit).await?);
            names.sort_unstable();
            names.truncate(limit);
            self.read_all(names).await
        }
        .boxed()
    }

    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>> {
        async move {
            let names = self.names_of(&[id]).await?;
            Ok(self.read_all(names).await?.pop())
        }
        .boxed()
    }

    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>> {
        async move {
            let names = self.names_of(ids).await?;
            let num_found = names.len();
            let deleting = futures::stream::iter(names).map(|name| {
                let store = self.clone();
                async move { store.delete(&store.path(&name)).await }
            });
            deleting.buffer_unordered(REQUESTS).try_collect::<()>().await?;
            Ok(num_found)
        }
        .boxed()
    }

    fn holds_lease(&self) -> Option<bool> {
        Some(self.shared.reads.load(Ordering::Relaxed))
    }

    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>> {
        async move {
            let mut names = pin!(self.list(false).chain(self.list(true)));
            while let Some(name) = names.try_next().await? {
                if name.queue.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        .boxed()
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>> {
        async move {
            let now = Timestamp::now();
            let mut depth = Depth::default();
            let mut names = pin!(self.list(false).chain(self.list(true)));
            while let Some(name) = names.try_next().await? {
                if name.is_due(now) {
                    depth.due += 1;
                    depth.oldest_due = depth.oldest_due.into_iter().chain(name.run_at()).min();
                } else {
                    depth.scheduled += 1;
                }
            }
            Ok(depth)
        }
        .boxed()
    }
}

impl Store {
    /// Takes the lease, reads as long as it holds, and gives it up.
    async fn read_under_lease(&self, consumer: &Consumer) {
        let leases = self.leases();
        let lease = match consumer.stop.run_until_cancelled(leases.acquire()).await {
            None => return,
            Some(Ok(lease)) => lease,
            Some(Err(error)) => {
                tracing::warn!(provider = self.name(), %error, "the lease can't be had yet");
                consumer.stop.run_until_cancelled(tokio::time::sleep(self.options().lease_term / 3)).await;
                return;
            }
        };
        tracing::info!(provider = self.name(), token = lease.token, "reading jobs");
        let stop = consumer.stop.child_token();
        let mut levels = consumer.flow.levels();
        let under_lease = Consumer { stop: stop.clone(), ..consumer.clone() };
        let reader = Reader::new(self.clone(), lease.token, consumer);
        let reading = async {
            reader.take_over().await;
            consume(&reader, &under_lease).await;
            reader.leave().await;
        };
        let making_room = async {
            // The sender lives as long as the flow does, and that is ours.
            drop(levels.wait_for(|level| *level == Level::Stop).await);
            stop.cancel();
            std::future::pending::<()>().await;
        };
        let _reads = Reads::begin(&self.shared.reads);
        tokio::select! {
            // A process that stood still looks at its lease first. What is at work when the lease is lost is left alone: another
            // reader has it now.
            biased;
            () = lease.keep() => {}
            () = reading => {}
            () = making_room => {}
        }
        lease.release().await;
    }
}
