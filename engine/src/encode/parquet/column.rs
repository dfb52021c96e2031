//! One column of a row group: pages, compressed.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{ArrowError, FieldRef, Schema};
use arrow_select::concat::concat;
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;

use super::layout::Layout;

/// How many rows one call of the library's writer gets.
///
/// The library looks for the end of a page within a call only, so pages depend on where calls begin. Counting from the
/// block's first row makes them depend on nothing but the rows; what a message holds can be taken as it lies, and only
/// the rows around the seam of two messages are copied.
const ROWS_PER_WRITE: usize = 1024;

/// Encodes one column, which is several in the file if it is nested. Only one column's compressor is alive at a time in
/// each consumer, however many columns there are.
#[derive(Debug)]
pub(super) struct ColumnEncoder {
    field: FieldRef,
    dictionary: Factory,
    plain: Factory,
    long_text: Factory,
}

/// Gives the library's factory a `Debug`.
struct Factory(ArrowRowGroupWriterFactory);

impl std::fmt::Debug for Factory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ArrowRowGroupWriterFactory")
    }
}

impl ColumnEncoder {
    pub(super) fn new(field: &FieldRef, properties: &WriterPropertiesBuilder) -> Result<Self> {
        let plain = properties.clone().set_dictionary_enabled(false);
        Ok(Self {
            field: Arc::clone(field),
            dictionary: Factory::new(field, properties.clone())?,
            plain: Factory::new(field, plain.clone())?,
            long_text: Factory::new(field, plain.set_statistics_enabled(EnabledStatistics::None))?,
        })
    }

    /// Encodes the column's rows of one block, given as they came. There is at least one row.
    pub(super) fn encode(&self, pieces: &[ArrayRef]) -> Result<Vec<ArrowColumnChunk>> {
        let factory = match Layout::of(pieces)? {
            Layout::Dictionary => &self.dictionary,
            Layout::Plain => &self.plain,
            Layout::LongText => &self.long_text,
        };
        let mut writers = factory.0.create_column_writers(0)?;
        for rows in even_slices(pieces) {
            let leaves = compute_leaves(&self.field, &rows?)?;
            if leaves.len() != writers.len() {
                return Err(ParquetError::General(format!("{} leaves for {} writers", leaves.len(), writers.len())));
            }
            for (writer, leaf) in writers.iter_mut().zip(&leaves) {
                writer.write(leaf)?;
            }
        }
        writers.into_iter().map(|writer| writer.close()).collect()
    }
}

impl Factory {
    /// A factory takes schema and properties from a file's writer; this file is never written.
    fn new(field: &FieldRef, properties: WriterPropertiesBuilder) -> Result<Self> {
        let schema = Arc::new(Schema::new([Arc::clone(field)]));
        let parquet_schema = ArrowSchemaConverter::new().convert(&schema)?;
        let writer =
            SerializedFileWriter::new(std::io::sink(), parquet_schema.root_schema_ptr(), Arc::new(properties.build()))?;
        Ok(Self(ArrowRowGroupWriterFactory::new(&writer, schema)))
    }
}

/// The rows of all pieces, [`ROWS_PER_WRITE`] at a time.
fn even_slices(pieces: &[ArrayRef]) -> impl Iterator<Item = Result<ArrayRef, ArrowError>> {
    let num_rows = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let (mut piece, mut offset) = (0, 0);
    (0..num_rows).step_by(ROWS_PER_WRITE).map(move |first_row| {
        let mut missing = ROWS_PER_WRITE.min(num_rows - first_row);
        let mut slices = Vec::with_capacity(1);
        while missing > 0 {
            let count = missing.min(pieces[piece].len() - offset);
            slices.push(pieces[piece].slice(offset, count));
            missing -= count;
            offset += count;
            if offset == pieces[piece].len() {
                (piece, offset) = (piece + 1, 0);
            }
        }
        let slices = slices.iter().map(AsRef::as_ref).collect::<Vec<_>>();
        concat(&slices)
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::{Array, Int32Array};

    use super::*;

    #[test]
    fn slices_are_even_whatever_the_pieces_are() {
        let rows = Int32Array::from_iter_values(0..2_500);
        for cuts in [vec![], vec![1], vec![1024], vec![1023, 1025], vec![1500, 1500, 1501], vec![2499]] {
            let bounds = [vec![0], cuts, vec![2_500]].concat();
            let pieces = bounds
                .windows(2)
                .map(|pair| Arc::new(rows.slice(pair[0], pair[1] - pair[0])) as ArrayRef)
                .collect::<Vec<_>>();
            let slices = even_slices(&pieces).collect::<Result<Vec<_>, _>>().expect("slices");
            assert_eq!(slices.iter().map(|slice| slice.len()).collect::<Vec<_>>(), [1024, 1024, 452], "{bounds:?}");
            let slices = slices.iter().map(AsRef::as_ref).collect::<Vec<_>>();
            assert_eq!(concat(&slices).expect("one array").to_data(), rows.to_data());
        }
    }
}
