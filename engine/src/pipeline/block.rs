//! Blocks: the unit of parallel work, cut from the stream of rows.
//!
//! Owns the rule where a block ends. The rule looks at rows alone, so that the same rows make the same blocks whatever
//! batches they came in.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use super::budget::BytePermit;
use super::pieces::Pieces;
use super::row_size::{RowMeasure, largest_column};

/// Consecutive rows that one consumer encodes.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its place in the stream, from 0.
    pub(crate) index: u64,
    /// The number of its first row within the run, from 0.
    pub(crate) first_row: u64,
    /// Its rows.
    pub(crate) pieces: Pieces,
    /// Its number of rows, never 0.
    pub(crate) num_rows: usize,
    /// What its rows take when they are written. Unit: bytes.
    pub(crate) num_bytes: u64,
    /// Its largest row.
    pub(crate) largest: LargestRow,
}

/// A block's largest row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LargestRow {
    /// Its number within the block, from 0.
    pub(crate) row: u64,
    /// What it takes when it is written. Unit: bytes.
    pub(crate) num_bytes: u64,
}

/// Cuts the stream of rows into blocks.
///
/// # Invariants
/// A block ends at `max_rows` rows, or before the row that would bring its bytes over `max_bytes`: only a row
/// that is larger makes a larger block, and it is alone in it.
#[derive(Debug)]
pub(crate) struct BlockCutter {
    max_rows: usize,
    max_bytes: u64,
    measure: RowMeasure,
    next_index: u64,
    next_first_row: u64,
    open: OpenBlock,
}

#[derive(Debug, Default)]
struct OpenBlock {
    pieces: Pieces,
    num_rows: usize,
    num_bytes: u64,
    largest: LargestRow,
}

impl OpenBlock {
    /// Counts the next row.
    const fn count(&mut self, num_bytes: u64) {
        if num_bytes > self.largest.num_bytes {
            self.largest = LargestRow { row: self.num_rows as u64, num_bytes };
        }
        self.num_rows += 1;
        self.num_bytes += num_bytes;
    }
}

impl Block {
    /// What it takes besides the messages that its rows came in: the encoded bytes, another copy of a row while it is
    /// written, with half as much again since a compressor's output grows, and rows that were copied. Unit: bytes.
    pub(crate) fn cost_bytes(&self) -> u64 {
        let row = self.largest.num_bytes.saturating_add(self.largest.num_bytes / 2);
        self.num_bytes.saturating_add(row).saturating_add(self.pieces.copied_bytes())
    }

    /// The largest row's largest column and the bytes of its value.
    pub(crate) fn largest_column(&self) -> (String, u64) {
        let mut row = usize::try_from(self.largest.row).unwrap_or(0);
        for rows in self.pieces.iter() {
            if row < rows.num_rows() {
                return largest_column(&rows.slice(row, 1));
            }
            row -= rows.num_rows();
        }
        (String::new(), 0)
    }
}

impl BlockCutter {
    /// Blocks of at most `max_rows` rows and `max_bytes` bytes, as `measure` has it.
    pub(crate) fn new(max_rows: usize, max_bytes: u64, measure: RowMeasure) -> Self {
        Self { max_rows, max_bytes, measure, next_index: 0, next_first_row: 0, open: OpenBlock::default() }
    }

    /// Takes a batch and returns the blocks that it completes.
    ///
    /// # Errors
    /// When rows of small messages can't be copied together.
    pub(crate) fn push(&mut self, batch: &RecordBatch, permit: &Arc<BytePermit>) -> Result<Vec<Block>, ArrowError> {
        let mut blocks = Vec::new();
        let mut start = 0;
        for (row, num_bytes) in self.measure.sizes(batch).into_iter().enumerate() {
            if self.open.num_rows > 0 && self.open.num_bytes + num_bytes > self.max_bytes {
                blocks.extend(self.close(batch, start..row, permit)?);
                start = row;
            }
            self.open.count(num_bytes);
            if self.open.num_rows >= self.max_rows || self.open.num_bytes >= self.max_bytes {
                blocks.extend(self.close(batch, start..row + 1, permit)?);
                start = row + 1;
            }
        }
        self.open.pieces.push(batch, start..batch.num_rows(), permit)?;
        Ok(blocks)
    }

    /// The last block, if rows are left.
    pub(crate) fn finish(mut self) -> Option<Block> {
        self.take_block()
    }

    /// The size at which a block closes. Unit: bytes.
    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// What the open block's rows take when they are written. Unit: bytes.
    pub(crate) const fn open_bytes(&self) -> u64 {
        self.open.num_bytes
    }

    /// The memory of the messages that the open block's rows came in. Unit: bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.open.pieces.held_bytes()
    }

    /// Copies the open block's rows, less than `max_bytes` of them, out of their messages and gives those back.
    pub(crate) fn copy_out(&mut self) -> Result<(), ArrowError> {
        self.open.pieces.copy_out()
    }

    /// Ends the open block with these rows of a batch.
    fn close(
        &mut self,
        batch: &RecordBatch,
        rows: Range<usize>,
        permit: &Arc<BytePermit>,
    ) -> Result<Option<Block>, ArrowError> {
        self.open.pieces.push(batch, rows, permit)?;
        Ok(self.take_block())
    }

    fn take_block(&mut self) -> Option<Block> {
        let open = std::mem::take(&mut self.open);
        if open.num_rows == 0 {
            return None;
        }
        let block = Block {
            index: self.next_index,
            first_row: self.next_first_row,
            pieces: open.pieces,
            num_rows: open.num_rows,
            num_bytes: open.num_bytes,
            largest: open.largest,
        };
        self.next_index += 1;
        self.next_first_row += open.num_rows as u64;
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, StringArray};
    use proptest::prelude::*;

    use super::super::budget::ByteBudget;
    use super::*;

    fn batch(texts: &[String]) -> RecordBatch {
        let array: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        RecordBatch::try_from_iter([("text", array)]).expect("a batch")
    }

    fn cut(texts: &[String], batch_rows: usize, max_rows: usize, max_bytes: u64) -> Vec<usize> {
        let budget = ByteBudget::new(1 << 30);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut cutter = BlockCutter::new(max_rows, max_bytes, RowMeasure { per_row: 3, ..RowMeasure::default() });
        let mut blocks = Vec::new();
        for chunk in texts.chunks(batch_rows) {
            let permit = Arc::new(runtime.block_on(budget.acquire(1)).expect("fits"));
            blocks.extend(cutter.push(&batch(chunk), &permit).expect("is taken"));
            if chunk.len() % 2 == 0 {
                cutter.copy_out().expect("copies");
            }
        }
        blocks.extend(cutter.finish());
        let mut next_row = 0;
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!((block.index, block.first_row), (index as u64, next_row));
            assert_eq!(block.num_rows, block.pieces.iter().map(RecordBatch::num_rows).sum::<usize>());
            next_row += block.num_rows as u64;
        }
        blocks.iter().map(|block| block.num_rows).collect()
    }

    proptest! {
        #[test]
        fn blocks_depend_on_the_rows_alone(
            texts in proptest::collection::vec("[a-z]{0,20}", 0..200),
            (one, other) in (1_usize..50, 1_usize..50),
            max_rows in 1_usize..40,
            max_bytes in 1_u64..200,
        ) {
            let blocks = cut(&texts, one, max_rows, max_bytes);
            prop_assert_eq!(&blocks, &cut(&texts, other, max_rows, max_bytes));
            prop_assert_eq!(blocks.iter().sum::<usize>(), texts.len());
            prop_assert!(blocks.iter().all(|rows| (1..=max_rows).contains(rows)));
        }
    }
}
