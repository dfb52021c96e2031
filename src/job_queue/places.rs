//! Places that keep jobs, made of what the configuration says.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use engine::config::connection::{ClickHouseConnection, S3Connection};
use engine::sink::client::{S3Access, S3Client};
use futures::FutureExt as _;
use jobs::clickhouse::{ClickHouse, ClickHouseOptions, Password};
use jobs::dead_letter::{DeadLetters, StoredDeadLetters};
use jobs::deferred::{Deferred, DeferredDeadLetters};
use jobs::error::ProviderError;
use jobs::memory::Memory;
use jobs::postgres::{Postgres, PostgresOptions};
use jobs::provider::{Durability, Provider};
use jobs::store::{Store, StoreOptions};
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{CredentialProvider, ObjectStore};

use super::configuration::{JobsConfig, PlaceKind};

/// Where dead jobs are kept, within a place.
const DEAD: &str = "dead";

/// The places, ready to be asked.
#[derive(Debug)]
pub(crate) struct Places {
    /// In the order in which they are tried.
    pub(crate) providers: Vec<Arc<dyn Provider>>,
    /// The one in memory, where there is one.
    pub(crate) memory: Option<Arc<Memory>>,
    /// Where dead jobs are kept: in the first place that is on a disk and keeps them.
    pub(crate) dead: Arc<dyn DeadLetters>,
}

impl Places {
    /// The providers that other processes can see.
    pub(crate) fn on_disk(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.iter().filter(|provider| provider.capabilities().durability == Durability::Persistent)
    }
}

/// Makes the places. Nothing is sent yet.
///
/// # Errors
/// When a folder can't be made, or an address is none.
pub(crate) fn open(config: &JobsConfig) -> anyhow::Result<Places> {
    let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
    let mut memory = None;
    let mut dead: Option<Arc<dyn DeadLetters>> = None;
    for place in &config.places {
        match &place.kind {
            PlaceKind::Memory(limits) => {
                let provider = memory.insert(Arc::new(Memory::new(*limits)));
                providers.push(Arc::<Memory>::clone(provider));
            }
            PlaceKind::Postgres { url, schema } => {
                let options =
                    PostgresOptions { name: place.name.clone(), schema: schema.clone(), ..PostgresOptions::default() };
                let provider = Arc::new(Postgres::new(url.expose(), options)?);
                dead.get_or_insert_with(|| Arc::<Postgres>::clone(&provider));
                providers.push(provider);
            }
            PlaceKind::S3 { connection, bucket, prefix } => {
                let bucket_place = Bucket { connection: (**connection).clone(), bucket: bucket.clone() };
                dead.get_or_insert_with(|| Arc::new(bucket_place.dead_letters(prefix)));
                providers.push(Arc::new(bucket_place.jobs(&place.name, prefix)));
            }
            PlaceKind::Gcs { bucket, prefix, credentials_file } => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                if let Some(file) = credentials_file {
                    builder = builder.with_service_account_path(file.display().to_string());
                }
                let store = builder.build().with_context(|| format!("the provider {} can't be used", place.name))?;
                let options = StoreOptions::remote(&place.name, Key::from(prefix.as_str()));
                providers.push(stored(Arc::new(store), options, prefix, &mut dead));
            }
            PlaceKind::Azure { account, container, prefix, access_key } => {
                let mut builder =
                    MicrosoftAzureBuilder::from_env().with_account(account).with_container_name(container);
                if let Some(key) = access_key {
                    builder = builder.with_access_key(key.expose());
                }
                let store = builder.build().with_context(|| format!("the provider {} can't be used", place.name))?;
                let options = StoreOptions::remote(&place.name, Key::from(prefix.as_str()));
                providers.push(stored(Arc::new(store), options, prefix, &mut dead));
            }
            PlaceKind::ClickHouse { connection, table } => {
                providers.push(Arc::new(ClickHouse::new(clickhouse(&place.name, connection, table))?));
            }
            PlaceKind::Files { folder } => {
                let options = StoreOptions { name: place.name.clone(), ..StoreOptions::local() };
                providers.push(stored(Arc::new(files(folder)?), options, "", &mut dead));
            }
        }
    }
    // ClickHouse keeps no dead letters: where it is alone, they are on this machine.
    let dead = match dead {
        Some(dead) => dead,
        None => Arc::new(StoredDeadLetters::new(Arc::new(files(&config.folder)?), Key::from(DEAD))),
    };
    Ok(Places { providers, memory, dead })
}

/// Jobs as objects of a store, below `prefix`; and dead letters beside them, unless another place has those.
fn stored(
    store: Arc<dyn ObjectStore>,
    options: StoreOptions,
    prefix: &str,
    dead: &mut Option<Arc<dyn DeadLetters>>,
) -> Arc<dyn Provider> {
    dead.get_or_insert_with(|| Arc::new(StoredDeadLetters::new(Arc::clone(&store), Key::from(prefix).join(DEAD))));
    Arc::new(Store::new(store, options))
}

fn clickhouse(name: &str, connection: &ClickHouseConnection, table: &str) -> ClickHouseOptions {
    ClickHouseOptions {
        name: name.to_owned(),
        user: connection.user.clone(),
        password: Password::new(connection.password.expose()),
        ca_file: connection.ca_file.clone(),
        database: connection.database.clone(),
        table: table.to_owned(),
        ..ClickHouseOptions::new(connection.url.clone())
    }
}

/// A folder whose files are on the disk when they are said to be written.
fn files(folder: &Path) -> anyhow::Result<LocalFileSystem> {
    let doing = || format!("can't use the folder {} for jobs", folder.display());
    std::fs::create_dir_all(folder).with_context(doing)?;
    Ok(LocalFileSystem::new_with_prefix(folder).with_context(doing)?.with_fsync(true))
}

/// A bucket whose region and credentials may have to be asked for, so that its client is made when it is needed.
#[derive(Debug, Clone)]
struct Bucket {
    connection: S3Connection,
    bucket: String,
}

impl Bucket {
    fn jobs(&self, name: &str, prefix: &str) -> Deferred {
        let options = StoreOptions::remote(name, Key::from(prefix));
        let (capabilities, bucket) = (options.capabilities(), self.clone());
        let make = move || {
            let (bucket, options) = (bucket.clone(), options.clone());
            async move {
                let store = bucket.connect(&options.name).await?;
                let provider: Arc<dyn Provider> = Arc::new(Store::new(store, options));
                Ok(provider)
            }
            .boxed()
        };
        Deferred::new(name, capabilities, Box::new(make))
    }

    fn dead_letters(&self, prefix: &str) -> DeferredDeadLetters {
        let (bucket, folder) = (self.clone(), Key::from(prefix).join(DEAD));
        let make = move || {
            let (bucket, folder) = (bucket.clone(), folder.clone());
            async move {
                let store = bucket.connect("dead letters").await?;
                let dead: Arc<dyn DeadLetters> = Arc::new(StoredDeadLetters::new(store, folder));
                Ok(dead)
            }
            .boxed()
        };
        DeferredDeadLetters::new(Box::new(make))
    }

    /// A client of the bucket, in the name of `who`.
    async fn connect(&self, who: &str) -> Result<Arc<dyn ObjectStore>, ProviderError> {
        let client = S3Client::connect(&self.connection).await;
        let client = client.map_err(|error| ProviderError::new(who, error.to_string()))?;
        let store = self.build(client.access());
        Ok(Arc::new(store.map_err(|error| ProviderError::new(who, error.to_string()))?))
    }

    fn build(&self, access: &S3Access) -> object_store::Result<AmazonS3> {
        let mut endpoint = access.endpoint.clone();
        if access.virtual_style {
            let host = format!("{}.{}", self.bucket, endpoint.host_str().unwrap_or_default());
            let wrong = |source| object_store::Error::Generic { store: "S3", source: Box::new(source) };
            endpoint.set_host(Some(&host)).map_err(wrong)?;
        }
        AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_region(&access.region)
            .with_endpoint(endpoint.as_str().trim_end_matches('/'))
            .with_virtual_hosted_style_request(access.virtual_style)
            .with_allow_http(endpoint.scheme() == "http")
            .with_credentials(Arc::new(Keys(access.clone())))
            .build()
    }
}

/// The engine's keys, as the library of stores asks for them.
#[derive(Debug)]
struct Keys(S3Access);

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let keys = self.0.keys().await;
        let keys = keys.map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })?;
        Ok(Arc::new(AwsCredential {
            key_id: keys.access_key_id,
            secret_key: keys.secret_access_key.expose().to_owned(),
            token: keys.session_token.map(|token| token.expose().to_owned()),
        }))
    }
}
