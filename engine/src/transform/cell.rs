//! One value of a row: whether it was changed, and what the type of its column makes of it.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Map, Number, Value};

/// Up to here a floating-point number is every integer that it stands for.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Whether a value is what it was: a number without a fraction may have lost its point on the way.
pub(super) fn is_same(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Number(before), Value::Number(after)) => before == after || is_same_number(before, after),
        (Value::Array(before), Value::Array(after)) => {
            before.len() == after.len() && before.iter().zip(after).all(|(before, after)| is_same(before, after))
        }
        (Value::Object(before), Value::Object(after)) => {
            before.len() == after.len()
                && before.iter().all(|(key, before)| after.get(key).is_some_and(|after| is_same(before, after)))
        }
        (before, after) => before == after,
    }
}

fn is_same_number(before: &Number, after: &Number) -> bool {
    let float = before.as_f64().filter(|_| before.is_f64());
    let (Some(float), Some(integer)) = (float, after.as_i64()) else { return false };
    float.abs() <= MAX_EXACT_INTEGER && float == integer as f64
}

/// Makes a value into what the decoder takes for a column, or says why that can't be.
pub(super) fn prepare(value: &mut Value, field: &Field, holds_json: bool) -> Result<(), String> {
    if holds_json && !value.is_null() {
        *value = Value::String(value.to_string());
    }
    prepare_for(value, field.data_type(), field.is_nullable())
}

fn prepare_for(value: &mut Value, data_type: &DataType, is_nullable: bool) -> Result<(), String> {
    if value.is_null() {
        return if is_nullable { Ok(()) } else { Err("can't be null: its type isn't Nullable".to_owned()) };
    }
    match data_type {
        DataType::FixedSizeBinary(width) => fixed_bytes(value, usize::try_from(*width).unwrap_or(0)),
        DataType::List(item) => match value {
            Value::Array(items) => items.iter_mut().enumerate().try_for_each(|(index, value)| {
                prepare_for(value, item.data_type(), item.is_nullable()).map_err(|why| format!("[{index}] {why}"))
            }),
            other => Err(must_be("an array", other)),
        },
        DataType::Struct(fields) => match value {
            Value::Object(members) => prepare_members(members, fields.iter().map(AsRef::as_ref)),
            other => Err(must_be("an object", other)),
        },
        DataType::Map(entries, _) => match (entries.data_type(), value) {
            (DataType::Struct(pair), Value::Object(members)) if pair.len() == 2 => {
                members.iter_mut().try_for_each(|(key, value)| {
                    prepare_for(value, pair[1].data_type(), pair[1].is_nullable())
                        .map_err(|why| format!(".{key} {why}"))
                })
            }
            (_, other) => Err(must_be("an object", other)),
        },
        DataType::Boolean => require(value.is_boolean(), "true or false", value),
        DataType::Timestamp(unit, _) => instant(value, *unit),
        DataType::Utf8 | DataType::Date32 => require(value.is_string(), "text", value),
        DataType::Float32 => {
            require(value.is_number(), "a number", value)?;
            let is_small = value.as_f64().is_some_and(|float| float.abs() <= f64::from(f32::MAX));
            require(is_small, "a number of 32 bits", value)
        }
        DataType::Float64 => require(value.is_number(), "a number", value),
        // A decimal may be more than any number in JavaScript.
        DataType::Decimal128(..) | DataType::Decimal256(..) => {
            require(value.is_number() || value.is_string(), "a number, or text with its digits", value)
        }
        // What is left are the integers; the decoder would cut a fraction off.
        _ => require(value.is_i64() || value.is_u64(), "a whole number", value),
    }
}

/// Prepares an object's members for their fields; a member that is missing is null.
fn prepare_members<'a>(
    members: &mut Map<String, Value>,
    fields: impl Iterator<Item = &'a Field> + Clone,
) -> Result<(), String> {
    if let Some(unknown) = members.keys().find(|key| !fields.clone().any(|field| field.name() == *key)) {
        return Err(format!(".{unknown} isn't part of its type"));
    }
    fields.into_iter().try_for_each(|field| {
        let member = members.entry(field.name().clone()).or_insert(Value::Null);
        prepare_for(member, field.data_type(), field.is_nullable()).map_err(|why| format!(".{} {why}", field.name()))
    })
}

/// The type that a column's values are read as: the decoder knows no zone by its name, so instants are numbers for it.
pub(super) fn read_type(data_type: &DataType) -> DataType {
    let read = |field: &Field| field.clone().with_data_type(read_type(field.data_type()));
    match data_type {
        DataType::Timestamp(..) => DataType::Int64,
        DataType::List(item) => DataType::List(Arc::new(read(item))),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| read(field)).collect::<Fields>()),
        DataType::Map(entries, is_sorted) => DataType::Map(Arc::new(read(entries)), *is_sorted),
        other => other.clone(),
    }
}

/// A time becomes a number of its unit; one without a zone is in UTC.
fn instant(value: &mut Value, unit: TimeUnit) -> Result<(), String> {
    let wrong = || "must be a time such as 2026-01-01T00:00:00Z".to_owned();
    let Value::String(text) = value else { return Err(wrong()) };
    let civil = |text: &str| TimeZone::UTC.to_timestamp(text.parse::<DateTime>().ok()?).ok();
    let instant = text.parse::<Timestamp>().ok().or_else(|| civil(text)).ok_or_else(wrong)?;
    let number = match unit {
        TimeUnit::Second => Some(instant.as_second()),
        TimeUnit::Millisecond => Some(instant.as_millisecond()),
        TimeUnit::Microsecond => Some(instant.as_microsecond()),
        TimeUnit::Nanosecond => i64::try_from(instant.as_nanosecond()).ok(),
    };
    *value =
        Value::from(number.ok_or_else(|| "must be a time from 1678 to 2262, for its type has nanoseconds".to_owned())?);
    Ok(())
}

/// Text becomes bytes, with zeros up to the width; the decoder reads bytes as hexadecimal digits.
fn fixed_bytes(value: &mut Value, width: usize) -> Result<(), String> {
    let Value::String(text) = value else { return Err(must_be("text", value)) };
    if text.len() > width {
        return Err(format!("must be text of {width} bytes at most, not of {}", text.len()));
    }
    let mut digits = String::with_capacity(2 * width);
    for byte in text.bytes().chain(std::iter::repeat(0)).take(width) {
        // Memory takes every digit.
        let _written = write!(digits, "{byte:02x}");
    }
    *text = digits;
    Ok(())
}

fn require(is_so: bool, what: &str, value: &Value) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(must_be(what, value)) }
}

fn must_be(what: &str, value: &Value) -> String {
    let got = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(_) => "text".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    format!("must be {what}, not {got}")
}
