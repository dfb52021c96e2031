//! When the runtime looks for garbage that refers to itself.
//!
//! The engine would do it by itself while it makes an object, and an object is what it makes when memory has run out: an error,
//! in the middle of changing another object. That ends the process. So it is told never to do it, and we do it between calls
//! and between the steps of a call, where nothing is half done.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rquickjs::Ctx;

/// The pause after a look, in times of what the look took: between the shortest, which keeps looks at little cheap, and the
/// longest, in which a plugin that makes nothing but garbage makes some 20 MB.
const PAUSES: u32 = 10;
const MIN_PAUSE: Duration = Duration::from_micros(500);
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// Looks for garbage from time to time: the longer a look takes, the less often.
#[derive(Debug)]
pub(crate) struct Garbage {
    next: Cell<Instant>,
}

impl Garbage {
    pub(crate) fn new() -> Self {
        Self { next: Cell::new(Instant::now()) }
    }

    /// Looks, if it is time for it.
    pub(crate) fn collect(&self, ctx: &Ctx<'_>) {
        let start = Instant::now();
        if start >= self.next.get() {
            ctx.run_gc();
            let end = Instant::now();
            let pause = (end - start).saturating_mul(PAUSES).clamp(MIN_PAUSE, MAX_PAUSE);
            self.next.set(end.checked_add(pause).unwrap_or(end));
        }
    }
}
