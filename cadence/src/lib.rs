//! How often an export runs, and so how long its windows are.
//!
//! Owns the calculus of windows, which the engine and the workflows share, and nothing that can't be told from the clock
//! of a zone. It is deterministic: no clock of its own, no environment.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ZonedDateTime};

/// The shortest heartbeat timeout of an export's activity: an attempt has to get its word to the server several times
/// within it. The longer it is, the calmer; two minutes are usual.
pub const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest window in minutes: a day, which has a name of its own. Unit: minutes.
const MAX_MINUTES: u32 = 24 * 60;

/// How often an export runs.
///
/// # Invariants
/// `Minutes` that come from a text are a day at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cadence {
    /// Every hour of 60 minutes.
    Hour,
    /// Every day of the export's zone: 23 or 25 hours where its clocks change.
    Day,
    /// Every seven days of the export's zone.
    Week,
    /// Every so many minutes.
    Minutes(NonZeroU32),
}

/// A window would start before all time.
#[derive(Debug, thiserror::Error)]
#[error("the interval {cadence} can't end at {end}, since it would start before all time; choose a later end")]
pub struct TooEarly {
    cadence: Cadence,
    end: Timestamp,
    source: jiff::Error,
}

impl Cadence {
    /// The first instant of the window that ends at `end`, in the zone `zone`. It is before `end`.
    ///
    /// # Invariants
    /// Windows of one export tile time, without gap or overlap, when each ends at the same time of day in the zone: a
    /// window's start is the end of the one before. A day whose first minutes the zone skips ends with the first
    /// instant that exists.
    ///
    /// # Errors
    /// When the window would start before all time.
    pub fn start_before(self, end: Timestamp, zone: &TimeZone) -> Result<Timestamp, TooEarly> {
        let start = match self {
            Self::Hour => exactly_before(end, 60),
            Self::Minutes(minutes) => exactly_before(end, minutes.get()),
            Self::Day => days_before(&end.to_zoned_datetime(zone.clone()), 1),
            Self::Week => days_before(&end.to_zoned_datetime(zone.clone()), 7),
        };
        start.map_err(|source| TooEarly { cadence: self, end, source })
    }

    /// The usual length of a window: that of a day without a change of clocks.
    #[must_use]
    pub fn usual_length(self) -> Duration {
        Duration::from_mins(match self {
            Self::Hour => 60,
            Self::Day => 24 * 60,
            Self::Week => 7 * 24 * 60,
            Self::Minutes(minutes) => u64::from(minutes.get()),
        })
    }
}

fn exactly_before(end: Timestamp, minutes: u32) -> Result<Timestamp, jiff::Error> {
    end.checked_sub(SignedDuration::from_mins(i64::from(minutes)))
}

/// The same time of day, `days` before; the first instant of its day when `end` is the first instant of its own.
fn days_before(end: &ZonedDateTime, days: i64) -> Result<Timestamp, jiff::Error> {
    let zone = end.time_zone();
    let is_first = end.date().to_zoned_datetime(zone.clone())?.timestamp() == end.timestamp();
    let mut start = end.datetime();
    loop {
        start = start.checked_sub(Span::new().try_days(days)?)?;
        let instant = if is_first {
            start.date().to_zoned_datetime(zone.clone())?
        } else {
            start.to_zoned_datetime(zone.clone())?
        };
        // A zone that changes sides of the date line skips a whole day.
        if instant.timestamp() < end.timestamp() {
            return Ok(instant.timestamp());
        }
    }
}

impl fmt::Display for Cadence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hour => formatter.write_str("hour"),
            Self::Day => formatter.write_str("day"),
            Self::Week => formatter.write_str("week"),
            Self::Minutes(minutes) => write!(formatter, "every {minutes} minutes"),
        }
    }
}

impl FromStr for Cadence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hour" => return Ok(Self::Hour),
            "day" => return Ok(Self::Day),
            "week" => return Ok(Self::Week),
            _ => {}
        }
        let minutes = text
            .strip_prefix("every ")
            .and_then(|rest| rest.strip_suffix(" minutes").or_else(|| rest.strip_suffix(" minute")));
        minutes
            .and_then(|minutes| minutes.parse().ok())
            .filter(|minutes: &NonZeroU32| minutes.get() <= MAX_MINUTES)
            .map(Self::Minutes)
            .ok_or_else(|| {
                format!(
                    "{text:?} isn't an interval; use hour, day, week or \"every N minutes\", N from 1 to {MAX_MINUTES}"
                )
            })
    }
}

#[cfg(test)]
mod tests;
