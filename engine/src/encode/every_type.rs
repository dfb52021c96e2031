//! Rows with every type that a plan has, for tests.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array as _, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, FixedSizeBinaryArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, UInt64Array,
};
use arrow_buffer::i256;
use arrow_schema::Field;
use proptest::prelude::*;

/// What one row is made of.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    integer: Option<i64>,
    float: f64,
    texts: Vec<String>,
    bytes: [u8; 8],
}

pub(crate) fn row() -> impl Strategy<Value = Row> {
    let text = prop_oneof!["\\PC{0,30}", "[\\x00-\\x20\"\\\\]{0,30}", Just("{\"a\":[1,2]}".to_owned())];
    let integer = prop_oneof![Just(Some(i64::MIN)), any::<Option<i64>>()];
    let float = prop_oneof![Just(f64::MIN_POSITIVE), Just(f64::MIN), Just(f64::NAN), any::<f64>()];
    (integer, float, proptest::collection::vec(text, 0..4), any::<[u8; 8]>())
        .prop_map(|(integer, float, texts, bytes)| Row { integer, float, texts, bytes })
}

/// Every type that a plan has, with the longest values too.
pub(crate) fn batch(row: &Row) -> RecordBatch {
    let number = row.integer.unwrap_or_default();
    // ClickHouse's instants: 1900 to 2299.
    let seconds = number.rem_euclid(12_622_780_800) - 2_208_988_800;
    let mut texts = ListBuilder::new(StringBuilder::new());
    texts.append_value(row.texts.iter().map(Some));
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for text in &row.texts {
        map.keys().append_value(text);
        map.values().append_option(row.integer);
    }
    map.append(true).expect("as many keys as values");
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![row.integer]));
    let text: ArrayRef = Arc::new(StringArray::from(vec![row.texts.first().map(String::as_str)]));
    let floats = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(row.float), None])]);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([row.integer.map(|_| vec![row.integer; 3])]);
    let fields = |names: [(&str, &ArrayRef); 2]| {
        names
            .map(|(name, array)| (Arc::new(Field::new(name, array.data_type().clone(), true)), Arc::clone(array)))
            .to_vec()
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(Int8Array::from(vec![number as i8]))),
        ("i16", Arc::new(Int16Array::from(vec![number as i16]))),
        ("i32", Arc::new(Int32Array::from(vec![number as i32]))),
        ("u64", Arc::new(UInt64Array::from(vec![number as u64]))),
        ("f32", Arc::new(Float32Array::from(vec![row.float as f32]))),
        ("f64", Arc::new(Float64Array::from(vec![row.float]))),
        ("bool", Arc::new(BooleanArray::from(vec![number % 2 == 0]))),
        ("date", Arc::new(Date32Array::from(vec![(seconds / 86_400) as i32]))),
        ("millis", Arc::new(TimestampMillisecondArray::from(vec![seconds * 1_000]).with_timezone("UTC"))),
        ("micros", Arc::new(TimestampMicrosecondArray::from(vec![seconds * 1_000_000]).with_timezone("UTC"))),
        ("nanos", Arc::new(TimestampNanosecondArray::from(vec![row.integer]).with_timezone("UTC"))),
        ("d38", Arc::new(Decimal128Array::from(vec![i128::from(number) * 1_000_000_000_000_000_000]))),
        ("d76", Arc::new(Decimal256Array::from(vec![i256::from_i128(i128::MIN)]))),
        ("bytes", Arc::new(FixedSizeBinaryArray::try_from_iter([row.bytes].into_iter()).expect("8 bytes"))),
        ("text", Arc::clone(&text)),
        ("integers", Arc::clone(&integers)),
        ("texts", Arc::new(texts.finish())),
        ("floats", Arc::new(floats)),
        ("lists", Arc::new(lists)),
        ("map", Arc::new(map.finish())),
        ("pair", Arc::new(StructArray::from(fields([("number", &integers), ("long \"name\"", &text)])))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("a batch")
}
