//! How much a run may hold at once: everything is derived from one memory limit.

use bytesize::ByteSize;

/// The smallest part but the last that S3 takes.
///
/// Source: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>. Unit: bytes. Bounds `part_bytes`.
pub const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

/// The most parts that one multipart upload may have.
///
/// Source: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>. Bounds the size of one object.
pub const MAX_PARTS: u32 = 10_000;

/// The memory limit of a run that doesn't name one. Unit: bytes.
pub const DEFAULT_MEMORY_BYTES: u64 = 256 * 1024 * 1024;

/// What one run may hold, by stage.
///
/// # Invariants
/// [`peak_bytes`](Self::peak_bytes) is at most `memory_bytes`; no field is zero; `part_bytes` is at least
/// [`MIN_PART_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineLimits {
    /// The most that the whole pipeline may hold. Unit: bytes.
    pub memory_bytes: u64,
    /// How many consumers encode and upload at once.
    pub consumers: u32,
    /// The most rows of one block.
    pub block_rows: u32,
    /// A block closes before the row that would bring it over this size. Unit: bytes as they are written.
    pub block_bytes: u64,
    /// The most bytes held at once of the source's messages and of what is being encoded, in the reader, the queue and the
    /// consumers' hands together.
    pub buffer_bytes: u64,
    /// The size of every part but the last. Unit: bytes.
    pub part_bytes: u64,
    /// How many parts are uploaded at once.
    pub uploads_in_flight: u32,
}

/// What the user asked for; everything else is derived.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitRequest {
    /// See [`PipelineLimits::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// See [`PipelineLimits::consumers`]; the default is the number of CPUs.
    pub consumers: Option<u32>,
    /// See [`PipelineLimits::block_rows`].
    pub block_rows: Option<u32>,
    /// See [`PipelineLimits::block_bytes`].
    pub block_bytes: Option<u64>,
    /// See [`PipelineLimits::buffer_bytes`].
    pub buffer_bytes: Option<u64>,
    /// See [`PipelineLimits::part_bytes`].
    pub part_bytes: Option<u64>,
    /// See [`PipelineLimits::uploads_in_flight`].
    pub uploads_in_flight: Option<u32>,
}

impl PipelineLimits {
    /// Derives what wasn't asked for and checks the sum.
    ///
    /// # Errors
    /// One sentence per fault, each with the field's path and the knob to turn.
    pub fn derive(request: &LimitRequest, cpus: u32) -> Result<Self, Vec<(&'static str, String)>> {
        let memory_bytes = request.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
        let consumers = request.consumers.unwrap_or_else(|| cpus.clamp(1, 8));
        let share = |parts_of_64: u64| memory_bytes / 64 * parts_of_64;
        let part_bytes = request.part_bytes.unwrap_or_else(|| share(3).clamp(MIN_PART_BYTES, 64 << 20));
        let uploads_in_flight = request
            .uploads_in_flight
            .unwrap_or_else(|| u32::try_from((share(12) / part_bytes.max(1)).clamp(1, 16)).unwrap_or(1));
        let block_bytes = request
            .block_bytes
            .unwrap_or_else(|| (share(16) / u64::from(consumers.max(1) + 1)).clamp(1 << 20, 64 << 20));
        // What is left when the rest has its share, but for a reserve: allocators and connections take some, too.
        let left = share(56).saturating_sub(block_bytes).saturating_sub(all_parts(part_bytes, uploads_in_flight));
        let limits = Self {
            memory_bytes,
            consumers,
            block_rows: request.block_rows.unwrap_or(131_072),
            block_bytes,
            buffer_bytes: request.buffer_bytes.unwrap_or(left.max(1)),
            part_bytes,
            uploads_in_flight,
        };
        let faults = limits.faults();
        if faults.is_empty() { Ok(limits) } else { Err(faults) }
    }

    /// The most that the pipeline holds at once: messages and what is being encoded of them, the block that is being cut,
    /// the tail of the file and the parts in flight.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.buffer_bytes
            .saturating_add(self.block_bytes)
            .saturating_add(all_parts(self.part_bytes, self.uploads_in_flight))
    }

    fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let zero = |name: &'static str| (name, "must be at least 1; zero never means unlimited".to_owned());
        for (name, value) in [
            ("pipeline.consumers", u64::from(self.consumers)),
            ("pipeline.block_rows", u64::from(self.block_rows)),
            ("pipeline.block_size", self.block_bytes),
            ("pipeline.buffer_size", self.buffer_bytes),
            ("pipeline.uploads_in_flight", u64::from(self.uploads_in_flight)),
        ] {
            if value == 0 {
                faults.push(zero(name));
            }
        }
        if self.part_bytes < MIN_PART_BYTES {
            faults
                .push(("pipeline.part_size", format!("must be at least {}, S3's smallest part", size(MIN_PART_BYTES))));
        }
        if self.peak_bytes() > self.memory_bytes {
            faults.push((
                "pipeline.memory_limit",
                format!(
                    "the pipeline may hold {} at once (buffer_size {} + a block of {} + {} parts of {}), more than the limit of {}; \
                     raise memory_limit or lower the largest of these",
                    size(self.peak_bytes()),
                    size(self.buffer_bytes),
                    size(self.block_bytes),
                    u64::from(self.uploads_in_flight) + 1,
                    size(self.part_bytes),
                    size(self.memory_bytes),
                ),
            ));
        } else if self.buffer_bytes < self.block_bytes.saturating_mul(4) {
            faults.push((
                "pipeline.buffer_size",
                format!(
                    "must hold four blocks of {}: as they came, as they are written, and the next ones; lower block_size or raise \
                     memory_limit",
                    size(self.block_bytes)
                ),
            ));
        }
        faults
    }
}

/// The parts in flight and the one that is being filled.
fn all_parts(part_bytes: u64, uploads_in_flight: u32) -> u64 {
    part_bytes.saturating_mul(u64::from(uploads_in_flight) + 1)
}

/// Bytes as a person reads them.
fn size(bytes: u64) -> ByteSize {
    ByteSize::b(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fit_their_limit_whatever_it_is() {
        for mebibytes in [64, 128, 256, 512, 1024, 16 * 1024] {
            for cpus in [1, 2, 4, 8, 64] {
                let request = LimitRequest { memory_bytes: Some(mebibytes << 20), ..LimitRequest::default() };
                let limits = PipelineLimits::derive(&request, cpus).expect("defaults fit");
                assert!(limits.peak_bytes() <= limits.memory_bytes, "{limits:?}");
            }
        }
    }

    #[test]
    fn zero_is_refused_and_a_sum_over_the_limit_names_the_knob() {
        let request = LimitRequest { consumers: Some(0), part_bytes: Some(1), ..LimitRequest::default() };
        let faults = PipelineLimits::derive(&request, 2).expect_err("two faults");
        assert_eq!(
            faults.iter().map(|fault| fault.0).collect::<Vec<_>>(),
            ["pipeline.consumers", "pipeline.part_size"]
        );

        let request = LimitRequest { uploads_in_flight: Some(64), ..LimitRequest::default() };
        let faults = PipelineLimits::derive(&request, 2).expect_err("too much");
        assert!(faults[0].1.contains("raise memory_limit"), "{faults:?}");
    }
}
