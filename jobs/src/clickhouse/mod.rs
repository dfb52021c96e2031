//! Jobs as rows of ClickHouse: the last resort, where nothing but appending and reading is asked for.
//!
//! # Layout
//! One table of jobs, to which every change is appended (see the module `table`), and one of leases, whose name ends in `_lease`. Neither
//! has anything updated or deleted but whole days that are over.

mod http;
mod keys;
mod lease;
mod reader;
mod table;
mod writer;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use reqwest::Url;
use tokio::sync::{Notify, OnceCell};

pub use self::http::InvalidOptions;
use self::http::{Failure, Http};
use self::lease::Leases;
use self::reader::Reader;
use self::table::{Content, Found, Table};
use crate::consumer::{Consumer, consume};
use crate::error::{EnqueueError, ProviderError};
use crate::flow::Level;
use crate::job::{Job, JobId, MAX_PAYLOAD_BYTES};
use crate::provider::{Capabilities, Delivery, Depth, Durability, Locality, Provider, ReadMode, Throughput};
use crate::reads::Reads;

/// A password, which never shows itself.
#[derive(Clone, Default)]
pub struct Password(String);

impl Password {
    /// Wraps a password.
    #[must_use]
    pub fn new(password: impl Into<String>) -> Self {
        Self(password.into())
    }

    fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("<redacted>")
    }
}

/// How a server is used.
#[derive(Debug, Clone)]
pub struct ClickHouseOptions {
    /// Its name as a provider.
    pub name: String,
    /// `http://host:8123` or `https://host:8443`, without user, password and query.
    pub url: Url,
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: Password,
    /// A PEM file of the authority that signed the server's certificate, when the system doesn't know it.
    pub ca_file: Option<PathBuf>,
    /// The database of the tables, which must be there.
    pub database: String,
    /// The table of jobs; it is made when it isn't there, and so is the one of leases.
    pub table: String,
    /// The pause between looks for jobs that others have put there.
    pub poll: Duration,
    /// After so much time without a sign of the reader, another one takes over.
    pub lease_term: Duration,
}

impl ClickHouseOptions {
    /// For a server, with everything else as usual.
    #[must_use]
    pub fn new(url: Url) -> Self {
        Self {
            name: "clickhouse".to_owned(),
            url,
            user: "default".to_owned(),
            password: Password::default(),
            ca_file: None,
            database: "default".to_owned(),
            table: "batch_export_jobs".to_owned(),
            poll: Duration::from_secs(5),
            lease_term: Duration::from_secs(30),
        }
    }
}

/// Jobs as rows of a server.
#[derive(Clone)]
pub struct ClickHouse {
    shared: Arc<Shared>,
}

struct Shared {
    table: Table,
    leases: Leases,
    options: ClickHouseOptions,
    created: OnceCell<()>,
    /// A job was put here by this process.
    changed: Notify,
    /// Whether this process is the reader.
    reads: AtomicBool,
}

impl ClickHouse {
    /// Jobs on a server. Nothing is sent yet.
    ///
    /// # Errors
    /// When the CA file, the user or the password can't be used.
    pub fn new(options: ClickHouseOptions) -> Result<Self, InvalidOptions> {
        let http = Http::new(&options)?;
        let named = |table: &str| format!("{}.{}", quoted(&options.database), quoted(table));
        let leases =
            Leases { http: http.clone(), table: named(&format!("{}_lease", options.table)), term: options.lease_term };
        let table = Table::new(http, named(&options.table));
        let (created, changed, reads) = (OnceCell::new(), Notify::new(), AtomicBool::new(false));
        Ok(Self { shared: Arc::new(Shared { table, leases, options, created, changed, reads }) })
    }

    fn options(&self) -> &ClickHouseOptions {
        &self.shared.options
    }

    fn table(&self) -> &Table {
        &self.shared.table
    }

    fn leases(&self) -> &Leases {
        &self.shared.leases
    }

    fn changed(&self) -> &Notify {
        &self.shared.changed
    }

    fn error(&self, doing: &str, failure: impl Into<Arc<Failure>>) -> ProviderError {
        let failure = failure.into();
        ProviderError::new(&self.options().name, format!("{doing}: {failure}")).with_source(failure)
    }

    /// Makes the tables, once.
    async fn create(&self) -> Result<(), ProviderError> {
        let creating = || async { self.table().create(&self.leases().table).await };
        let created = self.shared.created.get_or_try_init(creating).await;
        created.copied().map_err(|failure| self.error("can't make its tables", failure))
    }

    /// Jobs by their ids; what is no job is left to the reader.
    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Job>, ProviderError> {
        let found = self.table().find(ids).await.map_err(|failure| self.error("can't read jobs", failure))?;
        let jobs = found.into_iter().filter_map(|Found { content, .. }| match content {
            Content::Job(job) => Some(*job),
            Content::Corrupt(_) => None,
        });
        Ok(jobs.collect())
    }

    /// Takes the lease, reads as long as it holds, and gives it up.
    async fn read_under_lease(&self, consumer: &Consumer) -> Result<(), ProviderError> {
        let acquiring = async {
            self.create().await?;
            self.leases().acquire().await.map_err(|failure| self.error("can't have its lease", failure))
        };
        let Some(lease) = consumer.stop.run_until_cancelled(acquiring).await.transpose()? else { return Ok(()) };
        tracing::info!(provider = self.name(), token = lease.token, "reading jobs");
        let stop = consumer.stop.child_token();
        let mut levels = consumer.flow.levels();
        let under_lease = Consumer { stop: stop.clone(), ..consumer.clone() };
        let reader = Reader::new(self, &lease, consumer);
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
            () = reader.sweep() => {}
        }
        lease.release().await;
        Ok(())
    }
}

/// A name as ClickHouse reads it.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

impl fmt::Debug for ClickHouse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClickHouse").field("options", self.options()).finish_non_exhaustive()
    }
}

impl Provider for ClickHouse {
    fn name(&self) -> &str {
        &self.options().name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durability: Durability::Persistent,
            locality: Locality::Remote,
            throughput: Throughput::Low,
            read_mode: ReadMode::SingleReader,
            delivery: Delivery::AtLeastOnce,
            max_delay: None,
            accepts_recovery_flush: true,
            max_payload: MAX_PAYLOAD_BYTES,
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        async {
            self.create().await?;
            self.table().probe().await.map_err(|failure| self.error("doesn't keep what is written", failure))
        }
        .boxed()
    }

    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>> {
        async move {
            self.create().await?;
            match self.table().add(jobs).await {
                Ok(()) => {
                    self.changed().notify_one();
                    Ok(())
                }
                Err(failure) => match *failure {
                    Failure::Late(deadline) => {
                        let seconds = deadline.as_secs_f32();
                        Err(EnqueueError::Timeout { provider: self.name().to_owned(), seconds })
                    }
                    _ => Err(self.error("can't take jobs", failure).into()),
                },
            }
        }
        .boxed()
    }

    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            let mut levels = consumer.flow.levels();
            while !consumer.stop.is_cancelled() {
                if let Err(error) = self.read_under_lease(&consumer).await {
                    tracing::warn!(provider = self.name(), %error, "jobs can't be read yet");
                    consumer.stop.run_until_cancelled(tokio::time::sleep(self.options().lease_term / 3)).await;
                }
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
            self.create().await?;
            let heads =
                self.table().first(limit).await.map_err(|failure| self.error("can't look for jobs", failure))?;
            self.jobs(&heads.iter().map(|head| head.job.id).collect::<Vec<_>>()).await
        }
        .boxed()
    }

    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>> {
        async move {
            self.create().await?;
            Ok(self.jobs(&[id]).await?.pop())
        }
        .boxed()
    }

    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>> {
        async move {
            self.create().await?;
            let entries =
                self.table().entries(ids).await.map_err(|failure| self.error("can't look for jobs", failure))?;
            let removed = self.table().replace(&entries, &[]).await;
            removed.map_err(|failure| self.error("can't delete jobs", failure))?;
            Ok(entries.iter().map(|(id, _)| *id).collect::<HashSet<_>>().len())
        }
        .boxed()
    }

    fn holds_lease(&self) -> Option<bool> {
        Some(self.shared.reads.load(Ordering::Relaxed))
    }

    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>> {
        async move {
            self.create().await?;
            let holds = self.table().holds_serial().await;
            holds.map_err(|failure| self.error("can't look for jobs of queues", failure))
        }
        .boxed()
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>> {
        async move {
            self.create().await?;
            let depth = self.table().depth(Timestamp::now()).await;
            depth.map_err(|failure| self.error("can't count jobs", failure))
        }
        .boxed()
    }
}
