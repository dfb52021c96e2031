//! A plugin's thread: it makes runtimes, one after the other if need be, and takes requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use rquickjs::{Context, Ctx, Runtime};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::definition::Definition;
use crate::error::PluginError;
use crate::inbox::{Batch, Inbox, Message, Request, Row};
use crate::instance::Instance;
use crate::outbox::{Enqueuer, Outbox, Settled};
use crate::plugin::Offer;
use crate::session::{Host, Session};

/// What a thread needs to begin.
pub(crate) struct Worker {
    pub(crate) definition: Definition,
    pub(crate) clock: Arc<Clock>,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) runtime: Handle,
    pub(crate) sender: Sender<Message>,
    pub(crate) receiver: Receiver<Message>,
    /// Hears what the plugin offers, or why it doesn't start.
    pub(crate) ready: oneshot::Sender<Result<Offer, PluginError>>,
}

impl Worker {
    /// Works until the plugin is closed, or doesn't start.
    pub(crate) fn run(self) {
        let limits = &self.definition.limits;
        let host = Rc::new(Host {
            clock: self.clock,
            cache: RefCell::new(Cache::new(limits.cache_entries, limits.cache_bytes)),
            enqueuer: Enqueuer::new(self.outbox, self.runtime, self.sender),
            num_lines: Cell::new(0),
            definition: self.definition,
        });
        let mut thread = Thread { host, inbox: Inbox::new(self.receiver), ready: Some(self.ready), open: None };
        while thread.live_once() {}
    }
}

struct Thread {
    host: Rc<Host>,
    inbox: Inbox,
    /// Until the plugin has started for the first time.
    ready: Option<oneshot::Sender<Result<Offer, PluginError>>>,
    /// A request that a runtime left when it was spent.
    open: Option<(Request, OwnedSemaphorePermit)>,
}

/// How a runtime ends.
enum End {
    /// It can't be trusted any more: another one goes on.
    Spent,
    /// The plugin is closed.
    Closed,
    /// The plugin can't be set up.
    Broken(PluginError),
}

/// Lets go of what is the engine's before the engine ends, come what may.
struct Ending(Rc<Session>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Thread {
    /// Lives through one runtime, and waits until another one is needed; `false` when that will not be.
    fn live_once(&mut self) -> bool {
        let end = self.live().unwrap_or_else(|error| {
            End::Broken(PluginError::Host { plugin: self.host.definition.name.clone(), why: error.to_string() })
        });
        match end {
            End::Closed => return false,
            End::Spent => {}
            End::Broken(error) => {
                if let Some(ready) = self.ready.take() {
                    // Who started it may have gone; then nobody needs to know.
                    drop(ready.send(Err(error)));
                    return false;
                }
                if let Some((request, _permit)) = self.open.take() {
                    refuse(request, &error);
                }
            }
        }
        while self.open.is_none() {
            match self.inbox.next() {
                Message::Request(request, permit) => self.open = Some((request, permit)),
                Message::Settled(settled) => self.host.hear(settled),
                Message::Close(reply) => {
                    let host = Rc::clone(&self.host);
                    self.close(reply, Ok(()), |settled| host.hear(settled));
                    return false;
                }
            }
        }
        true
    }

    /// Makes a runtime and works in it.
    fn live(&mut self) -> rquickjs::Result<End> {
        let limits = &self.host.definition.limits;
        let runtime = Runtime::new()?;
        runtime.set_memory_limit(limits.memory_bytes);
        runtime.set_max_stack_size(limits.stack_bytes);
        // Never by itself: see the module `garbage`.
        runtime.set_gc_threshold(usize::MAX);
        let clock = Arc::clone(&self.host.clock);
        runtime.set_interrupt_handler(Some(Box::new(move || clock.interrupt())));
        let session = Rc::new(Session::new(&self.host));
        let tracker = Rc::clone(&session);
        runtime.set_host_promise_rejection_tracker(Some(Box::new(move |ctx, promise, reason, is_heard| {
            tracker.track(&ctx, promise, reason, is_heard);
        })));
        let context = Context::full(&runtime)?;
        let _ending = Ending(Rc::clone(&session));
        Ok(context.with(|ctx| self.work(&ctx, &session)))
    }

    fn work(&mut self, ctx: &Ctx<'_>, session: &Rc<Session>) -> End {
        let instance = match Instance::start(ctx, session, &mut self.inbox) {
            Ok(instance) => instance,
            Err(error) => return End::Broken(error),
        };
        if let Some(ready) = self.ready.take() {
            // Who started it may have gone; then it is closed soon.
            drop(ready.send(Ok(Offer::of(instance.exports()))));
        }
        loop {
            let message = match self.open.take() {
                Some((request, permit)) => Message::Request(request, permit),
                None => self.inbox.next(),
            };
            match message {
                Message::Request(Request::Events(batch), permit) => {
                    let (rest, is_spent) = process(&instance, batch, &mut self.inbox);
                    self.open = rest.map(|batch| (Request::Events(batch), permit));
                    if is_spent {
                        return End::Spent;
                    }
                }
                Message::Request(Request::Call(call), _permit) => {
                    let outcome = instance.run(&call.target, &call.payload, &mut self.inbox);
                    let is_spent = outcome.as_ref().is_err_and(PluginError::spends_runtime);
                    // Who asked may have gone; the work is done all the same.
                    drop(call.reply.send(outcome));
                    if is_spent {
                        return End::Spent;
                    }
                }
                Message::Settled(settled) => {
                    if instance.hear(settled) {
                        return End::Spent;
                    }
                }
                Message::Close(reply) => {
                    let outcome = instance.tear_down(&mut self.inbox);
                    let (host, mut is_spent) = (Rc::clone(&self.host), false);
                    self.close(reply, outcome, |settled| {
                        if is_spent {
                            host.hear(settled);
                        } else {
                            is_spent = instance.hear(settled);
                        }
                    });
                    return End::Closed;
                }
            }
        }
    }

    /// Waits, as long as a call may take, for the jobs on their way; then the plugin is gone.
    fn close(
        &mut self,
        reply: Option<oneshot::Sender<Result<(), PluginError>>>,
        outcome: Result<(), PluginError>,
        mut hear: impl FnMut(Settled),
    ) {
        let start = Instant::now();
        while !self.host.enqueuer.is_idle() {
            let left = self.host.definition.limits.time.saturating_sub(start.elapsed());
            let Some(settled) = self.inbox.next_settled(left) else {
                tracing::warn!(plugin = self.host.definition.name, "a plugin closed with jobs on their way");
                break;
            };
            hear(settled);
        }
        match (reply, outcome) {
            // Who closed it may have gone.
            (Some(reply), outcome) => drop(reply.send(outcome)),
            (None, Err(error)) => tracing::warn!(%error, "a plugin failed at its end"),
            (None, Ok(())) => {}
        }
    }
}

/// Gives events to the plugin until all are done, the runtime is spent, or nobody waits any more. Returns what is left of the
/// batch, and whether the runtime is spent.
fn process(instance: &Instance<'_>, mut batch: Batch, inbox: &mut Inbox) -> (Option<Batch>, bool) {
    while !batch.reply.is_closed() {
        while let Some(settled) = inbox.try_settled() {
            if instance.hear(settled) {
                return (Some(batch), true);
            }
        }
        let Some(event) = batch.events.next() else { break };
        let outcome = instance.process_event(&event, &mut batch.room, inbox);
        let is_spent = outcome.as_ref().is_err_and(PluginError::spends_runtime);
        let is_last = batch.events.len() == 0 || (batch.stops_at_error && outcome.is_err());
        batch.rows.push(Row { event, outcome, was_seen: true });
        if is_last {
            break;
        }
        if is_spent {
            return (Some(batch), true);
        }
    }
    let is_spent = batch.rows.last().is_some_and(|row| row.outcome.as_ref().is_err_and(PluginError::spends_runtime));
    // Who asked may have gone.
    drop(batch.reply.send(batch.rows));
    (None, is_spent)
}

/// Answers a request that can't be worked on.
fn refuse(request: Request, error: &PluginError) {
    match request {
        Request::Events(mut batch) => {
            let unseen = |event| Row { event, outcome: Err(error.clone()), was_seen: false };
            batch.rows.extend(batch.events.map(unseen));
            drop(batch.reply.send(batch.rows));
        }
        Request::Call(call) => drop(call.reply.send(Err(error.clone()))),
    }
}
