//! The order within a serial queue, while whoever reads it is killed again and again.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use jobs::job::Job;
use serde_json::{Value, json};

use crate::places::{ClickHouseTable, Database, Files, Place, S3};
use crate::rig::{Rig, WORK};

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

macro_rules! for_every_place {
    ($($module:ident: $place:ty),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $module() {
                a_queue_keeps_its_order_though_its_readers_die::<$place>().await;
            }
        )*
    };
}

for_every_place! { files: Files, s3: S3, postgres: Database, clickhouse: ClickHouseTable }
