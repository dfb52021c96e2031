//! How many bytes of values each row has, whatever batch it came in.

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;

/// The bytes of values of every row of `batch`.
///
/// # Units
/// Bytes: for text and lists by their offsets, for the rest by their type's width. It depends on the row alone.
pub(crate) fn row_sizes(batch: &RecordBatch) -> Vec<u64> {
    let mut sizes = vec![0; batch.num_rows()];
    for column in batch.columns() {
        add_sizes(column.as_ref(), &mut sizes);
    }
    sizes
}

/// The column that holds most of a batch, and its bytes.
pub(crate) fn largest_column(batch: &RecordBatch) -> (String, u64) {
    let schema = batch.schema();
    let sized = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let mut sizes = vec![0; batch.num_rows()];
        add_sizes(column.as_ref(), &mut sizes);
        (field.name().clone(), sizes.iter().sum::<u64>())
    });
    sized.max_by_key(|(_, num_bytes)| *num_bytes).unwrap_or_default()
}

fn add_sizes(array: &dyn Array, sizes: &mut [u64]) {
    match array.data_type() {
        DataType::Binary => add_offsets(array.as_binary::<i32>().value_offsets(), sizes),
        DataType::Utf8 => add_offsets(array.as_string::<i32>().value_offsets(), sizes),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            add_nested(list.value_offsets(), list.values().as_ref(), sizes);
        }
        DataType::Map(_, _) => {
            let map = array.as_map();
            add_nested(map.value_offsets(), map.entries(), sizes);
        }
        DataType::Struct(_) => {
            for child in array.as_struct().columns() {
                add_sizes(child.as_ref(), sizes);
            }
        }
        fixed => {
            let width = match fixed {
                DataType::FixedSizeBinary(width) => u64::try_from(*width).unwrap_or(0),
                fixed => fixed.primitive_width().unwrap_or(1) as u64,
            };
            sizes.iter_mut().for_each(|size| *size += width);
        }
    }
}

fn add_offsets(offsets: &[i32], sizes: &mut [u64]) {
    for (size, pair) in sizes.iter_mut().zip(offsets.windows(2)) {
        *size += length(pair[0], pair[1]);
    }
}

/// A list's row has what its items have, and four bytes for its own offset.
fn add_nested(offsets: &[i32], items: &dyn Array, sizes: &mut [u64]) {
    let mut item_sizes = vec![0; items.len()];
    add_sizes(items, &mut item_sizes);
    for (size, pair) in sizes.iter_mut().zip(offsets.windows(2)) {
        let range = usize::try_from(pair[0]).unwrap_or(0)..usize::try_from(pair[1]).unwrap_or(0);
        *size += 4 + item_sizes.get(range).map_or(0, |items| items.iter().sum());
    }
}

/// Offsets ascend in every array that `arrow` has validated.
fn length(start: i32, end: i32) -> u64 {
    u64::try_from(i64::from(end) - i64::from(start)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{ListBuilder, StringBuilder};
    use arrow_array::{ArrayRef, Int32Array, StringArray};

    use super::*;

    fn batch() -> RecordBatch {
        let mut lists = ListBuilder::new(StringBuilder::new());
        lists.append_value([Some("ab"), Some("c")]);
        lists.append_value(Vec::<Option<&str>>::new());
        lists.append_value([Some("abcdefgh")]);
        let columns: [(&str, ArrayRef); 3] = [
            ("number", Arc::new(Int32Array::from(vec![1, 2, 3]))),
            ("text", Arc::new(StringArray::from(vec!["", "xyz", "x"]))),
            ("list", Arc::new(lists.finish())),
        ];
        RecordBatch::try_from_iter(columns).expect("a batch")
    }

    #[test]
    fn a_rows_size_is_the_same_in_every_slice() {
        let batch = batch();
        let whole = row_sizes(&batch);
        assert_eq!(whole, [4 + 4 + 3, 4 + 3 + 4, 4 + 1 + 4 + 8]);
        for (row, size) in whole.iter().enumerate() {
            assert_eq!(row_sizes(&batch.slice(row, 1)), [*size]);
        }
    }
}
