//! Rows as JSON: one object per line, every column in its order, nulls spelled out.
//!
//! Owns what our users rely on beyond the library: instants in RFC 3339 with `Z`, text columns that hold JSON shown as
//! values, bytes as text. Integers are numbers of full width, NaN and the infinities are null.

use std::io::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType};
use arrow_array::{Array, FixedSizeBinaryArray, RecordBatch, StringArray};
use arrow_json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder};
use arrow_schema::{ArrowError, DataType, FieldRef, SchemaRef, TimeUnit};
use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

use super::json_text;
use crate::error::{Error, Result};

/// Turns record batches into lines.
#[derive(Debug)]
pub(crate) struct JsonRows {
    factory: Arc<Encoders>,
    row_marks: u64,
}

impl JsonRows {
    pub(crate) fn new(schema: &SchemaRef, json_columns: &[String]) -> Self {
        // Each name has quotes, a colon and a comma; around them are braces, and a newline.
        let row_marks = schema.fields().iter().map(|field| field.name().len() as u64 + 4).sum::<u64>() + 3;
        let json = schema.fields().iter().filter(|field| json_columns.contains(field.name()));
        Self { factory: Arc::new(Encoders { json_columns: json.map(Arc::clone).collect() }), row_marks }
    }

    /// What a row has besides its values: names and marks. Unit: bytes.
    pub(crate) const fn row_marks(&self) -> u64 {
        self.row_marks
    }

    pub(crate) fn write(&self, rows: &RecordBatch, target: &mut impl Write) -> Result<()> {
        let factory: Arc<dyn EncoderFactory> = Arc::<Encoders>::clone(&self.factory);
        WriterBuilder::new()
            .with_explicit_nulls(true)
            .with_encoder_factory(factory)
            .build::<_, LineDelimited>(target)
            .write(rows)
            .map_err(|error| Error::data(format!("the rows can't be written as JSON: {error}")).with_source(error))
    }
}

/// The encoders that differ from the library's.
#[derive(Debug)]
struct Encoders {
    /// Top-level fields, by identity: a field within a struct may have the same name.
    json_columns: Vec<FieldRef>,
}

impl EncoderFactory for Encoders {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Timestamp(unit, _) => Box::new(InstantEncoder::new(array, *unit)),
            DataType::Utf8 if self.json_columns.iter().any(|json| Arc::ptr_eq(json, field)) => {
                Box::new(JsonTextEncoder(array.as_string::<i32>()))
            }
            DataType::FixedSizeBinary(_) => Box::new(BytesEncoder(array.as_fixed_size_binary())),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// Instants as `2026-01-01T00:00:00.000000Z`, with as many digits as the unit has.
struct InstantEncoder<'a> {
    array: &'a dyn Array,
    unit: TimeUnit,
    printer: DateTimePrinter,
}

impl<'a> InstantEncoder<'a> {
    fn new(array: &'a dyn Array, unit: TimeUnit) -> Self {
        let digits = match unit {
            TimeUnit::Second => 0,
            TimeUnit::Millisecond => 3,
            TimeUnit::Microsecond => 6,
            TimeUnit::Nanosecond => 9,
        };
        Self { array, unit, printer: DateTimePrinter::new().precision(Some(digits)) }
    }

    fn instant(&self, row: usize) -> Option<Timestamp> {
        match self.unit {
            TimeUnit::Second => None,
            TimeUnit::Millisecond => {
                Timestamp::from_millisecond(self.array.as_primitive::<TimestampMillisecondType>().value(row)).ok()
            }
            TimeUnit::Microsecond => {
                Timestamp::from_microsecond(self.array.as_primitive::<TimestampMicrosecondType>().value(row)).ok()
            }
            TimeUnit::Nanosecond => {
                Timestamp::from_nanosecond(i128::from(self.array.as_primitive::<TimestampNanosecondType>().value(row)))
                    .ok()
            }
        }
    }
}

impl Encoder for InstantEncoder<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        // ClickHouse's years, 1900 to 2299, are all within jiff's: null can't happen for data of a server.
        let Some(instant) = self.instant(row) else { return out.extend_from_slice(b"null") };
        out.push(b'"');
        // Memory takes every byte.
        let _written = self.printer.print_timestamp(&instant, &mut *out);
        out.push(b'"');
    }
}

/// Text that holds JSON, as the value that it is; quoted when it is none.
struct JsonTextEncoder<'a>(&'a StringArray);

impl Encoder for JsonTextEncoder<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        json_text::append(self.0.value(row), out);
    }
}

/// Fixed bytes as text, as ClickHouse itself shows a `FixedString`, without the zeros that pad it.
struct BytesEncoder<'a>(&'a FixedSizeBinaryArray);

impl Encoder for BytesEncoder<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let bytes = self.0.value(row);
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        json_text::append_quoted(&String::from_utf8_lossy(&bytes[..end]), out);
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;
    use proptest::prelude::*;

    use super::super::every_type::{batch, row};
    use super::*;
    use crate::pipeline::row_size::RowMeasure;

    fn line(batch: &RecordBatch) -> (JsonRows, Vec<u8>) {
        let schema: SchemaRef = Arc::new(Schema::clone(&batch.schema()));
        let rows = JsonRows::new(&schema, &["text".to_owned()]);
        let mut line = Vec::new();
        rows.write(batch, &mut line).expect("written");
        (rows, line)
    }

    proptest! {
        #[test]
        fn no_row_is_longer_than_it_is_measured(row in row()) {
            let batch = batch(&row);
            for only in (0..batch.num_columns()).map(|column| vec![column]).chain([(0..batch.num_columns()).collect()]) {
                let batch = batch.project(&only).expect("columns");
                let (rows, line) = line(&batch);
                let measure = RowMeasure { as_json: true, per_row: rows.row_marks() };
                let measured = measure.sizes(&batch)[0];
                prop_assert!(line.len() as u64 <= measured, "{measured}: {}", String::from_utf8_lossy(&line));
            }
        }
    }
}
