//! Rows as JSON and back: nothing changes that nobody changed, and what can't be written is said.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int64Type, TimestampMillisecondType, UInt8Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, StringArray, TimestampMillisecondArray, UInt8Array};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::rows::{Failures, RowCodec, Transformed};
use super::{OnError, TransformedRow};
use crate::encode::every_type::{batch, row};
use crate::error::Result;

fn codec(batch: &RecordBatch) -> RowCodec {
    RowCodec::new(&batch.schema(), &["text".to_owned()])
}

/// Sends rows through `change`, which gets each of them with its number.
fn through(
    batch: &RecordBatch,
    on_error: OnError,
    change: impl Fn(usize, Value) -> Result<Option<Value>, String>,
) -> Result<Transformed> {
    let codec = codec(batch);
    let shown = codec.show(batch)?;
    let outcomes = shown
        .into_iter()
        .enumerate()
        .map(|(number, value)| value.map(|before| TransformedRow { after: change(number, before.clone()), before }));
    codec.take_back(batch, outcomes.collect(), Failures::new(on_error, 100))
}

/// An array that is equal to another one only if all bits are: no NaN is equal to itself.
fn bits(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float32 => Arc::new(array.as_primitive::<Float32Type>().unary::<_, UInt32Type>(f32::to_bits)),
        DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, UInt64Type>(f64::to_bits)),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let items = bits(list.values());
            let field = Field::new("item", items.data_type().clone(), true);
            Arc::new(ListArray::new(Arc::new(field), list.offsets().clone(), items, list.nulls().cloned()))
        }
        _ => Arc::clone(array),
    }
}

/// A row as JavaScript gives it back: numbers without a fraction have lost their point.
fn without_points(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64().filter(|float| number.is_f64() && float.abs() < 9e15) {
            Some(float) if float.fract() == 0.0 => Value::from(float as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(without_points).collect(),
        Value::Object(members) => members.into_iter().map(|(key, member)| (key, without_points(member))).collect(),
        other => other,
    }
}

proptest! {
    #[test]
    fn what_nobody_changes_stays_bit_for_bit(rows in proptest::collection::vec(row(), 1..5), left_out in any::<usize>()) {
        let batches = rows.iter().map(batch).collect::<Vec<_>>();
        let rows = concat_batches(&batches[0].schema(), &batches).expect("one batch");
        let left_out = left_out % (2 * rows.num_rows());
        let keep = |number, value| Ok((number != left_out).then(|| without_points(value)));
        let transformed = through(&rows, OnError::FailRun, keep).expect("goes through");
        let kept = (0..rows.num_rows()).filter(|number| *number != left_out).map(|number| rows.slice(number, 1));
        let expected = concat_batches(&rows.schema(), &kept.collect::<Vec<_>>()).expect("one batch");
        prop_assert_eq!(transformed.rows.schema(), expected.schema());
        for (column, expected) in transformed.rows.columns().iter().zip(expected.columns()) {
            prop_assert_eq!(&bits(column), &bits(expected));
        }
        prop_assert_eq!((transformed.left_out, transformed.failed), (u64::from(left_out < rows.num_rows()), 0));
    }

    /// Values are read from JSON when they differ from what they were.
    #[test]
    fn what_is_read_again_is_what_was_written(row in row()) {
        // Of the others, JSON has no NaN, JavaScript no more than 15 digits, an object no key twice, and bytes may be no text.
        const EXACT: [&str; 14] = [
            "i8", "i16", "i32", "u64", "bool", "date", "millis", "micros", "nanos", "text", "integers", "texts", "lists", "pair",
        ];
        let all = batch(&row);
        let exact = EXACT.iter().map(|name| all.schema().index_of(name).expect("a column"));
        let rows = all.project(&exact.collect::<Vec<_>>()).expect("columns");
        let codec = RowCodec::new(&rows.schema(), &[]);
        let after = codec.show(&rows).expect("JSON").remove(0).expect("a value");
        let outcomes = vec![Ok(TransformedRow { before: json!({}), after: Ok(Some(after)) })];
        let transformed = codec.take_back(&rows, outcomes, Failures::new(OnError::FailRun, 0)).expect("is read");
        prop_assert_eq!(transformed.rows, rows);
    }
}

fn people() -> RecordBatch {
    let ages: ArrayRef = Arc::new(UInt8Array::from(vec![1, 2, 3]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(1), None, None]).with_timezone("UTC"));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]));
    let fields = vec![
        Field::new("age", DataType::UInt8, false)
            .with_metadata(std::collections::HashMap::from([("clickhouse.type".to_owned(), "UInt8".to_owned())])),
        Field::new("name", DataType::Utf8, true),
        Field::new("at", times.data_type().clone(), true),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![ages, names, times]).expect("a batch")
}

fn ages(transformed: &Transformed) -> Vec<u8> {
    transformed.rows.column(0).as_primitive::<UInt8Type>().values().to_vec()
}

#[test]
fn a_row_that_cannot_be_written_is_named_with_its_column() {
    let cases = [
        (json!({ "age": 300, "name": "x" }), "row 102: the column `age` (UInt8) can't be read: "),
        (json!({ "age": -1, "name": "x" }), "row 102: the column `age` (UInt8) can't be read: "),
        (json!({ "age": 2.5, "name": "x" }), "row 102: the column `age` (UInt8) must be a whole number, not 2.5"),
        (json!({ "age": "2", "name": "x" }), "row 102: the column `age` (UInt8) must be a whole number, not text"),
        (json!({ "name": "x" }), "row 102: the column `age` (UInt8) can't be null: its type isn't Nullable"),
        (json!({ "age": 2, "name": 7 }), "row 102: the column `name` must be text, not 7"),
        (json!({ "age": 2, "name": "x", "at": 7 }), "row 102: the column `at` must be a time such as "),
        (json!({ "age": 2, "name": "x", "at": "noon" }), "row 102: the column `at` must be a time such as "),
        (
            json!({ "age": 2, "name": "x", "seen": 1 }),
            "row 102: `seen` is no column of the export; add it to the query as one, or leave it out of the row",
        ),
    ];
    for (after, sentence) in cases {
        let change = |number, before| Ok(Some(if number == 1 { after.clone() } else { before }));
        let error = through(&people(), OnError::FailRun, change).expect_err("fails");
        assert_eq!(error.kind(), crate::error::ErrorKind::Data);
        assert!(error.to_string().starts_with(sentence), "{error}");
        let dropped = through(&people(), OnError::DropRow, change).expect("goes on");
        assert_eq!((ages(&dropped), dropped.left_out, dropped.failed), (vec![1, 3], 1, 1));
        assert!(dropped.first_failure.is_some_and(|why| why.starts_with(sentence)));
        let passed = through(&people(), OnError::PassRow, change).expect("goes on");
        assert_eq!((&passed.rows, passed.left_out, passed.failed), (&people(), 0, 1));
    }
}

#[test]
fn the_first_of_several_rows_that_cannot_be_read_is_named() {
    let change = |number, _| Ok(Some(json!({ "age": if number == 0 { 7 } else { 300 } })));
    let error = through(&people(), OnError::FailRun, change).expect_err("fails").to_string();
    assert!(error.starts_with("row 102: the column `age` (UInt8) can't be read: "), "{error}");
    let dropped = through(&people(), OnError::DropRow, change).expect("goes on");
    assert_eq!((ages(&dropped), dropped.failed), (vec![7], 2));
    let passed = through(&people(), OnError::PassRow, change).expect("goes on");
    assert_eq!((ages(&passed), passed.failed), (vec![7, 2, 3], 2));
}

#[test]
fn changed_failed_and_left_out_rows_mix() {
    let change = |number, _| match number {
        0 => Ok(Some(json!({ "age": 9, "at": "2026-01-01 00:00:00.0019" }))),
        1 => Ok(None),
        _ => Err("no".to_owned()),
    };
    let passed = through(&people(), OnError::PassRow, change).expect("goes on");
    assert_eq!((ages(&passed), passed.left_out, passed.failed), (vec![9, 3], 1, 1));
    assert!(passed.rows.column(1).is_null(0), "a member that is missing is null");
    let times = passed.rows.column(2).as_primitive::<TimestampMillisecondType>();
    assert_eq!((times.value(0), times.timezone()), (1_767_225_600_001, Some("UTC")));
    let dropped = through(&people(), OnError::DropRow, change).expect("goes on");
    assert_eq!((ages(&dropped), dropped.left_out, dropped.failed), (vec![9], 2, 1));
    let none = through(&people(), OnError::DropRow, |_, _| Ok(None)).expect("goes on");
    assert_eq!((none.rows.num_rows(), none.left_out), (0, 3));
}

#[test]
fn rows_without_an_answer_fail_the_run() {
    let (rows, outcomes) = (people(), vec![Err("refused".to_owned())]);
    let error =
        codec(&rows).take_back(&rows, outcomes, Failures::new(OnError::DropRow, 0)).expect_err("two are missing");
    assert_eq!(error.to_string(), "a plugin was given 3 rows and answered for 1");
}

/// Numbers and depths that are fine in text that holds JSON, and in nobody's values.
#[test]
fn text_that_no_value_can_hold_fails_its_row_alone() {
    let texts: ArrayRef =
        Arc::new(StringArray::from(vec!["1e999".to_owned(), "[".repeat(127) + &"]".repeat(127), "2".to_owned()]));
    let rows = RecordBatch::try_from_iter([("text", texts)]).expect("a batch");
    let through = through(&rows, OnError::PassRow, |_, before| {
        assert_eq!(before, json!({ "text": 2 }));
        Ok(Some(json!({ "text": { "b": [3] } })))
    });
    let transformed = through.expect("goes on");
    assert_eq!((transformed.failed, transformed.left_out), (2, 0));
    assert_eq!(transformed.rows.column(0).as_string::<i32>().value(0), "1e999");
    assert_eq!(transformed.rows.column(0).as_string::<i32>().value(2), "{\"b\":[3]}");
}

/// A few bytes of text that holds JSON may be many values.
#[test]
fn values_within_text_are_paid_for() {
    let dense: ArrayRef = Arc::new(StringArray::from(vec![format!("[{}1]", "1,".repeat(100_000))]));
    let cost = |name| {
        let rows = RecordBatch::try_from_iter([(name, Arc::clone(&dense))]).expect("a batch");
        codec(&rows).slices(&rows)[0].num_bytes
    };
    assert!(cost("plain") < 1 << 20 && cost("text") > 100_000 * 100, "{} {}", cost("plain"), cost("text"));
}

#[test]
fn slices_are_small_but_for_large_rows() {
    let texts = (0..100).map(|row| "x".repeat(if row == 50 { 1 << 20 } else { 10_000 }));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let numbers: ArrayRef = Arc::new((0..100).map(Some).collect::<arrow_array::PrimitiveArray<Int64Type>>());
    let rows = RecordBatch::try_from_iter([("text", texts), ("number", numbers)]).expect("a batch");
    let slices = codec(&rows).slices(&rows);
    assert!(slices.iter().all(|slice| slice.rows.len() <= 26), "{slices:?}");
    assert!(slices.iter().any(|slice| slice.rows == (50..51)), "{slices:?}");
    assert!(slices.iter().flat_map(|slice| slice.rows.clone()).eq(0..100));
    assert!(slices.iter().all(|slice| slice.num_bytes < if slice.rows == (50..51) { 5 << 20 } else { 2 << 20 }));
}
