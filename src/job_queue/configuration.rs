//! The file that says where jobs are kept and what they are for.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use engine::config::connection::{ClickHouseConnection, S3Connection};
use engine::config::connections::{Connections, Surroundings};
use engine::config::fault::Fault;
use engine::config::raw::{RawDuration, RawSecret, RawSize};
use engine::config::secret::Secret;
use engine::config::validate::Check;
use jobs::memory::MemoryLimits;
use jobs::postgres::PostgresOptions;
use plugins::definition::Definition;
use serde::Deserialize;

use super::plugin_host::RawPlugin;
use super::temporal::RetryFailed;
use super::webhook::Webhook;

/// Where jobs are kept when nobody says so, beside the process.
pub(crate) const DEFAULT_FOLDER: &str = "batch-export-jobs";

/// The table of ClickHouse when nobody says so.
const DEFAULT_TABLE: &str = "batch_export_jobs";

/// How many jobs are at work at once when nobody says so.
const DEFAULT_CONCURRENCY: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// Where jobs are kept and what they are for.
#[derive(Debug, Clone)]
pub(crate) struct JobsConfig {
    /// Where jobs are kept, in the order in which the places are tried.
    pub(crate) places: Vec<Place>,
    /// What this process needs on its own disk: jobs that nobody takes at its end, and dead ones where there is no bucket.
    pub(crate) folder: PathBuf,
    /// How many jobs are at work at once, for each place.
    pub(crate) concurrency: NonZeroUsize,
    /// Who hears of the ends of runs.
    pub(crate) webhooks: Vec<Webhook>,
    /// Whether intervals that failed for good are tried again later.
    pub(crate) retry_failed: Option<RetryFailed>,
    /// The plugins that exports may ask for, and whose jobs are done here.
    pub(crate) plugins: Vec<Definition>,
}

/// A place that keeps jobs.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Its name as a provider.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: PlaceKind,
}

/// What keeps jobs.
#[derive(Debug, Clone)]
pub(crate) enum PlaceKind {
    /// The memory of the process.
    Memory(MemoryLimits),
    /// A database.
    Postgres {
        /// Its address with user and password.
        url: Secret,
        /// The schema for our tables.
        schema: String,
    },
    /// A bucket.
    S3 {
        /// The service.
        connection: Box<S3Connection>,
        /// The bucket.
        bucket: String,
        /// What keys begin with.
        prefix: String,
    },
    /// A bucket of Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// What keys begin with.
        prefix: String,
        /// The key of a service account; else what the environment has.
        credentials_file: Option<PathBuf>,
    },
    /// A container of Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
        /// What keys begin with.
        prefix: String,
        /// The account's key; else what the environment has.
        access_key: Option<Secret>,
    },
    /// A table of a ClickHouse server.
    ClickHouse {
        /// The server.
        connection: Box<ClickHouseConnection>,
        /// The table for our jobs, within the connection's database.
        table: String,
    },
    /// A folder of this machine.
    Files {
        /// The folder.
        folder: PathBuf,
    },
}

impl PlaceKind {
    /// What tells it from other places, never shown; `None` for memory, which is nobody else's.
    fn location(&self) -> Option<String> {
        let prefixed = |prefix: &str| prefix.trim_matches('/').to_owned();
        let parts = match self {
            Self::Memory(_) => return None,
            Self::Postgres { url, schema } => ["postgres", url.expose(), schema].map(str::to_owned).to_vec(),
            Self::S3 { connection, bucket, prefix } => {
                let endpoint = connection.endpoint_url.as_ref().map(ToString::to_string).unwrap_or_default();
                vec!["s3".to_owned(), endpoint, bucket.clone(), prefixed(prefix)]
            }
            Self::Gcs { bucket, prefix, .. } => vec!["gcs".to_owned(), bucket.clone(), prefixed(prefix)],
            Self::Azure { account, container, prefix, .. } => {
                vec!["azure".to_owned(), account.clone(), container.clone(), prefixed(prefix)]
            }
            Self::ClickHouse { connection, table } => {
                vec!["clickhouse".to_owned(), connection.url.to_string(), connection.database.clone(), table.clone()]
            }
            Self::Files { folder } => vec!["files".to_owned(), folder.display().to_string()],
        };
        Some(parts.join("\n"))
    }
}

impl JobsConfig {
    /// Memory, and files in `folder`: what works without anything else.
    pub(crate) fn embedded(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let memory = Place { name: "memory".to_owned(), kind: PlaceKind::Memory(MemoryLimits::default()) };
        let files = Place { name: "files".to_owned(), kind: PlaceKind::Files { folder: folder.join("files") } };
        Self {
            places: vec![memory, files],
            folder,
            concurrency: DEFAULT_CONCURRENCY,
            webhooks: Vec::new(),
            retry_failed: None,
            plugins: Vec::new(),
        }
    }
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawJobs {
    version: Option<u32>,
    folder: Option<String>,
    concurrency: Option<u32>,
    providers: Option<Vec<RawPlace>>,
    webhooks: Vec<RawWebhook>,
    retry_failed: Option<RawRetryFailed>,
    plugins: Vec<RawPlugin>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPlace {
    r#type: Option<String>,
    name: Option<String>,
    max_jobs: Option<u32>,
    max_size: Option<RawSize>,
    max_delay: Option<RawDuration>,
    url: Option<RawSecret>,
    url_file: Option<String>,
    schema: Option<String>,
    connection: Option<String>,
    bucket: Option<String>,
    prefix: Option<String>,
    credentials_file: Option<String>,
    account: Option<String>,
    container: Option<String>,
    access_key: Option<RawSecret>,
    access_key_file: Option<String>,
    table: Option<String>,
    folder: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawWebhook {
    pub(super) name: Option<String>,
    pub(super) url: Option<String>,
    pub(super) url_file: Option<String>,
    pub(super) secret: Option<RawSecret>,
    pub(super) secret_file: Option<String>,
    pub(super) statuses: Option<Vec<String>>,
    pub(super) exports: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRetryFailed {
    pub(super) after: Option<RawDuration>,
    pub(super) times: Option<u32>,
    pub(super) statuses: Option<Vec<String>>,
}

impl RawJobs {
    /// Checks the file; relative folders belong to the process.
    ///
    /// # Errors
    /// Every fault, with the field's path.
    pub(super) fn validate(
        self,
        connections: &Connections,
        surroundings: Surroundings<'_>,
    ) -> Result<JobsConfig, Vec<Fault>> {
        let mut check = Check::default();
        check.version(self.version);
        let mut config = JobsConfig::embedded(self.folder.as_deref().unwrap_or(DEFAULT_FOLDER));
        if let Some(concurrency) = self.concurrency {
            let concurrency = usize::try_from(concurrency).ok().and_then(NonZeroUsize::new);
            let concurrency = concurrency.ok_or("must be at least 1; zero never means unlimited");
            config.concurrency = check.take("concurrency", concurrency).unwrap_or(DEFAULT_CONCURRENCY);
        }
        if let Some(providers) = self.providers {
            config.places = places(&mut check, providers, &config.folder, connections, surroundings);
        }
        let webhooks = self.webhooks.into_iter().enumerate();
        config.webhooks =
            webhooks.filter_map(|(index, raw)| Webhook::validate(&mut check, index, raw, surroundings)).collect();
        unique(&mut check, "webhooks", config.webhooks.iter().map(|webhook| webhook.name.as_str()));
        let plugins = self.plugins.into_iter().enumerate();
        config.plugins = plugins.filter_map(|(index, raw)| raw.validate(&mut check, index, surroundings)).collect();
        unique(&mut check, "plugins", config.plugins.iter().map(|plugin| plugin.name.as_str()));
        config.retry_failed = self.retry_failed.and_then(|raw| RetryFailed::validate(&mut check, &raw));
        if check.faults.is_empty() { Ok(config) } else { Err(check.faults) }
    }
}

fn places(
    check: &mut Check,
    providers: Vec<RawPlace>,
    folder: &Path,
    connections: &Connections,
    surroundings: Surroundings<'_>,
) -> Vec<Place> {
    let read = providers.into_iter().enumerate().filter_map(|(index, raw)| {
        let path = format!("providers[{index}]");
        place(check, &path, raw, folder, connections, surroundings)
    });
    let places = read.collect::<Vec<_>>();
    unique(check, "providers", places.iter().map(|place| place.name.as_str()));
    for (index, place) in places.iter().enumerate() {
        let location = place.kind.location();
        let is_same = |other: &&Place| location.is_some() && other.kind.location() == location;
        if let Some(other) = places[..index].iter().find(is_same) {
            // Jobs that are moved from one to the other would be deleted where they arrived.
            let why = format!("keeps jobs where {:?} does; leave one of them out", other.name);
            check.fault(&format!("providers[{index}]"), why);
        }
    }
    if places.iter().all(|place| matches!(place.kind, PlaceKind::Memory(_))) && check.faults.is_empty() {
        check.fault(
            "providers",
            "needs one that keeps jobs on a disk; add one of type postgres, s3, gcs, azure, clickhouse or files",
        );
    }
    places
}

fn place(
    check: &mut Check,
    path: &str,
    raw: RawPlace,
    folder: &Path,
    connections: &Connections,
    surroundings: Surroundings<'_>,
) -> Option<Place> {
    let field = |name: &str| format!("{path}.{name}");
    let kinds = "write memory, postgres, s3, gcs, azure, clickhouse or files";
    let word = check.required(&field("type"), raw.r#type.as_deref(), kinds)?;
    let own: &[&str] = match word.as_str() {
        "memory" => &["max_jobs", "max_size", "max_delay"],
        "postgres" => &["url", "url_file", "schema"],
        "s3" => &["connection", "bucket", "prefix"],
        "gcs" => &["bucket", "prefix", "credentials_file"],
        "azure" => &["account", "container", "prefix", "access_key", "access_key_file"],
        "clickhouse" => &["connection", "table"],
        "files" => &["folder"],
        _ => {
            check.fault(&field("type"), format!("{word:?} is unknown; {kinds}"));
            return None;
        }
    };
    for name in raw.given().into_iter().filter(|name| !own.contains(name)) {
        check.fault(&field(name), format!("doesn't belong to {word}; its fields are {}", own.join(", ")));
    }
    let name = raw.name.clone().unwrap_or_else(|| word.clone());
    let prefix = raw.prefix.clone().unwrap_or_else(|| DEFAULT_FOLDER.to_owned());
    let kind = match word.as_str() {
        "memory" => PlaceKind::Memory(memory_limits(check, path, &raw)),
        "postgres" => {
            let url = check.secret(&field("url"), raw.url, raw.url_file, surroundings);
            if url.is_none() {
                check.fault(&field("url"), "is missing; write ${NAME} of a variable, or url_file");
            }
            PlaceKind::Postgres { url: url?, schema: raw.schema.unwrap_or_else(|| PostgresOptions::default().schema) }
        }
        "s3" => {
            let bucket = check.required(&field("bucket"), raw.bucket.as_deref(), "name the bucket");
            let connection = check.take(&field("connection"), connections.s3(raw.connection.as_deref()));
            PlaceKind::S3 { connection: Box::new(connection?), bucket: bucket?, prefix }
        }
        "gcs" => {
            let bucket = check.required(&field("bucket"), raw.bucket.as_deref(), "name the bucket")?;
            PlaceKind::Gcs { bucket, prefix, credentials_file: raw.credentials_file.map(PathBuf::from) }
        }
        "azure" => {
            let account = check.required(&field("account"), raw.account.as_deref(), "name the storage account");
            let container = check.required(&field("container"), raw.container.as_deref(), "name the container");
            let access_key = check.secret(&field("access_key"), raw.access_key, raw.access_key_file, surroundings);
            PlaceKind::Azure { account: account?, container: container?, prefix, access_key }
        }
        "clickhouse" => {
            let connection = check.take(&field("connection"), connections.clickhouse(raw.connection.as_deref()))?;
            PlaceKind::ClickHouse {
                connection: Box::new(connection),
                table: raw.table.unwrap_or_else(|| DEFAULT_TABLE.to_owned()),
            }
        }
        _ => PlaceKind::Files { folder: raw.folder.map_or_else(|| folder.join(&name), PathBuf::from) },
    };
    Some(Place { name, kind })
}

fn memory_limits(check: &mut Check, path: &str, raw: &RawPlace) -> MemoryLimits {
    let defaults = MemoryLimits::default();
    let jobs = raw.max_jobs.and_then(|jobs| usize::try_from(jobs).ok());
    let size = raw.max_size.and_then(|size| usize::try_from(size.0).ok());
    for (name, given) in [("max_jobs", jobs), ("max_size", size)] {
        if given == Some(0) {
            check.fault(&format!("{path}.{name}"), "must be more than zero; zero never means unlimited");
        }
    }
    MemoryLimits {
        max_jobs: jobs.unwrap_or(defaults.max_jobs),
        max_bytes: size.unwrap_or(defaults.max_bytes),
        max_delay: raw.max_delay.map_or(defaults.max_delay, |delay| delay.0),
    }
}

impl RawPlace {
    /// The names of the fields that are given, but for `type` and `name`.
    fn given(&self) -> Vec<&'static str> {
        let fields = [
            ("max_jobs", self.max_jobs.is_some()),
            ("max_size", self.max_size.is_some()),
            ("max_delay", self.max_delay.is_some()),
            ("url", self.url.is_some()),
            ("url_file", self.url_file.is_some()),
            ("schema", self.schema.is_some()),
            ("connection", self.connection.is_some()),
            ("bucket", self.bucket.is_some()),
            ("prefix", self.prefix.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
            ("account", self.account.is_some()),
            ("container", self.container.is_some()),
            ("access_key", self.access_key.is_some()),
            ("access_key_file", self.access_key_file.is_some()),
            ("table", self.table.is_some()),
            ("folder", self.folder.is_some()),
        ];
        fields.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
    }
}

fn unique<'a>(check: &mut Check, path: &str, names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for (index, name) in names.enumerate() {
        if !seen.insert(name) {
            check.fault(&format!("{path}[{index}].name"), format!("{name:?} is taken; give it another name"));
        }
    }
}
