//! The file's byte stream becomes parts of one size.

use std::io::{self, Write};

use bytes::Bytes;

/// Cuts what is written at exact byte offsets, whatever lines or row groups the bytes belong to: some stores demand that
/// all parts but the last have one size.
///
/// # Invariants
/// Every full part has exactly `part_bytes`; the tail is smaller. A file that ends exactly at a boundary has no tail.
#[derive(Debug)]
pub(crate) struct PartCutter {
    part_bytes: usize,
    tail: Vec<u8>,
    full: Vec<Bytes>,
    written: u64,
}

impl PartCutter {
    pub(crate) fn new(part_bytes: usize) -> Self {
        Self { part_bytes, tail: Vec::new(), full: Vec::new(), written: 0 }
    }

    /// The full parts since the last call, in order.
    pub(crate) fn take_full(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.full)
    }

    /// What is left after the last full part; may be empty.
    pub(crate) fn take_tail(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.tail))
    }

    /// Whether everything written so far lies in full parts.
    pub(crate) const fn has_no_tail(&self) -> bool {
        self.tail.is_empty()
    }

    /// Bytes written so far.
    pub(crate) const fn written(&self) -> u64 {
        self.written
    }
}

impl Write for PartCutter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.tail.capacity() == 0 {
                // Untouched pages cost nothing, so a small object stays small in memory.
                self.tail = Vec::with_capacity(self.part_bytes);
            }
            let (now, later) = rest.split_at(rest.len().min(self.part_bytes - self.tail.len()));
            self.tail.extend_from_slice(now);
            rest = later;
            if self.tail.len() == self.part_bytes {
                self.full.push(Bytes::from(std::mem::take(&mut self.tail)));
            }
        }
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_together_are_what_was_written(
            writes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 0..40),
            part_bytes in 1_usize..64,
        ) {
            let mut cutter = PartCutter::new(part_bytes);
            let mut parts = Vec::new();
            for bytes in &writes {
                cutter.write_all(bytes).expect("memory");
                parts.extend(cutter.take_full());
            }
            prop_assert!(parts.iter().all(|part| part.len() == part_bytes));
            let tail = cutter.take_tail();
            prop_assert!(tail.len() < part_bytes);
            parts.push(tail);
            prop_assert_eq!(parts.concat(), writes.concat());
            prop_assert_eq!(cutter.written(), writes.concat().len() as u64);
        }
    }
}
