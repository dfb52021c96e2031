//! Faults that can make a job run twice: when they happened, and which jobs they met.

use std::time::{Duration, Instant};

/// How long after a call a job may be in hand: until then its end may not have been noted.
const NOTED: Duration = Duration::from_secs(10);

/// Faults by what they befall, with their times; one without an end goes on.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(String, Instant, Option<Instant>)>);

impl Faults {
    /// One that is over at once.
    pub(crate) fn happens(&mut self, what: &str) {
        self.begins(what);
        self.ends(what);
    }

    /// One that goes on, unless it does already.
    pub(crate) fn begins(&mut self, what: &str) {
        if !self.0.iter().any(|(known, _, end)| known == what && end.is_none()) {
            self.0.push((what.to_owned(), Instant::now(), None));
        }
    }

    pub(crate) fn ends(&mut self, what: &str) {
        for (_, _, end) in self.0.iter_mut().filter(|(known, _, end)| known == what && end.is_none()) {
            *end = Some(Instant::now());
        }
    }

    /// Whether a job that was sent then may have been called so often: each call after the first needs a fault more, which met
    /// the job between its sending and the note that the call before was its last.
    pub(crate) fn explain(&self, sent: Instant, calls: &[Instant]) -> bool {
        let met = |until: Instant| {
            self.0.iter().filter(|(_, begin, end)| *begin <= until && end.is_none_or(|end| end >= sent)).count()
        };
        let before_last = calls.iter().take(calls.len().saturating_sub(1));
        before_last.zip(1..).all(|(call, needed)| met(*call + NOTED) >= needed)
    }
}

#[test]
fn a_second_call_needs_a_fault_and_a_third_needs_two() {
    let mut faults = Faults::default();
    let calls = |times: usize| vec![Instant::now(); times];
    let early = Instant::now();
    assert!(faults.explain(early, &calls(1)) && !faults.explain(early, &calls(2)));
    faults.begins("a place");
    faults.begins("a place");
    assert!(faults.explain(early, &calls(2)) && !faults.explain(early, &calls(3)));
    faults.ends("a place");
    let later = Instant::now() + Duration::from_millis(1);
    assert!(faults.explain(early, &calls(2)) && !faults.explain(later, &calls(2)), "it was over before");
    faults.happens("a worker");
    assert!(faults.explain(early, &calls(3)) && !faults.explain(early, &calls(4)));
    assert!(Faults::default().explain(early, &[]));
}
