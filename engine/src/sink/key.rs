//! Object keys: the prefix template, the two layouts, and S3's own limits.
//!
//! Owns how a run's window becomes a key. Does not own whether the key is already taken: see
//! [`find_existing`](super::existing::find_existing).

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::config::export::KeyLayout;
use crate::config::output::Output;
use crate::error::{Error, Result};
use crate::interval::Interval;

/// The longest key that S3 takes. Unit: bytes of UTF-8.
///
/// Source: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html>. Bounds [`object_key`].
pub const MAX_KEY_BYTES: usize = 1_024;

/// The template's variables, as error messages list them.
const VARIABLES: &str =
    "{year}, {month}, {day}, {hour}, {minute}, {second}, {data_interval_start}, {data_interval_end}, {table}";

/// One variable of the prefix template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    IntervalStart,
    IntervalEnd,
    Table,
}

/// A piece of the prefix template.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Variable(Variable),
}

/// Checks a prefix template; the configuration calls it, so a run never meets a bad one.
///
/// # Errors
/// A sentence that names the fault: an unknown variable, a brace without its other half, a format access, a control
/// character.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    if let Some(character) = prefix.chars().find(|character| character.is_control()) {
        return Err(format!("the prefix holds the control character {character:?}, which S3 can't list; remove it"));
    }
    parse(prefix).map(drop)
}

/// The key of a run's object.
///
/// # Invariants
/// With [`KeyLayout::Default`] the key's last two segments are injective in (export id, start, end), whatever the
/// prefix says: two different runs never share a key.
///
/// # Errors
/// `Config` when the prefix is no valid template, the export's id is empty or the key is longer than
/// [`MAX_KEY_BYTES`].
pub fn object_key(
    prefix: &str,
    layout: KeyLayout,
    export_id: &str,
    table: &str,
    interval: &Interval,
    output: Output,
) -> Result<String> {
    check_prefix(prefix).map_err(Error::config)?;
    let rendered = render(&parse(prefix).map_err(Error::config)?, table, interval);
    let extension = output.extension();
    let name = match layout {
        KeyLayout::Default => {
            if export_id.is_empty() {
                return Err(Error::config("the export's id is empty; give it one"));
            }
            let (start, end) = (safe_time(interval.start()), safe_time(interval.end()));
            format!("{}/{start}--{end}.{extension}", escape(export_id))
        }
        KeyLayout::Reference => {
            format!("{}-{}.{extension}", iso_time(interval.start()), iso_time(interval.end()))
        }
    };
    let key = join(&rendered, &name);
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::config(format!(
            "the key {key} has {} bytes, more than the {MAX_KEY_BYTES} that S3 takes; shorten the prefix or the export's id",
            key.len()
        )));
    }
    Ok(key)
}

/// How messages name an object.
#[must_use]
pub fn uri(bucket: &str, key: &str) -> String {
    format!("s3://{bucket}/{key}")
}

/// Cuts a template into pieces, by the rules of Python's `str.format` that the reference system's users know.
fn parse(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (text, tail) = rest.split_at(at);
        pieces.push(Piece::Text(text));
        if tail.starts_with("{{") || tail.starts_with("}}") {
            pieces.push(Piece::Text(&tail[..1]));
            rest = &tail[2..];
            continue;
        }
        if tail.starts_with('}') {
            return Err(format!("the prefix {template} has a }} without a {{; write }}}} for the character itself"));
        }
        let Some(close) = tail.find('}') else {
            return Err(format!("the prefix {template} has a {{ without a }}; write {{{{ for the character itself"));
        };
        pieces.push(Piece::Variable(variable(&tail[1..close])?));
        rest = &tail[close + 1..];
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

fn variable(name: &str) -> Result<Variable, String> {
    Ok(match name {
        "year" => Variable::Year,
        "month" => Variable::Month,
        "day" => Variable::Day,
        "hour" => Variable::Hour,
        "minute" => Variable::Minute,
        "second" => Variable::Second,
        "data_interval_start" => Variable::IntervalStart,
        "data_interval_end" => Variable::IntervalEnd,
        "table" => Variable::Table,
        _ if name.contains(['.', '[', '!', ':', '{']) => {
            return Err(format!(
                "the prefix uses {{{name}}}: format access is not supported; use a plain one of {VARIABLES}"
            ));
        }
        _ => return Err(format!("the prefix uses the unknown variable {{{name}}}; use one of {VARIABLES}")),
    })
}

fn render(pieces: &[Piece<'_>], table: &str, interval: &Interval) -> String {
    let end = utc(interval.end());
    let two = |value: i8| format!("{value:02}");
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::Variable(Variable::Year) => format!("{:04}", end.year()),
            Piece::Variable(Variable::Month) => two(end.month()),
            Piece::Variable(Variable::Day) => two(end.day()),
            Piece::Variable(Variable::Hour) => two(end.hour()),
            Piece::Variable(Variable::Minute) => two(end.minute()),
            Piece::Variable(Variable::Second) => two(end.second()),
            Piece::Variable(Variable::IntervalStart) => iso_time(interval.start()),
            Piece::Variable(Variable::IntervalEnd) => iso_time(interval.end()),
            Piece::Variable(Variable::Table) => table.to_owned(),
        })
        .collect()
}

/// Joins as the reference system does: POSIX join, and an absolute path is normalized and loses its first slash.
fn join(prefix: &str, name: &str) -> String {
    if !prefix.starts_with('/') {
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        return format!("{prefix}{slash}{name}");
    }
    let mut segments = Vec::new();
    for segment in prefix.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.push(name);
    segments.join("/")
}

/// Writes a name with letters, digits, `-`, `_` and `.` alone, injectively: everything else, and a leading dot, becomes
/// `~` and two hexadecimal digits per byte.
pub(super) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (index, byte) in name.bytes().enumerate() {
        let safe = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && index > 0);
        if safe {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("~{byte:02X}"));
        }
    }
    escaped
}

/// `2026-01-01T00-00-00Z`, with microseconds where there are some: no character that a store or a shell minds.
fn safe_time(instant: Timestamp) -> String {
    let time = utc(instant);
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    format!("{}T{hour:02}-{minute:02}-{second:02}{}Z", time.date(), microseconds(&time))
}

/// `2023-01-01T14:00:00+00:00`, as Python's `isoformat` writes it.
pub(super) fn iso_time(instant: Timestamp) -> String {
    let time = utc(instant);
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    format!("{}T{hour:02}:{minute:02}:{second:02}{}+00:00", time.date(), microseconds(&time))
}

fn microseconds(time: &DateTime) -> String {
    match time.subsec_nanosecond() / 1_000 {
        0 => String::new(),
        microseconds => format!(".{microseconds:06}"),
    }
}

fn utc(instant: Timestamp) -> DateTime {
    TimeZone::UTC.to_datetime(instant)
}

#[cfg(test)]
mod tests;
