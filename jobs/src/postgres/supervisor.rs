//! Runs of the library's worker, one after the other: whatever ends one, or makes it stand still, begins the next.

use std::time::Duration;

use graphile_worker::worker_utils::types::CleanupTask;
use graphile_worker::{
    FailureReason, JobComplete, JobRecovery, JobRecoveryContext, JobRecoveryResult, LocalQueueConfig, TaskHandler as _,
    WorkerOptions, WorkerRecoveryConfig, WorkerUtils,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::{Instant, timeout};

use super::row::SERIAL;
use super::task::{Hands, Task};
use super::{CONNECT_TIMEOUT, Postgres, pool};
use crate::consumer::{Consumer, MAX_PAUSE, MIN_PAUSE, Takes};
use crate::error::ProviderError;

/// How long what is done waits for others, to be deleted with them.
const COMPLETION_DELAY: Duration = Duration::from_millis(2);

/// How many rows at once are made due for moving them, and the pause between.
const AHEAD: i64 = 100;
const AHEAD_PAUSE: Duration = Duration::from_millis(500);

/// How much longer than the grace a run may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// Handles the provider's jobs until the order to stop.
///
/// # Cancel safety
/// Dropping the future leaves the jobs at work to others, who take them after the lease's term.
pub(super) async fn run(provider: Postgres, consumer: Consumer) {
    let name = &provider.options().name;
    let mut pause = MIN_PAUSE;
    while !consumer.stop.is_cancelled() {
        let begin = Instant::now();
        let Err(error) = run_once(&provider, &consumer).await else { return };
        if begin.elapsed() > MAX_PAUSE {
            pause = MIN_PAUSE;
        }
        tracing::warn!(provider = name, %error, ?pause, "handling jobs ended; it starts again");
        consumer.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// One run; `Ok` only after the order to stop.
async fn run_once(provider: &Postgres, consumer: &Consumer) -> Result<(), ProviderError> {
    // The library's tasks outlive the future that runs them. Without connections they can't do harm.
    let connections = pool(provider.address());
    let hands = Hands::new(provider, &connections, consumer);
    let _end = End(hands.clone());
    provider.migrate().await?;
    let worker = options(provider, consumer, &hands).init().await;
    let worker = worker.map_err(|error| provider.error("can't begin to hand out jobs", error))?;
    clean_up(&worker.create_utils()).await;
    let running = worker.run();
    tokio::pin!(running);
    let failed = |error| provider.error("stopped handing out jobs", error);
    tokio::select! {
        outcome = &mut running => {
            outcome.map_err(failed)?;
            Err(ProviderError::new(&provider.options().name, "stopped handing out jobs without a reason"))
        }
        error = watch(provider, consumer, &hands, worker.worker_id()) => Err(error),
        () = make_due(provider), if consumer.takes == Takes::Everything => Ok(()),
        () = consumer.stop.cancelled() => {
            worker.request_shutdown();
            if timeout(consumer.grace + ENDING, running).await.is_err() {
                tracing::warn!(grace = ?consumer.grace, "jobs at work did not end in time; they will be handled again");
            }
            Ok(())
        }
    }
}

/// The end of a run, however it comes.
struct End(Hands);

impl Drop for End {
    fn drop(&mut self) {
        let pool = self.0.pool.clone();
        // The call closes it, and the future only waits for connections in use. What is at work hears of the end after that:
        // else the library would note its failure, and let those of its queue that come after it go first.
        drop(pool.close());
        self.0.ended.cancel();
        tokio::spawn(async move { pool.close().await });
    }
}

fn options(provider: &Postgres, consumer: &Consumer, hands: &Hands) -> WorkerOptions {
    let term = provider.options().lease_term;
    let recovery = WorkerRecoveryConfig::default()
        .heartbeat_interval(term / 6)
        .sweep_interval(term / 3)
        .sweep_threshold(term)
        .recovery_delay(Duration::ZERO);
    let settled = hands.clone();
    let options = WorkerOptions::default()
        .pg_pool(hands.pool.clone())
        .schema(&provider.shared.schema)
        .concurrency(consumer.concurrency)
        .poll_interval(provider.options().poll)
        // No more than can be begun at once: what is claimed together comes in any order, whatever its priority.
        .local_queue(LocalQueueConfig::default().with_size(consumer.concurrency.max(1)).with_ttl(term))
        .complete_job_batch_delay(COMPLETION_DELAY)
        .worker_recovery(recovery)
        .listen_os_shutdown_signals(false)
        .shutdown_grace_period(consumer.grace)
        .shutdown_interrupted_job_retry_delay(Duration::ZERO)
        .add_extension(hands.clone())
        .on(JobRecovery, |context| async move { recover(&context) })
        .on(JobComplete, move |context| {
            settled.settled(*context.job.id());
            async {}
        })
        .define_jobs([Task::definition()]);
    if consumer.takes == Takes::DueWithoutQueue { options.add_forbidden_flag(SERIAL) } else { options }
}

/// What becomes of a row whose worker is gone: its claim counts, for it had no end.
fn recover(context: &JobRecoveryContext) -> JobRecoveryResult {
    match context.reason {
        FailureReason::WorkerCrashed => {
            JobRecoveryResult::Reschedule { run_at: *context.job.run_at(), attempts: Some(*context.job.attempts()) }
        }
        _ => JobRecoveryResult::Default,
    }
}

/// Deletes rows in whose place others are, and whose process ended before it could; and queues that nobody uses any more.
async fn clean_up(utils: &WorkerUtils) {
    if let Err(error) = utils.cleanup(&[CleanupTask::DeletePermanentlyFailedJobs, CleanupTask::GcJobQueues]).await {
        tracing::debug!(%error, "rows of jobs that are done, and of queues without jobs, stay for now");
    }
}

/// Looks after the run by connections of its own, since others may be dead. Ends when it stands still though the database works.
async fn watch(provider: &Postgres, consumer: &Consumer, hands: &Hands, worker_id: &str) -> ProviderError {
    let term = provider.options().lease_term;
    loop {
        tokio::time::sleep(term / 3).await;
        match timeout(CONNECT_TIMEOUT * 2, look(provider, hands, worker_id)).await {
            Ok(Ok(look)) if look.is_unheard || hands.is_stuck(term, consumer.concurrency, look.others_wait) => {
                return ProviderError::new(&provider.options().name, "works, but hands out no jobs");
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the database doesn't answer, so nobody knows what waits"),
            Err(_late) => tracing::debug!("the database doesn't answer in time, so nobody knows what waits"),
        }
    }
}

/// What the database says of a run.
struct Look {
    /// A job that could be claimed waits for so long that somebody should have claimed it.
    others_wait: bool,
    /// The run's sign of life is so old that others take what it has.
    is_unheard: bool,
}

async fn look(provider: &Postgres, hands: &Hands, worker_id: &str) -> Result<Look, sqlx::Error> {
    let mut connection = PgConnection::connect_with(&provider.address()).await?;
    let term = provider.options().lease_term.as_secs_f64();
    let sql = format!(
        "select exists(select 1 from {jobs} where locked_at is null and run_at < now() - make_interval(secs => $1)
                and {are_jobs} and (job_queue_id is null or (not $3 and exists(
                    select 1 from {queues} as queues where queues.id = job_queue_id and queues.locked_at is null)))),
            exists(select 1 from {workers} where id = $2 and last_heartbeat_at < now() - make_interval(secs => $1))",
        jobs = provider.table("jobs"),
        queues = provider.table("job_queues"),
        workers = provider.table("workers"),
        are_jobs = provider.are_jobs()
    );
    let query = sqlx::query_as::<_, (bool, bool)>(AssertSqlSafe(sql)).bind(term).bind(worker_id);
    let query = query.bind(hands.takes == Takes::DueWithoutQueue);
    let (others_wait, is_unheard) = query.fetch_one(&mut connection).await?;
    release_lost(provider, hands, worker_id, &mut connection).await?;
    release_queues(provider, &mut connection).await?;
    connection.close().await?;
    Ok(Look { others_wait, is_unheard })
}

/// Lets go of rows that the run has claimed without hearing of it: the answer got lost, and as long as the run lives nobody
/// else takes them. What the library keeps for later goes back after one term, so after two it can't be that. A row that is
/// begun in this very moment is given to somebody else as well; then what becomes of it here is not noted.
async fn release_lost(
    provider: &Postgres,
    hands: &Hands,
    worker_id: &str,
    connection: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    let jobs = provider.table("jobs");
    let sql = format!("select id from {jobs} where locked_by = $1 and locked_at < now() - make_interval(secs => $2)");
    let claimed: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(worker_id)
        .bind(provider.options().lease_term.as_secs_f64() * 2.0)
        .fetch_all(&mut *connection)
        .await?;
    let lost = claimed.into_iter().filter(|row| !hands.holds(*row)).collect::<Vec<_>>();
    if lost.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        provider = provider.options().name,
        jobs = lost.len(),
        "jobs were claimed and not heard of; they go back"
    );
    // One that was superseded meanwhile has no attempts left, and stays so.
    let sql = format!(
        "with lost as (
            update {jobs} set locked_by = null, locked_at = null,
                attempts = case when key is null then attempts else greatest(0, attempts - 1) end
            where id = any($1) and locked_by = $2 returning job_queue_id)
        update {queues} set locked_by = null, locked_at = null
            where id in (select job_queue_id from lost) and locked_by = $2",
        queues = provider.table("job_queues")
    );
    sqlx::query(AssertSqlSafe(sql)).bind(lost).bind(worker_id).execute(connection).await?;
    Ok(())
}

/// Lets go of queues without a row at work: who finishes a row that others have taken over deletes it, and can't free a queue
/// that is theirs.
async fn release_queues(provider: &Postgres, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let sql = format!(
        "update {queues} as queues set locked_by = null, locked_at = null
        where queues.locked_at < now() - make_interval(secs => $1)
            and not exists(select 1 from {jobs} where job_queue_id = queues.id and locked_at is not null)",
        queues = provider.table("job_queues"),
        jobs = provider.table("jobs")
    );
    let term = provider.options().lease_term.as_secs_f64();
    sqlx::query(AssertSqlSafe(sql)).bind(term * 2.0).execute(connection).await?;
    Ok(())
}

/// Makes jobs for later due now, some at a time, as long as this runs.
async fn make_due(provider: &Postgres) {
    let sql = format!(
        "update {jobs} set run_at = now() where id in (
            select id from {jobs} where locked_at is null and run_at > now() and {are_jobs} order by run_at limit $1
            for update skip locked)",
        jobs = provider.table("jobs"),
        are_jobs = provider.are_jobs()
    );
    loop {
        let query = sqlx::query(AssertSqlSafe(sql.clone())).bind(AHEAD);
        if let Err(error) = query.execute(&provider.shared.pool).await {
            tracing::debug!(%error, "jobs for later can't be moved yet");
        }
        tokio::time::sleep(AHEAD_PAUSE).await;
    }
}
