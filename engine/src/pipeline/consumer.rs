//! The tasks that encode, append in turn and start uploads.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::assembler::{FileAssembler, Part};
use super::cpu::CpuPool;
use super::group::TaskGroup;
use super::producer::QueuedBlock;
use super::progress::Progress;
use crate::encode::BlockEncoder;
use crate::error::{Error, Result};
use crate::sink::ledger::PartLedger;
use crate::sink::object::ObjectSink;

/// What all consumers of one file share.
#[derive(Debug, Clone)]
pub(crate) struct S3Consumer {
    pub(crate) encoder: Arc<BlockEncoder>,
    pub(crate) assembler: Arc<Mutex<FileAssembler>>,
    /// The assembler's ledger, apart from its lock: an upload that ends must not wait for a block that is appended.
    pub(crate) ledger: Arc<Mutex<PartLedger>>,
    pub(crate) sink: Arc<dyn ObjectSink>,
    pub(crate) upload_permits: Arc<Semaphore>,
    pub(crate) cpu: CpuPool,
    /// The readers and encoders.
    pub(crate) group: TaskGroup,
    /// The uploads, which may outlast them.
    pub(crate) uploads: TaskGroup,
    pub(crate) progress: Arc<Progress>,
}

impl S3Consumer {
    /// Takes blocks until the queue ends.
    ///
    /// # Back-pressure
    /// Waits for a block, for its turn and for upload permits; never for an upload itself.
    ///
    /// # Errors
    /// The encoder's, and `Cancelled` when another task of the group failed.
    pub(crate) async fn run(self, queue: async_channel::Receiver<QueuedBlock>) -> Result<()> {
        while let Ok(QueuedBlock { block, cost, turn }) = self.group.unless_stopped(queue.recv()).await? {
            self.progress.block_taken();
            let encoder = Arc::clone(&self.encoder);
            let encoded = self.group.unless_stopped(self.cpu.run(move || encoder.encode(block))).await??;
            let next = self.group.unless_stopped(turn.wait()).await??;
            let parts = self.with_assembler(move |assembler| assembler.append(encoded)).await?;
            for part in parts {
                self.start_upload(part).await?;
            }
            // Its bytes are in parts that have permits now, or in the file's tail.
            drop(cost);
            // The next block's consumer may be gone, when the group is stopping.
            let _unheard = next.send(());
        }
        Ok(())
    }

    /// Works on the assembler on the CPU pool: appending copies, and zstd compresses.
    pub(crate) async fn with_assembler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut FileAssembler) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let assembler = Arc::clone(&self.assembler);
        let working = self.cpu.run(move || work(&mut assembler.lock().unwrap_or_else(PoisonError::into_inner)));
        self.group.unless_stopped(working).await?
    }

    /// Waits for a permit and starts the upload of a part; its failure stops the group.
    pub(crate) async fn start_upload(&self, part: Part) -> Result<()> {
        let permits = Arc::clone(&self.upload_permits);
        let permit = self
            .group
            .unless_stopped(permits.acquire_owned())
            .await?
            .map_err(|closed| Error::internal("the upload permits were closed").with_source(closed))?;
        let consumer = self.clone();
        self.uploads.spawn(async move {
            let Part { number, body, num_rows } = part;
            let num_bytes = body.len() as u64;
            let uploading = consumer.sink.upload_part(number, body);
            let uploaded = consumer.group.unless_stopped(uploading).await??;
            consumer.ledger.lock().unwrap_or_else(PoisonError::into_inner).record(uploaded)?;
            consumer.progress.add_part(num_rows, num_bytes);
            drop(permit);
            Ok(())
        });
        Ok(())
    }
}
