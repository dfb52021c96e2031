//! Batches take the types of the plan: text is checked and time gets its zone.
//!
//! Owns the promise that every batch of a run has one schema. Text comes as bytes, since a ClickHouse `String` may hold
//! any; here it becomes UTF-8 or an error that names column and row.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, GenericStringArray, ListArray, MapArray, RecordBatch, RecordBatchOptions, StructArray, make_array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, FieldRef, SchemaRef};

use crate::config::export::InvalidUtf8;
use crate::error::{Error, Result};

/// Gives `batch` the types of `schema`; also says how many texts were repaired.
///
/// # Shape
/// The same rows and columns in the same order. Buffers are shared unless a text had to be repaired.
///
/// # Errors
/// `Data` when a column is missing or of another type than planned, and, under [`InvalidUtf8::Fail`], when a text isn't
/// UTF-8. `first_row` is the number of the batch's first row within the run, for the error's text.
pub fn conform(
    batch: &RecordBatch,
    schema: &SchemaRef,
    policy: InvalidUtf8,
    first_row: u64,
) -> Result<(RecordBatch, u64)> {
    if batch.num_columns() != schema.fields().len() {
        return Err(Error::data(format!(
            "the stream has {} columns where {} were planned; did the table change during the run?",
            batch.num_columns(),
            schema.fields().len()
        )));
    }
    let mut repaired = 0;
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (array, field) in batch.columns().iter().zip(schema.fields()) {
        let mut column = Column { name: field.name(), policy, first_row, rows_are_items: false, repaired: 0 };
        columns.push(column.conform(array, field)?);
        repaired += column.repaired;
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|error| Error::data(format!("a batch doesn't have the planned types: {error}")).with_source(error))?;
    Ok((batch, repaired))
}

/// What copies of the texts of `batch` take that [`InvalidUtf8::Replace`] makes: of every column of text, within lists too,
/// that has one that isn't UTF-8. Unit: bytes.
pub(crate) fn repaired_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|column| repaired_bytes_of(column.as_ref())).sum()
}

fn repaired_bytes_of(array: &dyn Array) -> u64 {
    match array.data_type() {
        DataType::Binary => {
            let binary = array.as_binary::<i32>();
            if binary.iter().flatten().all(|value| std::str::from_utf8(value).is_ok()) {
                return 0;
            }
            let offsets = (binary.len() + 1) * size_of::<i32>();
            (binary.iter().flatten().map(repaired_len).sum::<usize>() + offsets) as u64
        }
        DataType::List(_) => repaired_bytes_of(array.as_list::<i32>().values().as_ref()),
        DataType::Map(_, _) => repaired_bytes_of(array.as_map().entries()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|child| repaired_bytes_of(child.as_ref())).sum(),
        _ => 0,
    }
}

/// The length of `bytes` as text with repairs. Unit: bytes.
fn repaired_len(bytes: &[u8]) -> usize {
    let repair = |chunk: std::str::Utf8Chunk<'_>| if chunk.invalid().is_empty() { 0 } else { 3 };
    bytes.utf8_chunks().map(|chunk| chunk.valid().len() + repair(chunk)).sum()
}

struct Column<'a> {
    name: &'a str,
    policy: InvalidUtf8,
    first_row: u64,
    rows_are_items: bool,
    repaired: u64,
}

impl Column<'_> {
    fn conform(&mut self, array: &ArrayRef, field: &FieldRef) -> Result<ArrayRef> {
        match (array.data_type(), field.data_type()) {
            (from, to) if from == to => Ok(Arc::clone(array)),
            (DataType::Binary, DataType::Utf8) => self.text(array),
            (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) if from == to => {
                self.relabel(array, field.data_type())
            }
            (DataType::List(_), DataType::List(item)) => self.list(array.as_list::<i32>(), item),
            (DataType::Struct(_), DataType::Struct(fields)) => {
                let array = array.as_struct();
                if array.num_columns() != fields.len() {
                    return Err(self.mismatch(array, field.data_type()));
                }
                let children = array
                    .columns()
                    .iter()
                    .zip(fields)
                    .map(|(child, field)| self.conform(child, field))
                    .collect::<Result<_>>()?;
                self.built(StructArray::try_new(fields.clone(), children, array.nulls().cloned()))
            }
            (DataType::Map(_, _), DataType::Map(entries, sorted)) => self.map(array.as_map(), entries, *sorted),
            _ => Err(self.mismatch(array, field.data_type())),
        }
    }

    fn list(&mut self, array: &ListArray, item: &FieldRef) -> Result<ArrayRef> {
        let (offsets, range) = rebased(array.offsets());
        let values = self.nested(|column| column.conform(&array.values().slice(range.start, range.len()), item))?;
        self.built(ListArray::try_new(Arc::clone(item), offsets, values, array.nulls().cloned()))
    }

    fn map(&mut self, array: &MapArray, entries: &FieldRef, sorted: bool) -> Result<ArrayRef> {
        let (offsets, range) = rebased(array.offsets());
        let inner: ArrayRef = Arc::new(array.entries().slice(range.start, range.len()));
        let inner = self.nested(|column| column.conform(&inner, entries))?.as_struct().clone();
        self.built(MapArray::try_new(Arc::clone(entries), offsets, inner, array.nulls().cloned(), sorted))
    }

    /// Within a list, an item's number says nothing about its row.
    fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.rows_are_items, true);
        let result = work(self);
        self.rows_are_items = outer;
        result
    }

    /// Bytes become text without a copy, unless one has to be repaired.
    fn text(&mut self, array: &ArrayRef) -> Result<ArrayRef> {
        let binary = array.as_binary::<i32>();
        let (offsets, range) = rebased(binary.offsets());
        let bytes = binary.values().slice_with_length(range.start, range.len());
        if let Ok(text) = GenericStringArray::<i32>::try_new(offsets, bytes, binary.nulls().cloned()) {
            return Ok(Arc::new(text));
        }
        // All that it will hold, so that it never grows by being copied.
        let num_bytes = binary.iter().flatten().map(repaired_len).sum();
        let mut builder = StringBuilder::with_capacity(binary.len(), num_bytes);
        for (row, value) in binary.iter().enumerate() {
            let text = value.map(String::from_utf8_lossy);
            if matches!(text, Some(std::borrow::Cow::Owned(_))) {
                if self.policy == InvalidUtf8::Fail {
                    return Err(Error::data(format!(
                        "column `{}` holds a text that isn't UTF-8 near row {} of the run; select base64Encode({0}) or hex({0}), or set invalid_utf8 to replace",
                        self.name,
                        self.first_row + if self.rows_are_items { 0 } else { row as u64 } + 1
                    )));
                }
                self.repaired += 1;
            }
            builder.append_option(text);
        }
        Ok(Arc::new(builder.finish()))
    }

    /// Instants are the same numbers in every zone.
    fn relabel(&self, array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
        let relabelled = array.to_data().into_builder().data_type(to.clone()).build();
        relabelled.map(make_array).map_err(|error| self.mismatch(array, to).with_source(error))
    }

    fn built<A: Array + 'static>(&self, array: Result<A, arrow_schema::ArrowError>) -> Result<ArrayRef> {
        match array {
            Ok(array) => Ok(Arc::new(array)),
            Err(error) => {
                Err(Error::data(format!("column `{}` doesn't fit its planned type: {error}", self.name))
                    .with_source(error))
            }
        }
    }

    fn mismatch(&self, array: &dyn Array, to: &DataType) -> Error {
        Error::data(format!(
            "column `{}` came as {} where {to} was planned; did the table change during the run?",
            self.name,
            array.data_type()
        ))
    }
}

/// The offsets of a slice, counted from its own first item, and the range of items that it covers: a slice of a message
/// must not carry, or look at, the items of the whole message.
fn rebased(offsets: &OffsetBuffer<i32>) -> (OffsetBuffer<i32>, std::ops::Range<usize>) {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let rebased = OffsetBuffer::new(offsets.iter().map(|offset| offset - first).collect());
    // Offsets of a valid array are never negative.
    (rebased, usize::try_from(first).unwrap_or(0)..usize::try_from(last).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use arrow_array::{BinaryArray, StringArray, TimestampMillisecondArray};
    use arrow_schema::{Field, Schema, TimeUnit};

    use super::*;

    fn schema(data_type: DataType) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("value", data_type, true)]))
    }

    fn batch(array: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("value", array)]).expect("a batch")
    }

    #[test]
    fn good_text_shares_its_bytes() {
        let input = batch(Arc::new(BinaryArray::from_opt_vec(vec![Some("grüße".as_bytes()), None])));
        let (output, repaired) = conform(&input, &schema(DataType::Utf8), InvalidUtf8::Fail, 0).expect("conforms");
        assert_eq!(output.column(0).as_string::<i32>(), &StringArray::from(vec![Some("grüße"), None]));
        assert_eq!(repaired, 0);
        assert_eq!(
            output.column(0).as_string::<i32>().value_data().as_ptr(),
            input.column(0).as_binary::<i32>().value_data().as_ptr()
        );
    }

    #[test]
    fn bad_text_is_repaired_and_counted_or_refused_by_name_and_row() {
        let input = batch(Arc::new(BinaryArray::from_vec(vec![b"fine", b"\xff\x80", b"fine"])));
        let (output, repaired) = conform(&input, &schema(DataType::Utf8), InvalidUtf8::Replace, 0).expect("repairs");
        assert_eq!(output.column(0).as_string::<i32>().value(1), "\u{fffd}\u{fffd}");
        assert_eq!(repaired, 1);
        let error = conform(&input, &schema(DataType::Utf8), InvalidUtf8::Fail, 100).expect_err("refuses");
        assert!(error.message().contains("`value`") && error.message().contains("row 102"), "{error}");
    }

    #[test]
    fn nested_text_is_checked_too() {
        let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::BinaryBuilder::new());
        builder.values().append_value(b"a\xff");
        builder.append(true);
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        let target = schema(DataType::List(Arc::clone(&item)));
        let (output, repaired) =
            conform(&batch(Arc::new(builder.finish())), &target, InvalidUtf8::Replace, 0).expect("repairs");
        assert_eq!(repaired, 1);
        assert_eq!(output.column(0).as_list::<i32>().value(0).as_string::<i32>().value(0), "a\u{fffd}");
    }

    #[test]
    fn a_slice_of_lists_is_checked_alone() {
        let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::BinaryBuilder::new());
        for value in [b"bad\xff".as_slice(), b"one", b"two"] {
            builder.values().append_value(value);
            builder.append(true);
        }
        let target = schema(DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))));
        let slice = batch(Arc::new(builder.finish())).slice(1, 2);
        let (output, repaired) = conform(&slice, &target, InvalidUtf8::Fail, 1).expect("the bad one is elsewhere");
        assert_eq!(repaired, 0);
        let list = output.column(0).as_list::<i32>();
        assert_eq!(list.values().len(), 2);
        assert_eq!(list.value(1).as_string::<i32>().value(0), "two");
    }

    #[test]
    fn instants_get_the_planned_zone_and_nothing_else_changes() {
        let input = batch(Arc::new(TimestampMillisecondArray::from(vec![1_500])));
        let target = schema(DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())));
        let (output, _) = conform(&input, &target, InvalidUtf8::Fail, 0).expect("conforms");
        assert_eq!(output.column(0).as_primitive::<arrow_array::types::TimestampMillisecondType>().value(0), 1_500);
        let target = schema(DataType::Int32);
        assert!(
            conform(&input, &target, InvalidUtf8::Fail, 0).expect_err("another type").message().contains("`value`")
        );
    }
}
