//! The table of jobs: what is appended to it, and what its rows add up to.
//!
//! # Invariants
//! A job waits while it has an *entry*: a row that says so and no other row that says that this entry is gone. Entries have ids
//! of their own, so that rows may come twice, late and in any order.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::http::{ACCESS_DENIED, DEADLINE, Failure, Http, SharedFailure};
use super::writer::{MAX_INSERT_BYTES, Writer};
use crate::job::{Job, JobId, JobKey, KeyMode};
use crate::provider::Depth;

/// What is written; the server adds the day.
const COLUMNS: &str = "id, entry, gone, name, run_at_ms, priority, queue, key, key_mode, job";

/// How many ids a statement names at most: servers limit its length.
const MAX_IDS: usize = 1_000;

/// How long tidying up a day may take.
const SWEEP_DEADLINE: Duration = Duration::from_secs(120);

/// The table, and the way into it.
#[derive(Clone)]
pub(super) struct Table {
    http: Http,
    writer: Writer,
    /// Quoted.
    name: String,
}

/// What a row says.
#[derive(Serialize)]
struct Row<'a> {
    id: JobId,
    entry: Uuid,
    gone: u8,
    #[serde(flatten)]
    job: Option<Columns<'a>>,
}

#[derive(Serialize)]
struct Columns<'a> {
    name: &'a str,
    run_at_ms: i64,
    priority: i16,
    queue: &'a str,
    key: &'a str,
    key_mode: &'static str,
    job: String,
}

/// All that decides which job is next: a job without its payload.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) job: Job,
    pub(super) entries: Vec<Uuid>,
}

/// What waits under an id.
pub(super) struct Found {
    pub(super) id: JobId,
    pub(super) entries: Vec<Uuid>,
    pub(super) content: Content,
}

pub(super) enum Content {
    Job(Box<Job>),
    /// The text of what is none.
    Corrupt(String),
}

impl Table {
    pub(super) fn new(http: Http, name: String) -> Self {
        let writer = Writer::new(http.clone(), &format!("INSERT INTO {name} ({COLUMNS}) FORMAT JSONEachRow"));
        Self { http, writer, name }
    }

    /// Makes the table unless it is there. A user who may not make tables can use one that somebody else has made.
    pub(super) async fn create(&self, lease_table: &str) -> Result<(), Failure> {
        let jobs = format!(
            "CREATE TABLE IF NOT EXISTS {} (id UUID, entry UUID, gone UInt8, name String, run_at_ms Int64, \
             run_at DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(run_at_ms, 'UTC'), priority Int16, queue String, \
             key String, key_mode LowCardinality(String), job String CODEC(ZSTD(1)), day Date DEFAULT toDate(now(), 'UTC')) \
             ENGINE = ReplacingMergeTree(gone) PARTITION BY day ORDER BY (id, entry) \
             SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
            self.name
        );
        for statement in [jobs, super::lease::create_table(lease_table)] {
            match self.http.execute(statement, DEADLINE).await {
                Ok(()) | Err(Failure::Exception { code: ACCESS_DENIED, .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Appends jobs, in as many inserts as their size needs.
    pub(super) async fn add(&self, jobs: &[Job]) -> Result<(), SharedFailure> {
        let mut lines = String::new();
        for (index, job) in jobs.iter().enumerate() {
            lines.push_str(&here(job, Uuid::new_v4())?);
            if lines.len() >= MAX_INSERT_BYTES || index + 1 == jobs.len() {
                self.writer.write(std::mem::take(&mut lines)).await?;
            }
        }
        Ok(())
    }

    /// Appends that entries are gone and that jobs are here in their place: all of it, or nothing.
    pub(super) async fn replace(&self, gone: &[(JobId, Uuid)], here: &[(&Job, Uuid)]) -> Result<(), SharedFailure> {
        let mut lines = String::new();
        for (job, entry) in here {
            lines.push_str(&self::here(job, *entry)?);
        }
        for (id, entry) in gone {
            lines.push_str(&line(&Row { id: *id, entry: *entry, gone: 1, job: None })?);
        }
        if lines.is_empty() { Ok(()) } else { self.writer.write(lines).await }
    }

    /// Writes and reads, as jobs are.
    pub(super) async fn probe(&self) -> Result<(), SharedFailure> {
        let id = JobId::new();
        self.replace(&[(id, Uuid::new_v4())], &[]).await?;
        let sql = format!("SELECT toString(count()) FROM {} WHERE id = '{id}'", self.name);
        let rows: Vec<(String,)> = self.http.select(&sql).await.map_err(SharedFailure::new)?;
        match rows.as_slice() {
            [(count,)] if count != "0" => Ok(()),
            _ => Err(Failure::Strange("what was written can't be read".to_owned()).into()),
        }
    }

    /// The first jobs that are due at `due`, and the first ones with keys, whenever they are due; with or without those of
    /// serial queues. In the order of time.
    pub(super) async fn soon(&self, due: Timestamp, without_serial: bool, limit: usize) -> Result<Vec<Head>, Failure> {
        let due = due.as_millisecond();
        let serial = if without_serial { "AND job_queue = ''" } else { "" };
        // Up to `limit` of either kind.
        self.heads(&format!("AND (due_ms <= {due} OR job_key != '') {serial}"), &format!("{limit} BY job_key != ''"))
            .await
    }

    /// The first jobs, in the order of time.
    pub(super) async fn first(&self, limit: usize) -> Result<Vec<Head>, Failure> {
        self.heads("", &limit.to_string()).await
    }

    async fn heads(&self, condition: &str, limit: &str) -> Result<Vec<Head>, Failure> {
        let sql = format!(
            "SELECT id, entry, toString(any(run_at_ms) AS due_ms), any(priority), any(queue) AS job_queue, any(key) AS job_key, \
             any(key_mode), any(name) FROM {} GROUP BY id, entry HAVING max(gone) = 0 {condition} ORDER BY due_ms, id LIMIT {limit}",
            self.name
        );
        type HeadRow = (JobId, Uuid, String, i16, String, String, String, String);
        let rows: Vec<HeadRow> = self.http.select(&sql).await?;
        let mut heads: Vec<Head> = Vec::with_capacity(rows.len());
        let mut places: HashMap<JobId, usize> = HashMap::with_capacity(rows.len());
        for (id, entry, run_at_ms, priority, queue, key, key_mode, name) in rows {
            if let Some(place) = places.get(&id) {
                heads[*place].entries.push(entry);
                continue;
            }
            let run_at = run_at_ms.parse().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let key = (!key.is_empty()).then(|| JobKey { key, mode: mode(&key_mode) });
            let job = Job {
                id,
                name,
                payload: Value::Null,
                run_at: run_at.unwrap_or(Timestamp::MAX),
                priority,
                queue: (!queue.is_empty()).then_some(queue),
                key,
                repetition: None,
                attempts: 0,
                max_attempts: 1,
                stalls: 0,
                last_error: None,
            };
            places.insert(id, heads.len());
            heads.push(Head { job, entries: vec![entry] });
        }
        Ok(heads)
    }

    /// What waits under these ids, in their order; those that are gone are left out.
    pub(super) async fn find(&self, ids: &[JobId]) -> Result<Vec<Found>, Failure> {
        let mut found: HashMap<JobId, Found> = HashMap::new();
        for ids in ids.chunks(MAX_IDS) {
            let sql = format!(
                "SELECT id, entry, any(job) FROM {} WHERE id IN ({}) GROUP BY id, entry HAVING max(gone) = 0",
                self.name,
                list(ids)
            );
            let rows: Vec<(JobId, Uuid, String)> = self.http.select(&sql).await?;
            for (id, entry, text) in rows {
                let content = Content::parse(id, text);
                let known = found.entry(id).or_insert_with(|| Found {
                    id,
                    entries: Vec::new(),
                    content: Content::Corrupt(String::new()),
                });
                known.entries.push(entry);
                if content.tells_more_than(&known.content) {
                    known.content = content;
                }
            }
        }
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }

    /// The entries of these ids.
    pub(super) async fn entries(&self, ids: &[JobId]) -> Result<Vec<(JobId, Uuid)>, Failure> {
        let mut entries = Vec::new();
        for ids in ids.chunks(MAX_IDS) {
            let sql = format!(
                "SELECT id, entry FROM {} WHERE id IN ({}) GROUP BY id, entry HAVING max(gone) = 0",
                self.name,
                list(ids)
            );
            entries.extend(self.http.select::<(JobId, Uuid)>(&sql).await?);
        }
        Ok(entries)
    }

    /// Whether a job of a serial queue waits.
    pub(super) async fn holds_serial(&self) -> Result<bool, Failure> {
        Ok(!self.heads("AND job_queue != ''", "1").await?.is_empty())
    }

    pub(super) async fn depth(&self, now: Timestamp) -> Result<Depth, Failure> {
        let now = now.as_millisecond();
        let sql = format!(
            "SELECT toString(countIf(due_ms <= {now})), toString(countIf(due_ms > {now})), toString(min(due_ms)) FROM \
             (SELECT id, min(run_at_ms) AS due_ms FROM (SELECT id, entry, any(run_at_ms) AS run_at_ms FROM {} \
             GROUP BY id, entry HAVING max(gone) = 0) GROUP BY id)",
            self.name
        );
        let rows: Vec<(String, String, String)> = self.http.select(&sql).await?;
        let Some((due, scheduled, oldest)) = rows.first() else { return Ok(Depth::default()) };
        let due = due.parse().unwrap_or(0);
        let oldest = oldest.parse().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Ok(Depth { due, scheduled: scheduled.parse().unwrap_or(0), oldest_due: oldest.filter(|_| due > 0) })
    }

    /// Keeps the table small: takes what still counts of a day to this day, and drops that day. The last two days are left
    /// alone, so that nobody writes to what is dropped.
    pub(super) async fn sweep(&self) -> Result<(), Failure> {
        let name = &self.name;
        let sql = format!(
            "SELECT DISTINCT toString(day) FROM {name} WHERE day < toDate(now(), 'UTC') - 1 ORDER BY day LIMIT 100"
        );
        for (day,) in self.http.select::<(String,)>(&sql).await? {
            // What says that an entry is gone counts as long as the entry itself is elsewhere.
            let copy = format!(
                "INSERT INTO {name} ({COLUMNS}) SELECT {COLUMNS} FROM {name} WHERE day = '{day}' AND if(gone = 0, \
                 entry NOT IN (SELECT entry FROM {name} WHERE gone = 1), \
                 entry IN (SELECT entry FROM {name} WHERE gone = 0 AND day != '{day}'))"
            );
            self.http.execute(copy, SWEEP_DEADLINE).await?;
            self.http.execute(format!("ALTER TABLE {name} DROP PARTITION '{day}'"), SWEEP_DEADLINE).await?;
            tracing::debug!(day, "the jobs of a day are tidied up");
        }
        Ok(())
    }
}

impl Content {
    fn parse(id: JobId, text: String) -> Self {
        match serde_json::from_str::<Job>(&text) {
            Ok(job) if job.id == id && job.check().is_ok() => Self::Job(Box::new(job)),
            _ => Self::Corrupt(text),
        }
    }

    /// Of several entries of a job, the one that was tried most often is the newest.
    fn tells_more_than(&self, other: &Self) -> bool {
        let tries = |content: &Self| match content {
            Self::Job(job) => (true, job.attempts, job.stalls, 0),
            Self::Corrupt(text) => (false, 0, 0, text.len()),
        };
        tries(self) > tries(other)
    }
}

/// When a job is due, rounded up. Unit: milliseconds since 1970.
fn run_at_ms(job: &Job) -> i64 {
    let millis = job.run_at.as_nanosecond().saturating_add(999_999).div_euclid(1_000_000);
    i64::try_from(millis).unwrap_or(i64::MAX)
}

fn here(job: &Job, entry: Uuid) -> Result<String, SharedFailure> {
    let columns = Columns {
        name: &job.name,
        run_at_ms: run_at_ms(job),
        priority: job.priority,
        queue: job.queue.as_deref().unwrap_or_default(),
        key: job.key.as_ref().map(|key| key.key.as_str()).unwrap_or_default(),
        key_mode: job.key.as_ref().map(|key| word(key.mode)).unwrap_or_default(),
        job: json(job)?,
    };
    line(&Row { id: job.id, entry, gone: 0, job: Some(columns) })
}

fn line(row: &Row<'_>) -> Result<String, SharedFailure> {
    let mut line = json(row)?;
    line.push('\n');
    Ok(line)
}

fn json(value: &impl Serialize) -> Result<String, SharedFailure> {
    serde_json::to_string(value).map_err(|error| Failure::Strange(format!("a job is no JSON: {error}")).into())
}

const fn word(mode: KeyMode) -> &'static str {
    match mode {
        KeyMode::Replace => "replace",
        KeyMode::KeepRunTime => "keep_run_time",
        KeyMode::Skip => "skip",
    }
}

fn mode(word: &str) -> KeyMode {
    match word {
        "keep_run_time" => KeyMode::KeepRunTime,
        "skip" => KeyMode::Skip,
        _ => KeyMode::Replace,
    }
}

/// Ids are made of digits and dashes, so nothing has to be quoted.
fn list(ids: &[JobId]) -> String {
    ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ")
}
