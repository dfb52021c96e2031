//! The types that are written, in words for people instead of Arrow's own.

use arrow_schema::{DataType, Field, FieldRef, TimeUnit};

/// The name of a type that is written, such as `String`, `Timestamp(ms, UTC)` or `List(Nullable(Int64))`.
pub(crate) fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "Bool".to_owned(),
        DataType::Utf8 => "String".to_owned(),
        DataType::FixedSizeBinary(length) => format!("Binary({length})"),
        DataType::Date32 => "Date".to_owned(),
        DataType::Timestamp(unit, None) => format!("Timestamp({})", unit_name(*unit)),
        DataType::Timestamp(unit, Some(zone)) => format!("Timestamp({}, {zone})", unit_name(*unit)),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("Decimal({precision}, {scale})")
        }
        DataType::List(item) => format!("List({})", field_type(item)),
        DataType::Struct(fields) => {
            let named = |field: &FieldRef| format!("{} {}", field.name(), field_type(field));
            format!("Struct({})", fields.iter().map(named).collect::<Vec<_>>().join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                format!("Map({})", fields.iter().map(|field| field_type(field)).collect::<Vec<_>>().join(", "))
            }
            other => format!("Map({})", type_name(other)),
        },
        // Numbers have the names that everybody uses.
        other => other.to_string(),
    }
}

fn field_type(field: &Field) -> String {
    let name = type_name(field.data_type());
    if field.is_nullable() { format!("Nullable({name})") } else { name }
}

const fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::clickhouse_type::{MapKeys, map};

    #[test]
    fn types_have_names_for_people() {
        for (source, expected) in [
            ("Bool", "Bool"),
            ("UInt8", "UInt8"),
            ("Float64", "Float64"),
            ("UUID", "String"),
            ("FixedString(16)", "Binary(16)"),
            ("Date", "Date"),
            ("DateTime", "Timestamp(ms, UTC)"),
            ("DateTime64(6)", "Timestamp(us, UTC)"),
            ("DateTime64(9)", "Timestamp(ns, UTC)"),
            ("Decimal(9, 2)", "Decimal(9, 2)"),
            ("Decimal(76, 10)", "Decimal(76, 10)"),
            ("Array(Nullable(Int64))", "List(Nullable(Int64))"),
            ("Map(String, Nullable(DateTime))", "Map(String, Nullable(Timestamp(ms, UTC)))"),
            ("Tuple(a String, b Array(UInt8))", "Struct(a String, b List(UInt8))"),
        ] {
            let mapped = map(source, MapKeys::Any).unwrap_or_else(|refusal| panic!("{source}: {refusal:?}"));
            assert_eq!(type_name(&mapped.arrow), expected, "{source}");
        }
    }
}
