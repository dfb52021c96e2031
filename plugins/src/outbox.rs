//! The way of a plugin's jobs into the queue.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jobs::flow::{Flow, FlowPermit, Level};
use jobs::job::Job;
use jobs::provider::Durability;
use jobs::queue::Queue;
use tokio::runtime::Handle;

use crate::inbox::Message;

/// How much of one plugin may be on its way at once, awaited or not. Plugins hear from four fifths on that it is too much.
const MAX_JOBS: u64 = 1_000;
const MAX_BYTES: u64 = 20 * 1024 * 1024;

/// Takes jobs that plugins make.
pub trait Outbox: Send + Sync {
    /// Takes a job.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the job taken.
    ///
    /// # Errors
    /// Why not, in a sentence that the plugin gets.
    fn enqueue(&self, job: Job) -> BoxFuture<'_, Result<(), String>>;
}

/// Where a job survives follows from the order of the queue's providers, and when it is due: memory refuses what is far off.
impl Outbox for Queue {
    fn enqueue(&self, job: Job) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let taken = Self::enqueue(self, std::slice::from_ref(&job), Durability::Transient).await;
            taken.map(drop).map_err(|error| error.to_string())
        }
        .boxed()
    }
}

/// Gives a plugin's jobs to the outbox, beside its thread.
pub(crate) struct Enqueuer {
    outbox: Arc<dyn Outbox>,
    runtime: Handle,
    inbox: Sender<Message>,
    flow: Flow,
    last_id: Cell<u64>,
    in_flight: Cell<usize>,
}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) id: u64,
    pub(crate) outcome: Result<(), String>,
    /// It is on its way until the plugin's thread has heard of it.
    _permit: FlowPermit,
}

impl Enqueuer {
    pub(crate) fn new(outbox: Arc<dyn Outbox>, runtime: Handle, inbox: Sender<Message>) -> Self {
        let flow = Flow::new(MAX_JOBS, MAX_BYTES);
        Self { outbox, runtime, inbox, flow, last_id: Cell::new(0), in_flight: Cell::new(0) }
    }

    /// Sends a job off; what becomes of it comes into the inbox under the number that this returns.
    pub(crate) fn start(&self, job: Job) -> Result<u64, String> {
        if self.flow.level() >= Level::Pause {
            return Err("too many jobs are on their way into the queue; await some before you enqueue more".to_owned());
        }
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        self.in_flight.set(self.in_flight.get() + 1);
        let report = Report {
            id,
            outcome: Err("the process ended before the job was taken".to_owned()),
            permit: Some(self.flow.take(1, job.num_bytes() as u64)),
            inbox: self.inbox.clone(),
        };
        let outbox = Arc::clone(&self.outbox);
        self.runtime.spawn(async move { report.end(outbox.enqueue(job).await) });
        Ok(id)
    }

    /// The plugin's thread has heard what became of a job.
    pub(crate) fn heard(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }

    /// Whether there are jobs of which it hasn't heard.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.get() == 0
    }
}

impl fmt::Debug for Enqueuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Enqueuer").field("last_id", &self.last_id).finish_non_exhaustive()
    }
}

/// Reports what became of a job, whatever becomes of the task that sends it.
struct Report {
    id: u64,
    outcome: Result<(), String>,
    permit: Option<FlowPermit>,
    inbox: Sender<Message>,
}

impl Report {
    fn end(mut self, outcome: Result<(), String>) {
        self.outcome = outcome;
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        if let Some(permit) = self.permit.take() {
            // When the plugin is gone, nobody listens.
            drop(self.inbox.send(Message::Settled(Settled { id: self.id, outcome, _permit: permit })));
        }
    }
}
