//! Names of objects that hold jobs. They say all that decides which job is next, so that a list is enough to choose.

use jiff::Timestamp;
use object_store::path::Path;

use crate::job::{Job, JobId};

/// What an object's name says of its job.
///
/// # Shape
/// `{time in ms, 15 digits}-{priority + 32768, 5 digits}-{id}-{queue's hash or 0}-{key's hash or 0}.json`, so that names
/// ascend with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// When the job is due, rounded up. Unit: milliseconds since 1970.
    pub(super) run_at_ms: u64,
    /// See [`Job::priority`].
    pub(super) priority: i16,
    pub(super) id: JobId,
    /// A number that all jobs of one queue have.
    pub(super) queue: Option<u64>,
    /// A number that all jobs with one key have.
    pub(super) key: Option<u64>,
}

impl Name {
    pub(super) fn of(job: &Job) -> Self {
        let millis = job.run_at.as_nanosecond().max(0).unsigned_abs().div_ceil(1_000_000);
        Self {
            run_at_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            priority: job.priority,
            id: job.id,
            queue: job.queue.as_deref().map(hash),
            key: job.key.as_ref().map(|key| hash(&key.key)),
        }
    }

    /// The name that `file` spells; `None` for anything else.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let (run_at_ms, rest) = file.strip_suffix(".json")?.split_once('-')?;
        let (priority, rest) = rest.split_once('-')?;
        let (rest, key) = rest.rsplit_once('-')?;
        let (id, queue) = rest.rsplit_once('-')?;
        let name = Self {
            run_at_ms: run_at_ms.parse().ok()?,
            priority: i16::try_from(priority.parse::<i32>().ok()? - 32_768).ok()?,
            id: JobId::parse(id)?,
            queue: parse_hash(queue)?,
            key: parse_hash(key)?,
        };
        // One job has one name: others that spell the same would be read, and never found again.
        (name.file() == file).then_some(name)
    }

    /// The object's name within its folder.
    pub(super) fn file(&self) -> String {
        let hash = |hash: Option<u64>| hash.map_or_else(|| "0".to_owned(), |hash| format!("{hash:016x}"));
        let priority = i32::from(self.priority) + 32_768;
        format!("{:015}-{priority:05}-{}-{}-{}.json", self.run_at_ms, self.id, hash(self.queue), hash(self.key))
    }

    /// Where the object is. Jobs with keys are apart: whoever reads must see all of these, and only the due ones of the rest.
    pub(super) fn path(&self, prefix: &Path) -> Path {
        prefix.clone().join(folder(self.key.is_some())).join(self.file())
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        i64::try_from(self.run_at_ms).is_ok_and(|run_at_ms| run_at_ms <= now.as_millisecond())
    }

    /// When the job is due; `None` when that is after the end of time.
    pub(super) fn run_at(&self) -> Option<Timestamp> {
        i64::try_from(self.run_at_ms).ok().and_then(|run_at_ms| Timestamp::from_millisecond(run_at_ms).ok())
    }
}

/// The folder of jobs with or without keys.
pub(super) const fn folder(with_key: bool) -> &'static str {
    if with_key { "keyed" } else { "jobs" }
}

fn parse_hash(text: &str) -> Option<Option<u64>> {
    if text == "0" { Some(None) } else { u64::from_str_radix(text, 16).ok().map(Some) }
}

/// FNV-1a: the same number in every version of every program.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::job::KeyMode;

    fn job(millis: i64, priority: i16, queue: bool, key: bool) -> Job {
        let job = Job::new("any", json!(1)).expect("a job").with_priority(priority);
        let job = job.run_at(Timestamp::from_millisecond(millis).expect("a time"));
        let job = if queue { job.in_queue("q").expect("a queue") } else { job };
        if key { job.with_key("k", KeyMode::Skip).expect("a key") } else { job }
    }

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(millis in 0_i64..200_000_000_000_000, priority: i16, queue: bool, key: bool) {
            let name = Name::of(&job(millis, priority, queue, key));
            prop_assert_eq!(Name::parse(&name.file()), Some(name));
        }

        #[test]
        fn names_ascend_with_time(one in 0_i64..200_000_000_000_000, other in 0_i64..200_000_000_000_000) {
            let file = |millis| Name::of(&job(millis, 0, false, false)).file();
            prop_assert!(one == other || (one < other) == (file(one) < file(other)));
        }

        #[test]
        fn other_names_are_none(text in "\\PC{0,80}") {
            prop_assert!(Name::parse(&text).is_none());
        }
    }

    #[test]
    fn a_job_is_due_at_its_time_and_never_before() {
        let name = Name::of(&job(1_000, 0, false, false));
        assert!(name.is_due(Timestamp::from_millisecond(1_000).expect("a time")));
        assert!(!name.is_due(Timestamp::from_millisecond(999).expect("a time")));
    }
}
