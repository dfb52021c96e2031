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
    repaired_values: u64,
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
    /// Texts that were repaired.
    pub(crate) repaired_values: u64,
}

impl FileAssembler {
    pub(crate) fn new(file: FileWriter, ledger: Arc<Mutex<PartLedger>>) -> Self {
        Self { file, ledger, next_index: 0, num_rows: 0, rows_in_parts: 0, repaired_values: 0 }
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
        self.repaired_values += block.repaired_values;
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
        let totals = FileTotals {
            rows_encoded: self.num_rows,
            end,
            num_bytes: self.file.cutter().written(),
            repaired_values: self.repaired_values,
        };
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

    fn cut(&mut self, rows_done: u64) -> Result<Vec<Part>> {
        let full = self.file.cutter().take_full();
        full.into_iter().map(|body| self.part(body, rows_done)).collect()
    }

    fn part(&mut self, body: Bytes, rows_done: u64) -> Result<Part> {
        let num_rows = rows_done - self.rows_in_parts;
        self.rows_in_parts = rows_done;
        Ok(Part { number: self.ledger().cut()?, body, num_rows })
    }
}
