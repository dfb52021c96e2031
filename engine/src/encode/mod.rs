//! Blocks of rows become bytes of a file.
//!
//! Owns formats and compression. An encoder works on one block, alone and on any thread; the file writer appends what it
//! made, in block order, and ends the file. Does not own numbers or uploads of parts.

mod brotli;
mod chunks;
#[cfg(test)]
pub(crate) mod every_type;
mod gzip;
pub(crate) mod json;
mod json_text;
mod lines;
mod parquet;
mod zstd;

use std::sync::Arc;

use arrow_schema::SchemaRef;

use crate::config::output::Output;
use crate::error::Result;
use crate::pipeline::block::Block;
use crate::pipeline::row_size::RowMeasure;
use crate::sink::part_cutter::PartCutter;

/// What a file consists of.
#[derive(Debug, Clone)]
pub(crate) struct FileLayout {
    /// Format and compression.
    pub(crate) output: Output,
    /// The columns as written.
    pub(crate) schema: SchemaRef,
    /// Names of text columns that hold JSON, which JSONLines shows as values instead of quoted text.
    pub(crate) json_columns: Vec<String>,
}

/// Encodes single blocks; shared by all consumers.
#[derive(Debug)]
pub(crate) struct BlockEncoder {
    format: Format,
}

#[derive(Debug)]
enum Format {
    Parquet(parquet::RowGroupEncoder),
    Lines(lines::LinesEncoder),
}

/// The bytes of one block, ready to be appended.
#[derive(Debug)]
pub(crate) struct EncodedBlock {
    body: EncodedBody,
    /// The block's place in the stream.
    pub(crate) index: u64,
    /// Rows that the encoder was given.
    pub(crate) num_rows: u64,
}

#[derive(Debug)]
enum EncodedBody {
    RowGroup(parquet::RowGroup),
    Lines(lines::EncodedLines),
}

/// Ends of a file: what its own bytes say about its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileEnd {
    /// Rows by the Parquet footer, or newlines counted.
    pub(crate) num_rows: u64,
}

/// A file under construction.
#[derive(Debug)]
pub(crate) struct FileWriter(File);

#[derive(Debug)]
enum File {
    Parquet(parquet::ParquetFile),
    Lines(lines::LinesFile),
}

/// Makes the two halves of a file: the encoder that consumers share, and the writer that they use in turn.
///
/// # Errors
/// `Data` when the schema can't be written in the format.
pub(crate) fn open(layout: FileLayout, part_bytes: usize, consumers: u32) -> Result<(Arc<BlockEncoder>, FileWriter)> {
    let cutter = PartCutter::new(part_bytes);
    let (format, file) = match layout.output {
        Output::Parquet(codec) => {
            let (encoder, file) = parquet::open(codec, &layout.schema, cutter)?;
            (Format::Parquet(encoder), File::Parquet(file))
        }
        Output::JsonLines(codec) => {
            let encoder = lines::LinesEncoder::new(codec, &layout.schema, &layout.json_columns);
            (Format::Lines(encoder), File::Lines(lines::LinesFile::open(codec, cutter, consumers)?))
        }
    };
    Ok((Arc::new(BlockEncoder { format }), FileWriter(file)))
}

impl BlockEncoder {
    /// Encodes a block, whose rows have the planned types: CPU work, for the CPU pool.
    ///
    /// # Errors
    /// `Data` when the format can't hold a value.
    pub(crate) fn encode(&self, block: Block) -> Result<EncodedBlock> {
        let body = match &self.format {
            Format::Parquet(encoder) => EncodedBody::RowGroup(encoder.encode(block.pieces.iter())?),
            Format::Lines(encoder) => EncodedBody::Lines(encoder.encode(block.pieces.iter(), block.index)?),
        };
        Ok(EncodedBlock { body, index: block.index, num_rows: block.num_rows as u64 })
    }

    /// How large rows get in this format, which decides where blocks end.
    pub(crate) fn row_measure(&self) -> RowMeasure {
        match &self.format {
            Format::Parquet(_) => RowMeasure { as_json: false, per_row: 0 },
            Format::Lines(encoder) => RowMeasure { as_json: true, per_row: encoder.row_marks() },
        }
    }
}

impl FileWriter {
    /// Appends the next block, in block order.
    ///
    /// # Errors
    /// `Internal` for a block of another format; `Data` when the file can't take more.
    pub(crate) fn append(&mut self, block: EncodedBlock) -> Result<()> {
        match (&mut self.0, block.body) {
            (File::Parquet(file), EncodedBody::RowGroup(row_group)) => file.append(row_group),
            (File::Lines(file), EncodedBody::Lines(lines)) => file.append(lines),
            _ => Err(crate::error::Error::internal("a block was encoded for another format than its file's")),
        }
    }

    /// Writes what ends the file.
    pub(crate) fn finish(&mut self) -> Result<FileEnd> {
        match &mut self.0 {
            File::Parquet(file) => file.finish(),
            File::Lines(file) => file.finish(),
        }
    }

    /// Where the file's bytes have become parts.
    pub(crate) fn cutter(&mut self) -> &mut PartCutter {
        match &mut self.0 {
            File::Parquet(file) => file.cutter(),
            File::Lines(file) => file.cutter(),
        }
    }
}
