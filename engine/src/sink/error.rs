//! The closed table of S3's failures: what each means, whether a retry helps, and the way out.
//!
//! Owns kinds and sentences. Does not own how a failure is recognized: see `classify`.

use crate::error::ErrorKind::{self, Auth, Config, DestinationUnavailable, Internal, NotFound};

/// Where a failed request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// By the sink itself, after a pause; what remains goes to Temporal.
    InPlace,
    /// By Temporal alone: the run starts over.
    ByTemporal,
    /// Nowhere: somebody has to change something first.
    Not,
}

/// What a failure looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symptom {
    /// S3's error code, whatever the status.
    Code(&'static str),
    /// The status of a reply whose code the table doesn't know.
    Status(u16),
    /// Any other status from 500 on.
    ServerError,
    /// A reply of success that holds no proper result: empty, cut off, or not S3's.
    BadReply,
    /// The endpoint's name doesn't exist.
    Dns,
    /// The endpoint's certificate or protocol isn't acceptable.
    Tls,
    /// Nobody listens, or the way there is closed.
    Connect,
    /// The reply didn't come in time.
    Timeout,
    /// The connection broke before the reply was whole.
    ConnectionLost,
    /// There were no credentials to sign with.
    Credentials,
    /// The request could not be built.
    Request,
    /// Everything else.
    Unknown,
}

/// One row: some symptoms with one meaning.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// How it shows.
    pub symptoms: &'static [Symptom],
    /// What the reader has to do.
    pub kind: ErrorKind,
    /// Where it is tried again.
    pub retry: Retry,
    /// What the reader sees. `{bucket}`, `{key}`, `{endpoint}`, `{code}`, `{status}` and `{detail}` are filled in; the
    /// detail is the store's or the system's own sentence, without secrets, in brackets, or nothing.
    pub sentence: &'static str,
}

const fn row(symptoms: &'static [Symptom], kind: ErrorKind, retry: Retry, sentence: &'static str) -> Row {
    Row { symptoms, kind, retry, sentence }
}

use Retry::{ByTemporal, InPlace, Not};
use Symptom::{
    BadReply, Code, Connect, ConnectionLost, Credentials, Dns, Request, ServerError, Status, Timeout, Tls, Unknown,
};

/// Every failure that we know. Codes win over statuses, and the last row takes what is left.
///
/// # Invariants
/// A row's retry is [`Retry::Not`] exactly when its kind is not retryable; no symptom is in two rows.
///
/// # Source
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>
pub const TABLE: &[Row] = &[
    row(
        &[Code("NoSuchBucket")],
        NotFound,
        Not,
        "bucket {bucket} does not exist at {endpoint}; create it or correct bucket",
    ),
    row(
        &[Code("InvalidBucketName"), Code("InvalidBucketNameException")],
        Config,
        Not,
        "{bucket} is no valid bucket name; correct bucket",
    ),
    row(
        &[Code("AccessDenied"), Code("AllAccessDisabled"), Code("AccountProblem"), Status(401), Status(403)],
        Auth,
        Not,
        "S3 denies access to {key} in bucket {bucket}; give the credentials s3:PutObject and s3:AbortMultipartUpload there{detail}",
    ),
    row(
        &[Code("InvalidAccessKeyId"), Code("InvalidSecurity"), Code("NotSignedUp")],
        Auth,
        Not,
        "{endpoint} does not know the access key id; correct the access key id, or the endpoint it belongs to",
    ),
    row(
        &[Code("SignatureDoesNotMatch"), Code("InvalidSignatureException")],
        Auth,
        Not,
        "{endpoint} does not accept the signature; correct the secret access key, and the region if the store checks it",
    ),
    row(
        &[Code("InvalidToken"), Code("ExpiredToken"), Code("TokenRefreshRequired"), Code("ExpiredTokenException")],
        Auth,
        Not,
        "the session token is invalid or has expired; give a new one, or credentials that renew themselves",
    ),
    row(
        &[Credentials],
        Auth,
        Not,
        "there are no S3 credentials; give access_key_id and secret_access_key, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    row(
        &[Code("RequestTimeTooSkewed"), Code("RequestExpired")],
        DestinationUnavailable,
        ByTemporal,
        "the clocks of this machine and of {endpoint} differ too much; set this machine's clock",
    ),
    row(
        &[
            Code("PermanentRedirect"),
            Code("TemporaryRedirect"),
            Code("Redirect"),
            Code("AuthorizationHeaderMalformed"),
            Code("IllegalLocationConstraintException"),
            Code("IncorrectEndpoint"),
            Code("InvalidRegion"),
            Status(301),
            Status(302),
            Status(307),
            Status(308),
        ],
        Config,
        Not,
        "bucket {bucket} is not served at {endpoint} with this region; set region and endpoint_url to the bucket's own{detail}",
    ),
    row(
        &[
            Code("SlowDown"),
            Code("Throttling"),
            Code("ThrottlingException"),
            Code("RequestLimitExceeded"),
            Code("BandwidthLimitExceeded"),
            Code("TooManyRequests"),
            Code("TooManyRequestsException"),
            Status(429),
        ],
        DestinationUnavailable,
        InPlace,
        "{endpoint} asks for fewer requests; try again later, or lower pipeline.uploads_in_flight",
    ),
    row(
        &[
            Code("InternalError"),
            Code("InternalFailure"),
            Code("ServiceUnavailable"),
            Code("ServerBusy"),
            Code("Busy"),
            Code("OperationAborted"),
            ServerError,
        ],
        DestinationUnavailable,
        InPlace,
        "{endpoint} has a fault of its own ({code}, HTTP {status}); try again later",
    ),
    row(
        &[Code("RequestTimeout"), Code("RequestTimeoutException"), Code("IncompleteBody"), Status(408)],
        DestinationUnavailable,
        InPlace,
        "{endpoint} did not receive the request in time; try again later, or lower pipeline.uploads_in_flight",
    ),
    row(
        &[
            Code("BadDigest"),
            Code("InvalidDigest"),
            Code("XAmzContentSHA256Mismatch"),
            Code("XAmzContentChecksumMismatch"),
        ],
        DestinationUnavailable,
        InPlace,
        "{endpoint} received other bytes than were sent ({code}); look at the network and at proxies between",
    ),
    row(
        &[Code("EntityTooSmall")],
        Config,
        Not,
        "{endpoint} refuses a part as too small; raise pipeline.part_size to the store's minimum{detail}",
    ),
    row(
        &[Code("EntityTooLarge"), Code("MaxMessageLengthExceeded"), Status(413)],
        Config,
        Not,
        "{endpoint} refuses a request as too large; lower pipeline.part_size to the store's maximum{detail}",
    ),
    row(
        &[Code("InvalidPart"), Code("InvalidPartOrder")],
        Internal,
        ByTemporal,
        "{endpoint} does not find a part of {key} that it acknowledged ({code}); the run starts over",
    ),
    row(
        &[Code("NoSuchUpload")],
        DestinationUnavailable,
        ByTemporal,
        "the upload of {key} is gone; a lifecycle rule of bucket {bucket} that aborts incomplete uploads must wait longer than a run",
    ),
    row(
        &[Code("PreconditionFailed"), Code("ConditionalRequestConflict"), Status(409), Status(412)],
        DestinationUnavailable,
        ByTemporal,
        "{key} in bucket {bucket} changed while this run wrote it; another attempt or another writer was faster",
    ),
    row(
        &[Code("NotImplemented"), Code("MethodNotAllowed"), Code("XNotImplemented"), Status(405), Status(501)],
        Config,
        Not,
        "{endpoint} does not offer what the request asks for; leave encryption out, or set checksums to when_required{detail}",
    ),
    row(
        &[
            Code("KMS.DisabledException"),
            Code("KMS.InvalidStateException"),
            Code("KMS.KMSInvalidStateException"),
            Code("KMS.InvalidKeyUsageException"),
            Code("KMS.KeyUnavailableException"),
            Code("KMS.UnsupportedOperationException"),
            Code("KMS.InvalidArnException"),
            Code("InvalidEncryptionAlgorithmError"),
            Code("ServerSideEncryptionConfigurationNotFoundError"),
        ],
        Config,
        Not,
        "the object can't be encrypted as configured ({code}); enable the KMS key, or correct encryption and kms_key_id{detail}",
    ),
    row(&[Code("KMS.NotFoundException")], NotFound, Not, "the KMS key does not exist; correct kms_key_id{detail}"),
    row(
        &[Code("KMS.AccessDeniedException")],
        Auth,
        Not,
        "the credentials may not use the KMS key; give them kms:GenerateDataKey and kms:Decrypt on it{detail}",
    ),
    row(
        &[Code("KMS.ThrottlingException"), Code("KMS.InternalException"), Code("KMS.DependencyTimeoutException")],
        DestinationUnavailable,
        InPlace,
        "the key service can't answer now ({code}); try again later",
    ),
    row(
        &[
            Code("QuotaExceeded"),
            Code("XMinioStorageFull"),
            Code("XMinioAdminBucketQuotaExceeded"),
            Code("InsufficientStorage"),
            Status(507),
        ],
        DestinationUnavailable,
        ByTemporal,
        "{endpoint} has no room left for bucket {bucket} ({code}); free some or raise the quota",
    ),
    row(
        &[Code("KeyTooLongError"), Code("KeyTooLong"), Code("XMinioInvalidObjectName"), Code("InvalidURI")],
        Config,
        Not,
        "{endpoint} does not take the key {key}; shorten or simplify prefix{detail}",
    ),
    row(
        &[
            Code("InvalidArgument"),
            Code("InvalidRequest"),
            Code("InvalidTag"),
            Code("MetadataTooLarge"),
            Code("MissingContentLength"),
            Code("UnsupportedArgument"),
            Status(411),
        ],
        Config,
        Not,
        "{endpoint} refuses the request ({code}){detail}; correct the destination's options",
    ),
    row(
        &[Code("NoSuchKey"), Code("NotFound"), Status(404)],
        NotFound,
        Not,
        "{endpoint} finds neither {key} nor what belongs to it in bucket {bucket}; correct bucket and endpoint_url",
    ),
    row(&[Dns], Config, Not, "the host of {endpoint} does not exist; correct endpoint_url or region{detail}"),
    row(
        &[Tls],
        Config,
        Not,
        "{endpoint} can't be trusted or does not speak TLS; correct endpoint_url or the certificate{detail}",
    ),
    row(
        &[Connect],
        DestinationUnavailable,
        InPlace,
        "{endpoint} can't be reached; check that it is up, and endpoint_url{detail}",
    ),
    row(&[Timeout], DestinationUnavailable, InPlace, "{endpoint} did not answer in time; check it and the network"),
    row(
        &[ConnectionLost],
        DestinationUnavailable,
        InPlace,
        "the connection to {endpoint} broke{detail}; try again later",
    ),
    row(
        &[BadReply],
        DestinationUnavailable,
        InPlace,
        "{endpoint} answered HTTP {status} without a proper result; check that it is an S3 service",
    ),
    row(&[Request], Config, Not, "the request can't be made for key {key} in bucket {bucket}; correct them{detail}"),
    row(
        &[Unknown],
        Internal,
        ByTemporal,
        "{endpoint} answered with an error that is not known here ({code}, HTTP {status}){detail}",
    ),
];

/// The row of a code, else of a status, else of `otherwise`.
pub(super) fn find(code: Option<&str>, status: Option<u16>, otherwise: Symptom) -> &'static Row {
    let by_code = code.and_then(|code| with(|symptom| matches!(symptom, Code(known) if *known == code)));
    let by_status = || status.and_then(|status| with(|symptom| *symptom == Status(status)));
    let fault = || status.filter(|status| *status >= 500).and_then(|_| with(|symptom| *symptom == ServerError));
    let rest = || with(|symptom| *symptom == otherwise);
    by_code.or_else(by_status).or_else(fault).or_else(rest).unwrap_or(&TABLE[TABLE.len() - 1])
}

fn with(matches: impl Fn(&Symptom) -> bool) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.symptoms.iter().any(&matches))
}
