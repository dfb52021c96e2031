//! Rows as JSON, and back again.
//!
//! A value that comes back as it went in is not read again: the row keeps the bytes that the source sent. So values that JSON
//! or JavaScript can't hold, such as NaN or 38 digits, survive a transform that leaves them alone.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow_cast::cast;
use arrow_json::ReaderBuilder;
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use serde_json::Value;

use super::cell::{is_same, prepare, read_type};
use super::{OnError, TransformedRow};
use crate::encode::json::JsonRows;
use crate::error::{Error, Result};
use crate::pipeline::row_size::RowMeasure;

/// How much JSON a transform gets at once, but for a row that is larger. Unit: bytes.
const SLICE_BYTES: u64 = 256 * 1024;

/// What one value takes beside its text while it is JSON, before and after. Unit: bytes.
const VALUE_BYTES: u64 = 128;

/// Rows of one schema as JSON, and back.
#[derive(Debug)]
pub(crate) struct RowCodec {
    schema: SchemaRef,
    json: JsonRows,
    /// For each column, whether its text is shown as the JSON that it holds.
    holds_json: Vec<bool>,
}

/// Consecutive rows of a batch that are transformed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) rows: Range<usize>,
    /// What they take as JSON, as text and as values. Unit: bytes.
    pub(crate) num_bytes: u64,
}

/// What came of rows.
#[derive(Debug)]
pub(crate) struct Transformed {
    /// Those that go on.
    pub(crate) rows: RecordBatch,
    /// How many were left out, those among them that failed too.
    pub(crate) left_out: u64,
    /// How many failed, left out or not.
    pub(crate) failed: u64,
    /// Why the first of them did.
    pub(crate) first_failure: Option<String>,
}

/// A row that goes on: its number in the batch, and the values that aren't what they were, in the order of their columns.
#[derive(Debug)]
struct Kept {
    row: usize,
    changes: Vec<(usize, Value)>,
}

impl RowCodec {
    pub(crate) fn new(schema: &SchemaRef, json_columns: &[String]) -> Self {
        let holds_json = schema.fields().iter().map(|field| json_columns.contains(field.name())).collect();
        Self { schema: Arc::clone(schema), json: JsonRows::new(schema, json_columns), holds_json }
    }

    /// Cuts a batch into rows that are transformed together.
    pub(crate) fn slices(&self, batch: &RecordBatch) -> Vec<Slice> {
        let measure = RowMeasure { as_json: true, per_row: self.json.row_marks() };
        let mut slices: Vec<Slice> = Vec::new();
        for (row, num_bytes) in measure.sizes(batch).into_iter().enumerate() {
            match slices.last_mut() {
                Some(slice) if slice.num_bytes + num_bytes <= SLICE_BYTES => {
                    slice.rows.end = row + 1;
                    slice.num_bytes += num_bytes;
                }
                _ => slices.push(Slice { rows: row..row + 1, num_bytes }),
            }
        }
        for slice in &mut slices {
            let rows = batch.slice(slice.rows.start, slice.rows.len());
            let columns = rows.columns().iter().zip(&self.holds_json);
            let num_values = columns.map(|(column, holds_json)| num_values(column.as_ref(), *holds_json)).sum::<u64>();
            slice.num_bytes = slice.num_bytes * 4 + num_values * VALUE_BYTES;
        }
        slices
    }

    /// Rows as objects, in their order; or why one can't be shown as a value, in a sentence.
    ///
    /// # Errors
    /// Those of writing JSON; `Internal` when there is not one line for each row.
    pub(crate) fn show(&self, rows: &RecordBatch) -> Result<Vec<Result<Value, String>>> {
        let mut text = Vec::new();
        self.json.write(rows, &mut text)?;
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        // Text that holds JSON may nest as deep as a row may alone, or have numbers that are none for anybody else.
        let values = lines
            .map(|line| serde_json::from_slice(line).map_err(|error| format!("can't be shown to a plugin: {error}")));
        let values = values.collect::<Vec<_>>();
        if values.len() == rows.num_rows() {
            Ok(values)
        } else {
            Err(Error::internal(format!("{} rows became {} lines of JSON", rows.num_rows(), values.len())))
        }
    }

    /// What became of rows, in the types that are written, with the failures noted.
    ///
    /// # Errors
    /// `Data` for the first row that failed, with [`OnError::FailRun`]; `Internal` when rows are missing.
    pub(crate) fn take_back(
        &self,
        rows: &RecordBatch,
        outcomes: Vec<Result<TransformedRow, String>>,
        mut failures: Failures,
    ) -> Result<Transformed> {
        let num_given = outcomes.len();
        let mut kept = Vec::with_capacity(num_given);
        for (row, outcome) in outcomes.into_iter().enumerate() {
            let changes = match outcome {
                Ok(TransformedRow { after: Ok(None), .. }) => continue,
                Ok(TransformedRow { before, after: Ok(Some(after)) }) => self.changes(before, after),
                Ok(TransformedRow { after: Err(why), .. }) | Err(why) => Err(why),
            };
            match changes {
                Ok(changes) => kept.push(Kept { row, changes }),
                Err(why) => kept.extend(failures.note(row, why)?),
            }
        }
        if num_given != rows.num_rows() {
            let num_rows = rows.num_rows();
            return Err(Error::internal(format!("a plugin was given {num_rows} rows and answered for {num_given}")));
        }
        let rows_after = self.rebuild(rows, &mut kept, &mut failures)?;
        Ok(Transformed {
            left_out: (num_given - rows_after.num_rows()) as u64,
            rows: rows_after,
            failed: failures.failed,
            first_failure: failures.first,
        })
    }

    /// The values that aren't what they were, ready to be read as their columns' types.
    fn changes(&self, before: Value, after: Value) -> Result<Vec<(usize, Value)>, String> {
        let (Value::Object(mut before), Value::Object(mut after)) = (before, after) else {
            return Err("a row must be an object".to_owned());
        };
        let mut changes = Vec::new();
        for (column, field) in self.schema.fields().iter().enumerate() {
            let mut value = after.remove(field.name()).unwrap_or(Value::Null);
            if before.remove(field.name()).is_some_and(|before| is_same(&before, &value)) {
                continue;
            }
            prepare(&mut value, field, self.holds_json[column])
                .map_err(|why| format!("the column `{}`{} {why}", field.name(), type_of(field)))?;
            changes.push((column, value));
        }
        match after.keys().next() {
            None => Ok(changes),
            Some(name) => Err(format!(
                "`{name}` is no column of the export; add it to the query as one, or leave it out of the row"
            )),
        }
    }

    /// The kept rows as a batch. Rows whose values can't be read are failures, and the rest is tried again.
    fn rebuild(&self, rows: &RecordBatch, kept: &mut Vec<Kept>, failures: &mut Failures) -> Result<RecordBatch> {
        loop {
            match self.columns(rows, kept) {
                Ok(columns) => {
                    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(kept.len()));
                    let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
                    return batch.map_err(|error| {
                        Error::internal(format!("rows don't fit together: {error}")).with_source(error)
                    });
                }
                Err(Unreadable { column, why: error }) => {
                    let unreadable = self.unreadable(column, kept);
                    if unreadable.is_empty() {
                        return Err(Error::internal(format!("changed rows can't be read: {error}")).with_source(error));
                    }
                    *kept = failures.note_all(std::mem::take(kept), unreadable)?;
                }
            }
        }
    }

    /// The kept rows of a column whose values can't be read alone, with the reasons.
    fn unreadable(&self, column: usize, kept: &[Kept]) -> Vec<(usize, String)> {
        let field = self.schema.field(column);
        let read = |value: &Value| decode(field, &[value]).err();
        let changed = kept.iter().enumerate().filter_map(|(index, kept)| Some((index, kept.change(column)?)));
        changed
            .filter_map(|(index, value)| {
                let why = read(value)?;
                Some((index, format!("the column `{}`{} can't be read: {why}", field.name(), type_of(field))))
            })
            .collect()
    }

    fn columns(&self, rows: &RecordBatch, kept: &[Kept]) -> Result<Vec<ArrayRef>, Unreadable> {
        let indices = UInt64Array::from_iter_values(kept.iter().map(|kept| kept.row as u64));
        let columns = rows.columns().iter().enumerate().map(|(column, array)| {
            let changed = kept.iter().filter_map(|kept| kept.change(column)).collect::<Vec<_>>();
            let made = if changed.is_empty() {
                take(array, &indices, None)
            } else {
                decode(self.schema.field(column), &changed).and_then(|decoded| merge(column, array, &decoded, kept))
            };
            made.map_err(|why| Unreadable { column, why })
        });
        columns.collect()
    }
}

/// A column whose changed values can't be read.
struct Unreadable {
    column: usize,
    why: ArrowError,
}

impl Kept {
    fn change(&self, column: usize) -> Option<&Value> {
        let found = self.changes.binary_search_by_key(&column, |(changed, _)| *changed);
        found.ok().map(|index| &self.changes[index].1)
    }
}

/// The failures of rows, and what becomes of those.
#[derive(Debug)]
pub(crate) struct Failures {
    on_error: OnError,
    first_row: u64,
    failed: u64,
    first: Option<String>,
}

impl Failures {
    /// None yet, of rows of which the first has this number within the run.
    pub(crate) const fn new(on_error: OnError, first_row: u64) -> Self {
        Self { on_error, first_row, failed: 0, first: None }
    }

    /// Counts a failure; returns the row if it goes on as it was.
    fn note(&mut self, row: usize, why: String) -> Result<Option<Kept>> {
        let why = format!("row {}: {why}", self.first_row + row as u64 + 1);
        if self.on_error == OnError::FailRun {
            return Err(Error::data(why));
        }
        self.failed += 1;
        self.first.get_or_insert(why);
        Ok((self.on_error == OnError::PassRow).then(|| Kept { row, changes: Vec::new() }))
    }

    /// Counts failures of kept rows, named by their places among those; returns the rows that go on.
    fn note_all(&mut self, kept: Vec<Kept>, failed: Vec<(usize, String)>) -> Result<Vec<Kept>> {
        let mut failed = failed.into_iter().peekable();
        let mut passed = Vec::with_capacity(kept.len());
        for (index, row) in kept.into_iter().enumerate() {
            match failed.next_if(|(place, _)| *place == index) {
                Some((_, why)) => passed.extend(self.note(row.row, why)?),
                None => passed.push(row),
            }
        }
        Ok(passed)
    }
}

/// Values as a column.
fn decode(field: &Field, values: &[&Value]) -> Result<ArrayRef, ArrowError> {
    let read = field.clone().with_data_type(read_type(field.data_type()));
    let mut decoder = ReaderBuilder::new_with_field(read).with_batch_size(values.len()).build_decoder()?;
    decoder.serialize(values)?;
    let batch = decoder.flush()?.ok_or_else(|| ArrowError::JsonError("there are no values".to_owned()))?;
    cast(batch.column(0), field.data_type())
}

/// The kept rows of a column, some from where they were and some from `decoded`, in its order.
fn merge(column: usize, array: &ArrayRef, decoded: &ArrayRef, kept: &[Kept]) -> Result<ArrayRef, ArrowError> {
    let mut next_decoded = 0..decoded.len();
    let places = kept.iter().map(|kept| match kept.change(column).and_then(|_| next_decoded.next()) {
        Some(decoded) => (1, decoded),
        None => (0, kept.row),
    });
    interleave(&[array.as_ref(), decoded.as_ref()], &places.collect::<Vec<_>>())
}

/// ClickHouse's name of a column's type, for people.
fn type_of(field: &Field) -> String {
    let name = field.metadata().get(crate::source::type_plan::TYPE_METADATA_KEY);
    name.map_or_else(String::new, |name| format!(" ({name})"))
}

/// How many JSON values an array's rows are at most, those within others too.
fn num_values(array: &dyn Array, holds_json: bool) -> u64 {
    let own = array.len() as u64;
    own + match array.data_type() {
        DataType::Utf8 if holds_json => num_values_in_text(array.as_string()),
        DataType::List(_) => within(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values().as_ref()),
        DataType::Map(..) => within(array.as_map().value_offsets(), array.as_map().values().as_ref()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|child| num_values(child.as_ref(), false)).sum(),
        _ => 0,
    }
}

fn within(offsets: &[i32], items: &dyn Array) -> u64 {
    // Offsets ascend from 0 in every array that was validated.
    let [start, end] = [offsets[0], offsets[offsets.len() - 1]].map(|offset| usize::try_from(offset).unwrap_or(0));
    num_values(items.slice(start, end - start).as_ref(), false)
}

/// Each value within JSON, and each key, follows one of these marks.
fn num_values_in_text(texts: &StringArray) -> u64 {
    let is_mark = |byte: &&u8| matches!(byte, b',' | b':' | b'[' | b'{');
    texts.iter().flatten().map(|text| text.as_bytes().iter().filter(is_mark).count() as u64).sum()
}
