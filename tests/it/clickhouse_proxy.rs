//! A proxy on loopback that damages the export's stream on its way from the real ClickHouse.
//!
//! Takes responses whole and sends them on in chunks of its own, so that it can break them at any byte, also between two
//! messages of the Arrow stream, and end them cleanly or not. All other queries pass as they are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::exports::clickhouse;
use crate::http_proxy::{End, Exchange, listen};
use engine::config::connection::ClickHouseConnection;

/// What announces the tagged form of exceptions, and a tag.
const TAG_HEADER: &str = "x-clickhouse-exception-tag";
const TAG: &str = "abcdefghijklmnop";

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
        let whole: Arc<Answer> = Arc::new(|stream: &Stream| stream.cut(stream.bytes.len(), End::Clean));
        let (answer, seen) = (Arc::new(Mutex::new(whole)), Arc::default());
        let (answers, sees) = (Arc::clone(&answer), Arc::clone(&seen));
        let port = listen(move |exchange| serve(exchange, Arc::clone(&answers), Arc::clone(&sees))).await;
        Self { port, answer, seen }
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

async fn serve(mut exchange: Exchange, answer: Arc<Mutex<Arc<Answer>>>, seen: Arc<Mutex<Option<Stream>>>) {
    let Some(sql) = exchange.body().await else { return };
    let Some(mut reply) = exchange.forward(clickhouse().url.as_str(), sql).await else { return exchange.reset() };
    let mut end = End::Clean;
    if reply.status == 200 && reply.body.starts_with(&[0xff; 4]) {
        let stream = Stream::new(reply.body);
        let damage = answer.lock().unwrap_or_else(PoisonError::into_inner).clone()(&stream);
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        reply.headers = if damage.is_tagged { vec![(TAG_HEADER.to_owned(), TAG.to_owned())] } else { Vec::new() };
        (reply.body, end) = (damage.body, damage.end);
    }
    exchange.reply(&reply, end).await;
}
