//! A job: a named piece of work for later, with all that decides when, how often and beside whom it runs.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::error::InvalidJob;
use crate::repetition::Repetition;
use crate::time_unit::{TimeError, TimeUnit};

/// How often a job is tried when nobody says so.
pub const DEFAULT_MAX_ATTEMPTS: u16 = 25;

/// The largest payload, as JSON. Unit: bytes. Providers may take less.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;

/// How deep lists and objects of a payload may lie in each other.
const MAX_PAYLOAD_DEPTH: usize = 64;

/// A job that was in hand at the end of so many processes ends them, most likely.
pub(crate) const MAX_STALLS: u16 = 5;

/// The longest name of a job, a queue or a key. Unit: bytes.
const MAX_NAME_BYTES: usize = 128;

/// A job's id, given when it is made: whoever hears of the same id twice has the same job. Ids ascend with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);

/// What happens to a waiting job when another one with its key arrives. A job that runs is never touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyMode {
    /// The new one takes its place.
    Replace,
    /// The new one takes its place, but for the time at which it runs: a flood of jobs runs once, in time.
    KeepRunTime,
    /// The new one is dropped.
    Skip,
}

/// What makes two jobs the same work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey {
    /// The key: one waiting job may have it.
    pub key: String,
    /// What happens to the job that waits already.
    pub mode: KeyMode,
}

/// A named piece of work for later.
///
/// # Invariants
/// The name, the queue and the key are printable and not empty; the payload is at most [`MAX_PAYLOAD_BYTES`] as JSON;
/// `attempts` is at most `max_attempts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// See [`JobId`].
    pub id: JobId,
    /// Says who handles it.
    pub name: String,
    /// What the handler gets.
    pub payload: Value,
    /// When it is due. Unit: microseconds, which is what databases keep.
    pub run_at: Timestamp,
    /// Of jobs that are due, the one with the smaller number runs first.
    #[serde(default)]
    pub priority: i16,
    /// Jobs of one queue run one at a time, in the order in which they are due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// See [`JobKey`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<JobKey>,
    /// When it comes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition: Option<Repetition>,
    /// How often it was tried in vain.
    #[serde(default)]
    pub attempts: u16,
    /// How often it may be tried in all.
    pub max_attempts: u16,
    /// How often a process ended while it was at work on the job.
    #[serde(default)]
    pub stalls: u16,
    /// Why the last attempt was in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl JobId {
    /// A new id, of this moment.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id of what happens at an instant: the same whoever makes it.
    fn of_occurrence(at: Timestamp, what: &str) -> Self {
        let digest = Sha256::digest(what);
        let mut random = [0; 10];
        random.copy_from_slice(&digest[..10]);
        let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The id that `text` spells.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::parse_str(text).ok().map(Self)
    }
}

impl Default for JobId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Job {
    /// A job that is due at once.
    ///
    /// # Errors
    /// When name or payload break the invariants.
    pub fn new(name: impl Into<String>, payload: Value) -> Result<Self, InvalidJob> {
        let job = Self {
            id: JobId::new(),
            name: name.into(),
            payload,
            run_at: whole_microseconds(Timestamp::now()),
            priority: 0,
            queue: None,
            key: None,
            repetition: None,
            attempts: 0,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            stalls: 0,
            last_error: None,
        };
        job.check()?;
        Ok(job)
    }

    /// Due now.
    #[must_use]
    pub fn run_now(self) -> Self {
        self.run_at(Timestamp::now())
    }

    /// Due in so many units of time.
    ///
    /// # Errors
    /// When that is no time.
    pub fn run_in(self, number: i64, unit: TimeUnit) -> Result<Self, TimeError> {
        let run_at = unit.after(Timestamp::now(), number)?;
        Ok(self.run_at(run_at))
    }

    /// Due at an instant; one in the past means now.
    #[must_use]
    pub fn run_at(self, run_at: Timestamp) -> Self {
        Self { run_at: whole_microseconds(run_at), ..self }
    }

    /// Before those with a larger number, of the jobs that are due.
    #[must_use]
    pub fn with_priority(self, priority: i16) -> Self {
        Self { priority, ..self }
    }

    /// One at a time with the other jobs of `queue`.
    ///
    /// # Errors
    /// When the name breaks the invariants.
    pub fn in_queue(self, queue: impl Into<String>) -> Result<Self, InvalidJob> {
        let queue = queue.into();
        check_name("queue", &queue)?;
        Ok(Self { queue: Some(queue), ..self })
    }

    /// The same work as other jobs with this key.
    ///
    /// # Errors
    /// When the key breaks the invariants.
    pub fn with_key(self, key: impl Into<String>, mode: KeyMode) -> Result<Self, InvalidJob> {
        let key = key.into();
        check_name("key", &key)?;
        Ok(Self { key: Some(JobKey { key, mode }), ..self })
    }

    /// Again and again, for the first time when the repetition says so. The same job with the same repetition has the same
    /// id: it is not taken twice.
    ///
    /// # Errors
    /// When there is no such time, or the job has a key.
    pub fn repeated(self, repetition: Repetition) -> Result<Self, InvalidJob> {
        let job = Self { repetition: Some(repetition), ..self };
        job.check()?;
        Ok(job.occurrence(Timestamp::now())?.unwrap_or(job))
    }

    /// The first occurrence after an instant; `None` when the job doesn't repeat.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn occurrence(&self, after: Timestamp) -> Result<Option<Self>, InvalidJob> {
        let Some(repetition) = &self.repetition else { return Ok(None) };
        let run_at = repetition.next(after)?;
        let id =
            JobId::of_occurrence(run_at, &format!("{}\n{repetition:?}\n{:?}\n{}", self.name, self.queue, self.payload));
        Ok(Some(Self { id, run_at, attempts: 0, stalls: 0, last_error: None, ..self.clone() }))
    }

    /// Tried so often at most.
    ///
    /// # Errors
    /// For 0.
    pub fn with_max_attempts(self, max_attempts: u16) -> Result<Self, InvalidJob> {
        if max_attempts == 0 {
            return Err(InvalidJob::NoAttempts);
        }
        Ok(Self { max_attempts, ..self })
    }

    /// After the ends of so many processes that were at work on it.
    pub(crate) fn stalled(self, times: u16) -> Self {
        let stalls = self.stalls.saturating_add(times);
        let last_error = Some(format!("a process ended during the attempt, {stalls} times by now"));
        Self { stalls, last_error, ..self }
    }

    /// Whether it is due.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.run_at <= now
    }

    /// Whether it belongs to a serial queue.
    #[must_use]
    pub const fn is_serial(&self) -> bool {
        self.queue.is_some()
    }

    /// Its place among the jobs that are due: the smallest runs first.
    #[must_use]
    pub fn order(&self) -> (i16, Timestamp, JobId) {
        (self.priority, self.run_at, self.id)
    }

    /// What it takes, about. Unit: bytes.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let key = self.key.as_ref().map(|key| &key.key);
        let repetition = self.repetition.as_ref();
        let [cron, zone] = [repetition.map(|each| &each.cron), repetition.map(|each| &each.timezone)];
        let texts = [Some(&self.name), self.queue.as_ref(), key, cron, zone, self.last_error.as_ref()];
        size_of::<Self>() + json_len(&self.payload) + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }

    /// Checks what another program may have written.
    ///
    /// # Errors
    /// The invariant that is broken.
    pub fn check(&self) -> Result<(), InvalidJob> {
        check_name("name", &self.name)?;
        if let Some(queue) = &self.queue {
            check_name("queue", queue)?;
        }
        if let Some(JobKey { key, .. }) = &self.key {
            check_name("key", key)?;
        }
        if self.max_attempts == 0 {
            return Err(InvalidJob::NoAttempts);
        }
        if let Some(repetition) = &self.repetition {
            if self.key.is_some() {
                return Err(InvalidJob::KeyedRepetition { name: self.name.clone() });
            }
            repetition.next(self.run_at)?;
        }
        check_value(&self.name, &self.payload, 0)?;
        let num_bytes = json_len(&self.payload);
        if num_bytes > MAX_PAYLOAD_BYTES {
            return Err(InvalidJob::PayloadTooLarge { name: self.name.clone(), num_bytes, limit: MAX_PAYLOAD_BYTES });
        }
        Ok(())
    }
}

fn whole_microseconds(time: Timestamp) -> Timestamp {
    // In range, for it is between two that are.
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

fn check_name(what: &'static str, text: &str) -> Result<(), InvalidJob> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(InvalidJob::Name {
            what,
            text: text.chars().take(MAX_NAME_BYTES).collect(),
            limit: MAX_NAME_BYTES,
        });
    }
    Ok(())
}

/// Looks for what some provider can't keep: text with the character 0, and lists in lists in lists.
fn check_value(name: &str, value: &Value, depth: usize) -> Result<(), InvalidJob> {
    let has_nul = |text: &str| text.contains('\0');
    if depth > MAX_PAYLOAD_DEPTH {
        return Err(InvalidJob::TooDeep { name: name.to_owned(), limit: MAX_PAYLOAD_DEPTH });
    }
    match value {
        Value::String(text) if has_nul(text) => Err(InvalidJob::Nul { name: name.to_owned() }),
        Value::Array(items) => items.iter().try_for_each(|item| check_value(name, item, depth + 1)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, field)| {
            if has_nul(key) {
                return Err(InvalidJob::Nul { name: name.to_owned() });
            }
            check_value(name, field, depth + 1)
        }),
        _ => Ok(()),
    }
}

/// The length of a value as JSON, without writing it. Unit: bytes.
pub(crate) fn json_len(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // A value has text keys only, and counting never fails.
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_impossible) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bad_jobs_are_refused_by_what_is_wrong() {
        let refusal = |job: Result<Job, InvalidJob>| job.expect_err("refused").to_string();
        assert_eq!(refusal(Job::new("", json!(1))), "the job's name must be 1 to 128 printable bytes, not ``");
        assert!(refusal(Job::new("a\nb", json!(1))).contains("name"));
        let large = json!("x".repeat(MAX_PAYLOAD_BYTES));
        assert_eq!(
            refusal(Job::new("big", large)),
            "the payload of job `big` has 1048578 bytes as JSON, more than 1048576; keep large data elsewhere and name it here"
        );
        assert!(refusal(Job::new("nul", json!({"a": ["b\0"]}))).contains("character 0"));
        assert!(refusal(Job::new("nul", json!({"a\0": 1}))).contains("character 0"));
        let deep = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
        assert!(refusal(Job::new("deep", deep(65))).contains("64"));
        assert!(Job::new("deep", deep(64)).is_ok());
        let job = Job::new("ok", json!({"a": 1})).expect("a job");
        assert!(refusal(job.clone().in_queue("x".repeat(129))).contains("queue"));
        assert!(refusal(job.clone().with_key("", KeyMode::Skip)).contains("key"));
        assert!(refusal(job.with_max_attempts(0)).contains("at least 1"));
    }

    #[test]
    fn a_job_survives_being_written() {
        let job = Job::new("mail", json!({"to": ["a", null, 1.5]})).expect("a job");
        let job = job.in_queue("q").and_then(|job| job.with_key("k", KeyMode::KeepRunTime)).expect("names");
        let text = serde_json::to_string(&job).expect("JSON");
        assert_eq!(serde_json::from_str::<Job>(&text).expect("a job"), job);
    }

    #[test]
    fn ids_ascend() {
        let ids = (0..100).map(|_| JobId::new()).collect::<Vec<_>>();
        assert!(ids.is_sorted());
    }
}
