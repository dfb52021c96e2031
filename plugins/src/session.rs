//! One life of a plugin's runtime: its promises, and what nobody waited for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use jobs::job::Job;
use rquickjs::{Ctx, Exception, Function, Persistent, Promise, Value};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::console::{self, Level};
use crate::definition::Definition;
use crate::garbage::Garbage;
use crate::outbox::{Enqueuer, Settled};

/// How many failures that nobody waited for are remembered until the end of a call.
const MAX_UNHEARD: usize = 100;

/// The longest line about one of them. Unit: characters.
const MAX_REASON_CHARS: usize = 1_000;

/// What outlives a runtime.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) definition: Definition,
    pub(crate) clock: Arc<Clock>,
    pub(crate) cache: RefCell<Cache>,
    pub(crate) enqueuer: Enqueuer,
    /// Lines of the call at work.
    pub(crate) num_lines: Cell<u32>,
}

impl Host {
    /// Takes note of a job whose promise is gone, with the runtime that made it.
    pub(crate) fn hear(&self, settled: Settled) {
        self.enqueuer.heard();
        if let Err(why) = settled.outcome {
            tracing::warn!(plugin = self.definition.name, why, "a job that nobody waits for any more is lost");
        }
    }
}

/// What lives as long as a runtime.
///
/// # Invariants
/// [`Session::end`] is called before the runtime is dropped: the engine must own nothing of this then.
pub(crate) struct Session {
    pub(crate) host: Rc<Host>,
    pub(crate) garbage: Garbage,
    /// How to settle the promises of jobs on their way.
    promises: RefCell<HashMap<u64, Settlers>>,
    /// Promises that failed and their reasons, as long as nobody listens.
    unheard: RefCell<Vec<(Persistent<Value<'static>>, Persistent<Value<'static>>)>>,
}

struct Settlers {
    resolve: Persistent<Function<'static>>,
    reject: Persistent<Function<'static>>,
}

impl Session {
    pub(crate) fn new(host: &Rc<Host>) -> Self {
        Self {
            host: Rc::clone(host),
            garbage: Garbage::new(),
            promises: RefCell::default(),
            unheard: RefCell::default(),
        }
    }

    /// Lets go of everything that is the engine's.
    pub(crate) fn end(&self) {
        self.promises.borrow_mut().clear();
        self.unheard.borrow_mut().clear();
    }

    /// Writes a line of the plugin.
    pub(crate) fn say(&self, level: Level, line: impl FnOnce() -> String) {
        let number = self.host.num_lines.get().saturating_add(1);
        self.host.num_lines.set(number);
        console::write(&self.host.definition.name, level, number, line);
    }

    /// Sends a job off, and promises what becomes of it.
    pub(crate) fn enqueue<'js>(&self, ctx: &Ctx<'js>, job: Job) -> rquickjs::Result<Promise<'js>> {
        let (promise, resolve, reject) = ctx.promise()?;
        let id = self.host.enqueuer.start(job).map_err(|why| Exception::throw_message(ctx, &why))?;
        let settlers = Settlers { resolve: Persistent::save(ctx, resolve), reject: Persistent::save(ctx, reject) };
        self.promises.borrow_mut().insert(id, settlers);
        Ok(promise)
    }

    /// Whether jobs are on their way whose promises somebody may wait for.
    pub(crate) fn has_promises(&self) -> bool {
        !self.promises.borrow().is_empty()
    }

    /// Keeps the promise of a job.
    pub(crate) fn settle(&self, ctx: &Ctx<'_>, settled: Settled) -> rquickjs::Result<()> {
        let settlers = self.promises.borrow_mut().remove(&settled.id);
        let Some(Settlers { resolve, reject }) = settlers else {
            self.host.hear(settled);
            return Ok(());
        };
        self.host.enqueuer.heard();
        match settled.outcome {
            Ok(()) => resolve.restore(ctx)?.call(()),
            Err(why) => reject.restore(ctx)?.call((Exception::from_message(ctx.clone(), &why)?,)),
        }
    }

    /// Notes that a promise failed, or that somebody listens after all.
    pub(crate) fn track<'js>(&self, ctx: &Ctx<'js>, promise: Value<'js>, reason: Value<'js>, is_heard: bool) {
        if is_heard {
            self.forget(ctx, &promise);
            return;
        }
        let mut unheard = self.unheard.borrow_mut();
        if unheard.len() < MAX_UNHEARD {
            unheard.push((Persistent::save(ctx, promise), Persistent::save(ctx, reason)));
        }
    }

    /// Notes that somebody listens to a promise.
    pub(crate) fn forget<'js>(&self, ctx: &Ctx<'js>, promise: &Value<'js>) {
        let is_it =
            |other: &Persistent<Value<'static>>| other.clone().restore(ctx).is_ok_and(|other| other == *promise);
        let mut unheard = self.unheard.borrow_mut();
        if let Some(index) = unheard.iter().rposition(|(other, _)| is_it(other)) {
            let heard = unheard.swap_remove(index);
            // Dropping a promise may run what looks at this again.
            drop(unheard);
            drop(heard);
        }
    }

    /// Writes what failed without anybody waiting for it.
    pub(crate) fn report(&self, ctx: &Ctx<'_>) {
        let unheard = self.unheard.take();
        for (_promise, reason) in unheard {
            if let Ok(reason) = reason.restore(ctx) {
                let line = format!("nobody waited for a promise that failed: {}", console::text(&reason));
                // Apart from the lines that the plugin may write: it must not be able to hide these.
                console::write(&self.host.definition.name, Level::Warn, 0, || {
                    console::one_line(&line, MAX_REASON_CHARS)
                });
            }
        }
    }
}
