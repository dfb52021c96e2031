//! The Arrow IPC stream, message by message.
//!
//! Owns the framing: prefix, metadata, body and end marker. The size of a message is known, and can be paid for, before
//! its body is read; the body lands in one exact allocation that the decoded arrays share.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::{MessageHeader, MetadataVersion};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};

use super::body::Body;
use super::failure::Symptom;
use super::oversized::{LargestText, LargestValue};
use crate::error::{Error, Result};

/// What every message begins with.
///
/// Source: <https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format>.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// What an array takes besides its values. Unit: bytes, rounded up. It counts where a message has many columns and few
/// rows.
const ARRAY_BYTES: u64 = 512;

/// The largest metadata of one message that is taken for real. Unit: bytes; a thousand columns need about 100 KiB.
const MAX_METADATA_BYTES: usize = 16 * 1024 * 1024;

/// How large the next message is. Unit: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageSize {
    /// Its body as it is sent.
    pub body: u64,
    /// What its batch takes: the body, the arrays themselves, and what the decoder copies out of the body.
    pub cost: u64,
}

/// Reads record batches from a ClickHouse response in the format `ArrowStream`.
///
/// Call [`next_size`](Self::next_size) and [`next_batch`](Self::next_batch) in turn.
#[derive(Debug)]
pub struct ArrowStreamReader {
    body: Body,
    schema: SchemaRef,
    pending: Option<PendingMessage>,
    finished: bool,
}

/// A message whose metadata has been read, and whose body hasn't.
#[derive(Debug)]
struct PendingMessage {
    metadata: Vec<u8>,
    body_num_bytes: usize,
}

impl ArrowStreamReader {
    /// Reads the schema, which every stream begins with, also one without rows.
    ///
    /// # Errors
    /// `Data` when the response is no Arrow stream; the server's exception when it is one.
    pub async fn open(mut body: Body) -> Result<Self> {
        let Some(metadata) = read_metadata(&mut body).await? else {
            return Err(body.drain_broken("the stream ended before its schema").await);
        };
        let schema = decode_schema(&metadata).map_err(|error| not_arrow("its first message is no schema", error))?;
        Ok(Self { body, schema: Arc::new(schema), pending: None, finished: false })
    }

    /// The stream's schema as the server sent it.
    #[must_use]
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What the next message will take, before it is read. `None` only after the end marker *and* the clean end of
    /// the response.
    ///
    /// # Errors
    /// The server's exception; `SourceUnavailable` for a stream that broke off; `Data` for one that isn't Arrow.
    pub async fn next_size(&mut self) -> Result<Option<MessageSize>> {
        if self.finished {
            return Ok(None);
        }
        let Some(metadata) = read_metadata(&mut self.body).await? else {
            self.body.expect_end().await?;
            self.finished = true;
            return Ok(None);
        };
        let (body_num_bytes, num_rows) = match message_size(&metadata) {
            Ok(size) => size,
            Err(error) => return Err(self.body.exception().await.unwrap_or(error)),
        };
        self.pending = Some(PendingMessage { metadata, body_num_bytes });
        let body = body_num_bytes as u64;
        let arrays = self.schema.fields().len() as u64 * ARRAY_BYTES;
        let copied = self.schema.fields().iter().map(|field| copied_bytes(field.data_type(), num_rows, body));
        let copied = copied.fold(0, u64::saturating_add).min(body);
        Ok(Some(MessageSize { body, cost: body.saturating_add(arrays).saturating_add(copied) }))
    }

    /// Looks for the largest value of the message that [`next_size`](Self::next_size) announced, and holds no more of it
    /// than one column's offsets. The message is lost, and the reader with it.
    pub(crate) async fn largest_value(&mut self) -> Option<LargestValue> {
        let pending = self.pending.take()?;
        let text = LargestText::find(&pending.metadata, &self.schema)?;
        if text.offsets.end > pending.body_num_bytes {
            return None;
        }
        let what = "a record batch";
        self.body.read_pieces(text.offsets.start, what, |_skipped| {}).await.ok()?;
        let mut offsets = vec![0; text.offsets.len()];
        self.body.read_exact(&mut offsets, what).await.ok()?;
        text.value(&offsets)
    }

    /// Reads and decodes the message that [`next_size`](Self::next_size) announced.
    ///
    /// # Errors
    /// As [`next_size`](Self::next_size); `Internal` without an announced message.
    pub async fn next_batch(&mut self) -> Result<RecordBatch> {
        let Some(PendingMessage { metadata, body_num_bytes }) = self.pending.take() else {
            return Err(Error::internal("a batch was asked for before its size"));
        };
        let mut buffer = MutableBuffer::with_capacity(body_num_bytes);
        self.body.read_pieces(body_num_bytes, "a record batch", |piece| buffer.extend_from_slice(piece)).await?;
        match decode_batch(&metadata, &buffer.into(), &self.schema) {
            Ok(batch) => Ok(batch),
            // The rest of an unfinished message may have been filled with the text of an exception.
            Err(error) => {
                Err(self.body.exception().await.unwrap_or_else(|| not_arrow("a record batch can't be decoded", error)))
            }
        }
    }
}

/// Reads a message's prefix and metadata; `None` for the end marker.
async fn read_metadata(body: &mut Body) -> Result<Option<Vec<u8>>> {
    let mut prefix = [0_u8; 8];
    body.read_exact(&mut prefix, "a message's prefix (the end marker is missing)").await?;
    let [a, b, c, d, length @ ..] = prefix;
    if [a, b, c, d] != CONTINUATION {
        return Err(body.drain_broken("a message doesn't begin like an Arrow message").await);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 {
        return Ok(None);
    }
    if length > MAX_METADATA_BYTES {
        return Err(body.drain_broken(&format!("a message claims {length} bytes of metadata")).await);
    }
    let mut metadata = vec![0; length];
    body.read_exact(&mut metadata, "a message's metadata").await?;
    Ok(Some(metadata))
}

fn decode_schema(metadata: &[u8]) -> Result<Schema, ArrowError> {
    let message = arrow_ipc::root_as_message(metadata).map_err(|error| ArrowError::IpcError(error.to_string()))?;
    let schema = message.header_as_schema().ok_or_else(|| ArrowError::IpcError("not a schema message".to_owned()))?;
    arrow_ipc::convert::try_fb_to_schema(schema)
}

/// The size of the body that follows `metadata`, and its number of rows.
fn message_size(metadata: &[u8]) -> Result<(usize, u64)> {
    let message = arrow_ipc::root_as_message(metadata)
        .map_err(|error| not_arrow("a message's metadata is broken", ArrowError::IpcError(error.to_string())))?;
    let body = usize::try_from(message.bodyLength())
        .map_err(|error| not_arrow("a message claims a negative size", ArrowError::IpcError(error.to_string())))?;
    let num_rows = message.header_as_record_batch().map_or(0, |batch| batch.length());
    Ok((body, u64::try_from(num_rows).unwrap_or(0)))
}

/// What the decoder copies of a column at most: the stream aligns to 8 bytes, and large decimals need 16. Unit: bytes.
fn copied_bytes(data_type: &DataType, num_rows: u64, body: u64) -> u64 {
    match data_type {
        DataType::Decimal128(_, _) => num_rows.saturating_mul(16),
        DataType::Decimal256(_, _) => num_rows.saturating_mul(32),
        // How many items there are is in the body.
        DataType::List(item) | DataType::Map(item, _) if copied_bytes(item.data_type(), 1, body) > 0 => body,
        DataType::Struct(fields) => {
            let copied = fields.iter().map(|field| copied_bytes(field.data_type(), num_rows, body));
            copied.fold(0, u64::saturating_add)
        }
        _ => 0,
    }
}

fn decode_batch(metadata: &[u8], body: &Buffer, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let message = arrow_ipc::root_as_message(metadata).map_err(|error| ArrowError::IpcError(error.to_string()))?;
    if message.header_type() == MessageHeader::DictionaryBatch {
        return Err(ArrowError::IpcError("dictionaries were not asked for".to_owned()));
    }
    let batch =
        message.header_as_record_batch().ok_or_else(|| ArrowError::IpcError("not a record batch".to_owned()))?;
    require_inside(&batch, body.len())?;
    let version: MetadataVersion = message.version();
    let decode =
        || RecordBatchDecoder::try_new(body, batch, Arc::clone(schema), &HashMap::new(), &version)?.read_record_batch();
    // The decoder panics at some inconsistencies; what is broken is the stream, not this program.
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_panic| Err(ArrowError::IpcError("a record batch contradicts itself".to_owned())))
}

/// Refuses a batch whose buffers lie outside of its body or between two words, or that counts what can't be.
fn require_inside(batch: &arrow_ipc::RecordBatch<'_>, body_num_bytes: usize) -> Result<(), ArrowError> {
    let is_inside = |buffer: &arrow_ipc::Buffer| {
        let offset = usize::try_from(buffer.offset()).ok();
        let end =
            offset.zip(usize::try_from(buffer.length()).ok()).and_then(|(offset, length)| offset.checked_add(length));
        buffer.offset() % 8 == 0 && end.is_some_and(|end| end <= body_num_bytes)
    };
    let is_countable = |node: &arrow_ipc::FieldNode| (0..=node.length()).contains(&node.null_count());
    let buffers = batch.buffers().is_none_or(|buffers| buffers.iter().all(is_inside));
    let nodes = batch.nodes().is_none_or(|nodes| nodes.iter().all(is_countable));
    if buffers && nodes && batch.length() >= 0 {
        Ok(())
    } else {
        Err(ArrowError::IpcError("a record batch points outside of its body".to_owned()))
    }
}

fn not_arrow(how: &str, error: ArrowError) -> Error {
    Symptom::NotArrow.error("", how).with_source(error)
}

#[cfg(test)]
mod fuzz;
