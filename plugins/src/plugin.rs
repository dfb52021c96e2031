//! A plugin at work, as its users have it.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::clock::Clock;
use crate::definition::Definition;
use crate::error::PluginError;
use crate::exports::Exports;
pub use crate::inbox::Row;
use crate::inbox::{Batch, Call, Callee, Message, Request};
use crate::outbox::Outbox;
use crate::worker::Worker;

/// How many requests wait at most for a plugin's thread; others wait for a place.
const MAX_REQUESTS: usize = 16;

/// What the results of one batch may take together, about. Unit: bytes.
const MAX_BATCH_BYTES: usize = 64 * 1024 * 1024;

/// How long a call may be over its deadline before nobody waits for it any more.
const GRACE: Duration = Duration::from_secs(2);

/// What the thread's stack has beside what JavaScript may take: our own calls, between and below. Unit: bytes.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// What a plugin does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// It has `processEvent`.
    pub process_event: bool,
    /// It has `onRetry`.
    pub on_retry: bool,
    /// The names of its jobs, in the order of the alphabet.
    pub jobs: Vec<String>,
}

impl Offer {
    pub(crate) fn of(exports: &Exports<'_>) -> Self {
        Self {
            process_event: exports.process_event.is_some(),
            on_retry: exports.on_retry.is_some(),
            jobs: exports.jobs.keys().cloned().collect(),
        }
    }
}

/// A plugin at work. Clones are the same plugin; when the last one is dropped, it ends.
///
/// # Invariants
/// Calls run one at a time, in the order in which they came. After a call that took too long or too much memory the runtime
/// is made anew before the next one: `setupPlugin` runs again, and `meta.global` is empty.
#[derive(Debug, Clone)]
pub struct Plugin(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    offer: Offer,
    inbox: Closer,
    places: Arc<Semaphore>,
    clock: Arc<Clock>,
}

/// Tells the thread to end when nobody is left who could ask it for something.
#[derive(Debug)]
struct Closer(Sender<Message>);

impl Drop for Closer {
    fn drop(&mut self) {
        // It may have ended before.
        drop(self.0.send(Message::Close(None)));
    }
}

impl Plugin {
    /// Reads the file and runs `setupPlugin`. The plugin's jobs go to `outbox`, in tasks of the runtime that this is called in.
    ///
    /// # Cancel safety
    /// Dropping the future ends the plugin.
    ///
    /// # Errors
    /// What is wrong with the file, or what it threw.
    pub async fn start(definition: Definition, outbox: Arc<dyn Outbox>) -> Result<Self, PluginError> {
        definition.check()?;
        let (name, stack_bytes) = (definition.name.clone(), definition.limits.stack_bytes);
        let host_error = |why: String| PluginError::Host { plugin: name.clone(), why };
        let runtime = Handle::try_current().map_err(|error| host_error(error.to_string()))?;
        let (sender, receiver) = mpsc::channel();
        let (ready, started) = oneshot::channel();
        let clock = Arc::new(Clock::new());
        let inbox = Closer(sender.clone());
        let worker = Worker { definition, clock: Arc::clone(&clock), outbox, runtime, sender, receiver, ready };
        std::thread::Builder::new()
            .name(format!("plugin {name}"))
            .stack_size(stack_bytes + STACK_BYTES)
            .spawn(move || worker.run())
            .map_err(|error| host_error(error.to_string()))?;
        let offer = wait(&name, &clock, started).await??;
        Ok(Self(Arc::new(Shared { name, offer, inbox, places: Arc::new(Semaphore::new(MAX_REQUESTS)), clock })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it does.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.0.offer
    }

    /// Gives one event to `processEvent`; `None` when the plugin drops it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether the plugin sees the event.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn process_event(&self, event: Value) -> Result<Option<Value>, PluginError> {
        self.process_events(vec![event]).await.pop().unwrap_or_else(|| Err(self.closed()))
    }

    /// Gives events to `processEvent`, one after the other; crosses to the plugin's thread once. There is one result for each.
    ///
    /// # Cancel safety
    /// Dropping the future ends the batch after the event at work.
    ///
    /// # Errors
    /// Each event has its own. All results together may take 64 MiB.
    pub async fn process_events(&self, events: Vec<Value>) -> Vec<Result<Option<Value>, PluginError>> {
        let num_events = events.len();
        match self.process_batch(events, MAX_BATCH_BYTES, false).await {
            Ok(rows) => rows.into_iter().map(|row| row.outcome).collect(),
            Err(error) => vec![Err(error); num_events],
        }
    }

    /// The same, with the events beside what became of them. All results together may take `room` bytes, about. Ends at the
    /// first failure if told so: then there are no rows for the events after it.
    ///
    /// # Cancel safety
    /// As [`process_events`](Self::process_events).
    ///
    /// # Errors
    /// What keeps the plugin from seeing events at all.
    pub async fn process_batch(
        &self,
        events: Vec<Value>,
        room: usize,
        stops_at_error: bool,
    ) -> Result<Vec<Row>, PluginError> {
        if !self.offer().process_event {
            let plugin = self.0.name.clone();
            return Err(PluginError::Missing { plugin, function: "processEvent" });
        }
        let rows = Vec::with_capacity(events.len());
        let events = events.into_iter();
        self.request(|reply| Request::Events(Batch { events, stops_at_error, rows, room, reply })).await
    }

    /// Runs a job.
    ///
    /// # Cancel safety
    /// Dropping the future doesn't keep the job from running.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn run_job(&self, job: &str, payload: Value) -> Result<(), PluginError> {
        self.call(Callee::Job(job.to_owned()), payload).await
    }

    /// Runs `onRetry`, with the kind of what is tried again.
    ///
    /// # Cancel safety
    /// Dropping the future doesn't keep it from running.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn retry(&self, kind: &str, payload: Value) -> Result<(), PluginError> {
        self.call(Callee::Retry(kind.to_owned()), payload).await
    }

    /// Runs `teardownPlugin` after the requests before this one, and ends when the plugin's jobs are in the queue. Requests
    /// after it find the plugin closed.
    ///
    /// # Cancel safety
    /// Dropping the future before it has a place leaves the plugin open.
    ///
    /// # Errors
    /// What `teardownPlugin` threw; the plugin is closed all the same.
    pub async fn close(&self) -> Result<(), PluginError> {
        let _place = self.place().await?;
        let (reply, answer) = oneshot::channel();
        self.0.inbox.0.send(Message::Close(Some(reply))).map_err(|_gone| self.closed())?;
        wait(&self.0.name, &self.0.clock, answer).await?
    }

    async fn call(&self, target: Callee, payload: Value) -> Result<(), PluginError> {
        self.request(|reply| Request::Call(Call { target, payload, reply })).await?
    }

    async fn request<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, PluginError> {
        let place = self.place().await?;
        let (reply, answer) = oneshot::channel();
        self.0.inbox.0.send(Message::Request(request(reply), place)).map_err(|_gone| self.closed())?;
        wait(&self.0.name, &self.0.clock, answer).await
    }

    /// Waits for a place among those whose requests wait.
    async fn place(&self) -> Result<OwnedSemaphorePermit, PluginError> {
        let place = Arc::clone(&self.0.places).acquire_owned();
        within(&self.0.name, &self.0.clock, place).await?.map_err(|_closed| self.closed())
    }

    fn closed(&self) -> PluginError {
        PluginError::Closed { plugin: self.0.name.clone() }
    }
}

/// Waits for the plugin's answer.
async fn wait<T>(plugin: &str, clock: &Clock, answer: oneshot::Receiver<T>) -> Result<T, PluginError> {
    let answer = within(plugin, clock, answer).await?;
    answer.map_err(|_gone| PluginError::Closed { plugin: plugin.to_owned() })
}

/// Waits as long as the plugin's thread keeps its deadlines. The engine looks at them while it runs JavaScript, but some of
/// its own loops never look.
async fn within<F: Future>(plugin: &str, clock: &Clock, waiting: F) -> Result<F::Output, PluginError> {
    let mut waiting = std::pin::pin!(waiting);
    loop {
        let patience = clock.left().saturating_add(GRACE).saturating_sub(clock.overdue());
        tokio::select! {
            biased;
            output = &mut waiting => return Ok(output),
            () = tokio::time::sleep(patience) => {}
        }
        let overdue = clock.overdue();
        if overdue >= GRACE {
            return Err(PluginError::Stuck { plugin: plugin.to_owned(), overdue });
        }
    }
}
