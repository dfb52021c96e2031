//! Parquet: a block becomes a row group; the file splices row groups together and ends with the footer.

mod column;
mod layout;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_writer::ArrowColumnChunk;
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;

use self::column::ColumnEncoder;
use super::FileEnd;
use crate::config::output::ParquetCodec;
use crate::error::{Error, Result};
use crate::sink::part_cutter::PartCutter;

/// The size of a data page. Unit: bytes, before compression.
///
/// A page of this size goes through writer and compressor within a core's cache, and is as much as zstd compresses at
/// once. Larger ones cost a twentieth of the run's time, and save a hundredth of the file.
const DATA_PAGE_BYTES: usize = 128 * 1024;

/// The compressed columns of one block.
pub(super) type RowGroup = Vec<ArrowColumnChunk>;

/// Encodes row groups, each independent of the others.
#[derive(Debug)]
pub(super) struct RowGroupEncoder {
    columns: Vec<ColumnEncoder>,
}

/// A Parquet file under construction.
#[derive(Debug)]
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<PartCutter>,
}

/// Makes encoder and file; the file's first bytes are written.
pub(super) fn open(
    codec: ParquetCodec,
    schema: &SchemaRef,
    cutter: PartCutter,
) -> Result<(RowGroupEncoder, ParquetFile)> {
    let properties = properties(codec)?;
    let open = || -> Result<_, ParquetError> {
        let columns =
            schema.fields().iter().map(|field| ColumnEncoder::new(field, &properties)).collect::<Result<_, _>>()?;
        let mut properties = properties.clone().build();
        add_encoded_arrow_schema_to_metadata(schema, &mut properties);
        let parquet_schema = ArrowSchemaConverter::new().convert(schema)?;
        let writer = SerializedFileWriter::new(cutter, parquet_schema.root_schema_ptr(), Arc::new(properties))?;
        Ok((RowGroupEncoder { columns }, ParquetFile { writer }))
    };
    open().map_err(cannot_write)
}

/// Levels are low: higher ones cost much time and, for zstd on such data, even bytes. Statistics are per row group:
/// readers prune by them, and page statistics would only make the footer grow.
fn properties(codec: ParquetCodec) -> Result<WriterPropertiesBuilder> {
    let compression = match codec {
        ParquetCodec::Uncompressed => Compression::UNCOMPRESSED,
        ParquetCodec::Snappy => Compression::SNAPPY,
        ParquetCodec::Lz4 => Compression::LZ4_RAW,
        ParquetCodec::Gzip => Compression::GZIP(GzipLevel::try_new(6).map_err(cannot_write)?),
        ParquetCodec::Brotli => Compression::BROTLI(BrotliLevel::try_new(4).map_err(cannot_write)?),
        ParquetCodec::Zstd => Compression::ZSTD(ZstdLevel::try_new(1).map_err(cannot_write)?),
    };
    Ok(WriterProperties::builder()
        .set_created_by("batch-export".to_owned())
        .set_compression(compression)
        .set_data_page_size_limit(DATA_PAGE_BYTES)
        .set_statistics_enabled(EnabledStatistics::Chunk))
}

impl RowGroupEncoder {
    pub(super) fn encode<'a>(&self, pieces: impl Iterator<Item = &'a RecordBatch>) -> Result<RowGroup> {
        let mut row_group = RowGroup::new();
        let pieces = pieces.collect::<Vec<_>>();
        for (index, encoder) in self.columns.iter().enumerate() {
            let pieces = pieces.iter().map(|piece| Arc::clone(piece.column(index))).collect::<Vec<_>>();
            row_group.extend(encoder.encode(&pieces).map_err(cannot_write)?);
        }
        Ok(row_group)
    }
}

impl ParquetFile {
    pub(super) fn append(&mut self, row_group: RowGroup) -> Result<()> {
        let append = || -> Result<(), ParquetError> {
            let mut writer = self.writer.next_row_group()?;
            for chunk in row_group {
                chunk.append_to_row_group(&mut writer)?;
            }
            writer.close()?;
            Ok(())
        };
        append().map_err(cannot_write)
    }

    pub(super) fn finish(&mut self) -> Result<FileEnd> {
        let metadata = self.writer.finish().map_err(cannot_write)?;
        let num_rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(0);
        Ok(FileEnd { num_rows })
    }

    pub(super) fn cutter(&mut self) -> &mut PartCutter {
        self.writer.inner_mut()
    }
}

fn cannot_write(error: ParquetError) -> Error {
    Error::data(format!("the rows can't be written as Parquet: {error}")).with_source(error)
}
