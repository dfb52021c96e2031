//! What makes a message too large to be held, found while it passes by.

use std::ops::Range;

use arrow_ipc::MessageHeader;
use arrow_schema::{DataType, Schema};

/// The longest list of offsets that is looked at. Unit: bytes; a message has a few hundred thousand rows at most.
const MAX_OFFSETS_BYTES: usize = 16 * 1024 * 1024;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LargestValue {
    /// Its row within the message, from 0.
    pub(crate) row: u64,
    /// Its column.
    pub(crate) column: String,
    /// Its size. Unit: bytes.
    pub(crate) num_bytes: u64,
}

/// The text column that holds most of a message, by the message's metadata alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LargestText {
    column: String,
    /// Where the column's offsets are in the message's body.
    pub(super) offsets: Range<usize>,
}

impl LargestText {
    /// Finds it; `None` for a message without text, or of another shape than its schema says.
    pub(super) fn find(metadata: &[u8], schema: &Schema) -> Option<Self> {
        let message = arrow_ipc::root_as_message(metadata).ok()?;
        if message.header_type() != MessageHeader::RecordBatch {
            return None;
        }
        let batch = message.header_as_record_batch()?;
        let buffers = batch.buffers()?;
        let mut first = 0;
        let mut largest: Option<(i64, Self)> = None;
        for field in schema.fields() {
            if matches!(field.data_type(), DataType::Binary | DataType::Utf8) && first + 2 < buffers.len() {
                let (offsets, values) = (buffers.get(first + 1), buffers.get(first + 2));
                let start = usize::try_from(offsets.offset()).ok()?;
                let length = usize::try_from(offsets.length()).ok().filter(|length| *length <= MAX_OFFSETS_BYTES)?;
                if largest.as_ref().is_none_or(|(num_bytes, _)| values.length() > *num_bytes) {
                    let found = Self { column: field.name().clone(), offsets: start..start.checked_add(length)? };
                    largest = Some((values.length(), found));
                }
            }
            first += num_buffers(field.data_type());
        }
        largest.map(|(_, found)| found)
    }

    /// The largest value, by the column's offsets.
    pub(super) fn value(self, offsets: &[u8]) -> Option<LargestValue> {
        let offsets = offsets.chunks_exact(4).map(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let ends = offsets.clone().skip(1);
        let sizes = offsets.zip(ends).map(|(start, end)| u64::try_from(i64::from(end) - i64::from(start)).unwrap_or(0));
        let (row, num_bytes) = sizes.enumerate().max_by_key(|(_, num_bytes)| *num_bytes)?;
        Some(LargestValue { row: row as u64, column: self.column, num_bytes })
    }
}

/// How many buffers a column of this type has in a message.
///
/// Source: <https://arrow.apache.org/docs/format/Columnar.html#buffer-listing-for-each-layout>.
fn num_buffers(data_type: &DataType) -> usize {
    match data_type {
        DataType::Null => 0,
        DataType::Binary | DataType::Utf8 | DataType::LargeBinary | DataType::LargeUtf8 => 3,
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => 2 + num_buffers(item.data_type()),
        DataType::FixedSizeList(item, _) => 1 + num_buffers(item.data_type()),
        DataType::Struct(fields) => 1 + fields.iter().map(|field| num_buffers(field.data_type())).sum::<usize>(),
        _ => 2,
    }
}
