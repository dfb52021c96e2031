//! Memory that was freed: kept for the next buffer while the limits of the runs at work allow it, else given back.
//!
//! Runs free and take the same large buffers all the time, and pages that went back to the system cost a fault each when they
//! are taken anew. So they stay as long as the process is well within its limits. See docs/decisions/0006-allocator.md.

use std::time::{Duration, Instant};

use engine::run::Engine;
use tikv_jemalloc_ctl::{Access as _, AsName as _};

/// The system's allocator keeps more and more memory over a long run; this one stays flat, and is as fast.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long freed pages stay, for the only arena that there is. Unit: milliseconds; below 0 for ever.
const DECAY: &[u8] = b"arena.0.dirty_decay_ms\0";

/// As the program is built: what nothing takes for half a second goes back.
const BRIEFLY: isize = 500;

/// See [`DECAY`].
const FOR_EVER: isize = -1;

/// Everything goes back at once.
const NOT_AT_ALL: isize = 0;

/// How often the process is looked at while runs are at work: they fill some ten MiB meanwhile.
const BUSY: Duration = Duration::from_millis(5);

/// How long memory is kept at least while there is enough.
const CALM: Duration = Duration::from_secs(1);

/// How often it is looked at while none is.
const IDLE: Duration = Duration::from_millis(100);

/// Keeps freed memory within the limits of the runs that `engine` has at work, until the process ends.
///
/// A thread of its own does it: giving back takes milliseconds.
///
/// # Errors
/// When the system has no more threads.
pub(crate) fn keep_within_limits(engine: Engine) -> std::io::Result<()> {
    std::thread::Builder::new().name("allocator".to_owned()).spawn(move || {
        let mut decay = BRIEFLY;
        let mut given_back = Instant::now();
        loop {
            let limit_bytes = engine.memory_limit();
            let wanted = wanted_decay(limit_bytes, memory_in_ram("RssAnon"), given_back.elapsed());
            if wanted == NOT_AT_ALL || wanted != decay {
                set_decay(wanted);
                decay = wanted;
            }
            if wanted == NOT_AT_ALL {
                given_back = Instant::now();
            }
            std::thread::sleep(if limit_bytes == 0 { IDLE } else { BUSY });
        }
    })?;
    Ok(())
}

/// What fits the moment. Where the system doesn't tell what is resident, nothing is kept for long.
///
/// What fits badly between buffers in use adds up over a long run, so that some is given back now and then already where it
/// isn't needed yet: a long run takes no more than a short one.
fn wanted_decay(limit_bytes: u64, resident_bytes: Option<u64>, since_given_back: Duration) -> isize {
    match resident_bytes {
        None => BRIEFLY,
        Some(_) if limit_bytes == 0 => BRIEFLY,
        // The last eighth is what pipelines leave to everything else.
        Some(resident_bytes) if resident_bytes > limit_bytes / 8 * 7 => NOT_AT_ALL,
        Some(resident_bytes) if resident_bytes > limit_bytes / 8 * 5 && since_given_back >= CALM => NOT_AT_ALL,
        Some(_) => FOR_EVER,
    }
}

fn set_decay(decay: isize) {
    if let Err(error) = DECAY.name().write(decay) {
        tracing::debug!(%error, decay, "the allocator takes no orders; it gives back after a while by itself");
    }
}

/// What the system says of the memory of this process that is in RAM: all of it, `VmRSS`, or without the pages of files,
/// `RssAnon`. Unit: bytes.
pub(crate) fn memory_in_ram(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_near_the_limit_and_after_the_last_run() {
        assert_eq!(wanted_decay(0, Some(100), CALM), BRIEFLY);
        assert_eq!(wanted_decay(1600, Some(1400), CALM / 2), FOR_EVER);
        assert_eq!(wanted_decay(1600, Some(1401), CALM / 2), NOT_AT_ALL);
        assert_eq!(wanted_decay(1600, None, CALM), BRIEFLY);
        assert_eq!(wanted_decay(1600, Some(1000), CALM), FOR_EVER);
        assert_eq!(wanted_decay(1600, Some(1001), CALM), NOT_AT_ALL);
    }

    #[test]
    fn the_allocator_takes_the_orders() {
        for decay in [FOR_EVER, NOT_AT_ALL, BRIEFLY] {
            set_decay(decay);
            let current: isize = DECAY.name().read().expect("an arena");
            assert_eq!(current, decay);
        }
    }
}
