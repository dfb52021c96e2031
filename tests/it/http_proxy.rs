//! One HTTP exchange at a time between the engine and a real service, to be broken where a test says.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// How a reply's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As HTTP wants it: a last, empty chunk.
    Clean,
    /// The connection closes without the last chunk.
    Closed,
    /// The connection is reset.
    Reset,
    /// The connection stays open and nothing more comes.
    Stalled,
}

/// A request whose head has been read, and whose body is still on its way.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    client: BufReader<TcpStream>,
}

/// What the service answered, or what a test puts into its place.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Listens on loopback and gives every exchange to `handle`, until the test's runtime ends; returns the port.
pub(crate) async fn listen<F>(handle: impl Fn(Exchange) -> F + Send + Sync + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
    let port = listener.local_addr().expect("is bound").port();
    tokio::spawn(async move {
        let handle = Arc::new(handle);
        while let Ok((client, _)) = listener.accept().await {
            let handle = Arc::clone(&handle);
            tokio::spawn(async move {
                // A client that closes without a word wants nothing.
                if let Some(exchange) = Exchange::read(client).await {
                    handle(exchange).await;
                }
            });
        }
    });
    port
}

impl Exchange {
    async fn read(client: TcpStream) -> Option<Self> {
        let mut client = BufReader::new(client);
        let mut line = String::new();
        client.read_line(&mut line).await.ok()?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = Vec::new();
        loop {
            line.clear();
            client.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Self { method, target, headers, client })
    }

    /// A header of the request.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The request's body; `None` when the client gave up.
    pub(crate) async fn body(&mut self) -> Option<Vec<u8>> {
        if self.header("expect").is_some() {
            self.client.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
        }
        let length = self.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
        let mut body = vec![0; length];
        self.client.read_exact(&mut body).await.ok()?;
        Some(body)
    }

    /// Sends the request on to `service`, such as `http://127.0.0.1:8333`. Its headers stay as they are, since they may be
    /// signed. `None` when the service doesn't answer, or not whole.
    pub(crate) async fn forward(&self, service: &str, body: Vec<u8>) -> Option<Reply> {
        let method = self.method.parse().expect("a method");
        let url = format!("{}{}", service.trim_end_matches('/'), self.target);
        let mut request = reqwest::Client::new().request(method, url).body(body);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "connection" && name != "expect") {
            request = request.header(name, value);
        }
        let response = request.send().await.ok()?;
        let headers = response.headers().iter();
        Some(Reply {
            status: response.status().as_u16(),
            headers: headers
                .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()))
                .collect(),
            body: response.bytes().await.ok()?.to_vec(),
        })
    }

    /// Answers, in chunks unless the service said how long the whole is, and ends as told. A client that has seen enough may close at any time.
    pub(crate) async fn reply(self, reply: &Reply, end: End) {
        drop(self.try_reply(reply, end).await);
    }

    async fn try_reply(self, reply: &Reply, end: End) -> std::io::Result<()> {
        let mut client = self.client.into_inner();
        let has_body = self.method != "HEAD" && reply.status != 204;
        let is_measured = end == End::Clean && reply.headers.iter().any(|(name, _)| name == "content-length");
        let in_chunks = has_body && !is_measured;
        let mut head = format!("HTTP/1.1 {} \r\nConnection: close\r\n", reply.status);
        for (name, value) in &reply.headers {
            let is_framing = matches!(name.as_str(), "connection" | "transfer-encoding" | "content-length");
            if !is_framing || (name == "content-length" && !in_chunks) {
                head += &format!("{name}: {value}\r\n");
            }
        }
        head += if in_chunks { "Transfer-Encoding: chunked\r\n\r\n" } else { "\r\n" };
        client.write_all(head.as_bytes()).await?;
        if has_body && is_measured {
            return client.write_all(&reply.body).await;
        }
        for chunk in reply.body.chunks(16 * 1024).filter(|_| in_chunks) {
            client.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
            client.write_all(chunk).await?;
            client.write_all(b"\r\n").await?;
        }
        match end {
            End::Clean if in_chunks => client.write_all(b"0\r\n\r\n").await,
            End::Clean | End::Closed => Ok(()),
            End::Reset => client.set_zero_linger(),
            End::Stalled => {
                client.flush().await?;
                std::future::pending().await
            }
        }
    }

    /// Answers with exactly these bytes and closes.
    pub(crate) async fn send(self, bytes: &'static [u8]) {
        // A client that has seen enough may close at any time.
        drop(self.client.into_inner().write_all(bytes).await);
    }

    /// Resets the connection without an answer.
    pub(crate) fn reset(self) {
        self.client.into_inner().set_zero_linger().expect("a socket");
    }
}
