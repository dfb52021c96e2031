//! Where the suite's jobs are kept.

use std::sync::Arc;
use std::time::Duration;

use jobs::clickhouse::{ClickHouse, ClickHouseOptions, Password};
use jobs::memory::{Memory, MemoryLimits};
use jobs::postgres::{Postgres, PostgresOptions};
use jobs::provider::Provider;
use jobs::store::{Store, StoreOptions};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use tempfile::TempDir;

use crate::relay::Relay;

/// A place for jobs that several providers may open, as several processes would.
pub(crate) trait Place: Sized {
    /// A new, empty place.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// A provider of its jobs.
    fn open(&self) -> Arc<dyn Provider>;
}

/// A place behind a network that can be cut.
pub(crate) trait Remote: Place {
    /// Its provider's name.
    const NAME: &'static str;

    /// A new, empty place, and the network before it.
    fn relayed() -> impl Future<Output = (Self, Relay)> + Send;
}

/// Short enough for tests, and long enough for a busy machine.
const LEASE_TERM: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);

/// Memory, which is one provider however often it is opened.
pub(crate) struct Memories(Arc<Memory>);

impl Place for Memories {
    async fn fresh() -> Self {
        let limits = MemoryLimits { max_delay: Duration::from_secs(3600), ..MemoryLimits::default() };
        Self(Arc::new(Memory::new(limits)))
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::<Memory>::clone(&self.0)
    }
}

/// A folder.
pub(crate) struct Files(TempDir);

impl Place for Files {
    async fn fresh() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn open(&self) -> Arc<dyn Provider> {
        let files = LocalFileSystem::new_with_prefix(self.0.path()).expect("a folder").with_fsync(true);
        Arc::new(Store::new(
            Arc::new(files),
            StoreOptions { lease_term: LEASE_TERM, poll: POLL, ..StoreOptions::local() },
        ))
    }
}

/// A bucket of the S3 service.
pub(crate) struct S3 {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Remote for S3 {
    const NAME: &'static str = "s3";

    async fn relayed() -> (Self, Relay) {
        let target = required("AWS_ENDPOINT_URL_S3");
        let relay = Relay::start(target.trim_start_matches("http://").trim_end_matches('/').to_owned()).await;
        (Self::at(format!("http://{}", relay.address)).await, relay)
    }
}

impl S3 {
    async fn at(endpoint: String) -> Self {
        let config = aws_config::load_from_env().await;
        let admin =
            aws_sdk_s3::Client::from_conf(aws_sdk_s3::config::Builder::from(&config).force_path_style(true).build());
        let bucket = format!("jobs-{}", uuid::Uuid::new_v4().simple());
        admin.create_bucket().bucket(&bucket).send().await.expect("the S3 service answers");
        let store = AmazonS3Builder::new()
            .with_access_key_id(required("AWS_ACCESS_KEY_ID"))
            .with_secret_access_key(required("AWS_SECRET_ACCESS_KEY"))
            .with_region(required("AWS_REGION"))
            .with_endpoint(endpoint)
            .with_bucket_name(bucket)
            .with_allow_http(true)
            .build()
            .expect("a client");
        Self { store: Arc::new(store), prefix: Path::from("jobs of the suite") }
    }
}

impl Place for S3 {
    async fn fresh() -> Self {
        Self::at(required("AWS_ENDPOINT_URL_S3")).await
    }

    fn open(&self) -> Arc<dyn Provider> {
        let options = StoreOptions::remote("s3", self.prefix.clone());
        Arc::new(Store::new(Arc::clone(&self.store), StoreOptions { lease_term: LEASE_TERM, poll: POLL, ..options }))
    }
}

/// A schema of the database.
pub(crate) struct Database {
    url: String,
    schema: String,
}

impl Remote for Database {
    const NAME: &'static str = "postgres";

    async fn relayed() -> (Self, Relay) {
        let mut url = required(POSTGRES_URL).parse::<url::Url>().expect("an address");
        let port = url.port().unwrap_or(5432);
        let relay = Relay::start(format!("{}:{port}", url.host_str().expect("a host"))).await;
        url.set_ip_host(relay.address.ip()).expect("a host");
        url.set_port(Some(relay.address.port())).expect("a port");
        (Self { url: url.into(), ..Self::fresh().await }, relay)
    }
}

impl Database {
    /// Does something to the library's tables, called `{schema}` in the statement; returns how many rows it was.
    pub(crate) async fn tamper(&self, statement: &str) -> u64 {
        use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
        let mut connection = PgConnection::connect(&self.url).await.expect("a connection");
        let statement = statement.replace("{schema}", &format!("\"{}\"", self.schema));
        sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.expect("is done").rows_affected()
    }

    /// The provider as what it is.
    pub(crate) fn postgres(&self) -> Postgres {
        Postgres::new(&self.url, self.options()).expect("an address")
    }

    /// A pool with room for one, and the provider beside it.
    pub(crate) async fn beside_a_pool_of_one(&self) -> (sqlx::PgPool, Arc<dyn Provider>) {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect(&self.url).await.expect("a pool");
        let provider = Postgres::beside(&pool, self.options());
        (pool, Arc::new(provider))
    }

    fn options(&self) -> PostgresOptions {
        PostgresOptions {
            schema: self.schema.clone(),
            poll: Duration::from_millis(200),
            lease_term: LEASE_TERM,
            ..PostgresOptions::default()
        }
    }

    /// The same server without a database of that name.
    pub(crate) fn missing() -> Self {
        let mut url = required(POSTGRES_URL).parse::<url::Url>().expect("an address");
        url.set_path("nobody_made_this");
        Self { url: url.into(), schema: "jobs".to_owned() }
    }
}

impl Place for Database {
    async fn fresh() -> Self {
        Self { url: required(POSTGRES_URL), schema: format!("jobs {}", uuid::Uuid::new_v4().simple()) }
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.postgres())
    }
}

/// A table of the ClickHouse server.
pub(crate) struct ClickHouseTable {
    pub(crate) url: url::Url,
    pub(crate) database: String,
    pub(crate) table: String,
}

impl ClickHouseTable {
    pub(crate) fn options(&self) -> ClickHouseOptions {
        ClickHouseOptions {
            user: required("CLICKHOUSE_USER"),
            password: Password::new(required("CLICKHOUSE_PASSWORD")),
            database: self.database.clone(),
            table: self.table.clone(),
            poll: POLL,
            lease_term: LEASE_TERM,
            ..ClickHouseOptions::new(self.url.clone())
        }
    }

    /// The provider as what it is.
    pub(crate) fn with(options: ClickHouseOptions) -> Arc<dyn Provider> {
        Arc::new(ClickHouse::new(options).expect("options"))
    }

    /// Does something to the table, called `{table}` in the statement, past the network of the place; returns the answer.
    pub(crate) async fn tamper(&self, statement: &str) -> String {
        let statement = statement.replace("{table}", &format!("{}.`{}`", self.database, self.table));
        let request = reqwest::Client::new()
            .post(format!("{}/?wait_end_of_query=1", required("CLICKHOUSE_URL")))
            .header("X-ClickHouse-User", required("CLICKHOUSE_USER"))
            .header("X-ClickHouse-Key", required("CLICKHOUSE_PASSWORD"))
            .body(statement);
        let response = request.send().await.expect("ClickHouse answers");
        let is_done = response.status().is_success();
        let text = response.text().await.expect("an answer");
        assert!(is_done, "{text}");
        text.trim().to_owned()
    }
}

impl Place for ClickHouseTable {
    async fn fresh() -> Self {
        Self {
            url: required("CLICKHOUSE_URL").parse().expect("an address"),
            database: required("CLICKHOUSE_DATABASE"),
            table: format!("jobs {}", uuid::Uuid::new_v4().simple()),
        }
    }

    fn open(&self) -> Arc<dyn Provider> {
        Self::with(self.options())
    }
}

impl Remote for ClickHouseTable {
    const NAME: &'static str = "clickhouse";

    async fn relayed() -> (Self, Relay) {
        let place = Self::fresh().await;
        let relay = Relay::start(place.url.authority().to_owned()).await;
        let url = format!("http://{}", relay.address).parse().expect("an address");
        (Self { url, ..place }, relay)
    }
}

/// The variable with the address of a database that tests may fill.
pub(crate) const POSTGRES_URL: &str = "BATCH_EXPORT_TEST_POSTGRES_URL";

pub(crate) fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `make services`, then `. .dev/run/test/env`"))
}
