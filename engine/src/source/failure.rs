//! The closed table of what goes wrong on the way to ClickHouse and back, where the server has no exception for it.
//!
//! Owns kinds and sentences. Exceptions are in [`super::error_code`].

use crate::error::Error;
use crate::error::ErrorKind::{self, Auth, Config, Data, SourceUnavailable};
use crate::network::NetworkFault;

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Symptom {
    /// HTTP 401 or 403.
    Denied,
    /// HTTP 408, 429, or 500 and above.
    Busy,
    /// Any other status but 200.
    NotClickHouse,
    /// Neither a length nor chunks.
    Unframed,
    /// The request can't be made.
    Unsendable,
    /// What kept the request from its response.
    Network(NetworkFault),
    /// The head of the response didn't come in time.
    FirstByteLate,
    /// Nothing more came in time.
    Idle,
    /// The stream broke off, or went on behind its end.
    Cut,
    /// The bytes are no Arrow stream.
    NotArrow,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What was seen.
    pub symptom: Symptom,
    /// The same in words.
    pub words: &'static str,
    /// What the reader has to do; it alone decides about retries.
    pub kind: ErrorKind,
    /// What the user reads, with `{url}` and `{detail}` to be filled in.
    pub sentence: &'static str,
}

const fn row(symptom: Symptom, words: &'static str, kind: ErrorKind, sentence: &'static str) -> Row {
    Row { symptom, words, kind, sentence }
}

/// Every symptom.
///
/// # Invariants
/// Every symptom is in one row.
pub const TABLE: &[Row] = &[
    row(
        Symptom::Denied,
        "HTTP 401 or 403",
        Auth,
        "{url} answered {detail} without a ClickHouse exception; check the connection's user and password, and what \
         stands in front of ClickHouse",
    ),
    row(
        Symptom::Busy,
        "HTTP 408, 429, or 500 and above",
        SourceUnavailable,
        "{url} answered {detail} without a ClickHouse exception; what stands in front of ClickHouse is overloaded or \
         can't reach it",
    ),
    row(
        Symptom::NotClickHouse,
        "any other status but 200",
        Config,
        "{url} answered {detail} without a ClickHouse exception; is it ClickHouse's HTTP port?",
    ),
    row(
        Symptom::Unframed,
        "a response with neither a length nor chunks",
        Config,
        "{url} answers with neither a length nor chunks, so a cut response can't be told from a whole one; reach \
         ClickHouse without the proxy that strips them",
    ),
    row(
        Symptom::Unsendable,
        "a request that can't be made",
        Config,
        "the connection's url, user or password can't be sent over HTTP; look for line breaks in them",
    ),
    row(
        Symptom::Network(NetworkFault::UnknownName),
        "a name that doesn't exist",
        Config,
        "the host of {url} does not exist; correct the connection's url ({detail})",
    ),
    row(
        Symptom::Network(NetworkFault::Unreachable),
        "nobody listens, the way there is closed, or names can't be resolved now",
        SourceUnavailable,
        "ClickHouse at {url} can't be reached: {detail}; check the connection's url",
    ),
    row(
        Symptom::Network(NetworkFault::Untrusted),
        "a certificate of an unknown authority",
        Config,
        "ClickHouse at {url} shows a certificate that isn't trusted ({detail}); set the connection's ca_file",
    ),
    row(
        Symptom::Network(NetworkFault::WrongName),
        "a certificate for another name",
        Config,
        "ClickHouse at {url} shows a certificate for another name ({detail}); use the name in the certificate in the \
         connection's url",
    ),
    row(
        Symptom::Network(NetworkFault::Expired),
        "a certificate that isn't valid today",
        Config,
        "ClickHouse at {url} shows a certificate that isn't valid today ({detail}); renew it, or set this machine's clock",
    ),
    row(
        Symptom::Network(NetworkFault::NoTls),
        "a server that doesn't speak TLS",
        Config,
        "{url} does not speak TLS ({detail}); use the HTTPS port, or http:// in the connection's url",
    ),
    row(
        Symptom::Network(NetworkFault::ConnectionLost),
        "a connection that breaks before it answers",
        SourceUnavailable,
        "the connection to ClickHouse at {url} broke before it answered: {detail}",
    ),
    row(
        Symptom::FirstByteLate,
        "no answer within `first_byte_timeout`",
        SourceUnavailable,
        "ClickHouse at {url} did not begin to answer within {detail}; raise the connection's first_byte_timeout if the \
         query is that slow",
    ),
    row(
        Symptom::Idle,
        "nothing more within `idle_timeout`",
        SourceUnavailable,
        "read the export's rows: ClickHouse sent nothing for {detail}; raise the connection's idle_timeout if the query \
         is that slow",
    ),
    row(
        Symptom::Cut,
        "a stream that ends before its end marker or within a message, or goes on behind its end",
        SourceUnavailable,
        "read the export's rows: {detail}; the connection to ClickHouse broke or the server stopped the query",
    ),
    row(
        Symptom::NotArrow,
        "bytes that are no Arrow stream",
        Data,
        "read the export's rows: {detail}; is the URL that of a ClickHouse HTTP port?",
    ),
];

impl Symptom {
    /// The engine's error for it.
    pub(crate) fn error(self, url: &str, detail: &str) -> Error {
        let Some(row) = TABLE.iter().find(|row| row.symptom == self) else {
            return Error::internal(format!("{self:?} is not in the table of ClickHouse's failures: {detail}"));
        };
        Error::new(row.kind, row.sentence.replace("{url}", url).replace("{detail}", detail))
    }
}
