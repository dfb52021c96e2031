//! Which interval a run gets.

use std::fmt;

use cadence::{Cadence, TooEarly};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// The half-open interval of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The first instant in it.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
}

impl Bounds {
    /// The interval of a cadence that ends at `end`, in the zone `zone`. See [`Cadence::start_before`].
    ///
    /// # Errors
    /// When it would start before all time.
    pub fn ending(cadence: Cadence, end: Timestamp, zone: &TimeZone) -> Result<Self, TooEarly> {
        Ok(Self { start: cadence.start_before(end, zone)?, end })
    }

    /// The id of the run of this interval of an export.
    ///
    /// # Invariants
    /// Different exports or intervals have different ids: the two instants contain no dash, so the id can be taken apart
    /// from its end.
    #[must_use]
    pub fn run_id(&self, export_id: &str) -> String {
        format!("{export_id}-{}-{}", compact(self.start), compact(self.end))
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}, {})", self.start, self.end)
    }
}

/// An instant as part of an id.
fn compact(instant: Timestamp) -> String {
    let form = if instant.subsec_nanosecond() == 0 { "%Y%m%dT%H%M%SZ" } else { "%Y%m%dT%H%M%S.%fZ" };
    instant.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    #[test]
    fn run_ids_differ_when_exports_or_intervals_do() {
        let hour = Bounds::ending(Cadence::Hour, at("2026-01-01T01:00:00Z"), &TimeZone::UTC).expect("in range");
        assert_eq!(hour.run_id("orders"), "orders-20260101T000000Z-20260101T010000Z");
        let finer = Bounds { start: hour.start, end: at("2026-01-01T01:00:00.5Z") };
        assert_eq!(finer.run_id("orders"), "orders-20260101T000000Z-20260101T010000.5Z");
        assert_ne!(hour.run_id("a-20260101T000000Z"), hour.run_id("a"));
    }
}
