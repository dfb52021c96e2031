//! Single producer, multiple consumers: a stream of rows becomes one object.
//!
//! Owns the order, the bounds and the end of a run's work. Does not own where rows come from or how requests are made.
//!
//! ```text
//! source --messages--> Producer --blocks--> [queue] --+--> S3Consumer 1 --+
//!          (paid for    (1 task)  numbered             +--> S3Consumer 2 --+--> FileAssembler --parts--> uploads
//!           in advance)  | ^                           +--> S3Consumer n --+    (in turn, locked        (n in flight)
//!                        v |                                encode on CPUs       part numbers)
//!                    Transformer
//!                  (if asked for)
//! ```
//!
//! Nothing waits in a circle: the producer waits for budget and queue, consumers for their turn, the one whose turn it
//! is for an upload permit, uploads for the network alone.

pub(crate) mod assembler;
pub(crate) mod block;
pub(crate) mod budget;
pub(crate) mod consumer;
pub(crate) mod cpu;
pub(crate) mod group;
pub(crate) mod pieces;
pub(crate) mod producer;
pub mod progress;
pub(crate) mod row_size;
pub(crate) mod transformer;

#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock};

use futures::FutureExt as _;
use tokio::sync::Semaphore;

use self::assembler::{FileAssembler, FileTotals, Rest};
use self::block::BlockCutter;
use self::budget::ByteBudget;
use self::consumer::S3Consumer;
use self::cpu::{CpuPool, panicked};
use self::group::TaskGroup;
use self::producer::{BatchSource, Producer, Read};
use self::transformer::Transformer;
use crate::config::export::{FewerRows, InvalidUtf8};
use crate::config::limits::PipelineLimits;
use crate::encode::{self, FileLayout};
use crate::error::{Error, Result};
use crate::history::require_no_fewer;
use crate::run::RunContext;
use crate::sink::object::{ObjectSink, StoredObject};
use crate::transform::{RowTransform, TransformConfig};

/// Blocks that may wait in the queue. Their bytes are bounded by the budget; this bounds their number.
const QUEUE_BLOCKS: usize = 64;

/// What a pipeline needs besides its source.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) layout: FileLayout,
    pub(crate) limits: PipelineLimits,
    pub(crate) invalid_utf8: InvalidUtf8,
    pub(crate) fewer_rows: FewerRows,
    pub(crate) write_empty: bool,
    pub(crate) sink: Arc<dyn ObjectSink>,
    pub(crate) cpu: CpuPool,
    /// What may be held of the source.
    pub(crate) budget: ByteBudget,
    /// Changes rows before they are cut into blocks, as the export says.
    pub(crate) transform: Option<(Arc<dyn RowTransform>, TransformConfig)>,
    pub(crate) context: RunContext,
}

/// What became of the rows.
#[derive(Debug)]
pub(crate) struct PipelineReport {
    /// Rows in the object.
    pub(crate) num_rows: u64,
    /// What was read.
    pub(crate) read: Read,
    /// `None` when there were no rows, and no empty object was asked for.
    pub(crate) object: Option<WrittenObject>,
}

/// The object that is visible now.
#[derive(Debug)]
pub(crate) struct WrittenObject {
    pub(crate) stored: StoredObject,
    pub(crate) num_bytes: u64,
    /// 0 when it was written by one request.
    pub(crate) num_parts: u32,
}

impl Pipeline {
    /// Copies the source into the object.
    ///
    /// # Errors
    /// The group's error; then no object is visible and what was uploaded is aborted.
    pub(crate) async fn run(&self, source: impl BatchSource) -> Result<PipelineReport> {
        let consumer = self.consumer()?;
        self.context.progress.watch_budget(&self.budget);
        let copying = AssertUnwindSafe(self.copy(source, &consumer)).catch_unwind();
        let result = copying.await.unwrap_or_else(|panic| Err(panicked(&*panic)));
        if result.is_err() {
            // No upload may outlive the abort: a late part would be an orphan.
            consumer.group.stop().await;
            consumer.uploads.stop().await;
            if let Err(error) = self.sink.abort().await {
                tracing::warn!(error = ?error, "the upload could not be aborted; the bucket's lifecycle rule has to remove it");
            }
        }
        result.map_err(|error| consumer.group.reason(error))
    }

    fn consumer(&self) -> Result<S3Consumer> {
        let part_bytes = usize::try_from(self.limits.part_bytes)
            .map_err(|error| Error::config("pipeline.part_size is too large for this machine").with_source(error))?;
        let (encoder, file) = encode::open(self.layout.clone(), part_bytes, self.limits.consumers)?;
        let group = TaskGroup::new(&self.context.stop);
        let ledger = Arc::default();
        Ok(S3Consumer {
            encoder,
            ledger: Arc::clone(&ledger),
            assembler: Arc::new(Mutex::new(FileAssembler::new(file, ledger))),
            sink: Arc::clone(&self.sink),
            upload_permits: Arc::new(Semaphore::new(self.limits.uploads_in_flight as usize)),
            cpu: self.cpu.clone(),
            uploads: group.sibling(),
            group,
            progress: Arc::clone(&self.context.progress),
        })
    }

    fn transformer(&self) -> Option<Transformer> {
        let (transform, config) = self.transform.clone()?;
        Some(Transformer::new(transform, config, &self.layout, self.limits.buffer_bytes))
    }

    async fn copy(&self, source: impl BatchSource, consumer: &S3Consumer) -> Result<PipelineReport> {
        let read = self.read_and_encode(source, consumer).await?;
        let (rest, totals) = consumer.with_assembler(FileAssembler::finish).await?;
        reconcile(&read, &totals)?;
        require_no_fewer(read.num_rows, &*self.context.history, self.fewer_rows).await?;
        let num_rows = totals.end.num_rows;
        let object = match rest {
            _ if num_rows == 0 && !self.write_empty => None,
            Rest::Whole(body) => Some(self.put(body, num_rows).await?),
            Rest::Parts(parts) => {
                for part in parts {
                    consumer.start_upload(part).await?;
                }
                consumer.uploads.wait().await?;
                Some(self.complete(consumer, totals.num_bytes).await?)
            }
        };
        Ok(PipelineReport { num_rows, read, object })
    }

    /// Runs producer and consumers to their ends; returns what was read.
    async fn read_and_encode(&self, source: impl BatchSource, consumer: &S3Consumer) -> Result<Read> {
        let group = &consumer.group;
        let (sender, receiver) = async_channel::bounded(QUEUE_BLOCKS);
        for _ in 0..self.limits.consumers {
            group.spawn(consumer.clone().run(receiver.clone()));
        }
        drop(receiver);
        let cutter =
            BlockCutter::new(self.limits.block_rows as usize, self.limits.block_bytes, consumer.encoder.row_measure());
        let clean_end = Arc::new(OnceLock::new());
        group.spawn({
            let (group, budget, progress) = (group.clone(), self.budget.clone(), Arc::clone(&self.context.progress));
            let (clean_end, schema, invalid_utf8) =
                (Arc::clone(&clean_end), Arc::clone(&self.layout.schema), self.invalid_utf8);
            let transformer = self.transformer();
            async move {
                let (budget, progress, group, schema) = (&budget, &progress, &group, &schema);
                let transformer = transformer.as_ref();
                let producer = Producer { budget, progress, queue: sender, group, schema, invalid_utf8, transformer };
                let read = producer.run(source, cutter).await?;
                clean_end.get_or_init(|| read);
                Ok(())
            }
        });
        group.wait().await?;
        clean_end.get().copied().ok_or_else(|| Error::internal("every task ended well but the producer never finished"))
    }

    async fn put(&self, body: bytes::Bytes, num_rows: u64) -> Result<WrittenObject> {
        self.may_publish().await?;
        let num_bytes = body.len() as u64;
        let stored = self.sink.put(body).await?;
        self.context.progress.add_part(num_rows, num_bytes);
        Ok(WrittenObject { stored, num_bytes, num_parts: 0 })
    }

    async fn complete(&self, consumer: &S3Consumer, num_bytes: u64) -> Result<WrittenObject> {
        let parts = consumer.with_assembler(FileAssembler::take_complete).await?;
        let num_parts = u32::try_from(parts.len())
            .map_err(|error| Error::internal("more parts than S3 has numbers").with_source(error))?;
        self.may_publish().await?;
        let stored = self.sink.complete(parts).await?;
        Ok(WrittenObject { stored, num_bytes, num_parts })
    }

    /// The last question before the object becomes visible.
    async fn may_publish(&self) -> Result<()> {
        if self.context.stop.is_stopped() {
            return Err(self.context.stop.error());
        }
        self.context.fence.confirm().await
    }
}

/// Rows read but for those left out, rows encoded and rows in the file are one number, or the run fails.
fn reconcile(read: &Read, totals: &FileTotals) -> Result<()> {
    let rows_kept = read.num_rows.checked_sub(read.rows_left_out);
    if rows_kept == Some(totals.rows_encoded) && totals.rows_encoded == totals.end.num_rows {
        return Ok(());
    }
    Err(Error::internal(format!(
        "rows don't reconcile: {} were read, {} left out, {} encoded, {} are in the file; nothing was published",
        read.num_rows, read.rows_left_out, totals.rows_encoded, totals.end.num_rows
    )))
}
