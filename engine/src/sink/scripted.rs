//! A small HTTP server on loopback that answers as a test says, for tests alone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::client::S3Client;
use crate::config::connection::{S3Connection, S3Credentials};
use crate::config::secret::Secret;

/// What a test must never find in a message.
pub(super) const SECRET_KEY: &str = "very-secret-key";

/// The first byte of TLS, to which a plain server has only one answer.
const TLS_HANDSHAKE: u8 = 0x16;

/// One request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The value of a header, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    /// The names of all headers, in lower case.
    pub(super) fn header_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|header| header.0.as_str())
    }
}

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Answers.
    Reply { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// Announces more body than it sends, then closes.
    CutOff { status: u16, body: String },
    /// Takes the request, then closes without an answer.
    Close,
    /// Takes the request and never answers.
    Hang,
    /// Answers after a pause.
    Late(Duration, Box<Step>),
}

impl Step {
    pub(super) fn reply(status: u16, body: impl Into<String>) -> Self {
        Self::Reply { status, headers: Vec::new(), body: body.into() }
    }

    /// S3's error document.
    pub(super) fn error(status: u16, code: &str) -> Self {
        let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
        Self::reply(status, format!("{head}<Error><Code>{code}</Code><Message>because</Message></Error>"))
    }

    /// A reply that is only an `ETag`, as uploads get.
    pub(super) fn etag(etag: &str) -> Self {
        Self::Reply { status: 200, headers: vec![("ETag", format!("\"{etag}\""))], body: String::new() }
    }

    pub(super) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Reply { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }
}

/// A running server; it ends with the test's runtime.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Scripted {
    /// Answers the n-th request by the n-th step, and any further one by a 599.
    pub(super) async fn steps(steps: Vec<Step>) -> Self {
        Self::start(move |index, _| steps.get(index).cloned().unwrap_or_else(|| Step::reply(599, "the script is over")))
            .await
    }

    /// Asks `answer` for each request, with its index from 0.
    pub(super) async fn start(answer: impl Fn(usize, &Request) -> Step + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("is bound"));
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (log, answer) = (Arc::clone(&requests), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                tokio::spawn(serve(stream, move |request: Request| {
                    let mut log = log.lock().expect("no test panics in here");
                    log.push(request);
                    answer(log.len() - 1, &log[log.len() - 1])
                }));
            }
        });
        Self { url, requests }
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no test panics in here").clone()
    }

    /// `PUT /bucket/key?x` of all requests so far.
    pub(super) fn lines(&self) -> Vec<String> {
        self.requests().iter().map(|request| format!("{} {}", request.method, request.target)).collect()
    }

    /// A client of this server.
    pub(super) async fn client(&self) -> S3Client {
        client_of(&self.url).await
    }
}

/// A connection to an endpoint with keys of no account.
pub(super) fn connection_to(url: &str) -> S3Connection {
    S3Connection {
        region: Some("us-east-1".to_owned()),
        endpoint_url: Some(url.parse().expect("a URL")),
        credentials: Some(S3Credentials {
            access_key_id: "key-id".to_owned(),
            secret_access_key: Secret::new(SECRET_KEY),
            session_token: None,
        }),
        ..S3Connection::default()
    }
}

pub(super) async fn client_of(url: &str) -> S3Client {
    S3Client::connect(&connection_to(url)).await.expect("nothing is sent yet")
}

async fn serve(mut stream: TcpStream, answer: impl Fn(Request) -> Step) {
    while let Some(request) = read(&mut stream).await {
        let head_only = request.method == "HEAD";
        let mut step = answer(request);
        while let Step::Late(pause, next) = step {
            tokio::time::sleep(pause).await;
            step = *next;
        }
        let written = match step {
            Step::Reply { status, headers, body } => {
                let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>();
                let sent = if head_only { "" } else { &body };
                let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{sent}").as_bytes()).await
            }
            Step::CutOff { status, body } => {
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len() + 10);
                stream.write_all(format!("{head}{body}").as_bytes()).await.ok();
                return;
            }
            Step::Hang => std::future::pending().await,
            Step::Close | Step::Late(..) => return,
        };
        if written.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
        if head[0] == TLS_HANDSHAKE {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok()?;
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect::<Vec<_>>();
    let mut request = Request { method, target, headers, body: Vec::new() };
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
    }
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}
