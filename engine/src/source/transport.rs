//! HTTP to ClickHouse: one query, one response.
//!
//! Owns the connection, signing in, statuses and the rule that a response's end must be tellable. One transport serves
//! the export's stream and the small control queries, so that `check` takes the very path of the run.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use reqwest::{Certificate, Client, Response, StatusCode};

use super::body::Body;
use super::exception::ServerException;
use super::failure::Symptom;
use crate::config::connection::ClickHouseConnection;
use crate::error::{Error, Result};
use crate::network::{NetworkFault, innermost};

/// How much of an error response is read. Unit: bytes.
const ERROR_BODY_BYTES: usize = 64 * 1024;

/// What is sent with a query.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The statement, with its FORMAT.
    pub sql: String,
    /// The id that the server knows the query by.
    pub query_id: String,
    /// Typed parameters: name and value, as text.
    pub parameters: BTreeMap<String, String>,
    /// Settings by their own names.
    pub settings: BTreeMap<String, String>,
}

/// A client of one ClickHouse server. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Transport {
    client: Client,
    connection: ClickHouseConnection,
}

impl Transport {
    /// Makes a client; nothing is sent yet.
    ///
    /// # Errors
    /// `Config` when the CA file can't be read or isn't PEM.
    pub fn new(connection: &ClickHouseConnection) -> Result<Self> {
        let mut builder = Client::builder()
            .connect_timeout(connection.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_keepalive(Duration::from_secs(30))
            .tcp_nodelay(true)
            .http1_only()
            .no_proxy();
        if let Some(path) = &connection.ca_file {
            let pem = std::fs::read(path).map_err(|error| {
                Error::config(format!("the connection's ca_file {} can't be read: {error}", path.display()))
            })?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| {
                Error::config(format!("the connection's ca_file {} is not PEM", path.display())).with_source(error)
            })?;
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder
            .build()
            .map_err(|error| Error::internal("the HTTP client can't be made").with_source(error.without_url()))?;
        Ok(Self { client, connection: connection.clone() })
    }

    /// Sends a query and waits for the head of its response.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the server may go on until the query is killed.
    ///
    /// # Errors
    /// The server's exception; `Auth`, `SourceUnavailable` or `Config` for what kept the query from being answered.
    pub async fn send(&self, request: &Request) -> Result<Body> {
        let mut url = self.connection.url.clone();
        url.query_pairs_mut()
            .append_pair("database", &self.connection.database)
            .append_pair("query_id", &request.query_id)
            .extend_pairs(request.settings.iter())
            .extend_pairs(request.parameters.iter().map(|(name, value)| (format!("param_{name}"), value)));
        let sending = self
            .client
            .post(url)
            .header("X-ClickHouse-User", &self.connection.user)
            .header("X-ClickHouse-Key", self.connection.password.expose())
            .body(request.sql.clone())
            .send();
        let response = tokio::time::timeout(self.connection.first_byte_timeout, sending)
            .await
            .map_err(|_elapsed| self.first_byte_missing())?
            .map_err(|error| self.unreachable(error))?;
        self.accept(response).await
    }

    /// Sends a control query and reads its small answer as text.
    ///
    /// # Errors
    /// As [`send`](Self::send); also for an answer that breaks off.
    pub async fn fetch_text(&self, request: &Request) -> Result<String> {
        const LIMIT: usize = 16 * 1024 * 1024;
        let mut body = self.send(request).await?;
        let text = body.read_text(LIMIT).await?;
        if text.len() >= LIMIT {
            return Err(Error::data("a control query's answer is larger than 16 MiB"));
        }
        Ok(text)
    }

    async fn accept(&self, response: Response) -> Result<Body> {
        let status = response.status();
        let headers = response.headers().clone();
        let tag = text_header(&headers, "x-clickhouse-exception-tag");
        let idle = self.connection.idle_timeout;
        let mut body = Body::new(response.bytes_stream().boxed(), tag, idle);
        if status == StatusCode::OK {
            if headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) {
                return Ok(body);
            }
            return Err(self.error(Symptom::Unframed, ""));
        }
        let text = body.read_text(ERROR_BODY_BYTES).await.unwrap_or_default();
        Err(match ServerException::parse(&text) {
            Some(exception) => exception.into_error("run the query"),
            None => self.refused(status),
        })
    }

    fn refused(&self, status: StatusCode) -> Error {
        let symptom = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Symptom::Denied,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Symptom::Busy,
            status if status.is_server_error() => Symptom::Busy,
            _ => Symptom::NotClickHouse,
        };
        self.error(symptom, &status.to_string())
    }

    fn first_byte_missing(&self) -> Error {
        let patience = humantime::format_duration(self.connection.first_byte_timeout);
        self.error(Symptom::FirstByteLate, &patience.to_string())
    }

    fn unreachable(&self, error: reqwest::Error) -> Error {
        let error = error.without_url();
        let symptom = if error.is_builder() {
            Symptom::Unsendable
        } else if error.is_connect() && error.is_timeout() {
            Symptom::Network(NetworkFault::Unreachable)
        } else {
            Symptom::Network(NetworkFault::of(&error))
        };
        self.error(symptom, &innermost(&error)).with_source(error)
    }

    fn error(&self, symptom: Symptom, detail: &str) -> Error {
        symptom.error(self.connection.url.as_str(), detail)
    }
}

fn text_header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
