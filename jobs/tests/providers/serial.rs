//! Jobs of serial queues run one at a time and in their order, whichever place had to take them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jobs::breaker::BreakerState;
use jobs::job::Job;
use jobs::memory::{Memory, MemoryLimits};
use jobs::observer::NoObserver;
use jobs::provider::Durability;
use jobs::queue::Queue;
use serde_json::json;

use crate::places::{Files, Place as _, Remote};
use crate::relay::Network;
use crate::rig::{Rig, WORK, until};
use crate::tiers::{Tiers, for_every_remote};

/// How many jobs are sent while the network comes and goes.
const JOBS: u32 = 100;

for_every_remote! {
    a_stand_in_keeps_serial_jobs_and_runs_the_others,
    the_order_holds_whatever_the_network_does,
}

fn serial(number: u32) -> Job {
    Job::new(WORK, json!(number)).expect("a job").in_queue("one by one").expect("a queue")
}

async fn enqueue(queue: &Queue, number: u32) -> String {
    queue.enqueue(&[serial(number)], Durability::Transient).await.expect("taken").provider
}

async fn a_stand_in_keeps_serial_jobs_and_runs_the_others<R: Remote>() {
    let tiers = Tiers::start::<R>().await;
    let rig = Rig::new(Arc::clone(&tiers.remote));
    assert_eq!(enqueue(&tiers.queue, 0).await, R::NAME);
    tiers.relay.set(Network::Refuses);
    assert_eq!(enqueue(&tiers.queue, 1).await, "files");
    tiers.consume(rig.work());
    assert_eq!(tiers.enqueue(9).await.expect("taken"), "files");
    rig.wait_for("end", 1).await;
    assert_eq!(rig.log.begun(), [json!(9)], "the first of the queue can't be had, so the second waits");

    tiers.relay.set(Network::Up);
    until("the breaker closes by itself", async || tiers.breaker().await == BreakerState::Closed).await;
    // Neither this process nor one that begins now sends the third before the second.
    let other = tiers.another().await;
    enqueue(&tiers.queue, 2).await;
    enqueue(&other, 3).await;
    rig.wait_for("end", 5).await;
    assert_eq!(rig.log.begun(), [9, 0, 1, 2, 3].map(|number| json!(number)));
    until("files are empty", async || tiers.files.waiting(9).await.expect("works").is_empty()).await;
    assert_eq!(enqueue(&tiers.queue, 4).await, R::NAME, "nothing has to be followed any more");
}

/// From a seed: the network comes and goes, and now and then another process goes on to send.
async fn the_order_holds_whatever_the_network_does<R: Remote>() {
    let mut random = fastrand::Rng::with_seed(20_261_203);
    let tiers = Tiers::start::<R>().await;
    let rig = Rig::new(Arc::clone(&tiers.remote));
    tiers.consume(rig.work());
    let mut queue = tiers.queue.clone();
    let mut by_files = 0;
    for number in 0..JOBS {
        if random.u32(0..8) == 0 {
            let broken = [Network::Refuses, Network::Hangs, Network::Mute, Network::Slow];
            let states = [[Network::Up; 4], broken].concat();
            tiers.relay.set(states[random.usize(0..states.len())]);
        }
        if random.u32(0..12) == 0 {
            queue = tiers.another().await;
        }
        by_files += u32::from(enqueue(&queue, number).await == "files");
        tokio::time::sleep(Duration::from_millis(random.u64(0..40))).await;
    }
    tiers.relay.set(Network::Up);
    let begun = || rig.log.begun().iter().filter_map(serde_json::Value::as_u64).collect::<Vec<_>>();
    until("all have run", async || begun().contains(&u64::from(JOBS - 1))).await;
    // A job may run twice; what counts is when it ran first.
    let mut seen = HashSet::new();
    let firsts = begun().into_iter().filter(|number| seen.insert(*number)).collect::<Vec<_>>();
    assert!(firsts.iter().copied().eq(0..u64::from(JOBS)), "{firsts:?}");
    assert!((1..JOBS).contains(&by_files), "{by_files}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_takes_no_serial_jobs() {
    let folder = Files::fresh().await;
    let memory = Arc::new(Memory::new(MemoryLimits::default()));
    let queue = Queue::start(vec![memory, folder.open()], Arc::new(NoObserver)).await.expect("both work");
    assert_eq!(enqueue(&queue, 0).await, "files");
}
