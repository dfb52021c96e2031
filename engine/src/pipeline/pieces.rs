//! Rows of one block, in the messages they came in or copied out of them.
//!
//! Owns what is held of messages. A slice keeps its whole message alive, so few rows can hold much memory; copying them
//! out gives it back.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use arrow_select::interleave::interleave_record_batch;

use super::budget::BytePermit;

/// A message up to this size is small. Unit: bytes.
const SMALL_MESSAGE_BYTES: u64 = 64 * 1024;

/// So many pieces of small messages in a row are made one: each costs its arrays, and its own turn in the encoder.
const SMALL_PIECES: usize = 64;

/// Consecutive rows.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    /// How many at the end are of small messages.
    num_small: usize,
}

/// Rows of one batch, with the right to hold the whole batch's memory.
#[derive(Debug, Clone)]
struct Piece {
    rows: RecordBatch,
    /// Shared with the other pieces of the same message: all of them keep its buffer alive. `None` for rows that were
    /// copied out of their message.
    permit: Option<Arc<BytePermit>>,
}

impl Pieces {
    /// Takes rows of a message.
    pub(crate) fn push(
        &mut self,
        message: &RecordBatch,
        rows: Range<usize>,
        permit: &Arc<BytePermit>,
    ) -> Result<(), ArrowError> {
        if rows.is_empty() {
            return Ok(());
        }
        let is_small = permit.num_bytes() <= SMALL_MESSAGE_BYTES;
        let rows = message.slice(rows.start, rows.len());
        self.pieces.push(Piece { rows, permit: Some(Arc::clone(permit)) });
        self.num_small = if is_small { self.num_small + 1 } else { 0 };
        if self.num_small == SMALL_PIECES {
            self.copy_out_range(self.pieces.len() - SMALL_PIECES..self.pieces.len())?;
        }
        Ok(())
    }

    /// The rows, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RecordBatch> {
        self.pieces.iter().map(|piece| &piece.rows)
    }

    /// The memory of the messages that the rows came in. Unit: bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.permits().map(|permit| permit.num_bytes()).sum()
    }

    /// The same without one message. Unit: bytes.
    pub(crate) fn held_bytes_besides(&self, message: Option<&Arc<BytePermit>>) -> u64 {
        self.permits().filter(|permit| !is_same(permit, message)).map(|permit| permit.num_bytes()).sum()
    }

    /// The memory of the rows that are in no message any more. Unit: bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let copied = self.pieces.iter().filter(|piece| piece.permit.is_none());
        copied.map(|piece| piece.rows.get_array_memory_size() as u64).sum()
    }

    /// Copies all rows out of their messages and gives those back.
    pub(crate) fn copy_out(&mut self) -> Result<(), ArrowError> {
        self.copy_out_range(0..self.pieces.len())
    }

    /// Copies the rows out of all messages but one, which came last.
    pub(crate) fn copy_out_besides(&mut self, message: Option<&Arc<BytePermit>>) -> Result<(), ArrowError> {
        let of_message = |piece: &Piece| piece.permit.as_ref().is_some_and(|permit| is_same(permit, message));
        let older = self.pieces.iter().position(of_message).unwrap_or(self.pieces.len());
        self.copy_out_range(0..older)
    }

    fn permits(&self) -> impl Iterator<Item = &Arc<BytePermit>> {
        self.pieces.iter().filter_map(|piece| piece.permit.as_ref())
    }

    /// Makes one piece, which holds nothing but its rows, of several.
    fn copy_out_range(&mut self, range: Range<usize>) -> Result<(), ArrowError> {
        self.num_small = 0;
        if range.is_empty() {
            return Ok(());
        }
        let batches = self.pieces[range.clone()].iter().map(|piece| &piece.rows).collect::<Vec<_>>();
        let all =
            batches.iter().enumerate().flat_map(|(batch, rows)| (0..rows.num_rows()).map(move |row| (batch, row)));
        // Joining would not copy what there is only one of, and so keep its whole message alive.
        let rows = interleave_record_batch(&batches, &all.collect::<Vec<_>>())?;
        self.pieces.splice(range, [Piece { rows, permit: None }]);
        Ok(())
    }
}

fn is_same(permit: &Arc<BytePermit>, message: Option<&Arc<BytePermit>>) -> bool {
    message.is_some_and(|message| Arc::ptr_eq(permit, message))
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{ListBuilder, StringBuilder};
    use arrow_array::{Array as _, ArrayRef, StringArray};
    use arrow_data::ArrayData;

    use super::super::budget::ByteBudget;
    use super::*;

    /// The first and last address of each buffer, children's too.
    fn memory(data: &ArrayData) -> Vec<(usize, usize)> {
        let ends = |start: usize, length: usize| (start, start + length);
        let own = data.buffers().iter().map(|buffer| ends(buffer.as_ptr() as usize, buffer.len()));
        own.chain(data.child_data().iter().flat_map(memory)).collect()
    }

    fn message() -> RecordBatch {
        let mut lists = ListBuilder::new(StringBuilder::new());
        for row in 0..100 {
            lists.append_value([Some("a"), Some("bc")].into_iter().cycle().take(row));
        }
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|row| "x".repeat(row))));
        RecordBatch::try_from_iter([("text", texts), ("list", Arc::new(lists.finish()) as ArrayRef)]).expect("a batch")
    }

    fn joined(pieces: &Pieces) -> RecordBatch {
        arrow_select::concat::concat_batches(&message().schema(), pieces.iter()).expect("joins")
    }

    /// Rows that were copied leave nothing of their message behind, whether there is one piece of it or more.
    #[tokio::test]
    async fn copying_out_gives_the_messages_memory_back() {
        let message = message();
        let held = message.columns().iter().flat_map(|column| memory(&column.to_data())).collect::<Vec<_>>();
        for cuts in [&[(90, 100)][..], &[(0, 3), (90, 100)]] {
            let budget = ByteBudget::new(1 << 20);
            let permit = Arc::new(budget.acquire(200_000).await.expect("fits"));
            let mut pieces = Pieces::default();
            cuts.iter().for_each(|(from, to)| pieces.push(&message, *from..*to, &permit).expect("is taken"));
            drop(permit);
            let before = joined(&pieces);
            pieces.copy_out().expect("copies");
            assert_eq!(joined(&pieces), before);
            assert_eq!((pieces.held_bytes(), budget.held()), (0, 0));
            assert!(pieces.copied_bytes() > 0);
            let copied_bytes = pieces.copied_bytes();
            pieces.copy_out_besides(None).expect("copies");
            assert_eq!(pieces.copied_bytes(), copied_bytes, "what was copied stays counted");
            let copied =
                pieces.iter().flat_map(|rows| rows.columns().iter().flat_map(|column| memory(&column.to_data())));
            for (start, end) in copied {
                assert!(held.iter().all(|(from, to)| end <= *from || start >= *to), "{cuts:?} is not copied");
            }
        }
    }

    #[tokio::test]
    async fn many_small_messages_become_few_pieces() {
        let (message, budget) = (message(), ByteBudget::new(1 << 20));
        let mut pieces = Pieces::default();
        let mut rows = Vec::new();
        for row in (0..100).cycle().take(1_000) {
            let permit = Arc::new(budget.acquire(1_000).await.expect("fits"));
            pieces.push(&message, row..row + 1, &permit).expect("is taken");
            rows.push(message.slice(row, 1));
        }
        assert!(pieces.pieces.len() < 1_000 / SMALL_PIECES + SMALL_PIECES, "{}", pieces.pieces.len());
        assert_eq!(joined(&pieces), arrow_select::concat::concat_batches(&message.schema(), &rows).expect("joins"));
        assert_eq!(budget.held(), pieces.held_bytes());
    }
}
