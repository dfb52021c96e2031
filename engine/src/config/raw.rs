//! Configuration as it is written: every field may be missing, nothing is checked beyond its type.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::secret::Secret;

/// An export's file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawExport {
    /// The version of this shape: 1.
    pub version: Option<u32>,
    /// The export's id.
    pub name: Option<String>,
    /// `hour`, `day`, `week` or `every N minutes`.
    pub interval: Option<String>,
    /// The zone whose days and weeks are meant.
    pub timezone: Option<String>,
    /// Where the rows come from.
    pub source: RawSource,
    /// Where the object goes.
    pub destination: RawDestination,
    /// What a run may hold.
    pub pipeline: RawPipeline,
    /// How long an activity may take.
    pub activity: RawActivity,
    /// Who changes rows before they are written.
    pub plugin: Option<RawPlugin>,
}

/// `plugin`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPlugin {
    /// The plugin's name, in the file of jobs.
    pub name: Option<String>,
    /// `fail_run`, `drop_row` or `pass_row`.
    pub on_error: Option<String>,
}

/// `source`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawSource {
    /// The name of a ClickHouse connection; the environment's when it is missing.
    pub connection: Option<String>,
    /// `events` or `sql`.
    pub model: Option<String>,
    /// For `events`: whose.
    pub team_id: Option<i64>,
    /// For `events`: the table.
    pub table: Option<String>,
    /// For `events`: only these.
    pub include_events: Option<Vec<String>>,
    /// For `events`: none of these.
    pub exclude_events: Option<Vec<String>>,
    /// For `events`: how many days an event may be older than its insertion.
    pub lookback_days: Option<u32>,
    /// For `sql`: the statement.
    pub query: Option<String>,
    /// For `sql`: the file that holds the statement, relative to this one.
    pub query_file: Option<String>,
    /// ClickHouse settings.
    pub settings: BTreeMap<String, RawSetting>,
    /// `replace` or `fail`.
    pub invalid_utf8: Option<String>,
    /// `fail` or `allow`.
    pub fewer_rows: Option<String>,
}

/// `destination`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawDestination {
    /// The name of an S3 connection; the AWS provider chain's when it is missing.
    pub connection: Option<String>,
    /// The bucket.
    pub bucket: Option<String>,
    /// The key's template in front of the file's name.
    pub prefix: Option<String>,
    /// `JSONLines` or `Parquet`.
    pub file_format: Option<String>,
    /// The codec.
    pub compression: Option<String>,
    /// `default` or `reference`.
    pub key_layout: Option<String>,
    /// `AES256` or `aws:kms`.
    pub encryption: Option<String>,
    /// The key for `aws:kms`.
    pub kms_key_id: Option<String>,
    /// Whether a run without rows writes an object.
    pub write_empty: Option<bool>,
}

/// `pipeline`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPipeline {
    /// The most that a run may hold.
    pub memory_limit: Option<RawSize>,
    /// How many consumers encode at once.
    pub consumers: Option<u32>,
    /// The most rows of a block.
    pub block_rows: Option<u32>,
    /// The size at which a block closes.
    pub block_size: Option<RawSize>,
    /// The most that is held of the source's stream and of what is being written of it.
    pub buffer_size: Option<RawSize>,
    /// The size of a part.
    pub part_size: Option<RawSize>,
    /// How many parts are uploaded at once.
    pub uploads_in_flight: Option<u32>,
}

/// `activity`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawActivity {
    /// The most time for one attempt.
    pub start_to_close: Option<RawDuration>,
    /// The longest silence of an attempt.
    pub heartbeat_timeout: Option<RawDuration>,
    /// How a failed attempt is followed by the next.
    pub retry: RawRetry,
}

/// `activity.retry`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRetry {
    /// The wait before the second attempt.
    pub initial_interval: Option<RawDuration>,
    /// The longest wait.
    pub maximum_interval: Option<RawDuration>,
    /// By how much each wait is longer than the one before.
    pub backoff_coefficient: Option<f64>,
    /// The most attempts; without end when it is missing.
    pub maximum_attempts: Option<u32>,
}

/// The file of connections.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConnections {
    /// The version of this shape: 1.
    pub version: Option<u32>,
    /// ClickHouse servers, by name.
    pub clickhouse: BTreeMap<String, RawClickHouse>,
    /// S3 services, by name.
    pub s3: BTreeMap<String, RawS3>,
}

/// A ClickHouse server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawClickHouse {
    /// `https://host:8443`.
    pub url: Option<String>,
    /// The user; `default` when it is missing.
    pub user: Option<String>,
    /// The password, as a reference.
    pub password: Option<RawSecret>,
    /// The file that holds the password.
    pub password_file: Option<String>,
    /// The database; `default` when it is missing.
    pub database: Option<String>,
    /// A PEM file of the authority.
    pub ca_file: Option<String>,
    /// The longest wait for a connection.
    pub connect_timeout: Option<RawDuration>,
    /// The longest wait for the response's head.
    pub first_byte_timeout: Option<RawDuration>,
    /// The longest silence within a response.
    pub idle_timeout: Option<RawDuration>,
}

/// An S3 service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawS3 {
    /// The region.
    pub region: Option<String>,
    /// The endpoint of an S3-compatible service.
    pub endpoint_url: Option<String>,
    /// The access key's id.
    pub access_key_id: Option<String>,
    /// The secret key, as a reference.
    pub secret_access_key: Option<RawSecret>,
    /// The file that holds the secret key.
    pub secret_access_key_file: Option<String>,
    /// The session's token, as a reference.
    pub session_token: Option<RawSecret>,
    /// The file that holds the session's token.
    pub session_token_file: Option<String>,
    /// `bucket.host` instead of `host/bucket`.
    pub use_virtual_style_addressing: Option<bool>,
    /// `when_supported` or `when_required`.
    pub checksums: Option<String>,
}

/// The name of the newtype by which [`RawSecret`] asks its deserializer to refuse literals.
pub(super) const SECRET_MARKER: &str = "$batch_export::secret";

/// A secret. From a file it must be a reference.
#[derive(Debug, Clone)]
pub struct RawSecret(pub Secret);

impl<'de> Deserialize<'de> for RawSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecretVisitor;

        impl<'de> Visitor<'de> for SecretVisitor {
            type Value = String;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("text")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
                String::deserialize(deserializer).map_err(|_| D::Error::custom("must be text"))
            }
        }

        deserializer.deserialize_newtype_struct(SECRET_MARKER, SecretVisitor).map(|text| Self(Secret::new(text)))
    }
}

/// A number of bytes, such as `256MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSize(pub u64);

impl<'de> Deserialize<'de> for RawSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match scalar(deserializer)?.parse::<bytesize::ByteSize>() {
            Ok(size) => Ok(Self(size.as_u64())),
            Err(_) => Err(D::Error::custom("must be a size such as 64MiB or a number of bytes")),
        }
    }
}

/// A length of time, such as `90s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDuration(pub Duration);

impl<'de> Deserialize<'de> for RawDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match humantime::parse_duration(&scalar(deserializer)?) {
            Ok(duration) => Ok(Self(duration)),
            Err(_) => Err(D::Error::custom("must be a duration with its unit, such as 90s, 20m or 2h")),
        }
    }
}

/// The value of a ClickHouse setting, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSetting(pub String);

impl<'de> Deserialize<'de> for RawSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer).map(Self)
    }
}

/// Anything, as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct RawJson(pub Value);

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonVisitor;

        impl<'de> Visitor<'de> for JsonVisitor {
            type Value = Value;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::from(value))
            }

            fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<Value, E> {
                let small = i64::try_from(value).map(Value::from).or_else(|_| u64::try_from(value).map(Value::from));
                small.map_err(|_| E::custom("must be a number of 64 bits at most"))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::from(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::from(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut array = Vec::new();
                while let Some(RawJson(item)) = items.next_element()? {
                    array.push(item);
                }
                Ok(Value::Array(array))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
                let mut object = serde_json::Map::new();
                while let Some((name, RawJson(member))) = members.next_entry()? {
                    object.insert(name, member);
                }
                Ok(Value::Object(object))
            }
        }

        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

/// A text, number or boolean as text; ClickHouse's booleans are 1 and 0.
fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct ScalarVisitor;

    impl Visitor<'_> for ScalarVisitor {
        type Value = String;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("text or a number")
        }

        fn visit_bool<E>(self, value: bool) -> Result<String, E> {
            Ok(u8::from(value).to_string())
        }

        fn visit_i64<E>(self, value: i64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_u64<E>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_i128<E>(self, value: i128) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_f64<E>(self, value: f64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_str<E>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }
    }

    deserializer.deserialize_any(ScalarVisitor)
}
