//! The half-open window `[start, end)` of one run.

use std::fmt;

use cadence::Cadence;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::error::{Error, Result};

/// The window of one run: `start` is in it, `end` is not, so windows of one export tile time.
///
/// # Invariants
/// `start < end`; both are whole microseconds, since the bounds travel as `DateTime64(6)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Interval {
    start: Timestamp,
    end: Timestamp,
}

impl Interval {
    /// A window from two instants.
    ///
    /// # Errors
    /// `Config` when the window is empty or reversed, or finer than a microsecond.
    pub fn new(start: Timestamp, end: Timestamp) -> Result<Self> {
        if start >= end {
            return Err(Error::config(format!("the interval is empty: its start {start} is not before its end {end}")));
        }
        for (name, bound) in [("start", start), ("end", end)] {
            if bound.subsec_nanosecond() % 1_000 != 0 {
                return Err(Error::config(format!(
                    "the interval's {name} {bound} is finer than a microsecond; round it"
                )));
            }
        }
        Ok(Self { start, end })
    }

    /// The window of a cadence that ends at `end`, in the zone `zone`. See [`Cadence::start_before`].
    ///
    /// # Errors
    /// `Config` when the window would start before all time, or `end` is finer than a microsecond.
    pub fn ending(cadence: Cadence, end: Timestamp, zone: &TimeZone) -> Result<Self> {
        let start = cadence
            .start_before(end, zone)
            .map_err(|too_early| Error::config(too_early.to_string()).with_source(too_early))?;
        Self::new(start, end)
    }

    /// The first instant in the window.
    #[must_use]
    pub const fn start(&self) -> Timestamp {
        self.start
    }

    /// The first instant after the window.
    #[must_use]
    pub const fn end(&self) -> Timestamp {
        self.end
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}, {})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a timestamp")
    }

    #[test]
    fn refuses_empty_reversed_and_too_fine_windows() {
        let noon = at("2026-01-01T12:00:00Z");
        assert!(Interval::new(noon, noon).is_err());
        assert!(Interval::new(at("2026-01-01T13:00:00Z"), noon).is_err());
        assert!(Interval::new(at("2026-01-01T11:00:00.000000001Z"), noon).is_err());
        assert!(Interval::new(at("2026-01-01T11:00:00.000001Z"), noon).is_ok());
    }

    #[test]
    fn a_cadence_and_an_end_make_a_window() {
        let end = at("2026-01-01T12:00:00Z");
        let hour = Interval::ending(Cadence::Hour, end, &TimeZone::UTC).expect("an hour");
        assert_eq!((hour.start(), hour.end()), (at("2026-01-01T11:00:00Z"), end));
        let early = Interval::ending(Cadence::Hour, Timestamp::MIN, &TimeZone::UTC).expect_err("before all time");
        assert_eq!(early.kind(), ErrorKind::Config);
        assert!(Interval::ending(Cadence::Hour, at("2026-01-01T12:00:00.0000001Z"), &TimeZone::UTC).is_err());
    }
}
