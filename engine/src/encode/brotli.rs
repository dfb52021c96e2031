//! Brotli: blocks are compressed on their own, and joined into one stream.
//!
//! The first block carries the stream's header; the others are bare, aligned to bytes and refer to nothing before them.
//!
//! Source: RFC 7932; the encoder's `bare_stream` and `catable` parameters.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;

use super::chunks::Chunks;
use crate::sink::part_cutter::PartCutter;

/// An empty last meta-block: ends the stream.
const LAST_META_BLOCK: [u8; 1] = [0x03];

/// A whole stream without content.
const EMPTY_STREAM: [u8; 1] = [0x3b];

/// The quality of compression, from 0 to 11.
const QUALITY: i32 = 4;

/// How much is buffered on the way out. Unit: bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// Compresses one block.
pub(super) struct Encoder(CompressorWriter<Chunks>);

/// A compressed block that ends at a byte and is no stream's last.
#[derive(Debug)]
pub(super) struct BrotliBlock(Chunks);

impl Encoder {
    pub(super) fn new(is_first: bool) -> Self {
        let params = BrotliEncoderParams {
            quality: QUALITY,
            lgwin: 22,
            appendable: true,
            catable: !is_first,
            bare_stream: true,
            use_dictionary: is_first,
            ..BrotliEncoderParams::default()
        };
        Self(CompressorWriter::with_params(Chunks::default(), BUFFER_BYTES, &params))
    }

    pub(super) fn finish(self) -> BrotliBlock {
        BrotliBlock(self.0.into_inner())
    }
}

impl Write for Encoder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One brotli stream under construction.
#[derive(Debug)]
pub(super) struct BrotliFile {
    cutter: PartCutter,
}

impl BrotliFile {
    pub(super) fn open(cutter: PartCutter) -> Self {
        Self { cutter }
    }

    pub(super) fn append(&mut self, block: BrotliBlock) -> io::Result<()> {
        block.0.drain_to(&mut self.cutter)
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        let end = if self.cutter.written() == 0 { EMPTY_STREAM } else { LAST_META_BLOCK };
        self.cutter.write_all(&end)
    }

    pub(super) fn cutter(&mut self) -> &mut PartCutter {
        &mut self.cutter
    }
}
