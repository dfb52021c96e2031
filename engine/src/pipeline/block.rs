//! Blocks: the unit of parallel work, cut from the stream of rows.
//!
//! Owns the rule where a block ends. The rule looks at rows alone, so that the same rows make the same blocks whatever
//! batches they came in.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use super::budget::BytePermit;
use super::row_size::row_sizes;

/// Consecutive rows that one consumer encodes.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its place in the stream, from 0.
    pub(crate) index: u64,
    /// The number of its first row within the run, from 0.
    pub(crate) first_row: u64,
    /// Its rows, as slices of the batches they came in.
    pub(crate) pieces: Vec<Piece>,
    /// Its number of rows, never 0.
    pub(crate) num_rows: usize,
}

/// Rows of one batch, with the right to hold the whole batch's memory.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// The rows.
    pub(crate) rows: RecordBatch,
    /// Shared with the other pieces of the same message: all of them keep its buffer alive. `None` for rows that were
    /// copied out of their message.
    permit: Option<Arc<BytePermit>>,
}

/// Cuts the stream of rows into blocks.
///
/// # Invariants
/// A block ends at `max_rows` rows, or with the first row that brings its bytes of values to `max_bytes`.
#[derive(Debug)]
pub(crate) struct BlockCutter {
    max_rows: usize,
    max_bytes: u64,
    row_overhead: u64,
    next_index: u64,
    next_first_row: u64,
    open: OpenBlock,
}

#[derive(Debug, Default)]
struct OpenBlock {
    pieces: Vec<Piece>,
    num_rows: usize,
    num_bytes: u64,
}

impl BlockCutter {
    /// `row_overhead` is what the format adds to every row. Unit: bytes.
    pub(crate) fn new(max_rows: usize, max_bytes: u64, row_overhead: u64) -> Self {
        Self { max_rows, max_bytes, row_overhead, next_index: 0, next_first_row: 0, open: OpenBlock::default() }
    }

    /// Takes a batch and returns the blocks that it completes.
    pub(crate) fn push(&mut self, batch: &RecordBatch, permit: BytePermit) -> Vec<Block> {
        let permit = Arc::new(permit);
        let mut blocks = Vec::new();
        let mut start = 0;
        for (row, size) in row_sizes(batch).into_iter().enumerate() {
            self.open.num_rows += 1;
            self.open.num_bytes += size + self.row_overhead;
            if self.open.num_rows >= self.max_rows || self.open.num_bytes >= self.max_bytes {
                self.open
                    .pieces
                    .push(Piece { rows: batch.slice(start, row + 1 - start), permit: Some(Arc::clone(&permit)) });
                blocks.extend(self.close());
                start = row + 1;
            }
        }
        if start < batch.num_rows() {
            self.open.pieces.push(Piece { rows: batch.slice(start, batch.num_rows() - start), permit: Some(permit) });
        }
        blocks
    }

    /// The last block, if rows are left.
    pub(crate) fn finish(mut self) -> Option<Block> {
        self.close()
    }

    /// The memory of the messages that the open block's rows came in. Unit: bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.open.pieces.iter().filter_map(|piece| piece.permit.as_ref()).map(|permit| permit.num_bytes()).sum()
    }

    /// Copies the open block's rows, less than `max_bytes` of them, out of their messages and gives those back.
    pub(crate) fn compact(&mut self) -> Result<(), ArrowError> {
        let Some(first) = self.open.pieces.first() else { return Ok(()) };
        let rows = arrow_select::concat::concat_batches(
            &first.rows.schema(),
            self.open.pieces.iter().map(|piece| &piece.rows),
        )?;
        self.open.pieces = vec![Piece { rows, permit: None }];
        Ok(())
    }

    fn close(&mut self) -> Option<Block> {
        let open = std::mem::take(&mut self.open);
        if open.num_rows == 0 {
            return None;
        }
        let block = Block {
            index: self.next_index,
            first_row: self.next_first_row,
            pieces: open.pieces,
            num_rows: open.num_rows,
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
        let mut cutter = BlockCutter::new(max_rows, max_bytes, 3);
        let mut blocks = Vec::new();
        for chunk in texts.chunks(batch_rows) {
            let permit = runtime.block_on(budget.acquire(1)).expect("fits");
            blocks.extend(cutter.push(&batch(chunk), permit));
            cutter.compact().expect("copies");
        }
        assert_eq!(
            budget.held(),
            blocks
                .iter()
                .flat_map(|block| &block.pieces)
                .fold(Vec::new(), |mut seen, piece| {
                    let permit = piece.permit.as_ref().map(Arc::as_ptr);
                    if let Some(permit) = permit
                        && !seen.contains(&permit)
                    {
                        seen.push(permit);
                    }
                    seen
                })
                .len() as u64
                * 1024
        );
        blocks.extend(cutter.finish());
        let mut next_row = 0;
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!((block.index, block.first_row), (index as u64, next_row));
            assert_eq!(block.num_rows, block.pieces.iter().map(|piece| piece.rows.num_rows()).sum::<usize>());
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
