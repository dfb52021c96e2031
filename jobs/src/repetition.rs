//! Jobs that come again, as cron has it.

use chrono::{Datelike as _, NaiveDate, NaiveDateTime, Timelike as _};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::civil::{self, DateTime};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::error::InvalidJob;

/// When a job comes again.
///
/// Each occurrence puts the next one into the queue before it is handled: there is one that waits at every moment, and those
/// that nobody was there for are made up for by one.
///
/// # Invariants
/// The pattern has five fields and a time that comes; the zone is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Minute, hour, day of the month, month and day of the week; or a word such as `@daily`.
    pub cron: String,
    /// The zone whose clock is meant, such as `Europe/Berlin`. An hour that the clock skips is made up for after it; of one that
    /// it repeats, the first is meant.
    pub timezone: String,
}

impl Repetition {
    /// By a pattern, on the clock of a zone.
    ///
    /// # Errors
    /// What is wrong with either, or that there is no such time.
    pub fn new(cron: impl Into<String>, timezone: impl Into<String>) -> Result<Self, InvalidJob> {
        let repetition = Self { cron: cron.into(), timezone: timezone.into() };
        repetition.next(Timestamp::now())?;
        Ok(repetition)
    }

    /// The first occurrence after an instant.
    ///
    /// # Errors
    /// What is wrong with the pattern or the zone, or that there is none.
    pub fn next(&self, after: Timestamp) -> Result<Timestamp, InvalidJob> {
        let pattern = self.pattern()?;
        let zone = TimeZone::get(&self.timezone).map_err(|_| InvalidJob::Zone { zone: self.timezone.clone() })?;
        let mut clock = naive(zone.to_datetime(after)).ok_or_else(|| self.invalid("is too far off"))?;
        loop {
            clock = pattern.find_next_occurrence(&clock, false).map_err(|_| self.invalid("has no time that comes"))?;
            let civil = civil(clock).ok_or_else(|| self.invalid("has no time that comes"))?;
            let ambiguous = zone.to_ambiguous_timestamp(civil);
            let first = ambiguous.compatible().ok().filter(|instant| *instant > after);
            // Within an hour that the clock repeats, the first of both may be over.
            if let Some(instant) = first.or_else(|| ambiguous.later().ok().filter(|instant| *instant > after)) {
                return Ok(instant);
            }
        }
    }

    fn pattern(&self) -> Result<Cron, InvalidJob> {
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        parser.parse(&self.cron).map_err(|error| self.invalid(error.to_string()))
    }

    fn invalid(&self, why: impl Into<String>) -> InvalidJob {
        InvalidJob::Cron { cron: self.cron.clone(), why: why.into() }
    }
}

fn naive(time: DateTime) -> Option<NaiveDateTime> {
    let [month, day, hour, minute, second] = [time.month(), time.day(), time.hour(), time.minute(), time.second()]
        .map(|part| u32::try_from(part).unwrap_or(0));
    NaiveDate::from_ymd_opt(i32::from(time.year()), month, day)?.and_hms_opt(hour, minute, second)
}

fn civil(time: NaiveDateTime) -> Option<DateTime> {
    let [month, day, hour, minute] =
        [time.month(), time.day(), time.hour(), time.minute()].map(|part| i8::try_from(part).unwrap_or(0));
    let year = i16::try_from(time.year()).ok()?;
    Some(civil::Date::new(year, month, day).ok()?.at(hour, minute, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(cron: &str, zone: &str, after: &str) -> String {
        let repetition = Repetition::new(cron, zone).expect("a repetition");
        repetition.next(after.parse().expect("a time")).expect("an occurrence").to_string()
    }

    #[test]
    fn the_next_one_is_after_the_last() {
        for (cron, zone, after, expected) in [
            ("*/5 * * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"),
            ("*/5 * * * *", "UTC", "2026-01-01T00:04:59.999Z", "2026-01-01T00:05:00Z"),
            ("0 3 * * MON", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-05T02:00:00Z"),
            ("@daily", "America/New_York", "2026-07-01T03:59:00Z", "2026-07-01T04:00:00Z"),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            // The clock goes from 2:00 to 3:00, and later from 3:00 to 2:00.
            ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("*/20 * * * *", "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:40:00Z"),
        ] {
            assert_eq!(next(cron, zone, after), expected, "{cron} in {zone} after {after}");
        }
    }

    #[test]
    fn what_never_comes_is_refused() {
        for (cron, zone, sentence) in [
            ("0 0 30 2 *", "UTC", "the pattern `0 0 30 2 *` has no time that comes"),
            ("* * * *", "UTC", "the pattern `* * * *`"),
            ("0 * * * * *", "UTC", "the pattern `0 * * * * *`"),
            ("61 * * * *", "UTC", "the pattern `61 * * * *`"),
            ("* * * * *", "Mars/Olympus", "`Mars/Olympus` isn't a time zone"),
        ] {
            let error = Repetition::new(cron, zone).expect_err("refused").to_string();
            assert!(error.starts_with(sentence), "{error}");
        }
    }
}
