//! The one task that reads: it pays for each message, cuts blocks and queues them.

use std::future::Future;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use bytesize::ByteSize;
use tokio::sync::oneshot;

use super::block::{Block, BlockCutter};
use super::budget::{ByteBudget, BytePermit};
use super::cpu::run_beside;
use super::group::TaskGroup;
use super::progress::Progress;
use super::transformer::{Transformer, slice_too_large};
use crate::config::export::InvalidUtf8;
use crate::error::{Error, Result};
use crate::source::conform::{conform, repaired_bytes};
use crate::source::oversized::LargestValue;
use crate::source::reader::{ArrowStreamReader, MessageSize};

/// Where record batches come from, each announced with its size.
pub(crate) trait BatchSource: Send + 'static {
    /// What the next batch will take; `None` only when the source ended cleanly.
    fn next_size(&mut self) -> impl Future<Output = Result<Option<MessageSize>>> + Send;

    /// The batch that was announced.
    fn next_batch(&mut self) -> impl Future<Output = Result<RecordBatch>> + Send;

    /// The largest value of the batch that was announced, found without holding the batch; `None` where it can't be told.
    /// The batch is lost.
    fn largest_value(&mut self) -> impl Future<Output = Option<LargestValue>> + Send;
}

impl BatchSource for ArrowStreamReader {
    fn next_size(&mut self) -> impl Future<Output = Result<Option<MessageSize>>> + Send {
        Self::next_size(self)
    }

    fn next_batch(&mut self) -> impl Future<Output = Result<RecordBatch>> + Send {
        Self::next_batch(self)
    }

    fn largest_value(&mut self) -> impl Future<Output = Option<LargestValue>> + Send {
        Self::largest_value(self)
    }
}

/// A block on its way to a consumer, with its place in the order of appending.
#[derive(Debug)]
pub(crate) struct QueuedBlock {
    pub(crate) block: Block,
    /// The right to hold what it costs, until its parts are on their way.
    pub(crate) cost: BytePermit,
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
///
/// # Invariants
/// It alone takes from the budget, in the order of the stream: for each message before it is read, and for each block's
/// encoding before it is queued. So whoever holds some never waits for more, and the budget always comes free again.
#[derive(Debug)]
pub(crate) struct Producer<'a> {
    pub(crate) budget: &'a ByteBudget,
    pub(crate) progress: &'a Progress,
    pub(crate) queue: async_channel::Sender<QueuedBlock>,
    pub(crate) group: &'a TaskGroup,
    /// The columns as planned.
    pub(crate) schema: &'a SchemaRef,
    /// What happens to text that isn't UTF-8.
    pub(crate) invalid_utf8: InvalidUtf8,
    /// Changes rows before they are cut into blocks.
    pub(crate) transformer: Option<&'a Transformer>,
}

/// A batch of the planned types, and how many of its texts were repaired.
type Typed = (RecordBatch, u64);

/// What was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) num_rows: u64,
    /// Texts that weren't UTF-8.
    pub(crate) repaired_values: u64,
    /// Rows that the transform left out, those among them that it failed on too.
    pub(crate) rows_left_out: u64,
    /// Rows that the transform failed on, left out or not.
    pub(crate) rows_failed: u64,
}

/// What the producer has in hand: rows of the open block, and the right to append the next one.
struct Hand {
    cutter: BlockCutter,
    turn: oneshot::Receiver<()>,
}

impl Producer<'_> {
    /// Reads everything; returns what it was when the source ended cleanly and every block is queued.
    ///
    /// # Back-pressure
    /// Waits for budget before each message's body is read, and for room in the queue.
    ///
    /// # Errors
    /// The source's; `Data` for a message larger than the whole budget.
    pub(crate) async fn run(self, mut source: impl BatchSource, mut cutter: BlockCutter) -> Result<Read> {
        let (first, mut turn) = oneshot::channel();
        // The receiver is ours, so the first turn can't be refused.
        let _passed = first.send(());
        let mut read = Read::default();
        while let Some(size) = self.group.unless_stopped(source.next_size()).await?? {
            // Beside the message there must be room for what is copied out of older ones, and for encoding a block of both.
            let copied = cutter.open_bytes();
            let beside = copied + cutter.max_bytes().min(copied.saturating_add(size.cost.saturating_mul(2)));
            if !self.budget.fits_beside(beside, size.cost) {
                let largest = self.group.unless_stopped(source.largest_value()).await?;
                return Err(self.message_too_large(size.cost, read.num_rows, largest));
            }
            if !self.budget.fits_beside(cutter.held_bytes().saturating_add(beside), size.cost) {
                cutter = cut(copied, cutter, BlockCutter::copy_out).await?.0;
            }
            let acquired = self.group.unless_stopped(self.budget.acquire(size.cost)).await?;
            let mut permit = acquired.ok_or_else(|| self.message_too_large(size.cost, read.num_rows, None))?;
            let batch = self.group.unless_stopped(source.next_batch()).await??;
            self.progress.add_read(batch.num_rows() as u64, size.body);
            let first_row = read.num_rows;
            read.num_rows += batch.num_rows() as u64;
            let typed = match self.conform(batch.clone(), size.cost, InvalidUtf8::Fail, first_row).await {
                Err(_maybe_repairable) if self.invalid_utf8 == InvalidUtf8::Replace => {
                    let repaired = self.repair(batch, size.cost, first_row, cutter, &mut permit).await?;
                    cutter = repaired.1;
                    repaired.0
                }
                typed => typed?,
            };
            let (batch, repaired_values) = typed;
            read.repaired_values += repaired_values;
            let hand = Hand { cutter, turn };
            Hand { cutter, turn } = match self.transformer {
                Some(transformer) => self.transform(transformer, batch, &permit, first_row, &mut read, hand).await?,
                None => self.cut(batch, permit, 0, hand).await?,
            };
        }
        if let Some(block) = cutter.finish() {
            self.queue(block, None, 0, turn).await?;
        }
        Ok(read)
    }

    /// Sends a message's rows through the transform and cuts what comes of them into blocks. The message is held until the end.
    async fn transform(
        &self,
        transformer: &Transformer,
        batch: RecordBatch,
        message: &BytePermit,
        first_row: u64,
        read: &mut Read,
        mut hand: Hand,
    ) -> Result<Hand> {
        let message = message.num_bytes();
        for slice in transformer.slices(&batch, message).await? {
            let (cost, first_row) = (transformer.cost_bytes(&slice), first_row + slice.rows.start as u64);
            let held = |cutter: &BlockCutter| cutter.held_bytes().saturating_add(message);
            if !self.budget.fits_beside(held(&hand.cutter), cost) {
                hand.cutter = cut(hand.cutter.open_bytes(), hand.cutter, BlockCutter::copy_out).await?.0;
            }
            let too_large = || slice_too_large(first_row, cost, self.budget.capacity());
            if !self.budget.fits_beside(held(&hand.cutter), cost) {
                return Err(too_large());
            }
            let acquired = self.group.unless_stopped(self.budget.acquire(cost)).await?;
            let mut permit = acquired.ok_or_else(too_large)?;
            let rows = batch.slice(slice.rows.start, slice.rows.len());
            let transforming = transformer.apply(rows, slice.num_bytes, first_row);
            let transformed = self.group.unless_stopped(transforming).await??;
            if let Some(why) = transformed.first_failure.filter(|_| read.rows_failed == 0) {
                tracing::warn!(plugin = transformer.name(), why, "the plugin failed on a row; others are only counted");
            }
            self.progress.add_transformed(transformed.left_out, transformed.failed);
            read.rows_left_out += transformed.left_out;
            read.rows_failed += transformed.failed;
            permit.shrink_to(transformed.rows.get_array_memory_size() as u64);
            hand = self.cut(transformed.rows, permit, message, hand).await?;
        }
        Ok(hand)
    }

    /// Cuts rows into blocks and queues those that are complete, while `beside` bytes are held as well.
    async fn cut(&self, rows: RecordBatch, permit: BytePermit, beside: u64, hand: Hand) -> Result<Hand> {
        let permit = Arc::new(permit);
        let message = Arc::clone(&permit);
        let (cutter, blocks) = cut(permit.num_bytes(), hand.cutter, move |cutter| cutter.push(&rows, &message)).await?;
        let mut turn = hand.turn;
        for block in blocks {
            turn = self.queue(block, Some(&permit), beside, turn).await?;
        }
        Ok(Hand { cutter, turn })
    }

    /// Gives a batch the planned types with copies of its texts that aren't UTF-8, for which `permit` pays too then.
    async fn repair(
        &self,
        batch: RecordBatch,
        message_bytes: u64,
        first_row: u64,
        mut cutter: BlockCutter,
        permit: &mut BytePermit,
    ) -> Result<(Typed, BlockCutter)> {
        let num_bytes = repaired_bytes(&batch);
        let too_large = || self.message_too_large(message_bytes.saturating_add(num_bytes), first_row, None);
        if !self.budget.fits_beside(cutter.held_bytes().saturating_add(message_bytes), num_bytes) {
            cutter = cut(cutter.open_bytes(), cutter, BlockCutter::copy_out).await?.0;
        }
        if !self.budget.fits_beside(message_bytes, num_bytes) {
            return Err(too_large());
        }
        let acquired = self.group.unless_stopped(self.budget.acquire(num_bytes)).await?;
        permit.absorb(acquired.ok_or_else(too_large)?);
        Ok((self.conform(batch, message_bytes, self.invalid_utf8, first_row).await?, cutter))
    }

    /// Gives a batch the planned types.
    async fn conform(
        &self,
        batch: RecordBatch,
        num_bytes: u64,
        invalid_utf8: InvalidUtf8,
        first_row: u64,
    ) -> Result<Typed> {
        let schema = Arc::clone(self.schema);
        run_beside(num_bytes, move || conform(&batch, &schema, invalid_utf8, first_row)).await
    }

    /// Queues a block that waits for `mine`; returns what the block after it waits for. `message` is the one that ended
    /// it, which later blocks may need as well; `beside` bytes are held in any case.
    async fn queue(
        &self,
        mut block: Block,
        message: Option<&Arc<BytePermit>>,
        beside: u64,
        mine: oneshot::Receiver<()>,
    ) -> Result<oneshot::Receiver<()>> {
        if !self.fits(&block, message, beside) {
            let (num_bytes, message) = (block.num_bytes, message.cloned());
            let copy = move |block: &mut Block| block.pieces.copy_out_besides(message.as_ref());
            block = cut(num_bytes, block, copy).await?.0;
        }
        if !self.fits(&block, message, beside) {
            return Err(self.row_too_large(&block));
        }
        let acquired = self.group.unless_stopped(self.budget.acquire(block.cost_bytes())).await?;
        let cost = acquired.ok_or_else(|| self.row_too_large(&block))?;
        let (next, after) = oneshot::channel();
        let queued = QueuedBlock { block, cost, turn: Turn { mine, next } };
        self.progress.block_queued();
        self.group.unless_stopped(self.queue.send(queued)).await?.map_err(|_closed| Error::cancelled())?;
        Ok(after)
    }

    /// Whether what a block costs can ever be had, beside what is held until the block has it: the messages of its rows,
    /// and the one that the blocks after it may need.
    fn fits(&self, block: &Block, message: Option<&Arc<BytePermit>>, beside: u64) -> bool {
        let older = block.pieces.held_bytes_besides(message).saturating_add(beside);
        let held = older.saturating_add(message.map_or(0, |message| message.num_bytes()));
        self.budget.fits_beside(held, block.cost_bytes())
    }

    /// Blocks of small rows always fit: the limits see to that.
    fn row_too_large(&self, block: &Block) -> Error {
        let (column, num_bytes) = block.largest_column();
        self.value_too_large(block.first_row, &LargestValue { row: block.largest.row, column, num_bytes })
    }

    fn message_too_large(&self, size: u64, rows_before: u64, largest: Option<LargestValue>) -> Error {
        if let Some(value) = largest.filter(|value| value.num_bytes > size / 2) {
            return self.value_too_large(rows_before, &value);
        }
        Error::data(format!(
            "the rows after row {rows_before} came as one message of {}, and a run may hold {} of rows as they came and as they are \
             written; lower the setting max_block_size in source.settings, or raise pipeline.memory_limit",
            ByteSize::b(size),
            ByteSize::b(self.budget.capacity())
        ))
    }

    fn value_too_large(&self, rows_before: u64, value: &LargestValue) -> Error {
        Error::data(format!(
            "row {} is too large: its column `{}` has {}, and a run may hold {} of rows as they came and as they are written; raise \
             pipeline.memory_limit, or leave the row out",
            rows_before + value.row + 1,
            value.column,
            ByteSize::b(value.num_bytes),
            ByteSize::b(self.budget.capacity())
        ))
    }
}

/// Looks at and copies `num_bytes` of rows, which takes a while.
async fn cut<C: Send + 'static, T: Send + 'static>(
    num_bytes: u64,
    mut rows: C,
    work: impl FnOnce(&mut C) -> Result<T, ArrowError> + Send + 'static,
) -> Result<(C, T)> {
    run_beside(num_bytes, move || {
        let done = work(&mut rows).map_err(cannot_copy)?;
        Ok((rows, done))
    })
    .await
}

fn cannot_copy(error: ArrowError) -> Error {
    Error::data(format!("a block can't be copied: {error}")).with_source(error)
}
