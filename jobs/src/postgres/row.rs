//! A job as a row. What the row's own columns say, and what goes without saying, is not in its payload again: the time that
//! a row takes goes by its size.

use chrono::{DateTime, Utc};
use graphile_worker::{JobSpec, RawJobSpec, TaskHandler as _};
use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::task::Task;
use crate::job::{DEFAULT_MAX_ATTEMPTS, Job, JobId, JobKey};

/// The flag of rows whose jobs are of a serial queue: a worker may leave those.
pub(super) const SERIAL: &str = "serial";

/// What the keys begin with of rows whose jobs have none; their ids follow.
const BY_ID: &str = "id:";

/// What makes a row a job.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct Row {
    pub(super) key: Option<String>,
    pub(super) run_at: DateTime<Utc>,
    pub(super) priority: i16,
    /// How many processes ended that had it in hand.
    pub(super) stalls: i16,
    pub(super) payload: Value,
}

impl Row {
    /// How it is read: a claim counts as an attempt, and what is locked is claimed now.
    pub(super) const COLUMNS: &str =
        "key, run_at, priority, (attempts - (locked_at is not null)::int)::smallint as stalls, payload";

    /// The job that it is, if it is one.
    pub(super) fn job(&self) -> Option<Job> {
        let mut fields = self.payload.as_object()?.clone();
        let mut add = |name: &str, value| {
            fields.entry(name).or_insert(value);
        };
        if let Some(id) = self.key.as_ref().and_then(|key| key.strip_prefix(BY_ID)) {
            add("id", json!(id));
        }
        add("run_at", json!(timestamp(self.run_at)));
        add("priority", json!(self.priority));
        add("max_attempts", json!(DEFAULT_MAX_ATTEMPTS));
        let job = Job::deserialize(Value::Object(fields)).ok().filter(|job| job.check().is_ok())?;
        let stalls = u16::try_from(self.stalls).unwrap_or(0);
        Some(if stalls == 0 { job } else { job.stalled(stalls) })
    }
}

/// The key of a job's row: its own, or its id.
pub(super) fn row_key(job: &Job) -> String {
    match &job.key {
        Some(JobKey { key, .. }) => format!("key:{key}"),
        None => key_of_id(job.id),
    }
}

/// The key of the row of a job with this id and without a key.
pub(super) fn key_of_id(id: JobId) -> String {
    format!("{BY_ID}{id}")
}

/// Jobs as rows that are tried until we say that it is enough.
pub(super) fn rows(jobs: &[Job]) -> Result<Vec<RawJobSpec>, serde_json::Error> {
    let now = Timestamp::now();
    let row = |job: &Job| {
        let spec = JobSpec {
            queue_name: job.queue.clone(),
            run_at: Some(chrono_time(job.run_at)),
            max_attempts: Some(i16::MAX),
            job_key: Some(row_key(job)),
            // Within a queue, the one that was due first goes first, whatever its priority.
            priority: Some(if job.is_serial() { 0 } else { job.priority }),
            flags: job.is_serial().then(|| vec![SERIAL.to_owned()]),
            ..JobSpec::new()
        };
        Ok(RawJobSpec { identifier: Task::IDENTIFIER.to_owned(), payload: payload(job, now)?, spec })
    };
    jobs.iter().map(row).collect()
}

fn payload(job: &Job, now: Timestamp) -> Result<Value, serde_json::Error> {
    let mut payload = serde_json::to_value(job)?;
    if let Some(fields) = payload.as_object_mut() {
        fields.retain(|name, value| match name.as_str() {
            "id" => job.key.is_some(),
            // What is for later can be made due before its time, to be moved, and then has to know when that was.
            "run_at" => !job.is_due(now),
            "priority" => job.is_serial() && *value != 0,
            "max_attempts" => job.max_attempts != DEFAULT_MAX_ATTEMPTS,
            "attempts" | "stalls" => *value != 0,
            _ => true,
        });
    }
    Ok(payload)
}

/// The database's range is smaller than ours: what is beyond it never comes, as it wouldn't with us.
fn chrono_time(time: Timestamp) -> DateTime<Utc> {
    let nanoseconds = time.subsec_nanosecond().unsigned_abs();
    DateTime::from_timestamp(time.as_second(), nanoseconds).unwrap_or(DateTime::UNIX_EPOCH)
}

/// Of a time as the database has it. What is beyond our range never comes.
pub(super) fn timestamp(time: DateTime<Utc>) -> Timestamp {
    Timestamp::from_microsecond(time.timestamp_micros()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;
    use crate::job::KeyMode;

    /// What the database makes of it.
    fn stored(job: &Job) -> Row {
        let written = rows(std::slice::from_ref(job)).expect("JSON").remove(0);
        Row {
            key: written.spec.job_key,
            run_at: written.spec.run_at.expect("a time"),
            priority: written.spec.priority.expect("one"),
            stalls: 0,
            payload: written.payload,
        }
    }

    #[test]
    fn a_job_comes_back_as_it_was() {
        let plain = Job::new("any", json!({"number": 1})).expect("a job");
        let later = plain.clone().run_at(plain.run_at + SignedDuration::from_secs(60));
        let jobs = [
            plain.clone().with_priority(-3),
            plain.clone().with_key("k", KeyMode::KeepRunTime).expect("a key"),
            plain.clone().in_queue("serial").expect("a queue").with_priority(7),
            plain.clone().with_max_attempts(1).expect("some"),
            Job { attempts: 2, stalls: 1, last_error: Some("in vain".to_owned()), ..plain.clone() },
            plain.clone().run_at(Timestamp::MIN),
            later.clone(),
            plain.clone(),
        ];
        for job in jobs {
            assert_eq!(stored(&job).job().as_ref(), Some(&job));
        }
        assert_eq!(stored(&plain).payload, json!({"name": "any", "payload": {"number": 1}}), "and no more than that");
        let made_due = Row { run_at: Utc::now(), ..stored(&later) };
        assert_eq!(made_due.job(), Some(later), "though it was made due before its time");
    }

    #[test]
    fn what_ended_processes_says_so() {
        let job = Job::new("any", json!(1)).expect("a job");
        let row = Row { stalls: 2, ..stored(&Job { stalls: 1, ..job }) };
        assert_eq!(row.job().map(|job| job.stalls), Some(3));
    }
}
