//! One row in hand: its job is attempted, and what became of it goes back into the database.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use graphile_worker::{IntoTaskHandlerResult, TaskHandler, WorkerContext, WorkerUtils};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Postgres;
use super::row::{Row, rows, timestamp};
use crate::consumer::{Consumer, MAX_PAUSE, MIN_PAUSE, Takes};
use crate::flow::{Flow, Level};
use crate::handler::{Verdict, Work};
use crate::job::{Job, MAX_STALLS};

/// How much later than its row a job may be due: the database's clock isn't ours.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(1);

/// How much is kept of a row that is no job and can't be a payload either.
const CORRUPT_CHARS: usize = 64 * 1024;

/// How long one try to put a row back may take: a connection may be dead without anybody who says so.
const PUT_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a row's payload is to the library.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Task(Value);

impl TaskHandler for Task {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let hands = context.get_ext::<Hands>().cloned().ok_or("nobody does the work")?;
        let ended = hands.ended.clone();
        let attempt = hands.attempt(&context, self.0);
        ended.run_until_cancelled(attempt).await.unwrap_or(Err("the process ended meanwhile"))
    }
}

/// What one run of the library's worker does with rows.
#[derive(Debug, Clone)]
pub(super) struct Hands {
    pub(super) provider: Postgres,
    /// Connections that end with the run.
    pub(super) pool: PgPool,
    pub(super) work: Arc<dyn Work>,
    pub(super) flow: Flow,
    /// Which rows it takes; to move them elsewhere, they are made due before their time.
    pub(super) takes: Takes,
    /// Set when the run is over: nothing that it has in hand may be settled any more.
    pub(super) ended: CancellationToken,
    one_at_a_time: Arc<Semaphore>,
    progress: Arc<Mutex<Progress>>,
}

/// What tells a run that goes on from one that is stuck.
#[derive(Debug)]
struct Progress {
    at_work: HashSet<i64>,
    last_begin: Instant,
    /// Rows that are done here and not yet deleted there.
    unsettled: HashMap<i64, Instant>,
}

impl Hands {
    pub(super) fn new(provider: &Postgres, pool: &PgPool, consumer: &Consumer) -> Self {
        let progress = Progress { at_work: HashSet::new(), last_begin: Instant::now(), unsettled: HashMap::new() };
        Self {
            provider: provider.clone(),
            pool: pool.clone(),
            work: Arc::clone(&consumer.work),
            flow: consumer.flow.clone(),
            takes: consumer.takes,
            ended: CancellationToken::new(),
            one_at_a_time: Arc::new(Semaphore::new(1)),
            progress: Arc::new(Mutex::new(progress)),
        }
    }

    /// Does what there is to do with one row; then the library deletes it, unless this fails: others have it then.
    async fn attempt(self, context: &WorkerContext, payload: Value) -> Result<(), &'static str> {
        let row = *context.job().id();
        self.progress().begin(row);
        let _slow = self.wait_for_room().await;
        let claimed = Row {
            key: context.job().key().clone(),
            run_at: *context.job().run_at(),
            priority: *context.job().priority(),
            stalls: context.job().attempts().saturating_sub(1),
            payload,
        };
        let verdict = match claimed.job() {
            Some(job) => {
                let _in_hand = self.flow.take(1, job.num_bytes() as u64);
                self.decide(job, timestamp(claimed.run_at)).await
            }
            None => self.bury_what_is_no_job(claimed.payload).await,
        };
        let is_settled = match verdict {
            Verdict::Gone => true,
            Verdict::Again(job) => self.put_back(row, context.worker_id(), &job).await,
        };
        self.progress().end(row, is_settled);
        if is_settled { Ok(()) } else { Err("another process has taken the row over") }
    }

    async fn decide(&self, job: Job, due: Timestamp) -> Verdict {
        let was_made_due = job.run_at > due.saturating_add(TOLERANCE).unwrap_or(Timestamp::MAX);
        if was_made_due && self.takes != Takes::Everything && !job.is_due(Timestamp::now()) {
            return Verdict::Again(Box::new(job));
        }
        if job.stalls >= MAX_STALLS { self.work.bury(job).await } else { self.work.attempt(job).await }
    }

    /// Keeps it among the dead, where somebody finds it.
    async fn bury_what_is_no_job(&self, payload: Value) -> Verdict {
        tracing::error!(provider = self.provider.options().name, "this row is no job; it joins the dead letters");
        let text = payload.to_string().chars().take(CORRUPT_CHARS).collect::<String>();
        // What can't be a payload is kept as text, or the beginning of it.
        match Job::new("corrupt", payload).or_else(|_| Job::new("corrupt", Value::String(text))) {
            Ok(job) => self.work.bury(Job { last_error: Some("this is no job".to_owned()), ..job }).await,
            // Text of this length without the character 0 is a payload.
            Err(_impossible) => Verdict::Gone,
        }
    }

    /// Waits until the flow lets one more in.
    async fn wait_for_room(&self) -> Option<SemaphorePermit<'_>> {
        let mut levels = self.flow.levels();
        loop {
            let level = *levels.borrow_and_update();
            let changed = async {
                // The sender lives as long as the flow does, and that is ours.
                drop(levels.changed().await);
            };
            match level {
                Level::Run => return None,
                Level::Slow => tokio::select! {
                    permit = self.one_at_a_time.acquire() => return permit.ok(),
                    () = changed => {}
                },
                Level::Pause | Level::Stop => changed.await,
            }
        }
    }

    /// Makes a new row of a job, in whose place the library retires the old one. However long the database is away: until
    /// then, the old row is as it was. Returns whether the old row was ours to the end.
    async fn put_back(&self, row: i64, worker_id: &str, job: &Job) -> bool {
        let mut pause = MIN_PAUSE;
        loop {
            let error = match timeout(PUT_BACK_TIMEOUT, self.try_to_put_back(row, worker_id, job)).await {
                Ok(Ok(was_ours)) => return was_ours,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            tracing::warn!(job = %job.id, error, ?pause, "what became of a job can't be noted; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn try_to_put_back(
        &self,
        row: i64,
        worker_id: &str,
        job: &Job,
    ) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        let mut transaction = self.pool.begin().await?;
        let added = rows(std::slice::from_ref(job))?;
        let keys = added.iter().filter_map(|row| row.spec.job_key.clone()).collect::<Vec<_>>();
        self.provider.lock_keys(&mut transaction, &keys).await?;
        let sql =
            format!("select key from {} where id = $1 and locked_by = $2 for update", self.provider.table("jobs"));
        let query = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(sql)).bind(row).bind(worker_id);
        let Some(key) = query.fetch_optional(&mut *transaction).await? else {
            // Its lease ran out, or it was put back before and the answer got lost.
            return Ok(false);
        };
        // A row without its key was superseded while it was at work: the newer job is there already, and stays.
        if key.is_some() {
            let utils = WorkerUtils::new(&self.pool, &self.provider.shared.schema);
            utils.with_executor(&mut *transaction).add_raw_jobs(&added).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// The library has deleted a row.
    pub(super) fn settled(&self, row: i64) {
        self.progress().unsettled.remove(&row);
    }

    /// Whether a row is at work, or done and not yet deleted.
    pub(super) fn holds(&self, row: i64) -> bool {
        let progress = self.progress();
        progress.at_work.contains(&row) || progress.unsettled.contains_key(&row)
    }

    /// Whether rows that are done stay in the database for so long, or nothing was begun in that time though there was room.
    pub(super) fn is_stuck(&self, patience: Duration, concurrency: usize, others_wait: bool) -> bool {
        let paused = self.flow.level() >= Level::Pause;
        let progress = self.progress();
        let is_idle = progress.at_work.len() < concurrency && progress.last_begin.elapsed() > patience && !paused;
        progress.unsettled.values().any(|since| since.elapsed() > patience) || (is_idle && others_wait)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn begin(&mut self, row: i64) {
        self.at_work.insert(row);
        self.last_begin = Instant::now();
    }

    /// A row that is settled is deleted soon; any other is left alone.
    fn end(&mut self, row: i64, is_settled: bool) {
        self.at_work.remove(&row);
        if is_settled {
            self.unsettled.insert(row, Instant::now());
        }
    }
}
