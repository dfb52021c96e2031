//! JSONLines: a block becomes lines; the file joins them into one stream, compressed as one.
//!
//! Common readers stop after the first gzip member, zstd frame or brotli stream, so a file is exactly one of each. Gzip
//! and brotli blocks are compressed by the consumers, so that they can be joined; zstd compresses in its own threads, in
//! turn.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::brotli::{self, BrotliFile};
use super::chunks::Chunks;
use super::gzip::{self, DeflatedBlock, GzipFile};
use super::json::JsonRows;
use super::zstd::ZstdFile;
use super::{FileEnd, brotli::BrotliBlock};
use crate::config::output::JsonLinesCodec;
use crate::error::{Error, Result};
use crate::sink::part_cutter::PartCutter;

/// Encodes blocks as lines.
#[derive(Debug)]
pub(super) struct LinesEncoder {
    codec: JsonLinesCodec,
    rows: JsonRows,
}

/// The lines of one block, compressed as far as one block alone can be.
#[derive(Debug)]
pub(super) struct EncodedLines {
    bytes: LinesBytes,
    num_lines: u64,
}

#[derive(Debug)]
enum LinesBytes {
    Text(Chunks),
    Deflated(DeflatedBlock),
    Brotli(BrotliBlock),
}

/// A JSONLines file under construction.
#[derive(Debug)]
pub(super) struct LinesFile {
    stream: LinesStream,
    num_lines: u64,
}

#[derive(Debug)]
enum LinesStream {
    Plain(PartCutter),
    Gzip(GzipFile),
    Brotli(BrotliFile),
    Zstd(ZstdFile),
}

impl LinesEncoder {
    pub(super) fn new(codec: JsonLinesCodec, schema: &SchemaRef, json_columns: &[String]) -> Self {
        Self { codec, rows: JsonRows::new(schema, json_columns) }
    }

    pub(super) fn encode<'a>(
        &self,
        pieces: impl Iterator<Item = &'a RecordBatch>,
        block_index: u64,
    ) -> Result<EncodedLines> {
        let (bytes, num_lines) = match self.codec {
            JsonLinesCodec::Uncompressed | JsonLinesCodec::Zstd => {
                let mut text = LineCounter::new(Chunks::default());
                self.write_all(pieces, &mut text)?;
                let (text, num_lines) = text.finish().map_err(cannot_compress)?;
                (LinesBytes::Text(text), num_lines)
            }
            JsonLinesCodec::Gzip => {
                let mut deflater = LineCounter::new(gzip::Deflater::new());
                self.write_all(pieces, &mut deflater)?;
                {
                    let (deflater, num_lines) = deflater.finish().map_err(cannot_compress)?;
                    (LinesBytes::Deflated(deflater.finish().map_err(cannot_compress)?), num_lines)
                }
            }
            JsonLinesCodec::Brotli => {
                let mut encoder = LineCounter::new(brotli::Encoder::new(block_index == 0));
                self.write_all(pieces, &mut encoder)?;
                {
                    let (encoder, num_lines) = encoder.finish().map_err(cannot_compress)?;
                    (LinesBytes::Brotli(encoder.finish()), num_lines)
                }
            }
        };
        Ok(EncodedLines { bytes, num_lines })
    }

    pub(super) const fn row_marks(&self) -> u64 {
        self.rows.row_marks()
    }

    fn write_all<'a>(&self, mut pieces: impl Iterator<Item = &'a RecordBatch>, target: &mut impl Write) -> Result<()> {
        pieces.try_for_each(|piece| self.rows.write(piece, target))
    }
}

impl LinesFile {
    pub(super) fn open(codec: JsonLinesCodec, cutter: PartCutter, consumers: u32) -> Result<Self> {
        let stream = match codec {
            JsonLinesCodec::Uncompressed => LinesStream::Plain(cutter),
            JsonLinesCodec::Gzip => LinesStream::Gzip(GzipFile::open(cutter).map_err(cannot_compress)?),
            JsonLinesCodec::Brotli => LinesStream::Brotli(BrotliFile::open(cutter)),
            JsonLinesCodec::Zstd => LinesStream::Zstd(ZstdFile::open(cutter, consumers).map_err(cannot_compress)?),
        };
        Ok(Self { stream, num_lines: 0 })
    }

    pub(super) fn append(&mut self, lines: EncodedLines) -> Result<()> {
        self.num_lines += lines.num_lines;
        match (&mut self.stream, lines.bytes) {
            (LinesStream::Plain(cutter), LinesBytes::Text(text)) => text.drain_to(cutter),
            (LinesStream::Zstd(file), LinesBytes::Text(text)) => file.append(text),
            (LinesStream::Gzip(file), LinesBytes::Deflated(block)) => file.append(block),
            (LinesStream::Brotli(file), LinesBytes::Brotli(block)) => file.append(block),
            _ => return Err(Error::internal("a block was compressed for another codec than its file's")),
        }
        .map_err(cannot_compress)
    }

    pub(super) fn finish(&mut self) -> Result<FileEnd> {
        match &mut self.stream {
            LinesStream::Plain(_) => Ok(()),
            LinesStream::Gzip(file) => file.finish(),
            LinesStream::Brotli(file) => file.finish(),
            LinesStream::Zstd(file) => file.finish(),
        }
        .map_err(cannot_compress)?;
        Ok(FileEnd { num_rows: self.num_lines })
    }

    pub(super) fn cutter(&mut self) -> &mut PartCutter {
        match &mut self.stream {
            LinesStream::Plain(cutter) => cutter,
            LinesStream::Gzip(file) => file.cutter(),
            LinesStream::Brotli(file) => file.cutter(),
            LinesStream::Zstd(file) => file.cutter(),
        }
    }
}

/// How much text a compressor is given at once. Unit: bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Counts the newlines that pass, which is what the file really holds, whatever the encoder believes; and hands text on in
/// chunks of one size, so that compressed bytes can't depend on the messages that rows came in.
struct LineCounter<W> {
    inner: W,
    chunk: Vec<u8>,
    num_lines: u64,
}

impl<W: Write> LineCounter<W> {
    fn new(inner: W) -> Self {
        Self { inner, chunk: Vec::with_capacity(CHUNK_BYTES), num_lines: 0 }
    }

    /// Hands on what is left.
    fn finish(mut self) -> std::io::Result<(W, u64)> {
        self.inner.write_all(&self.chunk)?;
        Ok((self.inner, self.num_lines))
    }
}

impl<W: Write> Write for LineCounter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.num_lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            rest = later;
            if self.chunk.len() == CHUNK_BYTES {
                self.inner.write_all(&self.chunk)?;
                self.chunk.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn cannot_compress(error: std::io::Error) -> Error {
    Error::internal(format!("the lines can't be compressed: {error}")).with_source(error)
}
