//! Everything breaks at random, from a seed: workers, Temporal, S3 and ClickHouse. Then all is calm, and every published
//! object is compared with its source.
//!
//! `make chaos` runs it for longer: `BATCH_EXPORT_CHAOS_SECONDS` and `BATCH_EXPORT_CHAOS_SEED` say how long, and from where.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::config::output::{JsonLinesCodec, Output, ParquetCodec};
use serde_json::json;

use crate::bench::{Bench, running_queries, until};
use crate::clickhouse_proxy::{ClickHouseProxy, Damage, Stream, tagged};
use crate::exports;
use crate::http_proxy::End;
use crate::random::Random;
use crate::report::report;
use crate::s3_proxy::S3Proxy;
use crate::services::{Store, temporal_address};
use crate::tcp_proxy::TcpProxy;

/// Where the set that runs with every test begins.
const SEED: u64 = 20_261_130;

/// How long a round breaks things, before all is calm.
const ROUND: Duration = Duration::from_secs(20);

/// Runs that are at work at once.
const RUNS: u64 = 12;

/// Of a thousand requests to S3, so many break.
const S3_PERMILLE: u64 = 150;

/// Of a thousand streams, so many break.
const STREAM_PERMILLE: u64 = 400;

const EXCEPTION: &str = "Code: 241. DB::Exception: Query memory limit exceeded: a test's own. (MEMORY_LIMIT_EXCEEDED)";

const OUTPUTS: [Output; 4] = [
    Output::JsonLines(JsonLinesCodec::Uncompressed),
    Output::Parquet(ParquetCodec::Uncompressed),
    Output::JsonLines(JsonLinesCodec::Gzip),
    Output::Parquet(ParquetCodec::Zstd),
];

/// One run and what it must publish.
#[derive(Debug)]
struct Expected {
    workflow_id: String,
    hour: u64,
    rows: u64,
    output: Output,
}

/// What a round has done.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    attempts: u64,
    rows: u64,
    /// Uploads that were left.
    uploads: u64,
    faults: BTreeMap<String, u64>,
}

impl Tally {
    fn count(&mut self, fault: &str) {
        *self.faults.entry(fault.to_owned()).or_default() += 1;
    }
}

/// The rig of one round.
struct Round {
    random: Random,
    s3: S3Proxy,
    clickhouse: ClickHouseProxy,
    temporal: TcpProxy,
    bench: Bench,
    streams: Arc<Mutex<Tally>>,
    tally: Tally,
}

impl Round {
    async fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (s3, clickhouse) = (S3Proxy::start(Store::SeaweedFs).await, ClickHouseProxy::start().await);
        let temporal = TcpProxy::start(temporal_address()).await;
        s3.breaks_at_random(random.next(), S3_PERMILLE);
        let streams = Arc::<Mutex<Tally>>::default();
        let breaking = (Mutex::new(Random::new(random.next())), Arc::clone(&streams));
        clickhouse.damage(move |stream| {
            let (random, tally) = &breaking;
            let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
            break_stream(stream, &mut random, &mut tally.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let endpoint = s3.connection().endpoint_url.expect("an endpoint").to_string();
        let variables = vec![("AWS_ENDPOINT_URL_S3", endpoint), ("TEMPORAL_ADDRESS", temporal.address.clone())];
        let mut bench = Bench::without_worker(variables).await;
        let connection = clickhouse.connection();
        bench.write_connections(&format!(
            "version: 1\nclickhouse:\n  broken: {{url: '{}', user: '{}', password: '${{CLICKHOUSE_PASSWORD}}', idle_timeout: 1s}}\n",
            connection.url, connection.user
        ));
        bench.start_worker();
        Self { random, s3, clickhouse, temporal, bench, streams, tally: Tally::default() }
    }

    fn start_runs(&mut self) -> Vec<Expected> {
        let mut all = Vec::new();
        for hour in 1..=RUNS {
            let output = self.random.pick(&OUTPUTS);
            // From nothing to several parts.
            let rows = if self.random.chance(100) { 0 } else { self.random.below(300_000) };
            let workflow_id = format!("{}-{hour}", self.bench.name);
            let input = self.bench.input(
                rows,
                json!({
                    "clickhouse_connection": "broken", "data_interval_end": format!("2026-01-01T{hour:02}:00:00Z"),
                    "file_format": output.format_name(), "compression": output.codec_name(),
                    "pipeline": {"part_size": 5_242_880},
                    "activity_options": {
                        "heartbeat_timeout": "4s", "retry": {"initial_interval": "200ms", "maximum_interval": "1s"}
                    },
                }),
            );
            self.bench.start_as(&workflow_id, &input);
            all.push(Expected { workflow_id, hour, rows, output });
        }
        all
    }

    /// Does something to a process or to the way to Temporal, again and again.
    fn break_processes(&mut self, until: Instant) {
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(500 + self.random.below(2_500)));
            match self.random.below(6) {
                0 | 1 => {
                    self.tally.count("worker killed");
                    self.bench.end_worker("KILL");
                    self.bench.start_worker();
                }
                2 => {
                    self.tally.count("worker told to stop");
                    self.bench.end_worker("TERM");
                    self.bench.start_worker();
                }
                3 => {
                    self.tally.count("cut off from Temporal");
                    self.temporal.cut();
                    std::thread::sleep(Duration::from_millis(500 + self.random.below(5_000)));
                    self.temporal.heal();
                }
                _ => {}
            }
        }
    }

    fn calm(&mut self) {
        self.s3.breaks_at_random(0, 0);
        self.clickhouse.damage(|stream| stream.cut(stream.bytes.len(), End::Clean));
        for (name, times) in self.s3.happened() {
            *self.tally.faults.entry(format!("S3: {name}")).or_default() += times;
        }
        let streams = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        self.tally.faults.extend(streams.faults);
    }

    /// Every row once, the reported counts true, nothing left.
    async fn verify(&mut self, expected: &[Expected]) {
        let mut keys = Vec::new();
        for run in expected {
            let (status, described) = self.bench.end_of(&run.workflow_id);
            assert_eq!(status, "COMPLETED", "{run:?}: {described}");
            let start = format!("2026-01-01T{:02}:00:00Z", run.hour - 1);
            let record = self.bench.runs().into_iter().find(|record| record["interval_start"] == start.as_str());
            let record = record.unwrap_or_else(|| panic!("{run:?} has no record"));
            assert_eq!((&record["status"], &record["rows"]), (&json!("Completed"), &json!(run.rows)), "{run:?}");
            self.tally.attempts += record["attempt"].as_u64().expect("a number");
            self.tally.rows += run.rows;
            let files = record["files"].as_array().expect("files");
            assert_eq!(files.len(), usize::from(run.rows > 0), "{run:?}: {record}");
            for file in files {
                let key = file["key"].as_str().expect("a key");
                let source = format!(
                    "SELECT number AS id, toDateTime64('2026-01-01 {:02}:00:00', 6, 'UTC') AS at, repeat('x', 100) AS text \
                     FROM numbers({})",
                    run.hour - 1,
                    run.rows
                );
                exports::assert_clickhouse_reads(&self.bench.bucket, key, run.output, &source);
                assert_eq!(self.bench.bucket.bytes(key).await.len() as u64, file["bytes"], "{run:?}");
                keys.push(key.to_owned());
            }
        }
        self.tally.runs = expected.len() as u64;
        keys.sort();
        assert_eq!(self.bench.bucket.keys().await, keys);
        // A worker that is killed between opening an upload and saying so leaves one that nobody knows.
        let uploads = self.bench.bucket.uploads().await.len() as u64;
        let kills = self.tally.faults.get("worker killed").copied().unwrap_or_default();
        assert!(uploads <= kills, "{uploads} uploads are left by {kills} killed workers");
        self.tally.uploads += uploads;
        until("no query is left", || (!running_queries().contains(&self.bench.name)).then_some(()));
    }
}

/// Damages a stream, or lets it pass.
fn break_stream(stream: &Stream, random: &mut Random, tally: &mut Tally) -> Damage {
    let whole = stream.cut(stream.bytes.len(), End::Clean);
    if !random.chance(STREAM_PERMILLE) {
        return whole;
    }
    let anywhere = usize::try_from(random.below(stream.bytes.len() as u64)).expect("an index");
    let boundary = random.pick(&stream.messages);
    let exception = |at: usize, is_tagged: bool| {
        let text = if is_tagged { tagged(EXCEPTION) } else { EXCEPTION.as_bytes().to_vec() };
        Damage { body: [&stream.bytes[..at], &text].concat(), end: End::Clean, is_tagged }
    };
    let (name, damage) = match random.below(8) {
        0 => ("cut anywhere", stream.cut(anywhere, End::Closed)),
        1 => ("cut anywhere, with a clean end", stream.cut(anywhere, End::Clean)),
        2 => ("cut between messages, with a clean end", stream.cut(boundary, End::Clean)),
        3 => ("no last chunk", stream.cut(stream.bytes.len(), End::Closed)),
        4 => ("reset", stream.cut(anywhere, End::Reset)),
        5 => ("stalled", stream.cut(anywhere, End::Stalled)),
        6 => ("exception, tagged", exception(boundary, true)),
        _ => ("exception, bare", exception(boundary, false)),
    };
    tally.count(&format!("ClickHouse: {name}"));
    damage
}

async fn round(seed: u64) -> Tally {
    println!("chaos seed {seed}");
    let mut round = Round::new(seed).await;
    let expected = round.start_runs();
    round.break_processes(Instant::now() + ROUND);
    round.calm();
    round.verify(&expected).await;
    round.tally
}

pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_breaks_every_row_is_published_once() {
    let end = Instant::now() + Duration::from_secs(variable("BATCH_EXPORT_CHAOS_SECONDS", 0));
    let mut seed = variable("BATCH_EXPORT_CHAOS_SEED", SEED);
    let mut total = Tally::default();
    loop {
        let tally = round(seed).await;
        total.runs += tally.runs;
        total.attempts += tally.attempts;
        total.rows += tally.rows;
        total.uploads += tally.uploads;
        for (fault, times) in tally.faults {
            *total.faults.entry(fault).or_default() += times;
        }
        if Instant::now() >= end {
            break;
        }
        seed += 1;
    }
    let injected = total.faults.values().sum::<u64>();
    println!(
        "{injected} faults, {} runs in {} attempts, {} rows compared: {:#?}",
        total.runs, total.attempts, total.rows, total.faults
    );
    report(
        "chaos",
        &json!({"runs": total.runs, "attempts": total.attempts, "rows": total.rows, "uploads": total.uploads, "faults": total.faults}),
    );
}
