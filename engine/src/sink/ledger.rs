//! Which part numbers a file has given out, and what became of them.

use std::collections::BTreeMap;

use super::object::{PartNumber, UploadedPart};
use crate::config::limits::MAX_PARTS;
use crate::error::{Error, Result};

/// The part numbers of one file.
///
/// # Invariants
/// A number is *pending* from the moment it is cut until its upload is recorded, so no two parts ever hold the same one;
/// numbers are contiguous from 1. A file completes only when every number is recorded.
#[derive(Debug)]
pub(crate) struct PartLedger {
    parts: BTreeMap<PartNumber, Option<UploadedPart>>,
    next: PartNumber,
}

impl Default for PartLedger {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), next: PartNumber::FIRST }
    }
}

impl PartLedger {
    /// Gives out the next number.
    ///
    /// # Errors
    /// `Data` when the file would have more parts than S3 takes.
    pub(crate) fn cut(&mut self) -> Result<PartNumber> {
        let number = self.next;
        if number.get() > MAX_PARTS {
            return Err(Error::data(format!(
                "the object would need more than {MAX_PARTS} parts, S3's limit; raise pipeline.part_size or export shorter intervals"
            )));
        }
        self.parts.insert(number, None);
        self.next = number.next();
        Ok(number)
    }

    /// Records that the store has a part.
    ///
    /// # Errors
    /// `Internal` for a number that isn't pending.
    pub(crate) fn record(&mut self, part: UploadedPart) -> Result<()> {
        match self.parts.get_mut(&part.number) {
            Some(slot @ None) => {
                *slot = Some(part);
                Ok(())
            }
            Some(Some(_)) => Err(Error::internal(format!("part {} was recorded twice", part.number))),
            None => Err(Error::internal(format!("part {} was never cut", part.number))),
        }
    }

    /// How many numbers have been given out.
    #[must_use]
    pub(crate) fn num_cut(&self) -> u32 {
        self.next.get() - 1
    }

    /// All parts in ascending order.
    ///
    /// # Errors
    /// `Internal` when one is still pending: the file must not complete.
    pub(crate) fn into_complete(self) -> Result<Vec<UploadedPart>> {
        self.parts
            .into_iter()
            .map(|(number, part)| {
                part.ok_or_else(|| Error::internal(format!("part {number} was cut but never uploaded")))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uploaded(number: PartNumber) -> UploadedPart {
        UploadedPart { number, etag: format!("etag-{number}") }
    }

    /// One step of a consumer: cut its next part, or hear that the upload of the oldest pending part succeeded or failed.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Cut(usize),
        Succeed(usize),
        Fail(usize),
    }

    /// Tries every order of `consumers` cutting `parts_each` parts, with any of them failing.
    fn every_order(consumers: usize, parts_each: usize, history: &mut Vec<Step>, tried: &mut u64) {
        let past = history.clone();
        let count = |step: Step| past.iter().filter(|done| **done == step).count();
        let mut extended = false;
        for consumer in 0..consumers {
            let cut = count(Step::Cut(consumer));
            let ended = count(Step::Succeed(consumer)) + count(Step::Fail(consumer));
            let mut steps = Vec::new();
            if cut < parts_each {
                steps.push(Step::Cut(consumer));
            }
            if ended < cut {
                steps.extend([Step::Succeed(consumer), Step::Fail(consumer)]);
            }
            for step in steps {
                extended = true;
                history.push(step);
                every_order(consumers, parts_each, history, tried);
                history.pop();
            }
        }
        if !extended {
            *tried += 1;
            replay(consumers, history);
        }
    }

    /// The seed's race, impossible here: consumers that are between cut and record never hold the same number.
    fn replay(consumers: usize, history: &[Step]) {
        let mut ledger = PartLedger::default();
        let mut pending = vec![std::collections::VecDeque::new(); consumers];
        let mut failed = false;
        for step in history {
            match *step {
                Step::Cut(consumer) => {
                    let number = ledger.cut().expect("few parts");
                    assert!(pending.iter().all(|held| !held.contains(&number)), "{history:?} gave out {number} twice");
                    pending[consumer].push_back(number);
                }
                Step::Succeed(consumer) => {
                    let number = pending[consumer].pop_front().expect("a pending part");
                    ledger.record(uploaded(number)).expect("pending");
                }
                Step::Fail(consumer) => {
                    pending[consumer].pop_front().expect("a pending part");
                    failed = true;
                }
            }
        }
        let cut = ledger.num_cut();
        match ledger.into_complete() {
            Ok(parts) => {
                assert!(!failed, "{history:?} completed with a part missing");
                assert!(parts.iter().map(|part| part.number.get()).eq(1..=cut));
            }
            Err(_) => assert!(failed, "{history:?} refused a whole file"),
        }
    }

    #[test]
    fn every_order_of_cut_success_and_failure_keeps_numbers_apart() {
        for (consumers, parts_each, least) in [(1, 4, 16), (2, 2, 1_000), (3, 1, 500)] {
            let mut tried = 0;
            every_order(consumers, parts_each, &mut Vec::new(), &mut tried);
            assert!(tried >= least, "{consumers} consumers: only {tried} orders");
        }
    }

    #[test]
    fn refuses_unknown_and_repeated_numbers_and_the_part_after_the_last() {
        let mut ledger = PartLedger::default();
        assert!(ledger.record(uploaded(PartNumber::FIRST)).is_err());
        let first = ledger.cut().expect("the first");
        ledger.record(uploaded(first)).expect("pending");
        assert!(ledger.record(uploaded(first)).is_err());
        for _ in 1..MAX_PARTS {
            ledger.cut().expect("up to the limit");
        }
        assert!(ledger.cut().expect_err("one too many").message().contains("part_size"));
    }
}
