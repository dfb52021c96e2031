//! How fast every provider takes, hands out and picks up jobs, beside `graphile_worker` without us, in one run.
//!
//! `make bench-jobs` runs it against real services, prints a table and writes `docs/bench-jobs.json`.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking, and says what it found"
)]

#[allow(dead_code, reason = "tests need more of them")]
#[path = "../../tests/providers/places.rs"]
mod places;
#[allow(dead_code, reason = "tests have more networks")]
#[path = "../../tests/providers/relay.rs"]
mod relay;

mod alone;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jobs::breaker::BreakerState;
use jobs::consumer::Consumer;
use jobs::flow::Flow;
use jobs::handler::{Verdict, Work};
use jobs::job::Job;
use jobs::observer::NoObserver;
use jobs::provider::{Durability, Provider};
use jobs::queue::Queue;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::places::{ClickHouseTable, Database, Files, Memories, Place, Remote, S3};
use crate::relay::Network;

/// How often Postgres is measured with and without us, by turns: the later one finds more in the database's cache, and the disk
/// busier.
const ROUNDS: usize = 5;

/// How long each rate is measured.
const WINDOW: Duration = Duration::from_secs(3);

/// How many jobs are sent at once in a batch.
const BATCH: usize = 500;

/// How many jobs are at work at once.
pub(crate) const CONCURRENCY: usize = 24;

/// How many jobs are picked up one by one.
const PICK_UPS: usize = 60;

/// What was measured. Rates are jobs a second.
#[derive(Debug)]
pub(crate) struct Measured {
    name: String,
    enqueue: f64,
    enqueue_batch: f64,
    execute: f64,
    pick_up: [Duration; 2],
}

impl Measured {
    /// The medians of some.
    fn median(some: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| {
            let mut values = some.iter().map(value).collect::<Vec<_>>();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            name: some[0].name.clone(),
            enqueue: of(|measured| measured.enqueue),
            enqueue_batch: of(|measured| measured.enqueue_batch),
            execute: of(|measured| measured.execute),
            pick_up: [
                Duration::from_secs_f64(of(|measured| measured.pick_up[0].as_secs_f64())),
                Duration::from_secs_f64(of(|measured| measured.pick_up[1].as_secs_f64())),
            ],
        }
    }
}

/// Takes and hands out jobs, as one of ours or without us.
pub(crate) trait Subject: Send + Sync {
    fn enqueue(&self, count: usize) -> BoxFuture<'_, ()>;

    /// Handles jobs until the token is cancelled.
    fn consume(&self, seen: Arc<Seen>, stop: CancellationToken) -> BoxFuture<'_, ()>;
}

/// Counts what was handled, and when the last one was.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    count: AtomicUsize,
    last: Mutex<Option<Instant>>,
    changed: Notify,
}

impl Seen {
    pub(crate) fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.count.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    async fn wait_for(&self, count: usize) -> Instant {
        while self.count.load(Ordering::Relaxed) < count {
            self.changed.notified().await;
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).expect("one was handled")
    }
}

#[derive(Debug)]
struct Count(Arc<Seen>);

impl Work for Count {
    fn attempt(&self, _: Job) -> BoxFuture<'_, Verdict> {
        self.0.note();
        std::future::ready(Verdict::Gone).boxed()
    }

    fn bury(&self, _: Job) -> BoxFuture<'_, Verdict> {
        std::future::ready(Verdict::Gone).boxed()
    }
}

impl Subject for Arc<dyn Provider> {
    fn enqueue(&self, count: usize) -> BoxFuture<'_, ()> {
        let jobs = (0..count).map(|number| Job::new("work", json!({ "number": number })).expect("a job"));
        let jobs = jobs.collect::<Vec<_>>();
        async move { Provider::enqueue(&**self, &jobs).await.expect("taken") }.boxed()
    }

    fn consume(&self, seen: Arc<Seen>, stop: CancellationToken) -> BoxFuture<'_, ()> {
        let consumer = Consumer::new(
            Arc::new(Count(seen)),
            Flow::new(1_000_000, 1 << 40),
            CONCURRENCY,
            stop,
            Duration::from_secs(5),
        );
        async move { Provider::consume(&**self, consumer).await.expect("works") }.boxed()
    }
}

/// Measures one subject; `limit` is the most jobs that it may hold.
async fn measure(name: &str, subject: impl Subject + Clone + 'static, limit: usize) -> Measured {
    let (mut sent, mut batched) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < WINDOW && sent < limit / 4 {
        subject.enqueue(1).await;
        sent += 1;
    }
    let enqueue = rate(sent, begin.elapsed());
    let begin = Instant::now();
    while begin.elapsed() < WINDOW && sent + batched + BATCH <= limit {
        subject.enqueue(BATCH).await;
        batched += BATCH;
    }
    let enqueue_batch = rate(batched, begin.elapsed());

    let (seen, stop) = (Arc::new(Seen::default()), CancellationToken::new());
    let begin = Instant::now();
    let running = tokio::spawn({
        let (subject, seen, stop) = (subject.clone(), Arc::clone(&seen), stop.clone());
        async move { subject.consume(seen, stop).await }
    });
    // The first jobs tell when it has begun.
    let first = seen.wait_for(1).await;
    let patience = tokio::time::timeout(Duration::from_secs(120), seen.wait_for(sent + batched));
    let last = patience.await.expect("all are handled");
    let execute = rate(sent + batched, (last - first).max(Duration::from_micros(1)));
    println!("{name}: {} jobs handled {:.1} s after the start", sent + batched, begin.elapsed().as_secs_f64());

    let mut waits = Vec::new();
    for number in 1..=PICK_UPS {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let sent_at = Instant::now();
        subject.enqueue(1).await;
        waits.push(seen.wait_for(sent + batched + number).await.saturating_duration_since(sent_at));
    }
    stop.cancel();
    running.await.expect("stops");
    waits.sort_unstable();
    Measured {
        name: name.to_owned(),
        enqueue,
        enqueue_batch,
        execute,
        pick_up: [waits[PICK_UPS / 2], waits[PICK_UPS - 1]],
    }
}

fn rate(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).expect("few")) / took.as_secs_f64()
}

/// How long a job waits for another provider when the first doesn't answer any more, and how soon the first is back.
async fn failover<R: Remote>(outage: Network) -> [Duration; 2] {
    let (place, relay) = R::relayed().await;
    let folder = Files::fresh().await;
    let queue = Queue::start(vec![place.open(), folder.open()], Arc::new(NoObserver)).await.expect("both work");
    let stop = CancellationToken::new();
    let _watching = tokio::spawn({
        let (queue, stop) = (queue.clone(), stop.clone());
        async move { queue.watch(stop).await }
    });
    relay.set(outage);
    let mut longest = Duration::ZERO;
    for number in 0..6 {
        let begin = Instant::now();
        let job = Job::new("work", json!(number)).expect("a job");
        queue.enqueue(&[job], Durability::Persistent).await.expect("somebody takes it");
        longest = longest.max(begin.elapsed());
    }
    relay.set(Network::Up);
    let begin = Instant::now();
    while queue.status().await[0].breaker != BreakerState::Closed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    [longest, begin.elapsed()]
}

#[tokio::main]
async fn main() {
    let (mut alone, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let library = alone::Alone::new(places::required(places::POSTGRES_URL)).await;
        alone.push(measure("graphile_worker alone", library, 100_000).await);
        ours.push(measure("postgres", Database::fresh().await.open(), 100_000).await);
    }
    let mut all = vec![Measured::median(&alone), Measured::median(&ours)];
    let memory = Memories::fresh().await;
    all.push(measure("memory", memory.open(), 1_000).await);
    let files = Files::fresh().await;
    all.push(measure("files", files.open(), 2_000).await);
    let s3 = S3::fresh().await;
    all.push(measure("s3", s3.open(), 2_000).await);
    let table = ClickHouseTable::fresh().await;
    all.push(measure("clickhouse", table.open(), 2_000).await);

    println!(
        "\n{:24}{:>10}{:>12}{:>10}{:>12}{:>12}",
        "jobs/s", "enqueue", "in batches", "execute", "pick-up p50", "longest"
    );
    for Measured { name, enqueue, enqueue_batch, execute, pick_up: [half, longest] } in &all {
        println!("{name:24}{enqueue:>10.0}{enqueue_batch:>12.0}{execute:>10.0}{half:>12.1?}{longest:>12.1?}");
    }
    let (alone, ours) = (&all[0], &all[1]);
    let ratios = [
        ("enqueue", ours.enqueue / alone.enqueue),
        ("in batches", ours.enqueue_batch / alone.enqueue_batch),
        ("execute", ours.execute / alone.execute),
        ("pick-up", alone.pick_up[0].as_secs_f64() / ours.pick_up[0].as_secs_f64()),
    ];
    println!("\npostgres, as a ratio to graphile_worker alone:");
    for (what, ratio) in ratios {
        println!("  {what:12}{ratio:>6.2}");
    }
    let mut failovers = Vec::new();
    println!("\nthe longest wait for another provider, and the wait for the first to be back:");
    for (name, outage, [over, back]) in [
        (Database::NAME, "refuses", failover::<Database>(Network::Refuses).await),
        (Database::NAME, "hangs", failover::<Database>(Network::Hangs).await),
        (S3::NAME, "refuses", failover::<S3>(Network::Refuses).await),
        (S3::NAME, "hangs", failover::<S3>(Network::Hangs).await),
        (ClickHouseTable::NAME, "refuses", failover::<ClickHouseTable>(Network::Refuses).await),
        (ClickHouseTable::NAME, "hangs", failover::<ClickHouseTable>(Network::Hangs).await),
    ] {
        println!("  {name:10}{outage:10}{over:>10.2?}{back:>10.2?}");
        failovers.push(
            json!({ "provider": name, "outage": outage, "over_ms": over.as_millis(), "back_ms": back.as_millis() }),
        );
    }
    if let Ok(path) = std::env::var("BATCH_EXPORT_BENCH_JOBS") {
        let document = json!({
            "providers": all.iter().map(document).collect::<Vec<_>>(),
            "ratios": ratios.iter().map(|(what, ratio)| (what.replace(' ', "_"), json!((ratio * 100.0).round() / 100.0))).collect::<serde_json::Map<_, _>>(),
            "failover": failovers,
        });
        std::fs::write(path, serde_json::to_string_pretty(&document).expect("JSON") + "\n").expect("a file");
    }
}

fn document(measured: &Measured) -> Value {
    let Measured { name, enqueue, enqueue_batch, execute, pick_up: [half, longest] } = measured;
    json!({
        "name": name,
        "enqueue_per_second": enqueue.round(),
        "enqueue_batch_per_second": enqueue_batch.round(),
        "execute_per_second": execute.round(),
        "pick_up_p50_us": half.as_micros(),
        "pick_up_longest_us": longest.as_micros(),
    })
}
