//! The one task that reads: it pays for each message, cuts blocks and queues them.

use std::future::Future;

use arrow_array::RecordBatch;
use tokio::sync::oneshot;

use super::block::{Block, BlockCutter};
use super::budget::ByteBudget;
use super::group::TaskGroup;
use super::progress::Progress;
use crate::error::{Error, Result};
use crate::source::reader::ArrowStreamReader;

/// Where record batches come from, each announced with its size.
pub(crate) trait BatchSource: Send + 'static {
    /// The bytes that the next batch will hold; `None` only when the source ended cleanly.
    fn next_size(&mut self) -> impl Future<Output = Result<Option<usize>>> + Send;

    /// The batch that was announced.
    fn next_batch(&mut self) -> impl Future<Output = Result<RecordBatch>> + Send;
}

impl BatchSource for ArrowStreamReader {
    fn next_size(&mut self) -> impl Future<Output = Result<Option<usize>>> + Send {
        Self::next_size(self)
    }

    fn next_batch(&mut self) -> impl Future<Output = Result<RecordBatch>> + Send {
        Self::next_batch(self)
    }
}

/// A block on its way to a consumer, with its place in the order of appending.
#[derive(Debug)]
pub(crate) struct QueuedBlock {
    pub(crate) block: Block,
    pub(crate) turn: Turn,
}

/// The right to append, handed from block to block.
#[derive(Debug)]
pub(crate) struct Turn {
    mine: oneshot::Receiver<()>,
    next: oneshot::Sender<()>,
}

impl Turn {
    /// Waits until every earlier block is appended; gives what the next block waits for.
    ///
    /// # Errors
    /// `Cancelled` when the block before was given up.
    pub(crate) async fn wait(self) -> Result<oneshot::Sender<()>> {
        self.mine.await.map_err(|_given_up| Error::cancelled())?;
        Ok(self.next)
    }
}

/// Reads a source to its clean end.
#[derive(Debug)]
pub(crate) struct Producer<'a> {
    pub(crate) budget: &'a ByteBudget,
    pub(crate) progress: &'a Progress,
    pub(crate) queue: async_channel::Sender<QueuedBlock>,
    pub(crate) group: &'a TaskGroup,
}

impl Producer<'_> {
    /// Reads everything; returns the number of rows when the source ended cleanly and every block is queued.
    ///
    /// # Back-pressure
    /// Waits for budget before each message's body is read, and for room in the queue.
    ///
    /// # Errors
    /// The source's; `Data` for a message larger than the whole budget.
    pub(crate) async fn run(self, mut source: impl BatchSource, mut cutter: BlockCutter) -> Result<u64> {
        let (first, mut turn) = oneshot::channel();
        // The receiver is ours, so the first turn can't be refused.
        let _passed = first.send(());
        let mut num_rows = 0;
        while let Some(size) = self.group.unless_stopped(source.next_size()).await?? {
            let size = size as u64;
            if !self.budget.fits_beside(cutter.held_bytes(), size) {
                cutter
                    .compact()
                    .map_err(|error| Error::data(format!("a block can't be copied: {error}")).with_source(error))?;
            }
            let permit = self
                .group
                .unless_stopped(self.budget.acquire(size))
                .await?
                .ok_or_else(|| self.too_large(size, num_rows))?;
            let batch = self.group.unless_stopped(source.next_batch()).await??;
            num_rows += batch.num_rows() as u64;
            self.progress.add_read(batch.num_rows() as u64, size);
            for block in cutter.push(&batch, permit) {
                turn = self.queue(block, turn).await?;
            }
        }
        if let Some(block) = cutter.finish() {
            self.queue(block, turn).await?;
        }
        Ok(num_rows)
    }

    /// Queues a block that waits for `mine`; returns what the block after it waits for.
    async fn queue(&self, block: Block, mine: oneshot::Receiver<()>) -> Result<oneshot::Receiver<()>> {
        let (next, after) = oneshot::channel();
        let queued = QueuedBlock { block, turn: Turn { mine, next } };
        self.progress.block_queued();
        self.group.unless_stopped(self.queue.send(queued)).await?.map_err(|_closed| Error::cancelled())?;
        Ok(after)
    }

    fn too_large(&self, size: u64, rows_before: u64) -> Error {
        Error::data(format!(
            "the rows after row {rows_before} came as one message of {}, more than the {} that the reader may hold; lower the setting \
             max_block_size in source.settings, or raise pipeline.memory_limit or pipeline.source_buffer",
            bytesize::ByteSize::b(size),
            bytesize::ByteSize::b(self.budget.capacity())
        ))
    }
}
