//! What every provider does.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use jobs::dead_letter::DeadLetters as _;
use jobs::job::{Job, KeyMode};
use jobs::memory::{Memory, MemoryLimits};
use serde_json::{Value, json};

use crate::places::Place;
use crate::rig::{Rig, WORK, until};

/// Makes a module with a test of every sentence, for one place.
macro_rules! suite {
    ($module:ident, $place:ty, keeps_jobs: $keeps_jobs:literal) => {
        mod $module {
            use crate::places::Place as _;

            $crate::conformance::tests! { $place:
                a_job_runs_when_it_is_due_and_not_before,
                what_fails_is_tried_again_and_then_buried,
                a_panic_is_the_failure_of_one_job,
                the_smaller_priority_goes_first,
                a_queue_runs_one_at_a_time_and_in_order,
                keys_make_one_job_of_many,
                the_same_job_twice_runs_once,
                a_batch_runs_once_each,
                jobs_can_be_looked_at_and_removed,
                the_order_to_stop_waits_for_what_is_at_work,
                nothing_comes_in_while_the_flow_pauses,
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn what_was_at_work_when_the_process_was_killed_runs_again() {
                if $keeps_jobs {
                    $crate::conformance::what_was_at_work_runs_again(<$place>::fresh().await).await;
                } else {
                    $crate::conformance::what_was_at_work_can_be_drained().await;
                }
            }
        }
    };
}

macro_rules! tests {
    ($place:ty: $($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $crate::conformance::$name(<$place>::fresh().await).await;
            }
        )*
    };
}

pub(crate) use {suite, tests};

fn job(payload: Value) -> Job {
    Job::new(WORK, payload).expect("a job")
}

fn later(job: Job, milliseconds: i64) -> Job {
    job.run_at(Timestamp::now() + SignedDuration::from_millis(milliseconds))
}

pub(crate) async fn a_job_runs_when_it_is_due_and_not_before(place: impl Place) {
    let rig = Rig::new(place.open());
    let running = rig.start();
    rig.enqueue(&[later(job(json!("later")), 1_500), job(json!("now"))]).await;
    rig.wait_for("end", 1).await;
    assert_eq!(rig.log.begun(), [json!("now")]);
    let depth = rig.provider.depth().await.expect("works");
    assert_eq!(depth.scheduled, 1);
    rig.wait_for("end", 2).await;
    rig.wait_until_empty().await;
    running.stop().await;
}

pub(crate) async fn what_fails_is_tried_again_and_then_buried(place: impl Place) {
    let rig = Rig::new(place.open());
    let running = rig.start();
    let passes = job(json!({"fail": 2}));
    let never = job(json!({"fail": 99})).with_max_attempts(3).expect("some");
    let fatal = job(json!({"fatal": true}));
    rig.enqueue(&[passes, never.clone(), fatal.clone()]).await;
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    assert_eq!(rig.log.begun().len(), 3 + 3 + 1);
    let dead = rig.dead.list(10).await.expect("works");
    assert_eq!(dead.iter().map(|letter| letter.job.id).collect::<Vec<_>>(), [never.id, fatal.id]);
    let letter = rig.dead.get(never.id).await.expect("works").expect("is there");
    assert_eq!((letter.job.attempts, letter.job.last_error.as_deref()), (3, Some("not yet")));

    let revived = Job { payload: json!("repaired"), ..letter.revive() };
    rig.enqueue(&[revived]).await;
    rig.dead.remove(never.id).await.expect("works");
    rig.wait_for("end", 2).await;
    assert_eq!(rig.dead.list(10).await.expect("works").len(), 1);
    running.stop().await;
}

pub(crate) async fn a_panic_is_the_failure_of_one_job(place: impl Place) {
    let rig = Rig::new(place.open());
    let running = rig.start();
    let panics = job(json!({"panic": true})).with_max_attempts(1).expect("some");
    let unknown = Job::new("nobody", json!(1)).and_then(|job| job.with_max_attempts(1)).expect("a job");
    rig.enqueue(&[panics, unknown, job(json!("fine"))]).await;
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    let errors = rig.dead.list(10).await.expect("works").into_iter().filter_map(|letter| letter.job.last_error);
    let errors = errors.collect::<Vec<_>>();
    assert!(errors[0].starts_with("the handler panicked") && errors[1].contains("`nobody`"), "{errors:?}");
    running.stop().await;
}

pub(crate) async fn the_smaller_priority_goes_first(place: impl Place) {
    let rig = Rig::new(place.open()).with_concurrency(1);
    let jobs = [3, -2, 0, 1, -7].map(|priority| job(json!(priority)).with_priority(priority));
    rig.enqueue(&jobs).await;
    let running = rig.start();
    rig.wait_for("end", 5).await;
    assert_eq!(rig.log.begun(), [-7, -2, 0, 1, 3].map(|priority| json!(priority)));
    running.stop().await;
}

pub(crate) async fn a_queue_runs_one_at_a_time_and_in_order(place: impl Place) {
    let rig = Rig::new(place.open());
    let start = Timestamp::now() - SignedDuration::from_secs(10);
    let serial = (0..6).map(|number| {
        let job = job(json!({"sleep": 30, "serial": number})).run_at(start + SignedDuration::from_millis(number));
        job.in_queue("one by one").expect("a queue")
    });
    let free = (0..6).map(|number| job(json!({"sleep": 30, "free": number})));
    let mut jobs = serial.collect::<Vec<_>>();
    // Whatever order they come in.
    jobs.reverse();
    jobs.extend(free);
    rig.enqueue(&jobs).await;
    let running = rig.start();
    rig.wait_for("end", 12).await;
    running.stop().await;
    let serial = rig.log.all().into_iter().filter(|(_, payload)| payload.get("serial").is_some()).collect::<Vec<_>>();
    let expected =
        (0..6).flat_map(|number| ["begin", "end"].map(|what| (what, json!({"sleep": 30, "serial": number}))));
    assert_eq!(serial, expected.collect::<Vec<_>>());
}

pub(crate) async fn keys_make_one_job_of_many(place: impl Place) {
    let rig = Rig::new(place.open());
    let keyed = |payload: &str, mode| job(json!(payload)).with_key(format!("{mode:?}"), mode).expect("a key");
    for (mode, first_in, second_in) in
        [(KeyMode::Replace, 60_000, 300), (KeyMode::KeepRunTime, 300, 60_000), (KeyMode::Skip, 300, 60_000)]
    {
        rig.enqueue(&[later(keyed(&format!("{mode:?} first"), mode), first_in)]).await;
        rig.enqueue(&[later(keyed(&format!("{mode:?} second"), mode), second_in)]).await;
    }
    let running = rig.start();
    rig.wait_for("end", 3).await;
    rig.wait_until_empty().await;
    let mut begun = rig.log.begun();
    begun.sort_by_key(ToString::to_string);
    assert_eq!(begun, ["KeepRunTime second", "Replace second", "Skip first"].map(|text| json!(text)));

    // The key is free again.
    rig.enqueue(&[keyed("again", KeyMode::Skip)]).await;
    rig.wait_for("end", 4).await;
    running.stop().await;
}

pub(crate) async fn the_same_job_twice_runs_once(place: impl Place) {
    let rig = Rig::new(place.open());
    let twice = job(json!("twice"));
    rig.enqueue(&[twice.clone(), twice.clone()]).await;
    rig.enqueue(std::slice::from_ref(&twice)).await;
    let running = rig.start();
    rig.wait_for("end", 1).await;
    rig.wait_until_empty().await;
    // Whoever doesn't know whether it was taken sends it again, and may be late.
    rig.enqueue(std::slice::from_ref(&twice)).await;
    rig.wait_until_empty().await;
    assert_eq!(rig.log.begun(), [json!("twice")]);
    running.stop().await;
}

pub(crate) async fn a_batch_runs_once_each(place: impl Place) {
    let rig = Rig::new(place.open());
    let jobs = (0..300).map(|number| job(json!(number))).collect::<Vec<_>>();
    let running = rig.start();
    rig.enqueue(&jobs).await;
    rig.wait_for("end", 300).await;
    rig.wait_until_empty().await;
    let mut begun = rig.log.begun();
    begun.sort_by_key(|payload| payload.as_u64());
    assert_eq!(begun, (0..300).map(|number| json!(number)).collect::<Vec<_>>());
    running.stop().await;
}

pub(crate) async fn jobs_can_be_looked_at_and_removed(place: impl Place) {
    let rig = Rig::new(place.open());
    let jobs = [3, 1, 2].map(|seconds| later(job(json!(seconds)), 3_000_000 + seconds * 1_000));
    rig.enqueue(&jobs).await;
    let payloads = async |limit| {
        let waiting = rig.provider.waiting(limit).await.expect("works");
        waiting.into_iter().map(|job| job.payload).collect::<Vec<_>>()
    };
    assert_eq!(payloads(10).await, [1, 2, 3].map(|seconds| json!(seconds)));
    assert_eq!(payloads(2).await.len(), 2);
    let removed = rig.provider.remove(&[jobs[0].id, job(json!(0)).id]).await.expect("works");
    assert_eq!((removed, payloads(10).await.len()), (1, 2));
    assert_eq!(rig.provider.depth().await.expect("works").scheduled, 2);
}

pub(crate) async fn the_order_to_stop_waits_for_what_is_at_work(place: impl Place) {
    let rig = Rig::new(place.open()).with_concurrency(2);
    let jobs = (0..4).map(|number| job(json!({"sleep": 700, "number": number}))).collect::<Vec<_>>();
    rig.enqueue(&jobs).await;
    let running = rig.start();
    rig.wait_for("begin", 2).await;
    running.stop().await;
    let all = rig.log.all();
    let ended = all.iter().filter(|(what, _)| *what == "end").count();
    assert_eq!((all.len() - ended, ended), (2, 2), "two began and ended, and no other began: {all:?}");
    assert_eq!(rig.provider.depth().await.expect("works").due, 2);

    // Whoever comes next need not wait for anything to run out.
    let next = Rig::new(place.open());
    let running = next.start();
    tokio::time::timeout(Duration::from_secs(5), next.wait_for("end", 2)).await.expect("in time");
    running.stop().await;
}

pub(crate) async fn nothing_comes_in_while_the_flow_pauses(place: impl Place) {
    let rig = Rig::new(place.open());
    let in_hand = rig.flow.take(900, 0);
    let running = rig.start();
    rig.enqueue(&[job(json!("waits"))]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(rig.log.begun().is_empty());
    drop(in_hand);
    rig.wait_for("end", 1).await;
    running.stop().await;
}

/// At least once, and how often it happened is known.
pub(crate) async fn what_was_at_work_runs_again(place: impl Place) {
    let first = Rig::new(place.open());
    let sleeps = job(json!({"sleep": 60_000}));
    first.enqueue(std::slice::from_ref(&sleeps)).await;
    let running = first.start();
    first.wait_for("begin", 1).await;
    running.kill().await;

    let second = Rig::new(place.open());
    let running = second.start();
    second.wait_for("begin", 1).await;
    let stalls = async || second.provider.find(sleeps.id).await.expect("works").map(|job| job.stalls);
    until("the stall is counted", async || stalls().await == Some(1)).await;
    running.kill().await;
}

/// Memory ends with its process; what ends in good order takes the jobs along.
pub(crate) async fn what_was_at_work_can_be_drained() {
    let memory = Arc::new(Memory::new(MemoryLimits::default()));
    let rig = Rig::new(Arc::<Memory>::clone(&memory));
    rig.enqueue(&[job(json!({"sleep": 60_000})), later(job(json!("waits")), 5_000)]).await;
    let running = rig.start();
    rig.wait_for("begin", 1).await;
    running.kill().await;
    assert_eq!(rig.provider.take_all().len(), 2);
    assert_eq!(memory.num_bytes(), 0);
}
