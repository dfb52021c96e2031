//! What comes to a plugin's thread.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::PluginError;
use crate::outbox::Settled;

/// Something for a plugin's thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// Work. The permit bounds how much of it waits.
    Request(Request, OwnedSemaphorePermit),
    /// A job that the plugin has put into the queue, or not. Bounded by how many may be on their way.
    Settled(Settled),
    /// The end.
    Close(Option<oneshot::Sender<Result<(), PluginError>>>),
}

/// Work for a plugin.
#[derive(Debug)]
pub(crate) enum Request {
    /// Events for `processEvent`.
    Events(Batch),
    /// A job, or a retry.
    Call(Call),
}

/// Events, and what became of those before.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: std::vec::IntoIter<Value>,
    pub(crate) stops_at_error: bool,
    pub(crate) rows: Vec<Row>,
    /// What all results together may still take. Unit: bytes.
    pub(crate) room: usize,
    pub(crate) reply: oneshot::Sender<Vec<Row>>,
}

/// What became of an event.
#[derive(Debug)]
pub struct Row {
    /// The event as it was.
    pub event: Value,
    /// The event as it is now; `None` when the plugin leaves it out.
    pub outcome: Result<Option<Value>, PluginError>,
    /// Whether the plugin has seen it: one that can't be set up again sees none.
    pub was_seen: bool,
}

/// One call for its effects.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: Callee,
    pub(crate) payload: Value,
    pub(crate) reply: oneshot::Sender<Result<(), PluginError>>,
}

/// What is called.
#[derive(Debug)]
pub(crate) enum Callee {
    /// A job.
    Job(String),
    /// `onRetry`, with its first argument.
    Retry(String),
}

/// Messages in their order, with those first that calls wait for.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<Message>,
    backlog: VecDeque<Message>,
}

impl Inbox {
    pub(crate) fn new(receiver: Receiver<Message>) -> Self {
        Self { receiver, backlog: VecDeque::new() }
    }

    /// Waits for the next message.
    pub(crate) fn next(&mut self) -> Message {
        let waiting = self.backlog.pop_front();
        waiting.or_else(|| self.receiver.recv().ok()).unwrap_or(Message::Close(None))
    }

    /// Waits for what became of a job; other messages wait until later.
    pub(crate) fn next_settled(&mut self, longest: Duration) -> Option<Settled> {
        let start = Instant::now();
        loop {
            let left = longest.saturating_sub(start.elapsed());
            match self.receiver.recv_timeout(left) {
                Ok(Message::Settled(settled)) => return Some(settled),
                Ok(other) => self.backlog.push_back(other),
                Err(_late) => return None,
            }
        }
    }

    /// What became of a job, if there is something to hear.
    pub(crate) fn try_settled(&mut self) -> Option<Settled> {
        loop {
            match self.receiver.try_recv() {
                Ok(Message::Settled(settled)) => return Some(settled),
                Ok(other) => self.backlog.push_back(other),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            }
        }
    }
}
