//! Jobs as rows of Postgres, which `graphile_worker` keeps and hands out.
//!
//! # Layout
//! In a schema of its own. A row's payload is the [`Job`] but for what its other columns say; its key is that of the job, or its
//! id, so that a job that is sent again is not taken twice. Attempts are counted by the job itself: the row's own count is that of claims without an
//! end, which are processes that died.

mod admission;
mod dead;
mod row;
mod supervisor;
mod task;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use graphile_worker::{JobSpec, Schema, TaskHandler as _, WorkerUtils};
use jiff::Timestamp;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::sync::OnceCell;

use self::admission::admit;
use self::row::{Row, key_of_id, row_key, rows};
use self::task::Task;
use crate::consumer::Consumer;
use crate::error::{EnqueueError, ProviderError};
use crate::job::{Job, JobId, MAX_PAYLOAD_BYTES};
use crate::provider::{Capabilities, Delivery, Depth, Durability, Locality, Provider, ReadMode, Throughput};

/// How long a new connection may take. A port that refuses would be tried for as long as the pool waits.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// How many connections take jobs, and how many hand them out.
const MAX_CONNECTIONS: u32 = 4;

/// How a database is used.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Its name as a provider.
    pub name: String,
    /// The schema that holds the tables; it is made when it isn't there.
    pub schema: String,
    /// The pause between looks for jobs of which no notification came.
    pub poll: Duration,
    /// After so much time without a sign of a process, its jobs are handed to others.
    pub lease_term: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            name: "postgres".to_owned(),
            schema: "batch_export_jobs".to_owned(),
            poll: Duration::from_secs(1),
            lease_term: Duration::from_secs(30),
        }
    }
}

/// Why an address of a database is none.
#[derive(Debug, thiserror::Error)]
#[error("this is no address of a Postgres database: {0}; write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
pub struct InvalidUrl(String);

/// Jobs as rows of a database.
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
}

struct Shared {
    pool: PgPool,
    schema: Schema,
    options: PostgresOptions,
    migrated: OnceCell<()>,
}

impl Postgres {
    /// Jobs in the database at `url`. Nothing is sent yet.
    ///
    /// # Errors
    /// When that is no address; the sentence doesn't repeat it, for it may hold a password.
    pub fn new(url: &str, options: PostgresOptions) -> Result<Self, InvalidUrl> {
        let address = url.parse::<PgConnectOptions>().map_err(|error| InvalidUrl(error.to_string()))?;
        Ok(Self::at(address.application_name("batch-export jobs"), options))
    }

    /// Jobs in the database that `pool` is connected to, by connections of our own: a pool that is busy must not stop jobs.
    #[must_use]
    pub fn beside(pool: &PgPool, options: PostgresOptions) -> Self {
        Self::at(PgConnectOptions::clone(&pool.connect_options()), options)
    }

    fn at(address: PgConnectOptions, options: PostgresOptions) -> Self {
        let schema = Schema::new(&options.schema);
        Self { shared: Arc::new(Shared { pool: pool(address), schema, options, migrated: OnceCell::new() }) }
    }

    fn options(&self) -> &PostgresOptions {
        &self.shared.options
    }

    fn address(&self) -> PgConnectOptions {
        PgConnectOptions::clone(&self.shared.pool.connect_options())
    }

    /// The library's own requests.
    fn utils(&self) -> WorkerUtils {
        WorkerUtils::new(&self.shared.pool, &self.shared.schema)
    }

    /// Which rows are jobs: dead letters are rows of another kind, and rows without attempts left were superseded.
    fn are_jobs(&self) -> String {
        format!(
            "attempts < max_attempts and task_id = (select id from {} where identifier = '{}')",
            self.table("tasks"),
            Task::IDENTIFIER
        )
    }

    /// A table of the library, quoted.
    fn table(&self, name: &str) -> String {
        self.shared.schema.private_table(name)
    }

    fn error(&self, doing: &str, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
        ProviderError::new(&self.options().name, format!("{doing}: {error}")).with_source(error)
    }

    /// Makes the tables, or brings them up to date, once.
    async fn migrate(&self) -> Result<(), ProviderError> {
        let migrated = self.shared.migrated.get_or_try_init(async || self.utils().migrate().await).await;
        migrated.copied().map_err(|error| self.error("can't make its tables", error))
    }

    /// Takes jobs, all or none.
    async fn add(&self, jobs: &[Job]) -> Result<(), ProviderError> {
        self.migrate().await?;
        let failed = |error| self.error("can't take jobs", error);
        let keys = jobs.iter().filter(|job| job.key.is_some()).map(row_key).collect::<Vec<_>>();
        if keys.is_empty() {
            let rows = rows(&admit(jobs, Vec::new())).map_err(|error| self.error("can't write jobs as JSON", error))?;
            let added = match rows.as_slice() {
                // Without the question which of the names are known.
                [row] => self.utils().add_raw_job(&row.identifier, &row.payload, row.spec.clone()).await.map(|_| ()),
                rows => self.utils().add_raw_jobs(rows).await.map(|_| ()),
            };
            return added.map_err(|error| self.error("can't take jobs", error));
        }
        let mut transaction = self.shared.pool.begin().await.map_err(failed)?;
        self.lock_keys(&mut transaction, &keys).await.map_err(failed)?;
        let held = self.held(&mut transaction, &keys).await.map_err(failed)?;
        let rows = rows(&admit(jobs, held)).map_err(|error| self.error("can't write jobs as JSON", error))?;
        let added = self.utils().with_executor(&mut *transaction).add_raw_jobs(&rows).await;
        added.map_err(|error| self.error("can't take jobs", error))?;
        transaction.commit().await.map_err(failed)
    }

    /// Makes others wait who take, or put back, jobs with these keys: the library itself uses the same locks.
    async fn lock_keys(&self, connection: &mut PgConnection, keys: &[String]) -> Result<(), sqlx::Error> {
        let mut keys = keys.to_vec();
        // In one order everywhere, so that nobody waits for whom he holds up.
        keys.sort_unstable();
        for key in keys {
            sqlx::query("select pg_advisory_xact_lock(hashtext($1))").bind(key).execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// The waiting jobs with these keys.
    async fn held(&self, connection: &mut PgConnection, keys: &[String]) -> Result<Vec<Job>, sqlx::Error> {
        let sql = format!(
            "select {} from {} where key = any($1) and locked_at is null and {}",
            Row::COLUMNS,
            self.table("jobs"),
            self.are_jobs()
        );
        let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(sql)).bind(keys.to_vec()).fetch_all(connection).await?;
        Ok(rows.iter().filter_map(Row::job).collect())
    }

    /// Writes a job and takes it back.
    async fn try_everything(&self) -> Result<(), ProviderError> {
        let doesnt = "doesn't keep what is written";
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&self.address())).await;
        let late = |_| ProviderError::new(&self.options().name, format!("did not answer within {CONNECT_TIMEOUT:?}"));
        let mut connection = connecting.map_err(late)?.map_err(|error| self.error("can't be reached", error))?;
        self.migrate().await?;
        let mut transaction = connection.begin().await.map_err(|error| self.error(doesnt, error))?;
        let adding = self.utils().with_executor(&mut transaction).add_raw_job("probe", (), JobSpec::new()).await;
        adding.map_err(|error| self.error(doesnt, error))?;
        transaction.rollback().await.map_err(|error| self.error(doesnt, error))?;
        connection.close().await.map_err(|error| self.error(doesnt, error))
    }

    /// Jobs that wait, those first that are due first; or the one with this id, at work or not.
    async fn read(&self, id: Option<JobId>, limit: usize) -> Result<Vec<Job>, ProviderError> {
        self.migrate().await?;
        let sql = format!(
            "select {} from {} where {} and (($1 is null and locked_at is null) or key = $1 or payload->>'id' = $2)
            order by run_at, id limit $3",
            Row::COLUMNS,
            self.table("jobs"),
            self.are_jobs()
        );
        let query = sqlx::query_as::<_, Row>(AssertSqlSafe(sql));
        let query = query.bind(id.map(key_of_id)).bind(id.map(|id| id.to_string()));
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = query.fetch_all(&self.shared.pool).await.map_err(|error| self.error("can't list jobs", error))?;
        Ok(rows.iter().filter_map(Row::job).collect())
    }

    /// In one statement, so that a newer job that takes a row meanwhile isn't deleted with it.
    async fn delete(&self, ids: &[JobId]) -> Result<usize, ProviderError> {
        self.migrate().await?;
        let sql = format!(
            "delete from {} where (key = any($1) or payload->>'id' = any($2)) and locked_at is null and {}",
            self.table("jobs"),
            self.are_jobs()
        );
        let keys = ids.iter().map(|id| key_of_id(*id)).collect::<Vec<_>>();
        let texts = ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let deleted = sqlx::query(AssertSqlSafe(sql)).bind(keys).bind(texts).execute(&self.shared.pool).await;
        let deleted = deleted.map_err(|error| self.error("can't delete jobs", error))?;
        Ok(usize::try_from(deleted.rows_affected()).unwrap_or(usize::MAX))
    }

    async fn count(&self) -> Result<Depth, ProviderError> {
        self.migrate().await?;
        let sql = format!(
            "select count(*) filter (where run_at <= now()), count(*) filter (where run_at > now()),
                (extract(epoch from min(run_at) filter (where run_at <= now())) * 1e6)::bigint
            from {} where {}",
            self.table("jobs"),
            self.are_jobs()
        );
        let query = sqlx::query_as::<_, (i64, i64, Option<i64>)>(AssertSqlSafe(sql));
        let counted = query.fetch_one(&self.shared.pool).await;
        let (due, scheduled, oldest_due) = counted.map_err(|error| self.error("can't count jobs", error))?;
        Ok(Depth {
            due: due.unsigned_abs(),
            scheduled: scheduled.unsigned_abs(),
            oldest_due: oldest_due.and_then(|micros| Timestamp::from_microsecond(micros).ok()),
        })
    }
}

/// A pool that connects when it must, and says so soon when it can't.
fn pool(address: PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(MAX_CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT).connect_lazy_with(address)
}

impl fmt::Debug for Postgres {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool shows its address, and that may hold a password.
        formatter.debug_struct("Postgres").field("options", self.options()).finish_non_exhaustive()
    }
}

impl Provider for Postgres {
    fn name(&self) -> &str {
        &self.options().name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durability: Durability::Persistent,
            locality: Locality::Remote,
            throughput: Throughput::High,
            read_mode: ReadMode::Competing,
            delivery: Delivery::AtLeastOnce,
            max_delay: None,
            accepts_recovery_flush: true,
            max_payload: MAX_PAYLOAD_BYTES,
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.try_everything().boxed()
    }

    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>> {
        async move { Ok(self.add(jobs).await?) }.boxed()
    }

    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>> {
        supervisor::run(self.clone(), consumer).map(Ok).boxed()
    }

    fn waiting(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        self.read(None, limit).boxed()
    }

    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>> {
        async move { Ok(self.read(Some(id), 1).await?.pop()) }.boxed()
    }

    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>> {
        self.delete(ids).boxed()
    }

    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>> {
        async {
            self.migrate().await?;
            let (jobs, are_jobs) = (self.table("jobs"), self.are_jobs());
            let sql = format!("select exists(select 1 from {jobs} where job_queue_id is not null and {are_jobs})");
            let holds = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.shared.pool).await;
            holds.map_err(|error| self.error("can't look for jobs of queues", error))
        }
        .boxed()
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>> {
        self.count().boxed()
    }
}
