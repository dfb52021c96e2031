//! Rows of one run on their way through its transform.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::cpu::run_beside;
use crate::encode::FileLayout;
use crate::error::{Error, Result};
use crate::transform::rows::{Failures, RowCodec, Slice, Transformed};
use crate::transform::{OnError, RowTransform, TransformBatch, TransformConfig, TransformedRow};

/// What the results of one slice may take at most, and at least. Unit: bytes.
const MAX_ROOM: u64 = 16 * 1024 * 1024;
const MIN_ROOM: u64 = 1024 * 1024;

/// The part of what a run may hold that the results of one slice may take.
const ROOM_SHARE: u64 = 8;

/// Sends rows through a transform, slice by slice.
#[derive(Debug)]
pub(crate) struct Transformer {
    transform: Arc<dyn RowTransform>,
    config: TransformConfig,
    codec: Arc<RowCodec>,
    room: u64,
}

impl Transformer {
    /// For a file's rows, in a run that may hold `buffer_bytes` of rows.
    pub(crate) fn new(
        transform: Arc<dyn RowTransform>,
        config: TransformConfig,
        layout: &FileLayout,
        buffer_bytes: u64,
    ) -> Self {
        let codec = Arc::new(RowCodec::new(&layout.schema, &layout.json_columns));
        Self { transform, config, codec, room: (buffer_bytes / ROOM_SHARE).clamp(MIN_ROOM, MAX_ROOM) }
    }

    /// Cuts a batch into slices.
    pub(crate) async fn slices(&self, batch: &RecordBatch, num_bytes: u64) -> Result<Vec<Slice>> {
        let (codec, batch) = (Arc::clone(&self.codec), batch.clone());
        run_beside(num_bytes, move || Ok(codec.slices(&batch))).await
    }

    /// What transforming a slice takes, the results as values and as rows included. Unit: bytes.
    pub(crate) const fn cost_bytes(&self, slice: &Slice) -> u64 {
        slice.num_bytes.saturating_add(self.room.saturating_mul(2))
    }

    /// Transforms rows, of which the first has this number within the run.
    ///
    /// # Cancel safety
    /// See [`RowTransform::apply`].
    ///
    /// # Errors
    /// The transform's own; `Data` for a row that fails, if that fails the run.
    pub(crate) async fn apply(&self, rows: RecordBatch, num_bytes: u64, first_row: u64) -> Result<Transformed> {
        let (codec, before) = (Arc::clone(&self.codec), rows.clone());
        let shown = run_beside(num_bytes, move || codec.show(&before)).await?;
        let (mut values, mut refusals) = (Vec::with_capacity(shown.len()), Vec::with_capacity(shown.len()));
        for value in shown {
            refusals.push(value.map(|value| values.push(value)).err());
        }
        let stops_at_failure = self.config.on_error == OnError::FailRun;
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        let transformed = self.transform.apply(TransformBatch { rows: values, room, stops_at_failure }).await?;
        let outcomes = in_order(refusals, transformed);
        let (codec, failures) = (Arc::clone(&self.codec), Failures::new(self.config.on_error, first_row));
        run_beside(num_bytes, move || codec.take_back(&rows, outcomes, failures)).await
    }

    /// The name of the transform.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }
}

/// What became of all rows in their order, as far as the transform answered: those that it was given, and those that it
/// couldn't be given.
fn in_order(refusals: Vec<Option<String>>, transformed: Vec<TransformedRow>) -> Vec<Result<TransformedRow, String>> {
    let mut transformed = transformed.into_iter();
    let outcomes = refusals.into_iter().map(|refusal| match refusal {
        Some(why) => Some(Err(why)),
        None => transformed.next().map(Ok),
    });
    outcomes.map_while(std::convert::identity).collect()
}

/// A slice that a run can't hold, with what its transform makes of it.
pub(crate) fn slice_too_large(first_row: u64, num_bytes: u64, capacity: u64) -> Error {
    let [num_bytes, capacity] = [num_bytes, capacity].map(bytesize::ByteSize::b);
    Error::data(format!(
        "row {} takes up to {num_bytes} on its way through the plugin, beside the rows that came with it, and a run may hold {capacity} \
         of rows; raise pipeline.memory_limit, or lower the setting max_block_size in source.settings",
        first_row + 1
    ))
}
