//! A database that answers, and has no room for another row.

use std::sync::Arc;

use jobs::breaker::BreakerState;
use jobs::job::Job;
use jobs::observer::NoObserver;
use jobs::provider::Durability;
use jobs::queue::Queue;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::places::{Database, Files, Place as _};
use crate::rig::{Rig, WORK, consumer, until};

/// Refuses rows that weren't there before, as a full disk does.
const FULL: &str = "alter table {schema}._private_jobs add constraint full_disk check (false) not valid";
const EMPTIED: &str = "alter table {schema}._private_jobs drop constraint full_disk";

#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_elsewhere_while_the_database_is_full_and_come_back() {
    let (place, folder) = (Database::fresh().await, Files::fresh().await);
    let (database, files) = (place.open(), folder.open());
    let queue =
        Queue::start(vec![Arc::clone(&database), Arc::clone(&files)], Arc::new(NoObserver)).await.expect("both work");
    let stop = CancellationToken::new();
    tokio::spawn({
        let (queue, stop) = (queue.clone(), stop.clone());
        async move { queue.watch(stop).await }
    });
    let enqueue = async |number: u32| {
        let job = Job::new(WORK, json!({"number": number, "fail": number % 2})).expect("a job");
        queue.enqueue(&[job], Durability::Persistent).await.expect("taken").provider
    };
    assert_eq!(enqueue(0).await, "postgres");
    assert_eq!(enqueue(1).await, "postgres");
    place.tamper(FULL).await;
    for number in 2..8 {
        assert_eq!(enqueue(number).await, "files", "{number}");
    }
    let breaker = async || queue.status().await[0].breaker;
    assert_ne!(breaker().await, BreakerState::Closed);
    let rig = Rig::new(Arc::clone(&database));
    let consumer = consumer(rig.work(), &stop);
    let consuming = tokio::spawn({
        let queue = queue.clone();
        async move { queue.consume(&consumer).await }
    });
    // What is there is handled, and so is what stands in files.
    rig.wait_for("begin", 8).await;
    place.tamper(EMPTIED).await;
    until("the breaker closes by itself", async || breaker().await == BreakerState::Closed).await;
    // The one that failed while there was no room for its next attempt.
    rig.wait_for("end", 8).await;
    rig.wait_until_empty().await;
    assert!(files.waiting(9).await.expect("works").is_empty());
    assert_eq!(enqueue(8).await, "postgres");
    rig.wait_for("end", 9).await;
    stop.cancel();
    consuming.await.expect("no panic");
}
