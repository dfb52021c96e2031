use proptest::prelude::*;

use super::*;

fn mapped(text: &str) -> Mapped {
    map(text, MapKeys::Any).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
}

fn utc(unit: TimeUnit) -> DataType {
    DataType::Timestamp(unit, Some("UTC".into()))
}

/// Type, the type that is asked for, whether that takes a cast, the Arrow type, whether it is nullable.
#[test]
fn simple_types() {
    let cases = [
        ("Bool", "Bool", false, DataType::Boolean),
        ("UInt64", "UInt64", false, DataType::UInt64),
        ("Int8", "Int8", false, DataType::Int8),
        ("Float64", "Float64", false, DataType::Float64),
        ("BFloat16", "Float32", true, DataType::Float32),
        ("String", "String", false, DataType::Utf8),
        ("FixedString(16)", "FixedString(16)", false, DataType::FixedSizeBinary(16)),
        ("Date", "Date32", true, DataType::Date32),
        ("Date32", "Date32", false, DataType::Date32),
        ("DateTime", "DateTime64(3, 'UTC')", true, utc(TimeUnit::Millisecond)),
        ("DateTime('Asia/Kolkata')", "DateTime64(3, 'UTC')", true, utc(TimeUnit::Millisecond)),
        ("DateTime64(0)", "DateTime64(3, 'UTC')", true, utc(TimeUnit::Millisecond)),
        ("DateTime64(3, 'UTC')", "DateTime64(3, 'UTC')", false, utc(TimeUnit::Millisecond)),
        ("DateTime64(4, 'UTC')", "DateTime64(6, 'UTC')", true, utc(TimeUnit::Microsecond)),
        ("DateTime64(6, 'US/Eastern')", "DateTime64(6, 'UTC')", true, utc(TimeUnit::Microsecond)),
        ("DateTime64(9)", "DateTime64(9, 'UTC')", true, utc(TimeUnit::Nanosecond)),
        ("Decimal(9, 2)", "Decimal(9, 2)", false, DataType::Decimal128(9, 2)),
        ("Decimal(38, 38)", "Decimal(38, 38)", false, DataType::Decimal128(38, 38)),
        ("Decimal(76, 10)", "Decimal(76, 10)", false, DataType::Decimal256(76, 10)),
        ("Decimal64(4)", "Decimal(18, 4)", false, DataType::Decimal128(18, 4)),
        ("LowCardinality(String)", "String", true, DataType::Utf8),
        ("SimpleAggregateFunction(sum, UInt64)", "UInt64", true, DataType::UInt64),
        ("SimpleAggregateFunction(groupArrayArray(10), Int8)", "Int8", true, DataType::Int8),
    ];
    for (source, written, is_cast, arrow) in cases {
        let found = mapped(source);
        assert_eq!(
            (found.written.as_str(), found.is_cast, found.arrow, found.is_nullable),
            (written, is_cast, arrow, false),
            "{source}"
        );
    }
}

#[test]
fn types_without_an_equal_become_text() {
    for source in [
        "UUID",
        "IPv4",
        "IPv6",
        r"Enum8('a\'b(,' = 1, ')' = 2)",
        "Enum16('a' = 1)",
        "Int128",
        "UInt256",
        "Time",
        "Time64(3)",
        "Point",
        "MultiPolygon",
        "JSON",
        "JSON(max_dynamic_paths=3, a UInt8, SKIP `b.c`, SKIP REGEXP '\\)')",
        "Object('json')",
    ] {
        let found = mapped(source);
        assert_eq!((found.written.as_str(), found.arrow, found.is_cast), ("String", DataType::Utf8, true), "{source}");
        assert_eq!(found.holds_json, source.starts_with("JSON") || source.starts_with("Object"));
    }
    for source in ["Dynamic", "Dynamic(max_types=3)", "Variant(String, UInt8)", "Geometry"] {
        let found = mapped(source);
        assert_eq!((found.written.as_str(), found.is_nullable), ("Nullable(String)", true), "{source}");
    }
}

#[test]
fn nested_types_are_mapped_inside() {
    let cases = [
        ("Array(UUID)", "Array(String)"),
        ("Nullable(UUID)", "Nullable(String)"),
        ("LowCardinality(Nullable(String))", "Nullable(String)"),
        ("Array(LowCardinality(Nullable(String)))", "Array(Nullable(String))"),
        ("Array(Variant(UInt8, String))", "Array(Nullable(String))"),
        ("Map(LowCardinality(String), Array(Date))", "Map(String, Array(Date32))"),
        ("Tuple(\n    a UInt8,\n    `b c` Tuple(UUID, String))", "Tuple(a UInt8, `b c` Tuple(String, String))"),
        ("Nested(a UInt8, b IPv4)", "Array(Tuple(a UInt8, b String))"),
        ("Nullable(Tuple(a Int8))", "Nullable(Tuple(a Int8))"),
        ("Array(Array(DateTime64(6, 'UTC')))", "Array(Array(DateTime64(6, 'UTC')))"),
    ];
    for (source, written) in cases {
        assert_eq!(mapped(source).written, written, "{source}");
        assert_eq!(mapped(written).written, written, "what is written is written as it is");
        assert!(!mapped(written).is_cast, "{written} needs no cast");
    }
}

#[test]
fn keys_become_text_where_the_format_needs_it() {
    for (source, written) in [
        ("Map(UInt64, String)", "Map(String, String)"),
        ("Array(Map(Date, Map(UUID, UInt8)))", "Array(Map(String, Map(String, UInt8)))"),
        ("Tuple(a Map(LowCardinality(FixedString(2)), Float64))", "Tuple(a Map(String, Float64))"),
    ] {
        let mapped = map(source, MapKeys::Text).expect(source);
        assert_eq!((mapped.written.as_str(), mapped.is_cast), (written, true), "{source}");
    }
    let mapped = map("Map(String, UInt64)", MapKeys::Text).expect("a map");
    assert_eq!((mapped.written.as_str(), mapped.is_cast), ("Map(String, UInt64)", false));
    assert_eq!(map("Map(UInt64, String)", MapKeys::Any).expect("a map").written, "Map(UInt64, String)");
}

#[test]
fn arrow_fields_are_nullable_only_where_clickhouse_says_so() {
    let DataType::Struct(fields) =
        mapped("Tuple(a Nullable(Int8), `b``c` String, `d\\`e` Array(Nullable(UUID)))").arrow
    else {
        panic!("a tuple is a struct")
    };
    assert_eq!(fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["a", "b`c", "d`e"]);
    assert_eq!(fields.iter().map(|field| field.is_nullable()).collect::<Vec<_>>(), [true, false, false]);
    let DataType::List(item) = fields[2].data_type() else { panic!("an array is a list") };
    assert!(item.is_nullable());

    let DataType::Struct(fields) = mapped("Tuple(Int8, Array(Tuple(String)))").arrow else { panic!("a struct") };
    assert_eq!(fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["1", "2"]);

    let DataType::Map(entries, false) = mapped("Map(String, Nullable(Int8))").arrow else { panic!("a map") };
    assert_eq!(entries.name(), "entries");
    let DataType::Struct(fields) = entries.data_type() else { panic!("entries are structs") };
    assert_eq!((fields[0].name().as_str(), fields[0].is_nullable()), ("key", false));
    assert_eq!((fields[1].name().as_str(), fields[1].is_nullable()), ("value", true));
}

#[test]
fn what_can_not_be_written_is_refused_by_its_part() {
    let cases = [
        ("AggregateFunction(sum, UInt64)", "AggregateFunction(sum, UInt64)", "finalizeAggregation"),
        ("Array(AggregateFunction(uniq, String))", "AggregateFunction(uniq, String)", "finalizeAggregation"),
        ("Nullable(Nothing)", "Nothing", "CAST({} AS String)"),
        ("IntervalDay", "IntervalDay", "toInt64({})"),
        ("QBit(Float32, 16)", "QBit(Float32, 16)", "Array(Float32)"),
        ("Hyperlog(3)", "Hyperlog(3)", "toString({})"),
        ("Tuple(a Int8, b Later)", "Later", "toString({})"),
        ("Tuple()", "Tuple()", "toString({})"),
        ("Decimal(77, 1)", "Decimal(77, 1)", "toString({})"),
        ("Decimal(5, 6)", "Decimal(5, 6)", "toString({})"),
        ("Array(", "Array(", "toString({})"),
        ("Array(Int8) x", "Array(Int8) x", "toString({})"),
        ("", "", "toString({})"),
    ];
    for (source, part, way_out) in cases {
        let refusal = map(source, MapKeys::Any).expect_err(source);
        assert_eq!(refusal.part, part, "{source}");
        assert!(refusal.way_out.contains(way_out), "{source}: {refusal:?}");
    }
    let deep = format!("{}Int8{}", "Array(".repeat(500), ")".repeat(500));
    assert_eq!(map(&deep, MapKeys::Any).expect_err("too deep").reason, "is nested too deeply");
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC*") {
        drop(map(&text, MapKeys::Any));
    }

    #[test]
    fn never_panics_on_what_looks_like_a_type(pieces in prop::collection::vec(prop::sample::select(vec![
        "Tuple", "Array", "Nullable", "Map", "(", ")", ",", " ", "'", "`", "a", "Int8", "Enum8", "=", "1", "Nested",
        "Decimal", "DateTime64", "\\", "é",
    ]), 0..20)) {
        drop(map(&pieces.concat(), MapKeys::Text));
    }
}
