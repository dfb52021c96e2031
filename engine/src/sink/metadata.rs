//! Whose object it is: what the object's metadata says, and how it is read back.

use std::collections::HashMap;

use super::key::{escape, iso_time};
use crate::run::RunIdentity;

/// The version of the metadata and of the files' layout.
pub const FORMAT_VERSION: &str = "1";

const EXPORT_ID: &str = "export-id";
const INTERVAL_START: &str = "interval-start";
const INTERVAL_END: &str = "interval-end";
const RUN_ID: &str = "run-id";
const EXECUTION_ID: &str = "execution-id";
const ATTEMPT: &str = "attempt";
const VERSION: &str = "format-version";

/// The owner of an object: which attempt of which run of which export wrote it.
///
/// # Invariants
/// Values are ASCII: ids are escaped as in keys, so that every store returns them as they were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    export_id: String,
    run_id: String,
    execution_id: String,
    attempt: String,
    interval_start: String,
    interval_end: String,
}

impl Ownership {
    /// What one attempt writes.
    #[must_use]
    pub fn new(export_id: &str, identity: &RunIdentity) -> Self {
        Self {
            export_id: escape(export_id),
            run_id: escape(&identity.run_id),
            execution_id: escape(&identity.execution_id),
            attempt: identity.attempt.to_string(),
            interval_start: iso_time(identity.interval.start()),
            interval_end: iso_time(identity.interval.end()),
        }
    }

    /// The metadata of the object, as `x-amz-meta-…` takes it.
    pub(super) fn to_metadata(&self) -> HashMap<String, String> {
        [
            (EXPORT_ID, self.export_id.as_str()),
            (INTERVAL_START, &self.interval_start),
            (INTERVAL_END, &self.interval_end),
            (RUN_ID, &self.run_id),
            (EXECUTION_ID, &self.execution_id),
            (ATTEMPT, &self.attempt),
            (VERSION, FORMAT_VERSION),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    /// Whether this very attempt wrote the object with this metadata.
    pub(super) fn wrote(&self, metadata: &HashMap<String, String>) -> bool {
        let is = |name: &str, value: &str| metadata.get(name).is_some_and(|found| found == value);
        is(EXPORT_ID, &self.export_id)
            && is(RUN_ID, &self.run_id)
            && is(EXECUTION_ID, &self.execution_id)
            && is(ATTEMPT, &self.attempt)
    }

    /// The export's id in an object's metadata, in its escaped form.
    pub(super) fn export_id_in(metadata: &HashMap<String, String>) -> Option<&String> {
        metadata.get(EXPORT_ID)
    }

    /// Whether the escaped id is this owner's export.
    #[must_use]
    pub fn is_export(&self, escaped: &str) -> bool {
        self.export_id == escaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Interval;

    fn owner(export_id: &str, run_id: &str, attempt: u32) -> Ownership {
        let interval = Interval::new(
            "2026-01-01T00:00:00Z".parse().expect("a start"),
            "2026-01-01T01:00:00Z".parse().expect("an end"),
        );
        let interval = interval.expect("a window");
        Ownership::new(
            export_id,
            &RunIdentity { run_id: run_id.to_owned(), execution_id: "execution".to_owned(), attempt, interval },
        )
    }

    #[test]
    fn metadata_is_ascii_and_tells_attempts_apart() {
        let metadata = owner("café", "run 1", 2).to_metadata();
        assert_eq!(metadata.len(), 7);
        assert!(metadata.values().all(|value| value.is_ascii()));
        assert!(owner("café", "run 1", 2).wrote(&metadata));
        for other in [owner("cafe", "run 1", 2), owner("café", "run 2", 2), owner("café", "run 1", 1)] {
            assert!(!other.wrote(&metadata));
        }
        assert!(!owner("café", "run 1", 2).wrote(&HashMap::new()));
    }
}
