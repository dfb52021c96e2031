//! A response's body, read in exact pieces.
//!
//! Owns the end of the body: whether it came cleanly, too early, or not at all in time. Keeps the last bytes, since an
//! exception hides there.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::exception::ServerException;
use super::failure::Symptom;
use crate::error::{Error, Result};

/// How much of the body's end is kept to look for an exception. Unit: bytes. ClickHouse limits its exception texts to
/// 16 KiB in the tagged form.
const TAIL_BYTES: usize = 64 * 1024;

/// The body of one response.
pub struct Body {
    stream: BoxStream<'static, Result<Bytes, reqwest::Error>>,
    current: Bytes,
    tail: Tail,
    exception_tag: Option<String>,
    idle_timeout: Duration,
    received: u64,
    ended: bool,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Body")
            .field("received", &self.received)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Body {
    /// A body from its chunks.
    pub(crate) fn new(
        stream: BoxStream<'static, Result<Bytes, reqwest::Error>>,
        exception_tag: Option<String>,
        idle_timeout: Duration,
    ) -> Self {
        Self {
            stream,
            current: Bytes::new(),
            tail: Tail::default(),
            exception_tag,
            idle_timeout,
            received: 0,
            ended: false,
        }
    }

    /// Fills `target` from the body.
    ///
    /// # Errors
    /// As [`read_pieces`](Self::read_pieces).
    pub(crate) async fn read_exact(&mut self, target: &mut [u8], what: &str) -> Result<()> {
        let mut filled = 0;
        let num_bytes = target.len();
        self.read_pieces(num_bytes, what, |piece| {
            target[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })
        .await
    }

    /// Gives the next `num_bytes` to `take`, piece by piece as they come.
    ///
    /// # Errors
    /// The server's exception, when the body ends too early and its end holds one; else `SourceUnavailable` that says
    /// what was missing.
    pub(crate) async fn read_pieces(
        &mut self,
        num_bytes: usize,
        what: &str,
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        let mut missing = num_bytes;
        while missing > 0 {
            if self.current.is_empty() && !self.fill().await? {
                return Err(self.broken(&format!(
                    "the stream ended after {} bytes, {} of {num_bytes} bytes into {what}",
                    self.received,
                    num_bytes - missing
                )));
            }
            let piece = self.current.split_to(self.current.len().min(missing));
            take(&piece);
            missing -= piece.len();
        }
        Ok(())
    }

    /// Waits for the clean end of the body: nothing more, and the transfer's own end.
    ///
    /// # Errors
    /// The server's exception, when what follows is one; else `SourceUnavailable`.
    pub(crate) async fn expect_end(&mut self) -> Result<()> {
        let mut surplus = self.current.len();
        while self.fill().await? {
            surplus += self.current.len();
            if surplus > TAIL_BYTES {
                break;
            }
        }
        if surplus == 0 { Ok(()) } else { Err(self.broken("bytes follow the end of the Arrow stream")) }
    }

    /// Reads the rest as text, up to `limit` bytes: for error responses and small answers.
    pub(crate) async fn read_text(&mut self, limit: usize) -> Result<String> {
        let mut bytes = self.current.split_to(self.current.len()).to_vec();
        while bytes.len() < limit && self.fill().await? {
            bytes.extend_from_slice(&self.current);
            self.current.clear();
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The error for a body that broke off or went on wrongly: the server's exception if the end holds one.
    pub(crate) fn broken(&self, how: &str) -> Error {
        match self.exception_in_tail() {
            Some(exception) => exception,
            None => Symptom::Cut.error("", how),
        }
    }

    fn exception_in_tail(&self) -> Option<Error> {
        let exception = ServerException::find_in_tail(&self.tail.bytes(), self.exception_tag.as_deref())?;
        Some(exception.into_error("read the export's rows"))
    }

    /// Drains what is left, so that an exception behind a broken frame is seen; then [`broken`](Self::broken).
    pub(crate) async fn drain_broken(&mut self, how: &str) -> Error {
        let mut drained = 0;
        while drained <= TAIL_BYTES {
            match self.fill().await {
                Ok(true) => drained += self.current.len(),
                Ok(false) => break,
                Err(error) => return self.exception_in_tail().unwrap_or(error),
            }
        }
        self.broken(how)
    }

    /// The exception that follows, or that was taken for data: for bytes that can't be decoded.
    pub(crate) async fn exception(&mut self) -> Option<Error> {
        let error = self.drain_broken("the data can't be decoded").await;
        ServerException::behind(&error).is_some().then_some(error)
    }

    /// Takes the next chunk; `false` at the clean end.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    async fn fill(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        match tokio::time::timeout(self.idle_timeout, self.stream.next()).await {
            Err(_elapsed) => Err(Symptom::Idle.error("", &humantime::format_duration(self.idle_timeout).to_string())),
            Ok(None) => {
                self.ended = true;
                Ok(false)
            }
            Ok(Some(Ok(chunk))) => {
                self.received += chunk.len() as u64;
                self.tail.push(&chunk);
                self.current = chunk;
                Ok(true)
            }
            // A cut transfer: the exception may have arrived before the cut.
            Ok(Some(Err(error))) => Err(self
                .broken(&format!("the stream broke after {} bytes", self.received))
                .with_source(error.without_url())),
        }
    }
}

/// The last chunks of a body, together at least [`TAIL_BYTES`] once so many have come. Holds references, copies nothing.
#[derive(Default)]
struct Tail {
    chunks: VecDeque<Bytes>,
    num_bytes: usize,
}

impl Tail {
    fn push(&mut self, chunk: &Bytes) {
        self.num_bytes += chunk.len();
        self.chunks.push_back(chunk.clone());
        while let Some(first) = self.chunks.front() {
            if self.num_bytes - first.len() < TAIL_BYTES {
                break;
            }
            self.num_bytes -= first.len();
            self.chunks.pop_front();
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let all = self.chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect::<Vec<_>>();
        all[all.len().saturating_sub(TAIL_BYTES)..].to_vec()
    }
}
