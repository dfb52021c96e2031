//! What happens when providers break: jobs find another one, come back, and none is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use jobs::breaker::BreakerState;
use jobs::job::Job;
use jobs::memory::{Memory, MemoryLimits};
use jobs::observer::NoObserver;
use jobs::provider::{Durability, Provider};
use jobs::queue::{DEADLINE, Mode, Queue, QueueError, StartError};
use jobs::spool::Spool;
use serde_json::json;

use crate::places::{Database, Files, Place as _, Remote, S3};
use crate::relay::Network;
use crate::rig::{Rig, WORK, until};
use crate::tiers::{Tiers, for_every_remote};

for_every_remote! {
    jobs_go_elsewhere_within_a_deadline_and_are_brought_back,
    what_was_taken_runs_whatever_the_network_does,
    a_queue_without_a_disk_does_not_start_and_says_why,
    memory_is_kept_when_the_process_ends,
    a_flood_that_nobody_waits_for_is_bounded,
}

async fn jobs_go_elsewhere_within_a_deadline_and_are_brought_back<R: Remote>() {
    for outage in [Network::Refuses, Network::Hangs] {
        let tiers = Tiers::start::<R>().await;
        assert_eq!(tiers.enqueue(0).await.expect("taken"), R::NAME);
        tiers.relay.set(outage);
        let start = Instant::now();
        assert_eq!(tiers.enqueue(1).await.expect("taken"), "files");
        assert!(start.elapsed() < DEADLINE + Duration::from_secs(1), "{:?}", start.elapsed());
        for number in 2..6 {
            assert_eq!(tiers.enqueue(number).await.expect("taken"), "files");
        }
        assert_ne!(tiers.breaker().await, BreakerState::Closed, "{outage:?}");
        let start = Instant::now();
        let later =
            Job::new(WORK, json!("later")).expect("a job").run_at(Timestamp::now() + SignedDuration::from_hours(1));
        tiers.queue.enqueue(&[later], Durability::Persistent).await.expect("taken");
        assert!(start.elapsed() < Duration::from_millis(500), "nobody waits for what is known to be broken");
        let status = tiers.queue.status().await;
        assert_eq!(tiers.queue.mode(&status), Mode::Degraded);

        tiers.relay.set(Network::Up);
        until("the breaker closes by itself", async || tiers.breaker().await == BreakerState::Closed).await;
        let rig = Rig::new(Arc::clone(&tiers.remote));
        tiers.consume(rig.work());
        rig.wait_for("end", 6).await;
        until("files are empty", async || tiers.files.waiting(9).await.expect("works").is_empty()).await;
        until("what is for later is where it belongs", async || {
            tiers.remote.waiting(9).await.is_ok_and(|jobs| jobs.len() == 1)
        })
        .await;
        let status = tiers.queue.status().await;
        assert_eq!(tiers.queue.mode(&status), Mode::Normal);
    }
}

/// From a seed: the network comes and goes, and every job that was taken runs.
async fn what_was_taken_runs_whatever_the_network_does<R: Remote>() {
    let mut random = fastrand::Rng::with_seed(20_261_201);
    let tiers = Tiers::start::<R>().await;
    let rig = Rig::new(Arc::clone(&tiers.remote));
    tiers.consume(rig.work());
    let mut taken = BTreeMap::new();
    for number in 0..120 {
        if random.u32(0..8) == 0 {
            let broken = [Network::Refuses, Network::Hangs, Network::Mute, Network::Slow];
            let states = [[Network::Up; 4], broken].concat();
            tiers.relay.set(states[random.usize(0..states.len())]);
        }
        if let Ok(provider) = tiers.enqueue(number).await {
            taken.insert(number, provider);
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..40))).await;
    }
    tiers.relay.set(Network::Up);
    let missing = || {
        let begun = rig.log.begun();
        taken.keys().filter(|number| !begun.contains(&json!(number))).count()
    };
    let patience = Instant::now();
    while missing() > 0 && patience.elapsed() < Duration::from_secs(90) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(missing(), 0, "of {}", taken.len());
    assert!(taken.values().any(|provider| provider == "files") && taken.values().any(|provider| provider == R::NAME));
    let twice = rig.log.begun().len() - taken.len();
    assert!(twice <= 12, "{twice} of {} ran again", taken.len());
}

async fn a_queue_without_a_disk_does_not_start_and_says_why<R: Remote>() {
    let (place, relay) = R::relayed().await;
    for outage in [Network::Refuses, Network::Hangs] {
        relay.set(outage);
        let start = Instant::now();
        let memory: Arc<dyn Provider> = Arc::new(Memory::new(MemoryLimits::default()));
        let StartError::NothingPersistent(reasons) =
            Queue::start(vec![Arc::clone(&memory), place.open()], Arc::new(NoObserver)).await.expect_err("refused");
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons[0].0, R::NAME);
        assert!(start.elapsed() < DEADLINE + Duration::from_millis(500), "{:?}", start.elapsed());

        // With files in the list it starts, and the broken one isn't forgotten.
        let folder = Files::fresh().await;
        let queue =
            Queue::start(vec![memory, place.open(), folder.open()], Arc::new(NoObserver)).await.expect("files work");
        let breakers = queue.status().await.into_iter().map(|status| status.breaker).collect::<Vec<_>>();
        assert_eq!(breakers, [BreakerState::Closed, BreakerState::Open, BreakerState::Closed]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_takes_what_is_for_now_and_nothing_else() {
    let folder = Files::fresh().await;
    let memory: Arc<dyn Provider> = Arc::new(Memory::new(MemoryLimits { max_jobs: 2, ..MemoryLimits::default() }));
    let queue = Queue::start(vec![memory, folder.open()], Arc::new(NoObserver)).await.expect("both work");
    let job = || Job::new(WORK, json!(1)).expect("a job");
    let takes = async |job: Job, least| queue.enqueue(&[job], least).await.expect("taken").provider;
    let later = job().run_at(Timestamp::now() + SignedDuration::from_mins(5));
    assert_eq!(takes(later, Durability::Transient).await, "files");
    assert_eq!(takes(job(), Durability::Persistent).await, "files");
    assert_eq!(takes(job(), Durability::Transient).await, "memory");
    assert_eq!(takes(job(), Durability::Transient).await, "memory");
    assert_eq!(takes(job(), Durability::Transient).await, "files", "memory is full");
}

async fn memory_is_kept_when_the_process_ends<R: Remote>() {
    let spool = tempfile::tempdir().expect("a folder");
    let spool = Spool::new(spool.path().join("spool"));
    for outage in [Network::Up, Network::Refuses] {
        let (place, relay) = R::relayed().await;
        let memory: Arc<dyn Provider> = Arc::new(Memory::new(MemoryLimits::default()));
        let queue = Queue::start(vec![memory, place.open()], Arc::new(NoObserver)).await.expect("works");
        for number in 0..3 {
            queue.enqueue_unawaited(Job::new(WORK, json!(number)).expect("a job")).expect("few are on their way");
        }
        relay.set(outage);
        queue.close(&spool).await.expect("somebody keeps them");
        relay.set(Network::Up);
        let next = Queue::start(vec![place.open()], Arc::new(NoObserver)).await.expect("works");
        let replayed = spool.replay(&next).await.expect("is read");
        assert_eq!(replayed, if outage == Network::Up { 0 } else { 3 });
        assert_eq!(place.open().waiting(9).await.expect("works").len(), 3);
        assert_eq!(spool.replay(&next).await.expect("nothing is left"), 0);
    }
}

/// More than a bucket takes within one deadline: at the end of a process, and when they come back from a file.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_kept_through_a_slow_network() {
    const JOBS: usize = 200;
    let folder = tempfile::tempdir().expect("a folder");
    let spool = Spool::new(folder.path().join("spool"));
    for outage in [Network::Slow, Network::Refuses] {
        let (place, relay) = S3::relayed().await;
        let memory: Arc<dyn Provider> = Arc::new(Memory::new(MemoryLimits::default()));
        let queue = Queue::start(vec![memory, place.open()], Arc::new(NoObserver)).await.expect("works");
        for number in 0..JOBS {
            let job = Job::new(WORK, json!(number)).expect("a job");
            let receipt = queue.enqueue(&[job], Durability::Transient).await.expect("taken");
            assert_eq!(receipt.durability, Durability::Transient);
        }
        relay.set(outage);
        queue.wind_up(&spool);
        let late = Job::new(WORK, json!("late")).expect("a job");
        assert_eq!(queue.enqueue(&[late], Durability::Transient).await.expect("taken").provider, "memory");
        queue.close(&spool).await.expect("somebody keeps them");
        relay.set(Network::Up);
        let next = Queue::start(vec![place.open()], Arc::new(NoObserver)).await.expect("works");
        relay.set(Network::Slow);
        let replayed = spool.replay(&next).await.expect("is read");
        assert_eq!(replayed, if outage == Network::Slow { 0 } else { JOBS + 1 }, "from the file");
        relay.set(Network::Up);
        let waiting = place.open().waiting(JOBS + 9).await.expect("works");
        assert_eq!(waiting.len(), JOBS + 1);
    }
}

async fn a_flood_that_nobody_waits_for_is_bounded<R: Remote>() {
    let (place, relay) = R::relayed().await;
    let queue = Queue::start(vec![place.open()], Arc::new(NoObserver)).await.expect("works");
    relay.set(Network::Hangs);
    let mut outcomes = (0..2_000).map(|number| queue.enqueue_unawaited(Job::new(WORK, json!(number)).expect("a job")));
    let refused = outcomes.find_map(Result::err).expect("some are refused");
    assert!(matches!(refused, QueueError::TooMany), "{refused}");
}

/// A server that answers, without the database: a stall of half a minute, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_database_is_named_at_once() {
    let start = Instant::now();
    let StartError::NothingPersistent(reasons) =
        Queue::start(vec![Database::missing().open()], Arc::new(NoObserver)).await.expect_err("refused");
    assert!(reasons[0].1.contains("nobody_made_this"), "{reasons:?}");
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
}
