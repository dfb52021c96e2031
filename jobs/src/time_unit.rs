//! Units in which somebody says when a job is to run.

use std::fmt;
use std::str::FromStr;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// A unit of time, as plugins and the command line name it: `second` or `seconds`.
///
/// # Units
/// Up to weeks a unit has one length. Months and years are the calendar's, in UTC: a month after January 31st is the last of
/// February.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// A thousandth of a second.
    Milliseconds,
    /// A second.
    Seconds,
    /// 60 seconds.
    Minutes,
    /// 60 minutes.
    Hours,
    /// 24 hours.
    Days,
    /// 7 days.
    Weeks,
    /// A month of the calendar.
    Months,
    /// Three months.
    Quarters,
    /// A year of the calendar.
    Years,
}

/// Every unit with its name in the plural.
const NAMES: [(&str, TimeUnit); 9] = [
    ("milliseconds", TimeUnit::Milliseconds),
    ("seconds", TimeUnit::Seconds),
    ("minutes", TimeUnit::Minutes),
    ("hours", TimeUnit::Hours),
    ("days", TimeUnit::Days),
    ("weeks", TimeUnit::Weeks),
    ("months", TimeUnit::Months),
    ("quarters", TimeUnit::Quarters),
    ("years", TimeUnit::Years),
];

/// Why a time can't be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// Nobody knows the unit.
    #[error(
        "unknown time unit `{0}`; use milliseconds, seconds, minutes, hours, days, weeks, months, quarters or years"
    )]
    UnknownUnit(String),
    /// The time would be in the past.
    #[error("{0} {1} ago is no time for a job; use a number of at least 0")]
    Negative(i64, TimeUnit),
    /// The time would be after all time.
    #[error("{0} {1} from now is after all time; use a smaller number")]
    TooLate(i64, TimeUnit),
    /// It isn't a time at all.
    #[error("`{0}` is no time; write it like 2026-01-31T12:00:00Z")]
    NotATime(String),
}

impl TimeUnit {
    /// The instant `number` units after `now`.
    ///
    /// # Errors
    /// For a negative number, and for one that leads out of all time.
    pub fn after(self, now: Timestamp, number: i64) -> Result<Timestamp, TimeError> {
        if number < 0 {
            return Err(TimeError::Negative(number.saturating_neg(), self));
        }
        self.span(number)
            .and_then(|span| now.to_zoned_datetime(TimeZone::UTC).checked_add(span))
            .map(|then| then.timestamp())
            .map_err(|_too_late| TimeError::TooLate(number, self))
    }

    fn span(self, number: i64) -> Result<Span, jiff::Error> {
        let span = Span::new();
        match self {
            Self::Milliseconds => span.try_milliseconds(number),
            Self::Seconds => span.try_seconds(number),
            Self::Minutes => span.try_minutes(number),
            Self::Hours => span.try_hours(number),
            Self::Days => span.try_days(number),
            Self::Weeks => span.try_weeks(number),
            Self::Months => span.try_months(number),
            Self::Quarters => span.try_months(number.saturating_mul(3)),
            Self::Years => span.try_years(number),
        }
    }
}

impl FromStr for TimeUnit {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unit = NAMES.iter().find(|(plural, _)| text == *plural || Some(text) == plural.strip_suffix('s'));
        unit.map(|(_, unit)| *unit).ok_or_else(|| TimeError::UnknownUnit(text.to_owned()))
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NAMES.iter().find(|(_, unit)| unit == self).map_or("", |(name, _)| name))
    }
}

/// A time as somebody wrote it, with a zone.
///
/// # Errors
/// When it isn't one.
pub fn parse_time(text: &str) -> Result<Timestamp, TimeError> {
    text.trim().parse().map_err(|_error| TimeError::NotATime(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(number: i64, unit: &str) -> String {
        let now = "2026-01-31T12:00:00Z".parse().expect("a time");
        unit.parse::<TimeUnit>()
            .and_then(|unit| unit.after(now, number))
            .map_or_else(|error| error.to_string(), |then| then.to_string())
    }

    #[test]
    fn every_unit_has_its_length() {
        for (number, unit, then) in [
            (1, "millisecond", "2026-01-31T12:00:00.001Z"),
            (90, "seconds", "2026-01-31T12:01:30Z"),
            (30, "minutes", "2026-01-31T12:30:00Z"),
            (1, "hour", "2026-01-31T13:00:00Z"),
            (2, "days", "2026-02-02T12:00:00Z"),
            (1, "week", "2026-02-07T12:00:00Z"),
            (1, "month", "2026-02-28T12:00:00Z"),
            (1, "quarter", "2026-04-30T12:00:00Z"),
            (1, "year", "2027-01-31T12:00:00Z"),
            (0, "days", "2026-01-31T12:00:00Z"),
        ] {
            assert_eq!(after(number, unit), then, "{number} {unit}");
        }
    }

    #[test]
    fn what_is_no_time_is_said_plainly() {
        assert!(after(1, "fortnight").starts_with("unknown time unit `fortnight`; use milliseconds"));
        assert!(after(1, "Seconds").starts_with("unknown time unit"));
        assert_eq!(after(-5, "minutes"), "5 minutes ago is no time for a job; use a number of at least 0");
        assert_eq!(
            after(i64::MAX, "years"),
            format!("{} years from now is after all time; use a smaller number", i64::MAX)
        );
        assert!(parse_time("tomorrow").expect_err("no time").to_string().contains("`tomorrow`"));
        assert!(parse_time("2026-01-31").is_err(), "a date without a time and a zone is not an instant");
    }
}
