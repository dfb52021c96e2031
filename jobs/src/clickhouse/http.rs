//! Statements sent to a ClickHouse server over HTTP, each within a deadline.
//!
//! Owns signing in and telling success from failure, whatever the status says. Does not own what statements mean.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ClickHouseOptions;

/// How long a statement may take that moves a handful of jobs.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Servers close what is idle after ten seconds or more: a connection that the server is about to close must not be used.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How much of what a server says of a failure is passed on. Unit: characters. Some messages repeat rows.
const MAX_MESSAGE_CHARS: usize = 300;

/// How the text of an exception begins, after `Code: ` and a number.
const EXCEPTION: &str = ". DB::Exception: ";

/// ClickHouse's number for what a user may not do.
pub(super) const ACCESS_DENIED: u32 = 497;

/// Why a statement did not do what it says, as far as is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server says so.
    #[error("ClickHouse says: {text}")]
    Exception {
        /// Its number for it.
        code: u32,
        /// Its words.
        text: String,
    },
    /// It may have been done or not.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// It may have been done or not, unless there was no connection.
    #[error("ClickHouse can't be reached: {why}")]
    Network {
        /// The innermost reason.
        why: String,
        /// All of it, without the address.
        source: reqwest::Error,
    },
    /// An answer that isn't ClickHouse's, or was cut.
    #[error("the answer is not what ClickHouse answers: {0}")]
    Strange(String),
}

/// Several wait for one statement.
pub(super) type SharedFailure = Arc<Failure>;

/// Why a server can't even be asked.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// The file of the authority.
    #[error("the CA file {path} can't be used: {why}")]
    CaFile {
        /// Its path.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The name or password of the user; the sentence doesn't repeat it.
    #[error("the {0} has characters that HTTP can't carry in a header")]
    Credentials(&'static str),
    /// Anything else.
    #[error("the HTTP client can't be made: {0}")]
    Client(String),
}

/// A client of one server.
#[derive(Clone)]
pub(super) struct Http {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

/// An answer with FORMAT JSONCompact. It has an end of its own, so that a cut one is none.
#[derive(Deserialize)]
struct Answer<T> {
    data: Vec<T>,
    /// Where some versions put what went wrong after the first row.
    exception: Option<String>,
}

impl Http {
    pub(super) fn new(options: &ClickHouseOptions) -> Result<Self, InvalidOptions> {
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .http1_only()
            .no_proxy();
        if let Some(path) = &options.ca_file {
            let wrong = |why: String| InvalidOptions::CaFile { path: path.display().to_string(), why };
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|_error| wrong("it isn't PEM".to_owned()))?;
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(|error| InvalidOptions::Client(innermost(&error.without_url())))?;
        let mut headers = HeaderMap::new();
        let header = |what, text: &str| {
            let value = HeaderValue::from_bytes(text.as_bytes());
            value.map_err(|_error| InvalidOptions::Credentials(what))
        };
        headers.insert("X-ClickHouse-User", header("user", &options.user)?);
        let mut password = header("password", options.password.expose())?;
        password.set_sensitive(true);
        headers.insert("X-ClickHouse-Key", password);
        let mut url = options.url.clone();
        // An answer is sent when all is done, so that its status is true; and rows are on the disk by then.
        url.query_pairs_mut().append_pair("wait_end_of_query", "1").append_pair("async_insert", "0");
        Ok(Self { client, url, headers })
    }

    /// Does what answers nothing: DDL, or an INSERT with its rows.
    ///
    /// # Cancel safety
    /// The server may do it, or have done it, when the future is dropped.
    pub(super) async fn execute(&self, statement: String, deadline: Duration) -> Result<(), Failure> {
        let text = self.send(statement, deadline).await?;
        if text.trim().is_empty() { Ok(()) } else { Err(unexpected(&text)) }
    }

    /// Asks for rows, with `FORMAT JSONCompact` added.
    pub(super) async fn select<T: DeserializeOwned>(&self, statement: &str) -> Result<Vec<T>, Failure> {
        let text = self.send(format!("{statement} FORMAT JSONCompact"), DEADLINE).await?;
        let answer: Answer<T> = serde_json::from_str(&text).map_err(|_error| unexpected(&text))?;
        match answer.exception {
            None => Ok(answer.data),
            Some(text) => Err(unexpected(&text)),
        }
    }

    async fn send(&self, statement: String, deadline: Duration) -> Result<String, Failure> {
        let asking = async {
            let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(statement);
            let response = request.send().await?;
            let (status, is_exception) =
                (response.status(), response.headers().contains_key("X-ClickHouse-Exception-Code"));
            Ok((status, is_exception, response.text().await?))
        };
        let answer = tokio::time::timeout(deadline, asking).await.map_err(|_late| Failure::Late(deadline))?;
        let (status, is_exception, text) = answer.map_err(unreachable)?;
        match status {
            StatusCode::OK if !is_exception => Ok(text),
            StatusCode::OK => Err(unexpected(&text)),
            _ => Err(exception(&text).unwrap_or_else(|| Failure::Strange(format!("{status}")))),
        }
    }
}

fn unreachable(error: reqwest::Error) -> Failure {
    let source = error.without_url();
    Failure::Network { why: innermost(&source), source }
}

/// What came in the place of an answer.
fn unexpected(text: &str) -> Failure {
    exception(text).unwrap_or_else(|| Failure::Strange(shorten(text.get(..200).unwrap_or("cut off"))))
}

/// The exception that a text ends with: rows may hold such words, too, but come before it.
fn exception(text: &str) -> Option<Failure> {
    text.rmatch_indices("Code: ").find_map(|(start, opening)| {
        let rest = &text[start + opening.len()..];
        let num_digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let message = rest[num_digits..].strip_prefix(EXCEPTION)?;
        Some(Failure::Exception { code: rest[..num_digits].parse().ok()?, text: shorten(message) })
    })
}

/// A message in one line, without stack trace and version.
fn shorten(text: &str) -> String {
    let text = text.split("\nStack trace").next().unwrap_or(text);
    let text = text.split(" (version ").next().unwrap_or(text);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What the library says in several layers, said once.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Code: 60. DB::Exception: Unknown table\n expression 'nowhere'. (UNKNOWN_TABLE) (version 26.9.2.1 (official build))\n";

    fn said(failure: &Failure) -> String {
        failure.to_string()
    }

    #[test]
    fn an_exception_is_said_in_one_line_and_without_its_version() {
        let Some(Failure::Exception { code, text }) = exception(TEXT) else { panic!("it is one") };
        assert_eq!((code, text.as_str()), (60, "Unknown table expression 'nowhere'. (UNKNOWN_TABLE)"));
    }

    #[test]
    fn words_that_only_look_like_an_exception_are_none() {
        for text in ["", "Code: ", "Code: 60", "Code: 60. ", "Code: red. DB::Exception: x", "<html>502</html>"] {
            assert!(exception(text).is_none(), "{text}");
        }
    }

    /// A job may quote an exception; what the server says comes after it.
    #[test]
    fn the_last_exception_counts() {
        let text = format!("{{\"data\": [[\"Code: 1. DB::Exception: only a row\"{TEXT}");
        assert!(said(&unexpected(&text)).contains("nowhere"));
    }

    #[test]
    fn long_messages_are_cut() {
        let text = format!("Code: 117. DB::Exception: {}", "ä".repeat(1_000));
        let failure = exception(&text).expect("is one");
        assert!(said(&failure).chars().count() < 350);
    }

    /// A server that answers every request with these bytes, and then closes.
    async fn answering(response: String) -> Http {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let mut num_bytes = 0;
                while ![&b"JSONCompact"[..], &b"end"[..]].iter().any(|end| request[..num_bytes].ends_with(end)) {
                    num_bytes += client.read(&mut request[num_bytes..]).await.expect("a request");
                }
                client.write_all(response.as_bytes()).await.expect("is sent");
            }
        });
        Http::new(&ClickHouseOptions::new(url.parse().expect("an address"))).expect("a client")
    }

    fn ok(headers: &str, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
    }

    const ROWS: &str = "{\"meta\": [], \"data\": [[\"1\"], [\"2\"]], \"rows\": 2}";

    #[tokio::test]
    async fn rows_are_read() {
        let rows: Vec<(String,)> = answering(ok("", ROWS)).await.select("any").await.expect("rows");
        assert_eq!(rows, [("1".to_owned(),), ("2".to_owned(),)]);
    }

    /// The status is sent before everything is known, whatever was asked for.
    #[tokio::test]
    async fn an_exception_after_a_good_status_is_noticed() {
        let tagged =
            format!("{ROWS}\r\n__exception__\r\nabcdefghijklmnop\r\n{TEXT}\n17 abcdefghijklmnop\r\n__exception__\r\n");
        let cut_rows = &ROWS[..ROWS.len() - 12];
        let quoted = serde_json::to_string(TEXT).expect("JSON");
        for (response, sentence) in [
            (ok("", &tagged), "nowhere"),
            (ok("", &format!("{cut_rows}{TEXT}")), "nowhere"),
            (ok("X-ClickHouse-Exception-Code: 60\r\n", TEXT), "nowhere"),
            (ok("", &format!("{}, \"exception\": {quoted}}}", &ROWS[..ROWS.len() - 1])), "nowhere"),
            (ok("", cut_rows), "not what ClickHouse answers"),
            (ok("", ROWS).replace("Length: ", "Length: 1"), "can't be reached"),
        ] {
            let failure = answering(response.clone()).await.select::<(String,)>("any").await.expect_err(&response);
            assert!(said(&failure).contains(sentence), "{failure}: {response}");
        }
        let failure = answering(ok("", TEXT)).await.execute("end".to_owned(), DEADLINE).await.expect_err("none");
        assert!(said(&failure).contains("nowhere"), "{failure}");
    }
}
