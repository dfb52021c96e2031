//! What can happen to rows that Postgres holds, and to nothing else.

use jiff::{SignedDuration, Timestamp};
use jobs::dead_letter::DeadLetters as _;
use jobs::job::Job;
use serde_json::json;

use crate::places::{Database, Place as _};
use crate::rig::{Rig, WORK, until};

/// The answer to a claim got lost: the row is locked by a worker that lives and doesn't know of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_claimed_and_not_heard_of_runs() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    let running = rig.start();
    let job = Job::new(WORK, json!("lost")).and_then(|job| job.in_queue("serial")).expect("a job");
    let job = job.run_at(Timestamp::now() + SignedDuration::from_secs(1));
    rig.enqueue(&[job]).await;
    let claim = "update {schema}._private_jobs set locked_by = worker.id, locked_at = now() - interval '1 minute' \
                 from (select id from {schema}._private_workers limit 1) as worker";
    until("the worker is known", async || place.tamper(claim).await == 1).await;
    let queue = "update {schema}._private_job_queues set locked_at = now(), \
                 locked_by = (select id from {schema}._private_workers limit 1)";
    assert_eq!(place.tamper(queue).await, 1);
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    running.stop().await;
}

/// Jobs beside a pool of the program's own have connections of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_does_not_stop_jobs() {
    let place = Database::fresh().await;
    let (pool, provider) = place.beside_a_pool_of_one().await;
    let _busy = pool.acquire().await.expect("a connection");
    let rig = Rig::new(provider);
    let running = rig.start();
    rig.enqueue(&[Job::new(WORK, json!("runs")).expect("a job")]).await;
    rig.wait_for("end", 1).await;
    running.stop().await;
}

/// A job of a queue that takes longer than a lease: those behind it wait, and nothing is wrong with that.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_job_of_a_queue_is_left_alone() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    let running = rig.start();
    let queued = |payload| Job::new(WORK, payload).and_then(|job| job.in_queue("serial")).expect("a job");
    rig.enqueue(&[queued(json!({"sleep": 8_000})), queued(json!("second"))]).await;
    rig.wait_for("end", 2).await;
    assert_eq!(rig.log.begun(), [json!({"sleep": 8_000}), json!("second")], "each began once");
    running.stop().await;
}

/// Whoever was frozen finished a row that others had taken over, and could not free the queue that was theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_row_at_work_is_free_again() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    let queued = || Job::new(WORK, json!("waits")).and_then(|job| job.in_queue("serial")).expect("a job");
    rig.enqueue(&[queued()]).await;
    let lock = "update {schema}._private_job_queues set locked_by = 'nobody', locked_at = now()";
    assert_eq!(place.tamper(lock).await, 1);
    let running = rig.start();
    rig.wait_for("end", 1).await;
    running.stop().await;
}

/// Others have taken the row over, and the attempt here fails: it must not touch what is theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_others_have_is_not_put_back() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    let running = rig.start();
    let job = Job::new(WORK, json!({"sleep": 1_500, "fail": 1})).expect("a job");
    rig.enqueue(std::slice::from_ref(&job)).await;
    rig.wait_for("begin", 1).await;
    // As a sweep does, before anybody claims it.
    let recover =
        "update {schema}._private_jobs set locked_by = null, locked_at = null, run_at = now() + interval '4 seconds'";
    assert_eq!(place.tamper(recover).await, 1);
    rig.wait_for("begin", 2).await;
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    running.stop().await;
}

/// Somebody else's rows, or what a later version makes of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_no_job_joins_the_dead() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    rig.enqueue(&[Job::new(WORK, json!("a job")).expect("a job")]).await;
    assert_eq!(place.tamper("update {schema}._private_jobs set payload = '{\"some\": \"thing\"}'").await, 1);
    let running = rig.start();
    until("it is among the dead", async || rig.dead.list(1).await.expect("works").len() == 1).await;
    let dead = rig.dead.list(1).await.expect("works").remove(0).job;
    assert_eq!((dead.name.as_str(), &dead.payload), ("corrupt", &json!({"some": "thing"})));
    rig.wait_until_empty().await;

    // Not even a payload.
    rig.enqueue(&[Job::new(WORK, json!("a job"))
        .expect("a job")
        .run_at(Timestamp::now() + SignedDuration::from_secs(1))])
        .await;
    assert_eq!(place.tamper("update {schema}._private_jobs set payload = '[\"a \\u0000\"]'").await, 1);
    until("it is among the dead, too", async || rig.dead.list(2).await.expect("works").len() == 2).await;
    let dead = rig.dead.list(2).await.expect("works").remove(1).job;
    assert_eq!(dead.payload, json!("[\"a \\u0000\"]"));
    running.stop().await;
}

/// It ends processes, as far as anybody can tell: five were at work on it and had no time to say what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_outlived_five_processes_joins_the_dead() {
    let place = Database::fresh().await;
    let rig = Rig::new(place.open());
    rig.enqueue(&[Job::new(WORK, json!("poison")).expect("a job")]).await;
    assert_eq!(place.tamper("update {schema}._private_jobs set attempts = 5").await, 1);
    let running = rig.start();
    until("it is among the dead", async || rig.dead.list(1).await.expect("works").len() == 1).await;
    let dead = rig.dead.list(1).await.expect("works").remove(0).job;
    assert_eq!((dead.stalls, rig.log.begun().len()), (5, 0), "{dead:?}");
    running.stop().await;
}

/// Dead letters beside the jobs they were.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_kept_beside_jobs() {
    let place = Database::fresh().await;
    let database = place.postgres();
    let jobs = [1, 2].map(|number| Job::new(WORK, json!(number)).expect("a job"));
    for job in &jobs {
        database.bury(job).await.expect("kept");
        database.bury(job).await.expect("kept once");
    }
    let letters = database.list(10).await.expect("works");
    assert_eq!(letters.iter().map(|letter| &letter.job).collect::<Vec<_>>(), jobs.iter().collect::<Vec<_>>());
    assert_eq!(database.get(jobs[1].id).await.expect("works").map(|letter| letter.job), Some(jobs[1].clone()));
    database.remove(jobs[0].id).await.expect("works");
    assert_eq!(database.list(10).await.expect("works").len(), 1);
    let rig = Rig::new(place.open());
    assert_eq!(rig.provider.depth().await.expect("works").due, 0, "they are no jobs");
    assert!(rig.provider.waiting(10).await.expect("works").is_empty());
}
