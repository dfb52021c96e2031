//! The order within a serial queue, while whoever reads it is killed, and when a job is put back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use jobs::handler::{Verdict, Work};
use jobs::job::Job;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::places::Place;
use crate::rig::{Rig, WORK, consumer, until};

const JOBS: i64 = 12;
const KILLS: usize = 2;

fn number(payload: &Value) -> i64 {
    payload["serial"].as_i64().expect("a number")
}

/// A job that was at work in a process that died comes again, before those after it.
async fn a_queue_keeps_its_order_though_its_readers_die<P: Place>() {
    let place = P::fresh().await;
    let due = Timestamp::now() - SignedDuration::from_secs(60);
    let jobs = (0..JOBS).map(|number| {
        let job = Job::new(WORK, json!({"serial": number, "sleep": 40})).expect("a job");
        job.run_at(due + SignedDuration::from_millis(number)).in_queue("one by one").expect("a queue")
    });
    let mut rig = Rig::new(place.open());
    rig.enqueue(&jobs.collect::<Vec<_>>()).await;
    let log = Arc::clone(&rig.log);
    for kill in 1..=KILLS {
        let running = rig.start();
        rig.wait_for("begin", kill * 4).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        running.kill().await;
        rig = Rig::new(place.open());
        rig.log = Arc::clone(&log);
    }
    let running = rig.start();
    rig.wait_until_empty().await;
    running.stop().await;
    let begun = log.begun().iter().map(number).collect::<Vec<_>>();
    assert!(begun.is_sorted(), "{begun:?}");
    let mut each = begun.clone();
    each.dedup();
    assert!(each.into_iter().eq(0..JOBS), "{begun:?}");
    let num_twice = begun.len() - usize::try_from(JOBS).expect("a few");
    assert!(num_twice <= KILLS, "each death repeats one job at most: {begun:?}");
    // One at a time: whatever ends is what began last.
    let mut at_work = None;
    for (what, payload) in log.all() {
        match what {
            "begin" => at_work = Some(number(&payload)),
            _ => assert_eq!(at_work.take(), Some(number(&payload)), "{begun:?}"),
        }
    }
}

/// Puts the first job back as it was, some times: somebody else can't take it yet.
#[derive(Debug, Default)]
struct Hesitant(Mutex<Vec<i64>>);

impl Work for Hesitant {
    fn attempt(&self, job: Job) -> BoxFuture<'_, Verdict> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(number(&job.payload));
        let verdict = if seen.len() < 4 { Verdict::Again(Box::new(job)) } else { Verdict::Gone };
        std::future::ready(verdict).boxed()
    }

    fn bury(&self, _: Job) -> BoxFuture<'_, Verdict> {
        std::future::ready(Verdict::Gone).boxed()
    }
}

async fn a_job_that_is_put_back_as_it_was_stays_before_the_others<P: Place>() {
    let provider = P::fresh().await.open();
    let jobs = (0..3).map(|number| {
        let job = Job::new(WORK, json!({"serial": number})).expect("a job");
        job.in_queue("one by one").expect("a queue")
    });
    provider.enqueue(&jobs.collect::<Vec<_>>()).await.expect("taken");
    let (work, stop) = (Arc::new(Hesitant::default()), CancellationToken::new());
    let consumer = consumer(Arc::<Hesitant>::clone(&work), &stop);
    let consuming = tokio::spawn({
        let provider = Arc::clone(&provider);
        async move { provider.consume(consumer).await }
    });
    let seen = || work.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    until("all are done", async || seen().len() == 6).await;
    assert_eq!(seen(), [0, 0, 0, 0, 1, 2]);
    stop.cancel();
    consuming.await.expect("no panic").expect("goes on");
}

macro_rules! for_every_place {
    ($($module:ident: $place:ty),* $(,)?) => {
        $(
            mod $module {
                #[tokio::test(flavor = "multi_thread")]
                async fn a_queue_keeps_its_order_though_its_readers_die() {
                    super::a_queue_keeps_its_order_though_its_readers_die::<$place>().await;
                }

                #[tokio::test(flavor = "multi_thread")]
                async fn a_job_that_is_put_back_as_it_was_stays_before_the_others() {
                    super::a_job_that_is_put_back_as_it_was_stays_before_the_others::<$place>().await;
                }
            }
        )*
    };
}

for_every_place! {
    files: crate::places::Files,
    s3: crate::places::S3,
    postgres: crate::places::Database,
    clickhouse: crate::places::ClickHouseTable,
}
