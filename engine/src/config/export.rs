//! A validated export: the rest of the engine takes only this.

use std::collections::BTreeMap;

use super::connection::{ClickHouseConnection, S3Connection};
use super::limits::PipelineLimits;
use super::output::Output;
use crate::source::events::EventsModel;
use crate::source::template::SqlTemplate;
use crate::transform::TransformConfig;

/// A named, configured copy, without its schedule.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// The export's id, part of its default keys. Never empty.
    pub id: String,
    /// Where the rows come from.
    pub source: SourceConfig,
    /// Where the object goes.
    pub destination: DestinationConfig,
    /// The object's format and compression.
    pub output: Output,
    /// What a run may hold at once.
    pub limits: PipelineLimits,
    /// Who changes rows, or leaves them out, before they are written.
    pub transform: Option<TransformConfig>,
}

impl SourceConfig {
    /// A short name for what is selected: the same for the same model, settings and database, and another for others.
    #[must_use]
    pub fn selection(&self) -> String {
        let connection = &self.connection;
        let text = format!("{:?} {:?} {} {}", self.model, self.settings, connection.url, connection.database);
        format!("{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

/// Where the rows come from.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The server.
    pub connection: ClickHouseConnection,
    /// What is selected.
    pub model: Model,
    /// ClickHouse settings of the user's own, by their own names.
    pub settings: BTreeMap<String, String>,
    /// What happens to text that isn't UTF-8.
    pub invalid_utf8: InvalidUtf8,
    /// What happens when the window has fewer rows than before.
    pub fewer_rows: FewerRows,
}

/// What is selected.
#[derive(Debug, Clone)]
pub enum Model {
    /// The reference system's events.
    Events(EventsModel),
    /// The user's own SQL.
    Sql(SqlTemplate),
}

impl Model {
    /// What the key's `{table}` stands for.
    #[must_use]
    pub const fn table_name(&self) -> &'static str {
        match self {
            Self::Events(_) => "events",
            Self::Sql(_) => "sql",
        }
    }
}

/// What happens to text that isn't UTF-8: ClickHouse's `String` may hold any bytes, Parquet's and JSON's may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InvalidUtf8 {
    /// Each bad sequence becomes U+FFFD, and the run reports how many values were repaired.
    #[default]
    Replace,
    /// The run fails and names column and row.
    Fail,
}

/// What happens when the window has fewer rows than an earlier attempt of the same run has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FewerRows {
    /// The run fails: a source that shrinks is no success.
    #[default]
    Fail,
    /// The run goes on with a warning: rows are deleted or merged away on purpose.
    Allow,
}

/// Where the object goes.
#[derive(Debug, Clone)]
pub struct DestinationConfig {
    /// The service.
    pub connection: S3Connection,
    /// The bucket's name.
    pub bucket: String,
    /// The key's template in front of the file's name, checked; see [`crate::sink::key`].
    pub prefix: String,
    /// How the file is named.
    pub key_layout: KeyLayout,
    /// Server-side encryption of the object.
    pub encryption: Option<Encryption>,
    /// Whether a run without rows writes an empty, valid object.
    pub write_empty: bool,
}

/// How keys are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyLayout {
    /// `<prefix>/<export id>/<start>--<end>.<extension>`: two runs never share a key.
    #[default]
    Default,
    /// The reference system's `<prefix>/<start>-<end>.<extension>`.
    Reference,
}

/// Server-side encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encryption {
    /// `AES256`.
    Aes256,
    /// `aws:kms`, with the key's id unless it is the bucket's default.
    Kms {
        /// The id or ARN of the key.
        key_id: Option<String>,
    },
}
