//! How a column's values lie in a row group: chosen from the values themselves, by a sample.
//!
//! Building a dictionary of values that hardly repeat costs time and bytes, and so does comparing long texts to find the
//! least and the greatest one. The choice depends on nothing but the block's rows, so that the same rows make the same
//! bytes.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};
use arrow_select::interleave::interleave;

/// The sample is this many runs of this many rows: runs, since equal values often follow each other.
const RUNS: usize = 32;
const ROWS_PER_RUN: usize = 32;

/// A dictionary has to fit into one page, or the library falls back to plain values after having filled it.
const DICTIONARY_BYTES: usize = parquet::file::properties::DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT;

/// Texts that are longer on average get no statistics. Statistics keep 64 bytes of a text.
const LONG_TEXT_BYTES: usize = 64;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Values repeat: a dictionary and numbers into it. Also for what isn't sampled: nested values.
    Dictionary,
    /// Values hardly repeat: one after the other.
    Plain,
    /// As `Plain`, of long texts: without the least and the greatest value, by which nobody prunes.
    LongText,
}

impl Layout {
    /// The layout for the rows of all pieces together.
    pub(super) fn of(pieces: &[ArrayRef]) -> Result<Self, ArrowError> {
        let Some(first) = pieces.first() else { return Ok(Self::Dictionary) };
        if !is_sampled(first.data_type()) {
            return Ok(Self::Dictionary);
        }
        let num_rows = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let sample = sample(pieces, num_rows)?;
        let num_values = sample.len() - sample.null_count();
        if num_values == 0 {
            return Ok(Self::Dictionary);
        }
        let value_bytes = value_bytes(&sample) / num_values;
        let dictionary =
            cast(&sample, &DataType::Dictionary(DataType::Int32.into(), first.data_type().clone().into()))?;
        let num_distinct = dictionary.as_any_dictionary().values().len();
        let expected =
            if sample.len() == num_rows { Some(num_distinct) } else { expected_distinct(num_values, num_distinct) };
        Ok(match expected {
            Some(distinct) if distinct <= num_rows / 2 && distinct * value_bytes <= DICTIONARY_BYTES => {
                Self::Dictionary
            }
            _ if value_bytes > LONG_TEXT_BYTES => Self::LongText,
            _ => Self::Plain,
        })
    }
}

/// How many different values there are, if `num_values` random ones show `num_distinct`; `None` when none was seen twice.
///
/// Among n of D equally likely values, about n² / 2D pairs are equal.
fn expected_distinct(num_values: usize, num_distinct: usize) -> Option<usize> {
    (num_values * num_values).checked_div(2 * (num_values - num_distinct)).map(|expected| expected.max(num_distinct))
}

fn is_sampled(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::Binary) || data_type.is_primitive()
}

/// Runs of rows, evenly spread.
fn sample(pieces: &[ArrayRef], num_rows: usize) -> Result<ArrayRef, ArrowError> {
    let rows = if num_rows <= RUNS * ROWS_PER_RUN {
        (0..num_rows).collect::<Vec<_>>()
    } else {
        let first_row = |run: usize| run * (num_rows - ROWS_PER_RUN) / (RUNS - 1);
        (0..RUNS).flat_map(|run| first_row(run)..first_row(run) + ROWS_PER_RUN).collect()
    };
    let (mut piece, mut first_row) = (0, 0);
    let mut places = Vec::with_capacity(rows.len());
    for row in rows {
        while row - first_row >= pieces[piece].len() {
            first_row += pieces[piece].len();
            piece += 1;
        }
        places.push((piece, row - first_row));
    }
    let arrays = pieces.iter().map(AsRef::as_ref).collect::<Vec<_>>();
    interleave(&arrays, &places)
}

/// The bytes of all values in a Parquet page.
fn value_bytes(sample: &ArrayRef) -> usize {
    const LENGTH_PREFIX: usize = 4;
    match sample.data_type() {
        DataType::Utf8 => sample.as_string::<i32>().value_data().len() + sample.len() * LENGTH_PREFIX,
        DataType::Binary => sample.as_binary::<i32>().value_data().len() + sample.len() * LENGTH_PREFIX,
        other => sample.len() * other.primitive_width().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray, new_null_array};
    use arrow_schema::{Field, TimeUnit};

    use super::*;

    const ROWS: u64 = 100_000;

    /// Numbers that look random, and are the same every time.
    fn scattered(row: u64) -> u64 {
        row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
    }

    fn texts(text: impl Fn(u64) -> String) -> Layout {
        layout(Arc::new(StringArray::from_iter_values((0..ROWS).map(text))))
    }

    /// The layout, which must not depend on how the rows are cut into pieces.
    fn layout(rows: ArrayRef) -> Layout {
        let whole = Layout::of(&[Arc::clone(&rows)]).expect("a layout");
        let cut = Layout::of(&[rows.slice(0, 1), rows.slice(1, 40_000), rows.slice(40_001, rows.len() - 40_001)]);
        assert_eq!(cut.expect("a layout"), whole);
        whole
    }

    #[test]
    fn values_that_repeat_get_a_dictionary() {
        assert_eq!(texts(|row| format!("event {}", scattered(row) % 20)), Layout::Dictionary);
        // Most of a sample is distinct, and yet the dictionary fits.
        assert_eq!(texts(|row| format!("person {}", scattered(row) % 5_000)), Layout::Dictionary);
        // Sorted: equal values are seen only side by side.
        assert_eq!(texts(|row| format!("person {}", row / 10)), Layout::Dictionary);
        assert_eq!(texts(|row| "long ".repeat(100) + &(row % 7).to_string()), Layout::Dictionary);
    }

    #[test]
    fn values_that_hardly_repeat_are_plain() {
        assert_eq!(texts(|row| format!("{row:036}")), Layout::Plain);
        assert_eq!(
            layout(Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| scattered(row) as i64)))),
            Layout::Plain
        );
        // Each value comes three times on average, but the dictionary wouldn't fit into its page.
        assert_eq!(texts(|row| format!("{:060}", scattered(row) % 33_000)), Layout::Plain);
    }

    #[test]
    fn long_texts_have_no_statistics() {
        assert_eq!(texts(|row| format!("{{\"number\": {row:060}}}")), Layout::LongText);
    }

    #[test]
    fn a_small_block_is_counted_whole() {
        let rows = StringArray::from_iter_values((0..600_u64).map(|row| (row % 300).to_string()));
        assert_eq!(Layout::of(&[Arc::new(rows)]).expect("a layout"), Layout::Dictionary);
        let rows = StringArray::from_iter_values((0..600_u64).map(|row| (row % 301).to_string()));
        assert_eq!(Layout::of(&[Arc::new(rows)]).expect("a layout"), Layout::Plain);
    }

    #[test]
    fn every_type_that_is_sampled_can_be_counted() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..100_000).map(|row| row % 100)));
        for data_type in [
            DataType::Int8,
            DataType::UInt16,
            DataType::UInt64,
            DataType::Float32,
            DataType::Float64,
            DataType::Date32,
            DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            DataType::Decimal128(38, 4),
            DataType::Decimal256(76, 10),
            DataType::Utf8,
            DataType::Binary,
        ] {
            let text = matches!(data_type, DataType::Binary).then(|| cast(&numbers, &DataType::Utf8).expect("text"));
            let whole = matches!(data_type, DataType::Date32).then(|| cast(&numbers, &DataType::Int32).expect("days"));
            let from = text.or(whole).unwrap_or_else(|| Arc::clone(&numbers));
            let values = cast(&from, &data_type).unwrap_or_else(|error| panic!("{data_type}: {error}"));
            assert!(is_sampled(&data_type), "{data_type}");
            assert_eq!(layout(values), Layout::Dictionary, "{data_type}");
        }
    }

    #[test]
    fn nulls_and_nested_values_have_the_library_s_layout() {
        assert_eq!(layout(new_null_array(&DataType::Utf8, 100_000)), Layout::Dictionary);
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
        assert_eq!(layout(new_null_array(&list, 100_000)), Layout::Dictionary);
    }
}
