//! Bytes that grow without being moved.

use std::io::{self, Write};

/// The size of a chunk. Unit: bytes. A buffer that doubles holds up to three times what is in it while it grows; this
/// never more than one chunk besides it, and all chunks have one size, so that the allocator can use them again.
const CHUNK_BYTES: usize = 256 * 1024;

/// The encoded bytes of one block.
#[derive(Debug, Default)]
pub(super) struct Chunks(Vec<Vec<u8>>);

impl Chunks {
    /// Writes everything to `target`, and gives every chunk back as soon as it is written.
    pub(super) fn drain_to(self, target: &mut impl Write) -> io::Result<()> {
        self.0.into_iter().try_for_each(|chunk| target.write_all(&chunk))
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.0.last_mut().filter(|chunk| chunk.len() < CHUNK_BYTES) {
                Some(chunk) => {
                    let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES - chunk.len()));
                    chunk.extend_from_slice(now);
                    rest = later;
                }
                None => self.0.push(Vec::with_capacity(CHUNK_BYTES)),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_out_again() {
        let bytes = (0..3 * CHUNK_BYTES + 17).map(|number| (number % 251) as u8).collect::<Vec<_>>();
        let mut chunks = Chunks::default();
        for piece in bytes.chunks(CHUNK_BYTES / 3 * 2) {
            chunks.write_all(piece).expect("memory");
        }
        assert!(chunks.0.iter().all(|chunk| chunk.capacity() == CHUNK_BYTES));
        let mut out = Vec::new();
        chunks.drain_to(&mut out).expect("memory");
        assert_eq!(out, bytes);
    }
}
