//! The client of one S3 service, made once per destination and run.
//!
//! Owns endpoint, region, credentials, addressing, checksums and timeouts. Does not own retries: the SDK's are off,
//! because ours rebuild and re-sign each request; see [`super::retry`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider};
use aws_config::imds;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Credentials, ProvideCredentials, RequestChecksumCalculation, ResponseChecksumValidation, SharedCredentialsProvider,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use url::Url;

use super::classify::{Failure, Target, classify};
use crate::config::connection::{S3Checksums, S3Connection, S3Credentials};
use crate::config::secret::Secret;
use crate::error::{Error, ErrorKind, Result};

/// The longest wait for a connection. Bounds every request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for credentials and region, metadata service included. Bounds [`S3Client::connect`].
const CHAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The wait for one answer of the instance metadata service, which a laptop doesn't have.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// The region of an S3-compatible service that wasn't given one: they ignore it, but it is part of the signature.
const COMPATIBLE_REGION: Region = Region::from_static("us-east-1");

/// The longest wait for the answer to a request without a body. Bounds create, head and abort.
pub(super) const SMALL_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait for one try of Complete, which S3 may answer minutes later.
pub(super) const COMPLETE_TIMEOUT: Duration = Duration::from_secs(300);

/// The slowest upload that is still taken for alive. Unit: bytes per second and request.
const SLOWEST_UPLOAD: u64 = 64 * 1024;

/// A client of one S3 service.
///
/// It keeps its connections: share one per destination and run.
#[derive(Debug, Clone)]
pub struct S3Client {
    sdk: aws_sdk_s3::Client,
    access: S3Access,
    endpoint: Endpoint,
    checksums: S3Checksums,
    reached: Arc<AtomicBool>,
}

/// Where requests go and by which right, for clients of other kinds.
#[derive(Debug, Clone)]
pub struct S3Access {
    /// The endpoint.
    pub endpoint: Url,
    /// The region of signatures.
    pub region: String,
    /// Whether requests go to `bucket.host` instead of `host/bucket`.
    pub virtual_style: bool,
    credentials: SharedCredentialsProvider,
}

impl S3Access {
    /// The keys of this moment: those of roles change.
    ///
    /// # Errors
    /// `Auth` when there are none now.
    pub async fn keys(&self) -> Result<S3Credentials> {
        let keys = provide(&self.credentials).await?;
        Ok(S3Credentials {
            access_key_id: keys.access_key_id().to_owned(),
            secret_access_key: Secret::new(keys.secret_access_key()),
            session_token: keys.session_token().map(Secret::new),
        })
    }
}

/// Where requests really go, after the connection, the environment and the profile had their say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: Url,
}

impl S3Client {
    /// Resolves endpoint, region and credentials; sends nothing to the store itself.
    ///
    /// What the connection leaves open comes from the AWS chain: environment (`AWS_ENDPOINT_URL_S3` too), profile, web
    /// identity, container and instance role. The roles are never asked for an endpoint of somebody else's that the
    /// connection names: their session token would go there.
    ///
    /// # Errors
    /// `Auth` without credentials, `Config` without a region or with an endpoint that is no URL.
    ///
    /// # Cancel safety
    /// May be dropped; it leaves nothing behind.
    pub async fn connect(connection: &S3Connection) -> Result<Self> {
        let connected = tokio::time::timeout(CHAIN_TIMEOUT, Self::resolve(connection)).await;
        connected.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Auth,
                "looking for S3 credentials and region took too long; give access keys and a region, \
                 or set AWS_EC2_METADATA_DISABLED=true",
            ))
        })
    }

    /// The SDK's client.
    pub(super) const fn sdk(&self) -> &aws_sdk_s3::Client {
        &self.sdk
    }

    /// Where requests go and by which right.
    #[must_use]
    pub const fn access(&self) -> &S3Access {
        &self.access
    }

    /// Where requests go.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// When requests carry a checksum.
    #[must_use]
    pub const fn checksums(&self) -> S3Checksums {
        self.checksums
    }

    /// Sends one request once, with a timeout of its own, and classifies its failure.
    ///
    /// # Cancel safety
    /// May be dropped: the connection is closed, and whether the request took effect stays unknown.
    pub(super) fn send<'a, T, E>(
        &'a self,
        bucket: &'a str,
        key: &'a str,
        timeout: Duration,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send + 'a,
    ) -> impl Future<Output = Result<T, Failure>> + Send + 'a
    where
        T: Send + 'a,
        E: ProvideErrorMetadata + std::error::Error + Send + 'static,
    {
        // The SDK's futures are large: boxed here, none of ours carries one.
        let request = Box::pin(request);
        async move {
            let outcome = tokio::time::timeout(timeout, request).await;
            if matches!(&outcome, Ok(Ok(_)) | Ok(Err(SdkError::ServiceError(_) | SdkError::ResponseError(_)))) {
                self.reached.store(true, Ordering::Relaxed);
            }
            match outcome {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(error)) => Err(classify(&error, &self.target(bucket, key))),
                Err(_) => Err(Failure::timeout(&self.target(bucket, key))),
            }
        }
    }

    /// The failure of a reply of success that lacks what it must carry.
    pub(super) fn no_result(&self, bucket: &str, key: &str) -> Failure {
        Failure::no_result(&self.target(bucket, key))
    }

    fn target(&self, bucket: &str, key: &str) -> Target {
        Target {
            endpoint: self.endpoint.to_string(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            reached: self.reached.load(Ordering::Relaxed),
        }
    }

    async fn resolve(connection: &S3Connection) -> Result<Self> {
        let known = known_region(connection).await;
        let mut region = known.clone().unwrap_or(COMPATIBLE_REGION);
        let loaded = load(connection, region.clone()).await;
        let mut builder = aws_sdk_s3::config::Builder::from(&loaded);
        let mut endpoint = resolve_endpoint(builder.clone()).await?;
        if known.is_none() && endpoint.is_aws() {
            region =
                instance_region().await.ok_or_else(|| Error::config("S3 has no region; set region or AWS_REGION"))?;
            builder = builder.region(region.clone());
            endpoint = resolve_endpoint(builder.clone()).await?;
        }
        let provider = credentials(connection, region.clone()).await;
        // Asked once, so that missing credentials are a sentence and not a failed request.
        provide(&provider).await?;
        let checksums = connection.checksums.unwrap_or_else(|| default_checksums(&loaded, &endpoint));
        let (request, response) = match checksums {
            S3Checksums::WhenSupported => {
                (RequestChecksumCalculation::WhenSupported, ResponseChecksumValidation::WhenSupported)
            }
            S3Checksums::WhenRequired => {
                (RequestChecksumCalculation::WhenRequired, ResponseChecksumValidation::WhenRequired)
            }
        };
        let virtual_style = connection.use_virtual_style_addressing.unwrap_or_else(|| endpoint.is_aws());
        let access = S3Access {
            endpoint: endpoint.url.clone(),
            region: region.as_ref().to_owned(),
            virtual_style,
            credentials: provider.clone(),
        };
        builder = builder
            .credentials_provider(provider)
            .request_checksum_calculation(request)
            .response_checksum_validation(response)
            .force_path_style(!virtual_style);
        let sdk = aws_sdk_s3::Client::from_conf(builder.build());
        Ok(Self { sdk, access, endpoint, checksums, reached: Arc::default() })
    }
}

impl Endpoint {
    /// Whether the host is Amazon's own.
    #[must_use]
    pub fn is_aws(&self) -> bool {
        is_aws(&self.url)
    }

    /// Whether the connection is encrypted, so that the body needs no hash in the signature to arrive unchanged.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.url.origin().ascii_serialization())
    }
}

/// The longest wait for one try of an upload of so many bytes.
pub(super) fn upload_timeout(num_bytes: usize) -> Duration {
    let num_bytes = u64::try_from(num_bytes).unwrap_or(u64::MAX);
    SMALL_REQUEST_TIMEOUT + Duration::from_secs(num_bytes / SLOWEST_UPLOAD)
}

fn is_aws(url: &Url) -> bool {
    url.host_str().is_some_and(|host| host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"))
}

/// Loads what environment and profile say, apart from credentials.
async fn load(connection: &S3Connection, region: Region) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .no_credentials()
        .region(region)
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).build());
    if let Some(url) = &connection.endpoint_url {
        loader = loader.endpoint_url(url.as_str());
    }
    loader.load().await
}

/// The given region, or the environment's or the profile's.
async fn known_region(connection: &S3Connection) -> Option<Region> {
    if let Some(region) = &connection.region {
        return Some(Region::new(region.clone()));
    }
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    chain.region().await
}

/// The region of the machine that we run on, where it is one of Amazon's.
async fn instance_region() -> Option<Region> {
    imds::region::ImdsRegionProvider::builder().imds_client(metadata_client()).build().region().await
}

async fn credentials(connection: &S3Connection, region: Region) -> SharedCredentialsProvider {
    if let Some(keys) = &connection.credentials {
        return SharedCredentialsProvider::new(static_credentials(keys));
    }
    if connection.endpoint_url.as_ref().is_some_and(|url| !is_aws(url)) {
        return SharedCredentialsProvider::new(
            CredentialsProviderChain::first_try("Environment", EnvironmentVariableCredentialsProvider::new())
                .or_else("Profile", ProfileFileCredentialsProvider::builder().build()),
        );
    }
    let chain = DefaultCredentialsChain::builder().imds_client(metadata_client()).region(region);
    SharedCredentialsProvider::new(chain.build().await)
}

fn static_credentials(keys: &S3Credentials) -> Credentials {
    let token = keys.session_token.as_ref().map(|token| token.expose().to_owned());
    Credentials::new(keys.access_key_id.clone(), keys.secret_access_key.expose(), token, None, "batch-export")
}

fn metadata_client() -> imds::Client {
    imds::Client::builder()
        .max_attempts(1)
        .connect_timeout(METADATA_TIMEOUT)
        .read_timeout(METADATA_TIMEOUT)
        .operation_timeout(METADATA_TIMEOUT * 4)
        .build()
}

async fn provide(provider: &SharedCredentialsProvider) -> Result<Credentials> {
    provider.provide_credentials().await.map_err(|error| {
        Error::new(
            ErrorKind::Auth,
            "there are no S3 credentials; give access_key_id and secret_access_key, \
             or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
        .with_source(error)
    })
}

/// Asks the SDK itself where it would send a request, since environment and profiles have many ways to say it.
async fn resolve_endpoint(builder: aws_sdk_s3::config::Builder) -> Result<Endpoint> {
    let nobody = Credentials::new("endpoint", "endpoint", None, None, "endpoint");
    let client = aws_sdk_s3::Client::from_conf(builder.credentials_provider(nobody).force_path_style(true).build());
    let wrong = || Error::config("the S3 endpoint is no valid URL; write it as https://host:port");
    let expiry = PresigningConfig::expires_in(Duration::from_secs(1)).map_err(|error| wrong().with_source(error))?;
    let request = client.head_object().bucket("bucket").key("key").presigned(expiry).await;
    // The signed URL must not show up anywhere: only its origin is kept, and the error's text is not.
    let mut url = Url::parse(request.map_err(|_| wrong())?.uri()).map_err(|_| wrong())?;
    url.set_query(None);
    url.set_path("");
    if url.host_str().is_none() || !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    Ok(Endpoint { url })
}

fn default_checksums(loaded: &SdkConfig, endpoint: &Endpoint) -> S3Checksums {
    let asked = matches!(loaded.request_checksum_calculation(), Some(RequestChecksumCalculation::WhenRequired));
    if asked || !endpoint.is_aws() { S3Checksums::WhenRequired } else { S3Checksums::WhenSupported }
}

#[cfg(test)]
mod tests;
