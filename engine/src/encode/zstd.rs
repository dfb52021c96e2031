//! Zstandard: one frame, compressed by the library's own threads, fed in turn.
//!
//! The library cuts its input into jobs of one size, so the frame's bytes don't depend on the number of threads.

use std::io;

use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

use super::chunks::Chunks;
use crate::sink::part_cutter::PartCutter;

/// The level of compression.
const LEVEL: i32 = 1;

/// The size of one job. Unit: bytes. It bounds what the threads hold, and is part of what decides the frame's bytes.
const JOB_BYTES: u32 = 1024 * 1024;

/// The most threads of one frame: each holds several jobs.
const MAX_THREADS: u32 = 4;

/// One zstd frame under construction.
pub(super) struct ZstdFile {
    encoder: Encoder<'static, PartCutter>,
}

impl std::fmt::Debug for ZstdFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ZstdFile").field("cutter", self.encoder.get_ref()).finish()
    }
}

impl ZstdFile {
    pub(super) fn open(cutter: PartCutter, threads: u32) -> io::Result<Self> {
        let mut encoder = Encoder::new(cutter, LEVEL)?;
        encoder.multithread(threads.clamp(1, MAX_THREADS))?;
        encoder.set_parameter(CParameter::JobSize(JOB_BYTES))?;
        encoder.include_checksum(true)?;
        Ok(Self { encoder })
    }

    pub(super) fn append(&mut self, text: Chunks) -> io::Result<()> {
        text.drain_to(&mut self.encoder)
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.encoder.do_finish()
    }

    pub(super) fn cutter(&mut self) -> &mut PartCutter {
        self.encoder.get_mut()
    }
}
