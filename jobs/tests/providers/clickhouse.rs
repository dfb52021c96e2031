//! What can happen to rows of ClickHouse, and to nothing else.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use jobs::clickhouse::{ClickHouseOptions, Password};
use jobs::dead_letter::DeadLetters as _;
use jobs::job::Job;
use jobs::provider::Provider;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::places::{ClickHouseTable, Place as _, Remote as _, required};
use crate::relay::Network;
use crate::rig::{Rig, WORK, until};

fn job(payload: Value) -> Job {
    Job::new(WORK, payload).expect("a job")
}

fn num_holders<'a>(providers: impl IntoIterator<Item = &'a Arc<dyn Provider>>) -> usize {
    providers.into_iter().filter(|provider| provider.holds_lease() == Some(true)).count()
}

/// All of them find that nobody reads, and claim it at once.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_want_to_read_one_does() {
    let place = ClickHouseTable::fresh().await;
    let rigs = [0; 4].map(|_| Rig::new(place.open()));
    // Tables first, so that they start at the same time.
    rigs[0].enqueue(&(0..20).map(|number| job(json!(number))).collect::<Vec<_>>()).await;
    let running = rigs.iter().map(Rig::start).collect::<Vec<_>>();
    let providers = || rigs.iter().map(|rig| &rig.provider);
    until("one reads", async || num_holders(providers()) > 0).await;
    for _ in 0..150 {
        assert_eq!(num_holders(providers()), 1);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rigs[0].wait_until_empty().await;
    assert_eq!(rigs.iter().map(|rig| rig.log.begun().len()).sum::<usize>(), 20, "each ran once");
    for running in running {
        running.stop().await;
    }
}

/// The one that reads hears nothing any more: it stops before the next one starts, and stays stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_cut_off_stops_before_another_starts() {
    let (place, relay) = ClickHouseTable::relayed().await;
    let cut_off = Rig::new(place.open());
    let first = cut_off.start();
    until("it reads", async || num_holders([&cut_off.provider]) == 1).await;
    relay.set(Network::Hangs);
    let other = ClickHouseTable { url: required("CLICKHOUSE_URL").parse().expect("an address"), ..place };
    let other = Rig::new(other.open());
    let second = other.start();
    until("the other one reads", async || {
        let num_holders = num_holders([&cut_off.provider, &other.provider]);
        assert!(num_holders < 2, "two read");
        num_holders == 1 && other.provider.holds_lease() == Some(true)
    })
    .await;
    relay.set(Network::Up);
    other.enqueue(&[job(json!("one")), job(json!("two"))]).await;
    other.wait_for("end", 2).await;
    assert!(cut_off.log.begun().is_empty(), "it is not asked");
    first.stop().await;
    second.stop().await;
}

/// What was written can't be told from what wasn't: whoever sends it again has it once.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_whose_answer_got_lost_counts_once() {
    let (place, relay) = ClickHouseTable::relayed().await;
    let rig = Rig::new(place.open());
    rig.provider.probe().await.expect("works");
    relay.set(Network::Mute);
    let job = job(json!({"fail": 1}));
    let jobs = std::slice::from_ref(&job);
    timeout(Duration::from_secs(1), rig.provider.enqueue(jobs)).await.expect_err("no answer comes");
    let written = format!("SELECT count() FROM {{table}} WHERE id = '{}'", job.id);
    assert_eq!(place.tamper(&written).await, "1", "it was written all the same");
    relay.set(Network::Up);
    // Its first request still waits for an answer; this one goes after it.
    rig.enqueue(jobs).await;
    assert_eq!(rig.provider.waiting(9).await.expect("works"), jobs);
    assert_eq!(rig.provider.depth().await.expect("works").due, 1);
    let running = rig.start();
    rig.wait_until_empty().await;
    assert_eq!(rig.log.begun().len(), 2, "it failed once and was done once");
    running.stop().await;
}

/// A job is done, and nobody hears that it was noted.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_end_was_noted_without_an_answer_stays_done() {
    let (place, relay) = ClickHouseTable::relayed().await;
    let rig = Rig::new(place.open());
    let running = rig.start();
    rig.enqueue(&[job(json!({"sleep": 400}))]).await;
    rig.wait_for("begin", 1).await;
    relay.set(Network::Mute);
    rig.wait_for("end", 1).await;
    until("its end is noted", async || place.tamper("SELECT max(gone) FROM {table}").await == "1").await;
    running.kill().await;
    relay.set(Network::Up);
    // Another process, which remembers nothing.
    let next = Rig::new(place.open());
    let running = next.start();
    next.enqueue(&[job(json!("next"))]).await;
    next.wait_for("end", 1).await;
    next.wait_until_empty().await;
    assert_eq!(next.log.begun(), [json!("next")]);
    running.stop().await;
}

/// What is wrong is said in a sentence, and never with the password.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_named_without_its_secret() {
    let place = ClickHouseTable::fresh().await;
    let missing = ClickHouseOptions { database: "nobody_made_this".to_owned(), ..place.options() };
    let refused = ClickHouseOptions { password: Password::new("hunter2"), ..place.options() };
    let other =
        ClickHouseOptions { url: required("AWS_ENDPOINT_URL_S3").parse().expect("an address"), ..place.options() };
    for (options, sentence) in [
        (missing, "clickhouse can't make its tables: ClickHouse says: Database nobody_made_this does not exist"),
        (refused, "Authentication failed"),
        (other, "the answer is not what ClickHouse answers"),
    ] {
        let provider = ClickHouseTable::with(options);
        let error = provider.probe().await.expect_err("can't be used");
        assert!(error.to_string().contains(sentence), "{error}");
        let all = format!("{error:?} {provider:?}");
        assert!(!all.contains("hunter2") && !all.contains(&required("CLICKHOUSE_PASSWORD")), "{all}");
    }
}

/// Somebody else's rows, or what a later version makes of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_no_job_joins_the_dead() {
    let place = ClickHouseTable::fresh().await;
    let rig = Rig::new(place.open());
    rig.enqueue(&[job(json!("a job"))]).await;
    place.tamper("INSERT INTO {table} (id, entry, job) VALUES (generateUUIDv7(), generateUUIDv4(), 'no job')").await;
    let running = rig.start();
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    let dead = rig.dead.list(9).await.expect("works");
    assert_eq!(dead.iter().map(|letter| &letter.job.payload).collect::<Vec<_>>(), [&json!("no job")]);
    running.stop().await;
}

/// Whole days are dropped, and with them nothing that counts.
#[tokio::test(flavor = "multi_thread")]
async fn days_that_are_over_are_tidied_up() {
    let place = ClickHouseTable::fresh().await;
    let rig = Rig::new(place.open());
    let far = |payload| job(payload).run_at(Timestamp::now() + SignedDuration::from_hours(1));
    let (waits, done, moved) = (far(json!("waits")), far(json!("done")), far(json!("came twice")));
    rig.enqueue(&[waits.clone(), done.clone(), moved.clone()]).await;
    assert_eq!(rig.provider.remove(&[done.id, moved.id]).await.expect("works"), 2);
    let columns = "id, entry, gone, name, run_at_ms, priority, queue, key, key_mode, job";
    for days in [3, 5] {
        let copy = format!("INSERT INTO {{table}} ({columns}, day) SELECT {columns}, today() - {days} FROM {{table}}");
        place.tamper(&format!("{copy} WHERE day >= today() - 1")).await;
    }
    // Of one job, what says that it is gone is in the old days alone, and the job itself in this one.
    for day in place.tamper("SELECT DISTINCT day FROM {table} WHERE day >= today() - 1").await.lines() {
        place.tamper(&format!("ALTER TABLE {{table}} DROP PARTITION '{day}'")).await;
    }
    let again =
        format!("INSERT INTO {{table}} (id, entry) SELECT id, entry FROM {{table}} WHERE id = '{}' LIMIT 1", moved.id);
    place.tamper(&again).await;
    let running = rig.start();
    let old_rows = "SELECT count() FROM {table} WHERE day < today() - 1";
    until("old days are dropped", async || place.tamper(old_rows).await == "0").await;
    assert_eq!(rig.provider.waiting(9).await.expect("works"), [waits]);
    let left = place.tamper("SELECT uniqExact(id) FROM {table}").await;
    assert_eq!(left, "2", "what is done and nowhere else is forgotten");
    running.stop().await;
    assert!(rig.log.begun().is_empty());
}
