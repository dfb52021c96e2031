//! How many bytes each row takes when it is written, whatever batch it came in.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, FixedSizeBinaryArray, GenericByteArray, RecordBatch};
use arrow_schema::DataType;

/// What decides how large rows get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RowMeasure {
    /// Whether values are written as JSON, where text is escaped and numbers are spelled out.
    pub(crate) as_json: bool,
    /// What every row takes besides its values. Unit: bytes.
    pub(crate) per_row: u64,
}

/// What a list takes besides its items, as values: its own offset. Unit: bytes.
const OFFSET_BYTES: u64 = 4;

/// How many items of lists are looked at together.
const ITEMS_AT_ONCE: usize = 8 * 1024;

/// What stands around and within a JSON value at most, besides text: brackets or quotes. Unit: bytes; `null` is as long.
const BRACKETS: u64 = 4;

/// What stands between a JSON object's key and value, and after the value, with the key's quotes. Unit: bytes.
const KEY_MARKS: u64 = 4;

impl RowMeasure {
    /// An upper bound of what every row of `batch` takes; exact for text.
    ///
    /// # Units
    /// Bytes. A row's size depends on the row alone.
    pub(crate) fn sizes(self, batch: &RecordBatch) -> Vec<u64> {
        let mut sizes = vec![self.per_row; batch.num_rows()];
        for column in batch.columns() {
            self.add(column.as_ref(), &mut sizes);
        }
        sizes
    }

    fn add(self, array: &dyn Array, sizes: &mut [u64]) {
        match array.data_type() {
            DataType::Binary => self.add_text(array.as_binary::<i32>(), sizes),
            DataType::Utf8 => self.add_text(array.as_string::<i32>(), sizes),
            DataType::FixedSizeBinary(_) if self.as_json => add_fixed_text(array.as_fixed_size_binary(), sizes),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                self.add_items(list.value_offsets(), list.values().as_ref(), sizes);
            }
            DataType::Map(_, _) => {
                let map = array.as_map();
                self.add_items(map.value_offsets(), map.entries(), sizes);
            }
            DataType::Struct(fields) => {
                if self.as_json {
                    let marks = fields.iter().map(|field| field.name().len() as u64 + KEY_MARKS).sum::<u64>();
                    add_to_all(marks + BRACKETS, sizes);
                }
                for child in array.as_struct().columns() {
                    self.add(child.as_ref(), sizes);
                }
            }
            fixed => add_to_all(self.fixed(fixed), sizes),
        }
    }

    /// A value of a type whose values all have one width.
    fn fixed(self, data_type: &DataType) -> u64 {
        let width = match data_type {
            DataType::FixedSizeBinary(width) => u64::try_from(*width).unwrap_or(0),
            fixed => fixed.primitive_width().unwrap_or(1) as u64,
        };
        match (self.as_json, width) {
            (false, width) => width,
            // The longest there are: `false`, -32768, 2026-01-01 or a small float, an instant with nine digits.
            (true, 0..=2) => 6,
            (true, 3..=4) => 16,
            (true, 5..=8) => 32,
            // Decimals of 38 and 76 digits.
            (true, 9..=16) => 44,
            (true, _) => 84,
        }
    }

    fn add_text<T: ByteArrayType<Offset = i32>>(self, array: &GenericByteArray<T>, sizes: &mut [u64]) {
        let marks = if self.as_json { BRACKETS } else { 0 };
        for (size, pair) in sizes.iter_mut().zip(array.value_offsets().windows(2)) {
            let value = &array.value_data()[range(pair[0], pair[1])];
            *size += value.len() as u64 + marks;
            if self.as_json {
                *size += total(value, escape_growth);
            }
        }
    }

    /// A list's row has what its items have, and what makes them a list. Items are looked at some at a time: their sizes
    /// may take more than they do.
    fn add_items(self, offsets: &[i32], items: &dyn Array, sizes: &mut [u64]) {
        add_to_all(OFFSET_BYTES, sizes);
        let used = range(offsets[0], offsets[offsets.len() - 1]);
        let mut row = 0;
        for first in used.clone().step_by(ITEMS_AT_ONCE) {
            let items = items.slice(first, ITEMS_AT_ONCE.min(used.end - first));
            let mut of_items = vec![u64::from(self.as_json); items.len()];
            self.add(items.as_ref(), &mut of_items);
            for (item, size) in (first..).zip(of_items) {
                // The row whose list ends after this item; empty lists are passed.
                while range(0, offsets[row + 1]).end <= item {
                    row += 1;
                }
                sizes[row] += size;
            }
        }
    }
}

/// The column that holds most of a batch, and the bytes of its values.
pub(crate) fn largest_column(batch: &RecordBatch) -> (String, u64) {
    let schema = batch.schema();
    let sized = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let mut sizes = vec![0; batch.num_rows()];
        RowMeasure::default().add(column.as_ref(), &mut sizes);
        (field.name().clone(), sizes.iter().sum::<u64>())
    });
    sized.max_by_key(|(_, num_bytes)| *num_bytes).unwrap_or_default()
}

/// Fixed bytes as JSON text; whatever isn't UTF-8 is shown by U+FFFD.
fn add_fixed_text(array: &FixedSizeBinaryArray, sizes: &mut [u64]) {
    for (size, row) in sizes.iter_mut().zip(0..array.len()) {
        let value = array.value(row);
        *size += value.len() as u64 + BRACKETS + total(value, escape_growth) + total(value, repair_growth);
    }
}

/// How much longer than the byte its escape in a JSON string is.
const fn escape_growth(byte: u8) -> u8 {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    }
}

/// How much longer than the byte what may take its place is: U+FFFD.
const fn repair_growth(byte: u8) -> u8 {
    if byte >= 0x80 { 2 } else { 0 }
}

/// The sum over all bytes, in steps that a vector unit takes at once, and whose own sum a byte holds.
fn total(bytes: &[u8], growth: impl Fn(u8) -> u8) -> u64 {
    bytes.chunks(32).map(|chunk| u64::from(chunk.iter().map(|byte| growth(*byte)).sum::<u8>())).sum()
}

fn add_to_all(bytes: u64, sizes: &mut [u64]) {
    sizes.iter_mut().for_each(|size| *size += bytes);
}

/// Offsets ascend from 0 in every array that `arrow` has validated.
fn range(start: i32, end: i32) -> Range<usize> {
    usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{ListBuilder, StringBuilder};
    use arrow_array::{ArrayRef, Int32Array, StringArray};

    use super::*;

    const VALUES: RowMeasure = RowMeasure { as_json: false, per_row: 0 };

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
        assert_eq!(VALUES.sizes(&batch), [4 + 4 + 3, 4 + 3 + 4, 4 + 1 + 4 + 8]);
        for measure in [VALUES, RowMeasure { as_json: true, per_row: 7 }] {
            let whole = measure.sizes(&batch);
            for (row, size) in whole.iter().enumerate() {
                assert_eq!(measure.sizes(&batch.slice(row, 1)), [*size]);
            }
        }
    }
}
