//! How often an export runs, and which interval a run gets.

use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ZonedDateTime};
use serde::{Deserialize, Serialize};

/// How often an export runs: the length of its intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    /// 60 minutes.
    Hour,
    /// One day of the export's zone: 23 to 25 hours where clocks change.
    Day,
    /// Seven days of the export's zone.
    Week,
    /// So many minutes.
    EveryMinutes(u32),
}

impl Cadence {
    /// The cadence of a name: `hour`, `day`, `week` or `every N minutes`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "hour" => Some(Self::Hour),
            "day" => Some(Self::Day),
            "week" => Some(Self::Week),
            _ => {
                let count = name.strip_prefix("every ")?;
                let count = count.strip_suffix(" minutes").or_else(|| count.strip_suffix(" minute"))?;
                count.parse().ok().filter(|minutes| *minutes > 0).map(Self::EveryMinutes)
            }
        }
    }

    /// The interval that ends at an instant.
    ///
    /// Days and weeks are counted on the clock of the zone, so that intervals of one export tile time.
    #[must_use]
    pub fn ending_at(self, end: Timestamp, zone: &TimeZone) -> Option<Bounds> {
        let start = match self {
            Self::Hour => end.checked_sub(SignedDuration::from_hours(1)).ok()?,
            Self::EveryMinutes(minutes) => end.checked_sub(SignedDuration::from_mins(minutes.into())).ok()?,
            Self::Day => days_before(&end.to_zoned_datetime(zone.clone()), 1)?,
            Self::Week => days_before(&end.to_zoned_datetime(zone.clone()), 7)?,
        };
        Some(Bounds { start, end })
    }

    /// The usual length, for timeouts.
    #[must_use]
    pub const fn nominal(self) -> Duration {
        match self {
            Self::Hour => Duration::from_secs(3_600),
            Self::Day => Duration::from_secs(86_400),
            Self::Week => Duration::from_secs(7 * 86_400),
            Self::EveryMinutes(minutes) => Duration::from_secs(minutes as u64 * 60),
        }
    }
}

/// The same time of day, `days` before; the first instant of its day when `end` is the first instant of its own, since a
/// zone may skip its midnight. The engine counts in the same way, which a test of the crate `activities` watches.
fn days_before(end: &ZonedDateTime, days: i64) -> Option<Timestamp> {
    let zone = end.time_zone();
    let first_of_day = |day: &Date| day.to_zoned_datetime(zone.clone()).ok();
    let is_first = first_of_day(&end.date())?.timestamp() == end.timestamp();
    let mut start = end.datetime();
    loop {
        start = start.checked_sub(Span::new().days(days)).ok()?;
        let instant =
            if is_first { first_of_day(&start.date())? } else { start.to_zoned_datetime(zone.clone()).ok()? };
        // A zone that changes sides of the date line skips a whole day.
        if instant.timestamp() < end.timestamp() {
            return Some(instant.timestamp());
        }
    }
}

impl fmt::Display for Cadence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hour => formatter.write_str("hour"),
            Self::Day => formatter.write_str("day"),
            Self::Week => formatter.write_str("week"),
            Self::EveryMinutes(minutes) => write!(formatter, "every {minutes} minutes"),
        }
    }
}

/// The half-open interval of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The first instant in it.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
}

impl Bounds {
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
    fn reads_the_reference_systems_names_and_nothing_else() {
        for (name, cadence) in [
            ("hour", Cadence::Hour),
            ("day", Cadence::Day),
            ("week", Cadence::Week),
            ("every 5 minutes", Cadence::EveryMinutes(5)),
            ("every 1 minute", Cadence::EveryMinutes(1)),
        ] {
            assert_eq!(Cadence::from_name(name), Some(cadence));
        }
        for name in ["", "month", "every 0 minutes", "every -5 minutes", "every five minutes", "every 5 hours", "Hour"]
        {
            assert_eq!(Cadence::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn days_follow_the_clock_of_the_zone_and_tile() {
        let zone = TimeZone::get("America/New_York").expect("a known zone");
        let ends = ["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"];
        let hours = ends.map(|end| {
            let bounds = Cadence::Day.ending_at(at(end), &zone).expect("in range");
            bounds.end.duration_since(bounds.start).as_hours()
        });
        assert_eq!(hours, [24, 23, 24, 25]);
    }

    #[test]
    fn hours_and_minutes_are_absolute() {
        let zone = TimeZone::get("Australia/Lord_Howe").expect("a known zone");
        let end = at("2026-04-04T15:00:00Z");
        assert_eq!(Cadence::Hour.ending_at(end, &zone).expect("in range").start, at("2026-04-04T14:00:00Z"));
        assert_eq!(Cadence::EveryMinutes(5).ending_at(end, &zone).expect("in range").start, at("2026-04-04T14:55:00Z"));
    }

    #[test]
    fn run_ids_differ_when_exports_or_intervals_do() {
        let hour = Cadence::Hour.ending_at(at("2026-01-01T01:00:00Z"), &TimeZone::UTC).expect("in range");
        assert_eq!(hour.run_id("orders"), "orders-20260101T000000Z-20260101T010000Z");
        let finer = Bounds { start: hour.start, end: at("2026-01-01T01:00:00.5Z") };
        assert_eq!(finer.run_id("orders"), "orders-20260101T000000Z-20260101T010000.5Z");
        assert_ne!(hour.run_id("a-20260101T000000Z"), hour.run_id("a"));
    }
}
