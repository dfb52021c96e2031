//! Where the source and the destination are, and how to sign in.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::secret::Secret;

/// How to reach a ClickHouse server over HTTP or HTTPS.
#[derive(Debug, Clone)]
pub struct ClickHouseConnection {
    /// `http://host:8123` or `https://host:8443`, without user, password and query.
    pub url: Url,
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// The database that unqualified table names belong to.
    pub database: String,
    /// A PEM file of the authority that signed the server's certificate, when the system doesn't know it.
    pub ca_file: Option<PathBuf>,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest wait for the response's head: a big sort answers late.
    pub first_byte_timeout: Duration,
    /// The longest silence within a response.
    pub idle_timeout: Duration,
}

/// How to reach an S3 service. Everything that is `None` comes from the AWS provider chain.
#[derive(Debug, Clone, Default)]
pub struct S3Connection {
    /// The region, `None` for the chain's.
    pub region: Option<String>,
    /// The endpoint of an S3-compatible service.
    pub endpoint_url: Option<Url>,
    /// Keys that were given, instead of the chain's.
    pub credentials: Option<S3Credentials>,
    /// `bucket.host/key` instead of `host/bucket/key`; the default is path style for custom endpoints, and virtual-host
    /// style for AWS itself.
    pub use_virtual_style_addressing: Option<bool>,
    /// Whether every request carries a checksum; the default is yes for AWS itself and only where S3 demands it for
    /// custom endpoints, since older services refuse the header.
    pub checksums: Option<S3Checksums>,
}

/// A pair of S3 keys.
#[derive(Debug, Clone)]
pub struct S3Credentials {
    /// The access key's id.
    pub access_key_id: String,
    /// The secret key.
    pub secret_access_key: Secret,
    /// The token of temporary credentials.
    pub session_token: Option<Secret>,
}

/// When requests carry a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3Checksums {
    /// On every request that supports one.
    WhenSupported,
    /// Only where S3 demands one.
    WhenRequired,
}
