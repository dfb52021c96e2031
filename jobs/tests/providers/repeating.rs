//! Jobs that come again: one occurrence waits at every moment, whatever becomes of the others.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use jobs::handler::Work;
use jobs::job::Job;
use jobs::observer::NoObserver;
use jobs::provider::Durability;
use jobs::queue::Queue;
use jobs::repeating::Repeating;
use jobs::repetition::Repetition;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::places::{Database, Files, Place, Remote as _};
use crate::relay::Network;
use crate::rig::{Rig, WORK, consumer, until};

fn repeated(payload: Value) -> Job {
    // Far off, so that only what is made due comes while the test runs.
    let repetition = Repetition::new("0 0 1 1 *", "UTC").expect("a repetition");
    Job::new(WORK, payload).and_then(|job| job.repeated(repetition)).expect("a job")
}

/// By the clock of the provider it is due; by ours, which is behind, not yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_occurrence_that_comes_early_is_not_its_own_successor() {
    let provider = Files::fresh().await;
    let provider = provider.open();
    let queue = Queue::start(vec![Arc::clone(&provider)], Arc::new(NoObserver)).await.expect("works");
    let rig = Rig::new(Arc::clone(&provider));
    let early = repeated(json!({}));
    assert!(early.run_at > Timestamp::now());
    let verdict = Repeating::new(rig.work(), queue).attempt(early.clone()).await;
    assert_eq!(verdict, jobs::handler::Verdict::Gone);
    let waiting = provider.waiting(9).await.expect("works");
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].run_at > early.run_at && waiting[0].id != early.id, "{waiting:?}");
}

async fn each_occurrence_leaves_one_behind<P: Place>() {
    let place = P::fresh().await;
    let provider = place.open();
    let rig = Rig::new(Arc::clone(&provider));
    let queue = Queue::start(vec![Arc::clone(&provider)], Arc::new(NoObserver)).await.expect("works");
    let payload = json!({"fail": 2});
    let (first, again) = (repeated(payload.clone()), repeated(payload.clone()));
    assert_eq!(first.id, again.id, "the same job with the same repetition is the same");
    assert_ne!(first.id, repeated(json!({"fail": 3})).id);
    for job in [&first, &again] {
        queue.enqueue(std::slice::from_ref(job), Durability::Persistent).await.expect("taken");
    }
    assert_eq!(provider.waiting(9).await.expect("works"), std::slice::from_ref(&first));
    assert_eq!(provider.remove(&[first.id]).await.expect("works"), 1);

    // Last year's, which nobody was there for.
    let late =
        Job { id: Default::default(), run_at: first.run_at - SignedDuration::from_hours(24 * 366), ..first.clone() };
    queue.enqueue(&[late], Durability::Persistent).await.expect("taken");
    let stop = CancellationToken::new();
    let work: Arc<dyn Work> = Arc::new(Repeating::new(rig.work(), queue.clone()));
    let consumer = consumer(work, &stop);
    let consuming = tokio::spawn({
        let queue = queue.clone();
        async move { queue.consume(&consumer).await }
    });
    rig.wait_for("end", 1).await;
    assert_eq!(rig.log.begun().len(), 3, "two attempts failed");
    until("one waits", async || {
        let waiting = provider.waiting(9).await.expect("works");
        waiting.len() == 1 && waiting[0].id == first.id
    })
    .await;
    let next = provider.find(first.id).await.expect("works").expect("the next one");
    assert_eq!((next.run_at, next.attempts, next.last_error), (first.run_at, 0, None));
    assert!(next.run_at > Timestamp::now());

    stop.cancel();
    consuming.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn files() {
    each_occurrence_leaves_one_behind::<Files>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    each_occurrence_leaves_one_behind::<Database>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_occurrence_waits_until_somebody_takes_the_next_one() {
    let (place, relay) = Database::relayed().await;
    let provider = place.open();
    let queue = Queue::start(vec![Arc::clone(&provider)], Arc::new(NoObserver)).await.expect("works");
    let rig = Rig::new(provider);
    let work = Repeating::new(rig.work(), queue);
    let job = repeated(json!({})).run_now();
    relay.set(Network::Refuses);
    let verdict = work.attempt(job.clone()).await;
    let jobs::handler::Verdict::Again(later) = verdict else { panic!("it waits") };
    assert_eq!((later.id, later.attempts), (job.id, 0), "it wasn't tried");
    assert!(rig.log.begun().is_empty() && later.run_at > job.run_at);
}
