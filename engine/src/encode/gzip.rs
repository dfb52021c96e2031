//! Gzip: blocks are deflated on their own, and joined into one member.
//!
//! A deflate stream that is flushed ends at a byte, so streams that know nothing of each other can follow one another;
//! the checksum of the whole comes from the checksums of its blocks.
//!
//! Source: RFC 1951, RFC 1952.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::chunks::Chunks;
use crate::sink::part_cutter::PartCutter;

/// The header of a member without name and time, so that the same rows make the same bytes.
const HEADER: [u8; 10] = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0xff];

/// An empty last block: ends the deflate stream.
const LAST_BLOCK: [u8; 2] = [0x03, 0x00];

/// The level of compression, from 0 to 9.
const LEVEL: u32 = 4;

/// Deflates one block.
pub(super) struct Deflater {
    encoder: DeflateEncoder<Chunks>,
    checksum: crc32fast::Hasher,
    num_bytes: u64,
}

/// A deflated block that ends at a byte and is no stream's last.
#[derive(Debug)]
pub(super) struct DeflatedBlock {
    bytes: Chunks,
    checksum: crc32fast::Hasher,
    num_bytes: u64,
}

impl Deflater {
    pub(super) fn new() -> Self {
        let encoder = DeflateEncoder::new(Chunks::default(), Compression::new(LEVEL));
        Self { encoder, checksum: crc32fast::Hasher::new(), num_bytes: 0 }
    }

    pub(super) fn finish(mut self) -> io::Result<DeflatedBlock> {
        self.encoder.flush()?;
        // Dropping the encoder ends its stream into the empty buffer that is left.
        let bytes = std::mem::take(self.encoder.get_mut());
        Ok(DeflatedBlock { bytes, checksum: self.checksum, num_bytes: self.num_bytes })
    }
}

impl Write for Deflater {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write_all(bytes)?;
        self.checksum.update(bytes);
        self.num_bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One gzip member under construction.
#[derive(Debug)]
pub(super) struct GzipFile {
    cutter: PartCutter,
    checksum: crc32fast::Hasher,
    num_bytes: u64,
}

impl GzipFile {
    pub(super) fn open(mut cutter: PartCutter) -> io::Result<Self> {
        cutter.write_all(&HEADER)?;
        Ok(Self { cutter, checksum: crc32fast::Hasher::new(), num_bytes: 0 })
    }

    pub(super) fn append(&mut self, block: DeflatedBlock) -> io::Result<()> {
        self.checksum.combine(&block.checksum);
        self.num_bytes += block.num_bytes;
        block.bytes.drain_to(&mut self.cutter)
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.cutter.write_all(&LAST_BLOCK)?;
        self.cutter.write_all(&self.checksum.clone().finalize().to_le_bytes())?;
        // The format keeps the size modulo 2^32.
        let [a, b, c, d, ..] = self.num_bytes.to_le_bytes();
        self.cutter.write_all(&[a, b, c, d])
    }

    pub(super) fn cutter(&mut self) -> &mut PartCutter {
        &mut self.cutter
    }
}
