//! Who of several processes reads, as far as this one knows.

use std::sync::atomic::{AtomicBool, Ordering};

/// The time in which this process is the reader.
pub(crate) struct Reads<'a>(&'a AtomicBool);

impl<'a> Reads<'a> {
    pub(crate) fn begin(reads: &'a AtomicBool) -> Self {
        reads.store(true, Ordering::Relaxed);
        Self(reads)
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
