use jiff::civil::{Date, Time, date, time};
use proptest::prelude::*;

use super::*;

const ZONES: &[&str] = &[
    "UTC",
    "US/Eastern",
    "America/Los_Angeles",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/Havana",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Europe/Dublin",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "America/Scoresbysund",
];

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("a zone")
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

#[test]
fn texts_are_those_of_the_reference() {
    for text in ["hour", "day", "week", "every 5 minutes", "every 1440 minutes"] {
        assert_eq!(text.parse::<Cadence>().expect("a cadence").to_string(), text);
    }
    assert_eq!("every 1 minute".parse(), Ok(Cadence::Minutes(NonZeroU32::MIN)));
    for text in [
        "",
        "Hour",
        "month",
        "every minutes",
        "every 0 minutes",
        "every 1441 minutes",
        "every -5 minutes",
        "every five minutes",
        "every 5 hours",
    ] {
        let message = text.parse::<Cadence>().expect_err(text);
        assert!(message.contains("every N minutes"), "{message}");
    }
}

#[test]
fn days_are_as_long_as_the_zone_makes_them() {
    let cases = [
        ("US/Eastern", "2026-03-09T04:00:00Z", 23),
        ("US/Eastern", "2026-03-08T05:00:00Z", 24),
        ("US/Eastern", "2026-11-02T05:00:00Z", 25),
        ("UTC", "2026-03-09T00:00:00Z", 24),
        ("UTC", "2026-03-09T17:30:00Z", 24),
    ];
    for (name, end, hours) in cases {
        let start = Cadence::Day.start_before(at(end), &zone(name)).expect("a window");
        assert_eq!(at(end).duration_since(start), SignedDuration::from_hours(hours), "{name} {end}");
    }
    let week = Cadence::Week.start_before(at("2026-03-09T04:00:00Z"), &zone("US/Eastern")).expect("a week");
    assert_eq!(week, at("2026-03-02T05:00:00Z"));
    let end = at("2026-10-04T13:00:00Z");
    let lord_howe = Cadence::Day.start_before(end, &zone("Australia/Lord_Howe")).expect("a day");
    assert_eq!(end.duration_since(lord_howe), SignedDuration::from_mins(23 * 60 + 30));
}

#[test]
fn hours_and_minutes_are_exact_in_every_zone() {
    let end = at("2026-11-01T06:30:00Z");
    let hour = Cadence::Hour.start_before(end, &zone("US/Eastern")).expect("an hour");
    assert_eq!(hour, at("2026-11-01T05:30:00Z"));
    let five = "every 5 minutes".parse::<Cadence>().expect("a cadence");
    assert_eq!(five.start_before(end, &zone("UTC")).expect("a window"), at("2026-11-01T06:25:00Z"));
    for cadence in [Cadence::Hour, Cadence::Day, Cadence::Week, five] {
        let early = cadence.start_before(Timestamp::MIN, &zone("UTC")).expect_err("before all time");
        assert!(early.to_string().contains(&cadence.to_string()), "{early}");
    }
}

/// The end of the window of a day: the first instant of the day for midnight, else the instant of that time of day.
fn boundary(day: Date, time_of_day: Time, zone: &TimeZone) -> Timestamp {
    let zoned = if time_of_day == time(0, 0, 0, 0) {
        day.to_zoned_datetime(zone.clone())
    } else {
        day.to_datetime(time_of_day).to_zoned_datetime(zone.clone())
    };
    zoned.expect("an instant").timestamp()
}

proptest! {
    #[test]
    fn daily_and_weekly_windows_tile_time(
        name in prop::sample::select(ZONES),
        days in 0_i64..40_000,
        hour in 4_i8..24,
        at_midnight in any::<bool>(),
        weekly in any::<bool>(),
    ) {
        let zone = zone(name);
        let (cadence, step) = if weekly { (Cadence::Week, 7) } else { (Cadence::Day, 1) };
        // Clocks change before four in the morning in all of these zones: a time of day that is skipped has no windows
        // of its own, except midnight.
        let time_of_day = if at_midnight { time(0, 0, 0, 0) } else { time(hour, 0, 0, 0) };
        let day = date(1970, 1, 1).checked_add(Span::new().days(days)).expect("a day");
        let mut end = boundary(day, time_of_day, &zone);
        for _ in 0..20 {
            let start = cadence.start_before(end, &zone).expect("a window");
            prop_assert!(start < end);
            end = start;
        }
        // Walking back by windows arrives where the calendar says, but for days that the zone has never had.
        let first = day.checked_sub(Span::new().days(20 * step)).expect("a day");
        if name != "Pacific/Apia" && name != "Pacific/Kiritimati" {
            prop_assert_eq!(end, boundary(first, time_of_day, &zone));
        }
    }

    #[test]
    fn short_windows_tile_time(minutes in 1_u32..=1440, second in 0_i64..4_000_000_000, name in prop::sample::select(ZONES)) {
        let cadence = Cadence::Minutes(NonZeroU32::new(minutes).expect("not zero"));
        let end = Timestamp::from_second(second).expect("an instant");
        let start = cadence.start_before(end, &zone(name)).expect("a window");
        prop_assert_eq!(end.duration_since(start), SignedDuration::from_mins(i64::from(minutes)));
        prop_assert_eq!(cadence.usual_length().as_secs(), u64::from(minutes) * 60);
    }
}

#[test]
fn windows_tile_the_days_on_which_clocks_change() {
    let changes = [
        ("US/Eastern", date(2026, 3, 8)),
        ("US/Eastern", date(2026, 11, 1)),
        ("Australia/Lord_Howe", date(2026, 4, 5)),
        ("Australia/Lord_Howe", date(2026, 10, 4)),
        ("America/Havana", date(2026, 3, 8)),
        ("America/Havana", date(2026, 11, 1)),
        ("America/Sao_Paulo", date(2018, 11, 4)),
        ("Africa/Cairo", date(2026, 4, 24)),
    ];
    for (name, day) in changes {
        let zone = zone(name);
        let midnight = time(0, 0, 0, 0);
        let days = (-2..=3).map(|days| day.checked_add(Span::new().days(days)).expect("a day")).collect::<Vec<_>>();
        for pair in days.windows(2) {
            let start = Cadence::Day.start_before(boundary(pair[1], midnight, &zone), &zone).expect("a window");
            assert_eq!(start, boundary(pair[0], midnight, &zone), "{name} {}", pair[1]);
        }
    }
}
