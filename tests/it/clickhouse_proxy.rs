//! A proxy on loopback that damages the export's stream on its way from the real ClickHouse.
//!
//! Takes responses whole and sends them on in chunks of its own, so that it can break them at any byte, also between two
//! messages of the Arrow stream, and end them cleanly or not. All other queries pass as they are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::config::connection::ClickHouseConnection;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::exports::clickhouse;

/// The marker of the tagged form of an exception within a stream.
const TAG: &str = "abcdefghijklmnop";

/// How the stream ends.
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

/// The body that is sent instead of the export's stream, and how it ends.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
    /// Whether the response's head announces the tag of exceptions.
    pub(crate) is_tagged: bool,
}

/// An export's stream as the server sent it.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// Where each message begins, the end marker last.
    pub(crate) messages: Vec<usize>,
}

impl Stream {
    fn new(bytes: Vec<u8>) -> Self {
        let mut messages = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            messages.push(at);
            let length = i32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes"));
            let metadata = &bytes[at + 8..at + 8 + usize::try_from(length).expect("a length")];
            let body =
                if length == 0 { 0 } else { arrow_ipc::root_as_message(metadata).expect("a message").bodyLength() };
            at += 8 + usize::try_from(i64::from(length) + body).expect("a size");
        }
        assert_eq!(at, bytes.len(), "the server's own stream is whole");
        Self { bytes, messages }
    }

    /// The stream up to a byte, with an end.
    pub(crate) fn cut(&self, at: usize, end: End) -> Damage {
        Damage { body: self.bytes[..at].to_vec(), end, is_tagged: false }
    }

    /// The stream up to a message, and something else behind it.
    pub(crate) fn followed_by(&self, message: usize, rest: &[u8]) -> Damage {
        let body = [&self.bytes[..self.messages[message]], rest].concat();
        Damage { body, end: End::Clean, is_tagged: false }
    }

    /// The bytes of one message.
    pub(crate) fn message(&self, number: usize) -> &[u8] {
        let end = self.messages.get(number + 1).copied().unwrap_or(self.bytes.len());
        &self.bytes[self.messages[number]..end]
    }
}

/// An exception in the form that servers since 25.11 frame.
pub(crate) fn tagged(text: &str) -> Vec<u8> {
    format!("\r\n__exception__\r\n{TAG}\r\n{text}\n{} {TAG}\r\n__exception__\r\n", text.len() + 1).into_bytes()
}

type Answer = dyn Fn(&Stream) -> Damage + Send + Sync;

/// The proxy; it serves as long as the test's runtime lives.
pub(crate) struct ClickHouseProxy {
    port: u16,
    answer: Arc<Mutex<Arc<Answer>>>,
    seen: Arc<Mutex<Option<Stream>>>,
}

impl ClickHouseProxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let whole: Arc<Answer> = Arc::new(|stream: &Stream| stream.cut(stream.bytes.len(), End::Clean));
        let proxy = Self {
            port: listener.local_addr().expect("is bound").port(),
            answer: Arc::new(Mutex::new(whole)),
            seen: Arc::default(),
        };
        let (answer, seen) = (Arc::clone(&proxy.answer), Arc::clone(&proxy.seen));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&answer), Arc::clone(&seen)));
            }
        });
        proxy
    }

    /// The way to ClickHouse through the proxy.
    pub(crate) fn connection(&self) -> ClickHouseConnection {
        let mut connection = clickhouse();
        connection.url.set_port(Some(self.port)).expect("an http URL");
        connection.idle_timeout = Duration::from_millis(500);
        connection
    }

    /// Damages every further stream.
    pub(crate) fn damage(&self, answer: impl Fn(&Stream) -> Damage + Send + Sync + 'static) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(answer);
    }

    /// The last stream as the server sent it.
    pub(crate) fn last_stream(&self) -> Stream {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone().expect("a stream passed")
    }
}

/// Serves one connection: one request, one response.
async fn serve(client: TcpStream, answer: Arc<Mutex<Arc<Answer>>>, seen: Arc<Mutex<Option<Stream>>>) {
    let mut client = BufReader::new(client);
    let Some((target, headers, sql)) = read_request(&mut client).await else { return };
    let url = clickhouse().url.join(&target).expect("a URL");
    let mut request = reqwest::Client::new().post(url).body(sql);
    for (name, value) in headers.iter().filter(|(name, _)| name.starts_with("x-clickhouse-")) {
        request = request.header(name, value);
    }
    let response = request.send().await.expect("ClickHouse is up");
    let status = response.status();
    let bytes = response.bytes().await.expect("ClickHouse answers whole").to_vec();
    let damage = if status.is_success() && bytes.starts_with(&[0xff; 4]) {
        let stream = Stream::new(bytes);
        let damage = answer.lock().unwrap_or_else(PoisonError::into_inner).clone()(&stream);
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        damage
    } else {
        Damage { body: bytes, end: End::Clean, is_tagged: false }
    };
    // A client that has seen enough may close at any time.
    drop(write_response(client.into_inner(), status.as_u16(), &damage).await);
}

async fn read_request(client: &mut BufReader<TcpStream>) -> Option<(String, Vec<(String, String)>, Vec<u8>)> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    let target = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        client.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    Some((target, headers, body))
}

async fn write_response(mut client: TcpStream, status: u16, damage: &Damage) -> std::io::Result<()> {
    let tag = if damage.is_tagged { format!("X-ClickHouse-Exception-Tag: {TAG}\r\n") } else { String::new() };
    let head = format!("HTTP/1.1 {status} \r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{tag}\r\n");
    client.write_all(head.as_bytes()).await?;
    for chunk in damage.body.chunks(16 * 1024) {
        client.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
        client.write_all(chunk).await?;
        client.write_all(b"\r\n").await?;
    }
    match damage.end {
        End::Clean => client.write_all(b"0\r\n\r\n").await,
        End::Closed => Ok(()),
        End::Reset => client.set_zero_linger(),
        End::Stalled => {
            client.flush().await?;
            std::future::pending().await
        }
    }
}
