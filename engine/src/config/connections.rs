//! The connections that exports name, and those of the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use super::connection::{ClickHouseConnection, S3Checksums, S3Connection, S3Credentials};
use super::fault::Fault;
use super::raw::{RawClickHouse, RawConnections, RawDuration, RawS3, RawSecret};
use super::secret::Secret;
use super::validate::Check;

/// The longest wait for a connection to ClickHouse, unless the connection says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for the head of ClickHouse's response: a big sort answers late.
pub const DEFAULT_FIRST_BYTE_TIMEOUT: Duration = Duration::from_hours(1);

/// The longest silence within ClickHouse's response.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// What the process is surrounded by, read by the program and passed in.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The environment's variables.
    pub variables: &'a BTreeMap<String, String>,
    /// Reads a text file whose path a configuration names; relative paths belong to that configuration's folder.
    pub read_file: &'a dyn Fn(&Path) -> std::io::Result<String>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// Connections by name, and the ones that an export gets which names none.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    clickhouse: BTreeMap<String, ClickHouseConnection>,
    s3: BTreeMap<String, S3Connection>,
    unnamed_clickhouse: Option<ClickHouseConnection>,
}

impl Connections {
    /// The connections of the environment alone: `CLICKHOUSE_URL`, `CLICKHOUSE_USER`, `CLICKHOUSE_PASSWORD`,
    /// `CLICKHOUSE_DATABASE` and `CLICKHOUSE_CA_FILE`. S3 comes from the AWS provider chain.
    ///
    /// # Errors
    /// Every variable that can't be used.
    pub fn from_environment(variables: &BTreeMap<String, String>) -> Result<Self, Vec<Fault>> {
        let mut check = Check::default();
        let variable = |name: &str| variables.get(name).filter(|value| !value.trim().is_empty()).cloned();
        let unnamed_clickhouse = variable("CLICKHOUSE_URL").and_then(|url| {
            let url = check.take("CLICKHOUSE_URL", server_url(&url))?;
            Some(ClickHouseConnection {
                url,
                user: variable("CLICKHOUSE_USER").unwrap_or_else(|| "default".to_owned()),
                password: Secret::new(variables.get("CLICKHOUSE_PASSWORD").cloned().unwrap_or_default()),
                database: variable("CLICKHOUSE_DATABASE").unwrap_or_else(|| "default".to_owned()),
                ca_file: variable("CLICKHOUSE_CA_FILE").map(PathBuf::from),
                connect_timeout: DEFAULT_CONNECT_TIMEOUT,
                first_byte_timeout: DEFAULT_FIRST_BYTE_TIMEOUT,
                idle_timeout: DEFAULT_IDLE_TIMEOUT,
            })
        });
        if check.faults.is_empty() { Ok(Self { unnamed_clickhouse, ..Self::default() }) } else { Err(check.faults) }
    }

    /// The ClickHouse connection of this name, or the environment's.
    ///
    /// # Errors
    /// A clause that says what there is instead.
    pub fn clickhouse(&self, name: Option<&str>) -> Result<ClickHouseConnection, String> {
        match name {
            Some(name) => {
                self.clickhouse.get(name).cloned().ok_or_else(|| unknown(name, "clickhouse", self.clickhouse.keys()))
            }
            None => self
                .unnamed_clickhouse
                .clone()
                .ok_or_else(|| "is missing; name a connection, or set CLICKHOUSE_URL".to_owned()),
        }
    }

    /// The S3 connection of this name, or the AWS provider chain's.
    ///
    /// # Errors
    /// A clause that says what there is instead.
    pub fn s3(&self, name: Option<&str>) -> Result<S3Connection, String> {
        match name {
            Some(name) => self.s3.get(name).cloned().ok_or_else(|| unknown(name, "s3", self.s3.keys())),
            None => Ok(S3Connection::default()),
        }
    }
}

fn unknown<'a>(name: &str, kind: &str, known: impl Iterator<Item = &'a String>) -> String {
    let known = known.map(String::as_str).collect::<Vec<_>>();
    let there = if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) };
    format!("no connection {name:?} under {kind} in the connections file; {there}")
}

impl RawConnections {
    /// Checks the connections and reads the files of their secrets.
    ///
    /// # Errors
    /// Every fault, with the field's path.
    pub fn validate(self, surroundings: Surroundings<'_>) -> Result<Connections, Vec<Fault>> {
        let mut check = Check::default();
        check.version(self.version);
        let mut connections = match Connections::from_environment(surroundings.variables) {
            Ok(connections) => connections,
            Err(faults) => {
                check.faults.extend(faults);
                Connections::default()
            }
        };
        for (name, raw) in self.clickhouse {
            if let Some(connection) = check.clickhouse(&format!("clickhouse.{name}"), raw, surroundings) {
                connections.clickhouse.insert(name, connection);
            }
        }
        for (name, raw) in self.s3 {
            let connection = check.s3(&format!("s3.{name}"), raw, surroundings);
            connections.s3.insert(name, connection);
        }
        if check.faults.is_empty() { Ok(connections) } else { Err(check.faults) }
    }
}

impl Check {
    fn clickhouse(
        &mut self,
        path: &str,
        raw: RawClickHouse,
        surroundings: Surroundings<'_>,
    ) -> Option<ClickHouseConnection> {
        let field = |name: &str| format!("{path}.{name}");
        let url = self.required(&field("url"), raw.url.as_deref(), "write https://host:8443 or http://host:8123");
        let url = url.and_then(|url| self.take(&field("url"), server_url(&url)));
        let password = self.secret(&field("password"), raw.password, raw.password_file, surroundings);
        let mut timeout = |name: &str, given: Option<RawDuration>, default: Duration| {
            let timeout = given.map_or(default, |given| given.0);
            if timeout.is_zero() {
                self.fault(&field(name), "must be longer than zero; zero never means unlimited");
            }
            timeout
        };
        let connect_timeout = timeout("connect_timeout", raw.connect_timeout, DEFAULT_CONNECT_TIMEOUT);
        let first_byte_timeout = timeout("first_byte_timeout", raw.first_byte_timeout, DEFAULT_FIRST_BYTE_TIMEOUT);
        let idle_timeout = timeout("idle_timeout", raw.idle_timeout, DEFAULT_IDLE_TIMEOUT);
        Some(ClickHouseConnection {
            url: url?,
            user: raw.user.unwrap_or_else(|| "default".to_owned()),
            password: password.unwrap_or_else(|| Secret::new("")),
            database: raw.database.unwrap_or_else(|| "default".to_owned()),
            ca_file: raw.ca_file.map(PathBuf::from),
            connect_timeout,
            first_byte_timeout,
            idle_timeout,
        })
    }

    fn s3(&mut self, path: &str, raw: RawS3, surroundings: Surroundings<'_>) -> S3Connection {
        let field = |name: &str| format!("{path}.{name}");
        let endpoint = raw.endpoint_url.as_deref().map(str::trim).filter(|url| !url.is_empty());
        let endpoint_url = endpoint.and_then(|url| self.take(&field("endpoint_url"), server_url(url)));
        let secret_path = field("secret_access_key");
        let secret = self.secret(&secret_path, raw.secret_access_key, raw.secret_access_key_file, surroundings);
        let session_token =
            self.secret(&field("session_token"), raw.session_token, raw.session_token_file, surroundings);
        let credentials = match (raw.access_key_id, secret) {
            (Some(access_key_id), Some(secret_access_key)) => {
                Some(S3Credentials { access_key_id, secret_access_key, session_token })
            }
            (None, None) => {
                if session_token.is_some() {
                    self.fault(&field("session_token"), "needs access_key_id and secret_access_key");
                }
                None
            }
            (Some(_), None) => {
                self.fault(
                    &secret_path,
                    "is missing; a key id needs its secret, or leave both to the AWS provider chain",
                );
                None
            }
            (None, Some(_)) => {
                self.fault(&field("access_key_id"), "is missing; the secret key belongs to one");
                None
            }
        };
        let checksums = match raw.checksums.as_deref() {
            None => None,
            Some("when_supported") => Some(S3Checksums::WhenSupported),
            Some("when_required") => Some(S3Checksums::WhenRequired),
            Some(_) => {
                self.fault(&field("checksums"), "must be when_supported or when_required");
                None
            }
        };
        S3Connection {
            region: raw.region.map(|region| region.trim().to_owned()).filter(|region| !region.is_empty()),
            endpoint_url,
            credentials,
            use_virtual_style_addressing: raw.use_virtual_style_addressing,
            checksums,
        }
    }

    /// A secret from its reference or its file.
    pub fn secret(
        &mut self,
        path: &str,
        reference: Option<RawSecret>,
        file: Option<String>,
        surroundings: Surroundings<'_>,
    ) -> Option<Secret> {
        let Some(file) = file else { return reference.map(|secret| secret.0) };
        let file_path = format!("{path}_file");
        if reference.is_some() {
            self.fault(&file_path, "stands beside the secret itself; keep one of the two");
        }
        match (surroundings.read_file)(Path::new(&file)) {
            Ok(text) => Some(Secret::new(text.trim_end_matches(['\n', '\r']))),
            Err(error) => {
                self.fault(&file_path, format!("can't read {file}: {error}"));
                None
            }
        }
    }
}

/// A server's URL. What it holds is never part of the message: it may be a password.
fn server_url(text: &str) -> Result<Url, String> {
    let example = "write https://host:port or http://host:port";
    let url = Url::parse(text.trim()).map_err(|error| format!("isn't a URL: {error}; {example}"))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("isn't a web address; {example}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or password; they have fields of their own".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("must not hold a ? or #; {example}"));
    }
    Ok(url)
}
