//! The file as a stream of bytes, cut into numbered parts.
//!
//! A plain state machine: no I/O, no waiting. Whoever has the turn appends; whoever has uploaded records.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::encode::{EncodedBlock, FileEnd, FileWriter};
use crate::error::{Error, Result};
use crate::sink::ledger::PartLedger;
use crate::sink::object::{PartNumber, UploadedPart};

/// One file under construction.
///
/// # Invariants
/// Blocks are appended in order of their index, without a gap. A part's number is pending in the ledger from the moment
/// its bytes are cut.
#[derive(Debug)]
pub(crate) struct FileAssembler {
    file: FileWriter,
    ledger: Arc<Mutex<PartLedger>>,
    next_index: u64,
    num_rows: u64,
    rows_in_parts: u64,
}

/// A part, ready to be uploaded.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) number: PartNumber,
    pub(crate) body: Bytes,
    /// Rows whose last byte lies in this part, as far as whole blocks tell: never too many.
    pub(crate) num_rows: u64,
}

/// What is left when the last block is in.
#[derive(Debug)]
pub(crate) enum Rest {
    /// The file is so small that no part was cut: all of it.
    Whole(Bytes),
    /// The last parts.
    Parts(Vec<Part>),
}

/// The file's own account.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileTotals {
    /// Rows handed to the encoder.
    pub(crate) rows_encoded: u64,
    /// Rows by the file itself.
    pub(crate) end: FileEnd,
    /// The file's size.
    pub(crate) num_bytes: u64,
}

impl FileAssembler {
    pub(crate) fn new(file: FileWriter, ledger: Arc<Mutex<PartLedger>>) -> Self {
        Self { file, ledger, next_index: 0, num_rows: 0, rows_in_parts: 0 }
    }

    /// Appends the next block and returns the parts that it completes.
    ///
    /// # Errors
    /// `Internal` for a block out of turn; `Data` when the file can't take more.
    pub(crate) fn append(&mut self, block: EncodedBlock) -> Result<Vec<Part>> {
        if block.index != self.next_index {
            return Err(Error::internal(format!(
                "block {} came in the turn of block {}",
                block.index, self.next_index
            )));
        }
        let rows_before = self.num_rows;
        self.next_index += 1;
        self.num_rows += block.num_rows;
        self.file.append(block)?;
        self.cut(rows_before)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub(crate) fn finish(&mut self) -> Result<(Rest, FileTotals)> {
        let end = self.file.finish()?;
        let mut parts = self.cut(self.num_rows)?;
        let tail = self.file.cutter().take_tail();
        let totals = FileTotals { rows_encoded: self.num_rows, end, num_bytes: self.file.cutter().written() };
        if self.ledger().num_cut() == 0 {
            return Ok((Rest::Whole(tail), totals));
        }
        if !tail.is_empty() {
            parts.push(self.part(tail, self.num_rows)?);
        }
        Ok((Rest::Parts(parts), totals))
    }

    /// All parts in order, once every one is recorded.
    ///
    /// # Errors
    /// `Internal` when one is still pending.
    pub(crate) fn take_complete(&mut self) -> Result<Vec<UploadedPart>> {
        std::mem::take(&mut *self.ledger()).into_complete()
    }

    fn ledger(&self) -> MutexGuard<'_, PartLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts that are full now. `rows_before` lie in them for certain; those that came since do only when nothing is
    /// left over, and then no later part may ever come that could count them.
    fn cut(&mut self, rows_before: u64) -> Result<Vec<Part>> {
        let full = self.file.cutter().take_full();
        let rows_done = if self.file.cutter().has_no_tail() { self.num_rows } else { rows_before };
        full.into_iter().map(|body| self.part(body, rows_done)).collect()
    }

    fn part(&mut self, body: Bytes, rows_done: u64) -> Result<Part> {
        let num_rows = rows_done - self.rows_in_parts;
        self.rows_in_parts = rows_done;
        Ok(Part { number: self.ledger().cut()?, body, num_rows })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch};

    use super::super::block::BlockCutter;
    use super::super::budget::ByteBudget;
    use super::super::row_size::RowMeasure;
    use super::*;
    use crate::config::output::{JsonLinesCodec, Output};
    use crate::encode::{self, FileLayout};

    const BLOCKS: usize = 3;

    /// What may happen next: the consumer whose turn it is appends, or an upload that is under way ends.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Append,
        Succeed(PartNumber),
        Fail(PartNumber),
    }

    /// One history, played from the start.
    struct Play {
        assembler: FileAssembler,
        ledger: Arc<Mutex<PartLedger>>,
        blocks: Vec<Option<EncodedBlock>>,
        pending: BTreeMap<PartNumber, Bytes>,
        stored: BTreeMap<PartNumber, Bytes>,
        appended: usize,
        failed: bool,
    }

    /// Two rows per block, 9 bytes each; parts of 10 bytes, so that blocks and parts never end together.
    fn start() -> Play {
        start_with(10)
    }

    fn start_with(part_bytes: usize) -> Play {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(1..=2 * BLOCKS as i64));
        let batch = RecordBatch::try_from_iter([("id", ids)]).expect("a batch");
        let layout = FileLayout {
            output: Output::JsonLines(JsonLinesCodec::Uncompressed),
            schema: batch.schema(),
            json_columns: Vec::new(),
        };
        let (encoder, file) = encode::open(layout, part_bytes, 1).expect("a file");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let permit = runtime.block_on(ByteBudget::new(1 << 20).acquire(1)).expect("fits");
        let blocks =
            BlockCutter::new(2, u64::MAX, RowMeasure::default()).push(&batch, &Arc::new(permit)).expect("is cut");
        let blocks = blocks.into_iter().map(|block| Some(encoder.encode(block).expect("encodes"))).collect();
        let ledger = Arc::default();
        Play {
            assembler: FileAssembler::new(file, Arc::clone(&ledger)),
            ledger,
            blocks,
            pending: BTreeMap::new(),
            stored: BTreeMap::new(),
            appended: 0,
            failed: false,
        }
    }

    impl Play {
        fn take(&mut self, parts: Vec<Part>) {
            for part in parts {
                assert!(!self.stored.contains_key(&part.number), "{} was given out again", part.number);
                assert!(self.pending.insert(part.number, part.body).is_none(), "{} was given out twice", part.number);
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Append => {
                    let block = self.blocks[self.appended].take().expect("not yet appended");
                    let parts = self.assembler.append(block).expect("in turn");
                    self.appended += 1;
                    self.take(parts);
                }
                Step::Succeed(number) => {
                    let body = self.pending.remove(&number).expect("pending");
                    self.ledger
                        .lock()
                        .expect("sound")
                        .record(UploadedPart { number, etag: String::new() })
                        .expect("pending");
                    self.stored.insert(number, body);
                }
                Step::Fail(number) => {
                    self.pending.remove(&number).expect("pending");
                    self.failed = true;
                }
            }
        }

        fn next_steps(&self) -> Vec<Step> {
            let append = (self.appended < BLOCKS).then_some(Step::Append);
            let ends = self.pending.keys().flat_map(|number| [Step::Succeed(*number), Step::Fail(*number)]);
            append.into_iter().chain(ends).collect()
        }

        fn end(mut self, history: &[Step]) {
            let (rest, totals) = self.assembler.finish().expect("ends");
            let Rest::Parts(parts) = rest else { panic!("several parts") };
            self.take(parts);
            for number in self.pending.keys().copied().collect::<Vec<_>>() {
                self.step(Step::Succeed(number));
            }
            assert_eq!((totals.rows_encoded, totals.end.num_rows), (2 * BLOCKS as u64, 2 * BLOCKS as u64));
            match self.assembler.take_complete() {
                Ok(parts) => {
                    assert!(!self.failed, "{history:?} completes with a part missing");
                    assert!(parts.iter().map(|part| part.number.get()).eq(1..=parts.len() as u32));
                    let object = self.stored.values().flat_map(|part| part.to_vec()).collect::<Vec<_>>();
                    let expected = (1..=2 * BLOCKS).map(|id| format!("{{\"id\":{id}}}\n")).collect::<String>();
                    assert_eq!(String::from_utf8(object).expect("text"), expected, "{history:?}");
                }
                Err(_) => assert!(self.failed, "{history:?} refuses a whole file"),
            }
        }
    }

    fn every_order(history: &mut Vec<Step>, tried: &mut u64) {
        let mut play = start();
        history.iter().for_each(|step| play.step(*step));
        let steps = play.next_steps();
        if steps.is_empty() {
            *tried += 1;
            return play.end(history);
        }
        for step in steps {
            history.push(step);
            every_order(history, tried);
            history.pop();
        }
    }

    #[test]
    fn every_order_of_append_success_and_failure_makes_the_file_or_refuses_it() {
        let mut tried = 0;
        every_order(&mut Vec::new(), &mut tried);
        assert!(tried > 1_000, "only {tried} orders");
    }

    #[test]
    fn a_block_out_of_turn_is_refused_and_changes_nothing() {
        let mut play = start();
        let late = play.blocks[1].take().expect("the second");
        assert!(play.assembler.append(late).is_err());
        play.step(Step::Append);
        assert_eq!(play.assembler.num_rows, 2);
    }

    /// A file that ends where a part ends has no last part that could count the rows left over.
    #[test]
    fn every_row_is_counted_when_the_file_ends_with_a_part() {
        for part_bytes in 1..40 {
            let mut play = start_with(part_bytes);
            let mut num_rows = 0;
            for block in std::mem::take(&mut play.blocks).into_iter().flatten() {
                num_rows +=
                    play.assembler.append(block).expect("appends").iter().map(|part| part.num_rows).sum::<u64>();
            }
            let (rest, totals) = play.assembler.finish().expect("ends");
            if let Rest::Parts(parts) = rest {
                num_rows += parts.iter().map(|part| part.num_rows).sum::<u64>();
                assert_eq!(num_rows, totals.rows_encoded, "parts of {part_bytes} bytes");
            }
        }
    }
}
