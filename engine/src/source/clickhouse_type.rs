//! ClickHouse's type names, and what becomes of each type.
//!
//! Owns the mapping of every type to the type that is asked for, so that the output doesn't depend on the server's
//! release. Does not own columns: see [`super::type_plan`].

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};

use super::lexer::{self, TokenKind};
use super::names::unquoted_name;
use crate::config::export::ExportConfig;
use crate::config::output::Output;

/// The deepest nesting of types that is followed.
const MAX_DEPTH: usize = 64;

/// What a type becomes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mapped {
    /// The ClickHouse type that is asked for.
    pub(crate) written: String,
    /// The Arrow type that is written.
    pub(crate) arrow: DataType,
    pub(crate) is_nullable: bool,
    /// Whether the server has to cast.
    pub(crate) is_cast: bool,
    /// Whether the text that is written is JSON.
    pub(crate) holds_json: bool,
}

/// Which types the keys of maps may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapKeys {
    /// Any: Parquet.
    Any,
    /// Text: the names in a JSON object.
    Text,
}

impl MapKeys {
    /// Those that an export can write: text where rows become JSON, in the file or on their way through a transform.
    pub(crate) const fn of(export: &ExportConfig) -> Self {
        match export.output {
            Output::Parquet(_) if export.transform.is_none() => Self::Any,
            Output::Parquet(_) | Output::JsonLines(_) => Self::Text,
        }
    }
}

/// Why a type can't be written, in words that follow the type's name, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The part of the type that is refused.
    pub(crate) part: String,
    pub(crate) reason: &'static str,
    /// What to do, with `{}` for the column.
    pub(crate) way_out: &'static str,
}

const CAST_TO_TEXT: &str = "select toString({}) instead";
const NAME_A_TYPE: &str = "select CAST({} AS String), or another type, instead";

/// What the type named `text` becomes.
pub(crate) fn map(text: &str, keys: MapKeys) -> Result<Mapped, Refusal> {
    map_at(text, keys, 0)
}

fn map_at(text: &str, keys: MapKeys, depth: usize) -> Result<Mapped, Refusal> {
    let text = text.trim();
    let unknown = || refuse(text, "is unknown to this version", CAST_TO_TEXT);
    if depth > MAX_DEPTH {
        return Err(refuse(text, "is nested too deeply", CAST_TO_TEXT));
    }
    let (name, arguments) = split(text).ok_or_else(unknown)?;
    let inner = |index: usize| match arguments.get(index) {
        Some(argument) => map_at(argument, keys, depth + 1),
        None => Err(unknown()),
    };
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u8>().ok()).ok_or_else(unknown);
    match name {
        "Bool" => Ok(same(name, DataType::Boolean)),
        "Int8" => Ok(same(name, DataType::Int8)),
        "Int16" => Ok(same(name, DataType::Int16)),
        "Int32" => Ok(same(name, DataType::Int32)),
        "Int64" => Ok(same(name, DataType::Int64)),
        "UInt8" => Ok(same(name, DataType::UInt8)),
        "UInt16" => Ok(same(name, DataType::UInt16)),
        "UInt32" => Ok(same(name, DataType::UInt32)),
        "UInt64" => Ok(same(name, DataType::UInt64)),
        "Float32" => Ok(same(name, DataType::Float32)),
        "Float64" => Ok(same(name, DataType::Float64)),
        "BFloat16" => Ok(cast("Float32", DataType::Float32)),
        "String" => Ok(same(name, DataType::Utf8)),
        "FixedString" => {
            let length = arguments.first().and_then(|text| text.parse::<i32>().ok()).filter(|length| *length > 0);
            let length = length.ok_or_else(unknown)?;
            Ok(same(&format!("FixedString({length})"), DataType::FixedSizeBinary(length)))
        }
        // Old servers send a Date as a bare number; a Date32 never.
        "Date" => Ok(cast("Date32", DataType::Date32)),
        "Date32" => Ok(same(name, DataType::Date32)),
        "DateTime" | "DateTime32" => Ok(instant(3, text)),
        "DateTime64" => Ok(instant(number(0)?, text)),
        "Decimal" => decimal(number(0)?, number(1)?).ok_or_else(unknown),
        "Decimal32" => decimal(9, number(0)?).ok_or_else(unknown),
        "Decimal64" => decimal(18, number(0)?).ok_or_else(unknown),
        "Decimal128" => decimal(38, number(0)?).ok_or_else(unknown),
        "Decimal256" => decimal(76, number(0)?).ok_or_else(unknown),
        "UUID" | "IPv4" | "IPv6" | "Enum" | "Enum8" | "Enum16" | "Int128" | "UInt128" | "Int256" | "UInt256"
        | "Time" | "Time64" | "Point" | "Ring" | "LineString" | "MultiLineString" | "Polygon" | "MultiPolygon" => {
            Ok(cast("String", DataType::Utf8))
        }
        "JSON" | "Object" => Ok(Mapped { holds_json: true, ..cast("String", DataType::Utf8) }),
        // A value of these may always be missing.
        "Dynamic" | "Variant" | "Geometry" => {
            Ok(Mapped { is_nullable: true, ..cast("Nullable(String)", DataType::Utf8) })
        }
        "LowCardinality" => Ok(Mapped { is_cast: true, ..inner(0)? }),
        "SimpleAggregateFunction" => Ok(Mapped { is_cast: true, ..inner(1)? }),
        "Nullable" => inner(0).map(nullable),
        "Array" => inner(0).map(array),
        "Map" => Ok(map_of(inner(0)?, inner(1)?, keys)),
        "Tuple" => tuple(&arguments, keys, depth).and_then(|mapped| mapped.ok_or_else(unknown)),
        "Nested" => {
            let item = tuple(&arguments, keys, depth)?.ok_or_else(unknown)?;
            Ok(Mapped { is_cast: true, ..array(item) })
        }
        "AggregateFunction" => Err(refuse(
            text,
            "is an unfinished state of an aggregate, no value",
            "select finalizeAggregation({}) instead, or aggregate with the -Merge combinator",
        )),
        "Nothing" => Err(refuse(text, "has no values", NAME_A_TYPE)),
        "QBit" => Err(refuse(text, "can't be written", "select CAST({} AS Array(Float32)) instead")),
        interval if interval.starts_with("Interval") => Err(refuse(
            text,
            "is a length of time that neither format has",
            "select toInt64({}) instead, and put the unit into its name",
        )),
        _ => Err(unknown()),
    }
}

fn refuse(part: &str, reason: &'static str, way_out: &'static str) -> Refusal {
    Refusal { part: part.to_owned(), reason, way_out }
}

fn same(written: &str, arrow: DataType) -> Mapped {
    Mapped { written: written.to_owned(), arrow, is_nullable: false, is_cast: false, holds_json: false }
}

fn cast(written: &str, arrow: DataType) -> Mapped {
    Mapped { is_cast: true, ..same(written, arrow) }
}

/// An instant, in UTC and in the next unit that Arrow has; a digit is never lost.
fn instant(precision: u8, source: &str) -> Mapped {
    let (precision, unit) = match precision {
        0..=3 => (3, TimeUnit::Millisecond),
        4..=6 => (6, TimeUnit::Microsecond),
        _ => (9, TimeUnit::Nanosecond),
    };
    let written = format!("DateTime64({precision}, 'UTC')");
    let arrow = DataType::Timestamp(unit, Some("UTC".into()));
    Mapped { is_cast: written != source, ..same(&written, arrow) }
}

fn decimal(precision: u8, scale: u8) -> Option<Mapped> {
    let signed_scale = i8::try_from(scale).ok()?;
    let arrow = match precision {
        1..=38 => DataType::Decimal128(precision, signed_scale),
        39..=76 => DataType::Decimal256(precision, signed_scale),
        _ => return None,
    };
    (scale <= precision).then(|| same(&format!("Decimal({precision}, {scale})"), arrow))
}

fn nullable(inner: Mapped) -> Mapped {
    if inner.is_nullable {
        return inner;
    }
    Mapped { written: format!("Nullable({})", inner.written), is_nullable: true, ..inner }
}

fn array(item: Mapped) -> Mapped {
    let field = Field::new("item", item.arrow, item.is_nullable);
    Mapped { is_cast: item.is_cast, ..same(&format!("Array({})", item.written), DataType::List(Arc::new(field))) }
}

fn map_of(key: Mapped, value: Mapped, keys: MapKeys) -> Mapped {
    let key = if keys == MapKeys::Text && key.arrow != DataType::Utf8 { cast("String", DataType::Utf8) } else { key };
    let entries =
        Fields::from(vec![Field::new("key", key.arrow, false), Field::new("value", value.arrow, value.is_nullable)]);
    let entries = Field::new("entries", DataType::Struct(entries), false);
    Mapped {
        is_cast: key.is_cast || value.is_cast,
        ..same(&format!("Map({}, {})", key.written, value.written), DataType::Map(Arc::new(entries), false))
    }
}

/// A tuple, with or without names; `None` without elements.
fn tuple(arguments: &[&str], keys: MapKeys, depth: usize) -> Result<Option<Mapped>, Refusal> {
    let mut written = Vec::with_capacity(arguments.len());
    let mut fields = Vec::with_capacity(arguments.len());
    let mut is_cast = false;
    for (index, argument) in arguments.iter().enumerate() {
        let (name, element) = split_element(argument);
        let element = map_at(element, keys, depth + 1)?;
        written.push(name.map_or_else(|| element.written.clone(), |name| format!("{name} {}", element.written)));
        let name = name.map_or_else(|| (index + 1).to_string(), unquoted_name);
        fields.push(Field::new(name, element.arrow, element.is_nullable));
        is_cast |= element.is_cast;
    }
    if fields.is_empty() {
        return Ok(None);
    }
    let written = format!("Tuple({})", written.join(", "));
    Ok(Some(Mapped { is_cast, ..same(&written, DataType::Struct(Fields::from(fields))) }))
}

/// The name, if there is one, and the type of a tuple's element.
fn split_element(argument: &str) -> (Option<&str>, &str) {
    let tokens = lexer::tokens(argument).unwrap_or_default();
    match tokens.as_slice() {
        [name, blank, rest @ ..] if blank.kind == TokenKind::Blank && !rest.is_empty() => {
            (Some(name.text), &argument[rest[0].offset..])
        }
        _ => (None, argument),
    }
}

/// The name of a type and its arguments, as they are written.
fn split(text: &str) -> Option<(&str, Vec<&str>)> {
    let tokens = lexer::tokens(text).ok()?;
    let (name, rest) = tokens.split_first().filter(|(name, _)| name.kind == TokenKind::Word)?;
    let Some((open, rest)) = rest.split_first() else { return Some((name.text, Vec::new())) };
    if open.kind != TokenKind::Symbol('(') {
        return None;
    }
    let mut arguments = Vec::new();
    let mut depth = 0_usize;
    let mut start = open.offset + 1;
    for (index, token) in rest.iter().enumerate() {
        match token.kind {
            TokenKind::Symbol('(') => depth += 1,
            TokenKind::Symbol(')') if depth > 0 => depth -= 1,
            TokenKind::Symbol(')') => {
                let last = text[start..token.offset].trim();
                if !(last.is_empty() && arguments.is_empty()) {
                    arguments.push(last);
                }
                return (index + 1 == rest.len()).then_some((name.text, arguments));
            }
            TokenKind::Symbol(',') if depth == 0 => {
                arguments.push(text[start..token.offset].trim());
                start = token.offset + 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
