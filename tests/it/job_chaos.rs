//! Jobs while everything that keeps them breaks at random, from a seed: two workers that are killed, stopped and frozen, and a
//! database that is cut off. Then all is calm, and every job that was accepted must have run.
//!
//! `make chaos` runs it for longer: `BATCH_EXPORT_CHAOS_SECONDS` and `BATCH_EXPORT_CHAOS_SEED` say how long, and from where.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, send_signal};
use crate::chaos::variable;
use crate::job_queue::{Receiver, parsed};
use crate::random::Random;
use crate::report::report;
use crate::services::required;
use crate::tcp_proxy::TcpProxy;

/// Where the set that runs with every test begins.
const SEED: u64 = 20_261_201;

/// How long things break, before all is calm.
const ROUND: Duration = Duration::from_secs(20);

/// How long the last job may take then: leases of those that were killed have to end.
const PATIENCE: Duration = Duration::from_secs(150);

/// How many calls of one job are too many, for each worker that was killed or frozen: as many jobs are at work at once.
const AT_WORK: usize = 8;

const VARIABLE: &str = "BATCH_EXPORT_TEST_POSTGRES_URL";

/// The rig of one round.
struct Round {
    random: Random,
    database: TcpProxy,
    receiver: Receiver,
    bench: Bench,
    /// A worker that lives through the round, and is frozen now and then.
    other: u32,
    faults: BTreeMap<&'static str, u64>,
    /// Jobs that were accepted, by who has them.
    accepted: BTreeMap<String, String>,
}

impl Round {
    async fn new(seed: u64) -> Self {
        let mut url = required(VARIABLE).parse::<reqwest::Url>().expect("an address");
        let target = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
        let database = TcpProxy::start(target).await;
        url.set_port(database.address.rsplit(':').next().and_then(|port| port.parse().ok())).expect("a port");
        let receiver = Receiver::start(0).await;
        let variables = vec![("HOOK", receiver.url.clone()), (VARIABLE, url.to_string())];
        let mut bench = Bench::without_worker(variables).await;
        let bucket = bench.bucket.name.clone();
        bench.write_jobs(&format!(
            "  - type: s3\n    bucket: {bucket}\nwebhooks:\n  - name: ops\n    url: ${{HOOK}}\n    statuses: [Cancelled]\n"
        ));
        bench.start_worker();
        let other = bench.leave_worker();
        bench.start_worker();
        let random = Random::new(seed);
        Self { random, database, receiver, bench, other, faults: BTreeMap::new(), accepted: BTreeMap::new() }
    }

    fn enqueue(&mut self, number: usize) {
        let run = json!({
            "run_id": format!("run {number}"), "export_id": self.bench.name, "workflow_id": null, "status": "Cancelled",
            "interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-01T01:00:00Z", "attempt": 1, "rows": 0, "bytes": 0,
            "files": [], "error_kind": null, "error": null, "started_at": "2026-01-01T00:00:00Z", "finished_at": null,
        });
        let payload = json!({"webhook": "ops", "run": run}).to_string();
        let mut arguments = vec!["enqueue", "webhook", payload.as_str()];
        if self.random.chance(300) {
            arguments.extend(["--in", "2 seconds"]);
        }
        let answer = self.bench.jobs(&arguments);
        if answer.code == Some(0) {
            let done: Value = serde_json::from_str(&answer.stdout).expect("JSON");
            let text = |name: &str| done["jobs"][0][name].as_str().expect("text").to_owned();
            self.accepted.insert(text("id"), text("provider"));
        }
    }

    fn break_something(&mut self) {
        let kind = match self.random.below(10) {
            0 | 1 => {
                self.bench.end_worker("KILL");
                self.bench.start_worker();
                "a worker killed"
            }
            2 | 3 => {
                self.bench.end_worker("TERM");
                self.bench.start_worker();
                "a worker told to stop"
            }
            4 => {
                send_signal(self.other, "STOP");
                "a worker frozen"
            }
            5 => {
                send_signal(self.other, "CONT");
                return;
            }
            6 => {
                self.database.cut();
                "the database cut off"
            }
            _ => {
                self.database.heal();
                return;
            }
        };
        *self.faults.entry(kind).or_default() += 1;
    }

    /// How often each job was done.
    fn calls(&self) -> BTreeMap<String, usize> {
        let mut calls = BTreeMap::new();
        for call in self.receiver.calls() {
            let id = call.lines().find_map(|line| line.strip_prefix("webhook-id: ")).expect("an id").trim().to_owned();
            *calls.entry(id).or_default() += 1;
        }
        calls
    }

    fn missing(&self) -> Vec<(&String, &String)> {
        let calls = self.calls();
        self.accepted.iter().filter(|(id, _)| !calls.contains_key(*id)).collect()
    }

    fn verify(&self) {
        let calm = Instant::now();
        while !self.missing().is_empty() && calm.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(self.missing().is_empty(), "of {} jobs these were lost: {:?}", self.accepted.len(), self.missing());
        let faults = self.faults.values().sum::<u64>();
        assert!(
            self.twice() <= AT_WORK * usize::try_from(faults).expect("few"),
            "{} calls too many after {faults} faults",
            self.twice()
        );
        let dead = parsed(&self.bench.jobs(&["dead"]));
        assert!(dead["dead"].as_array().is_some_and(Vec::is_empty), "{dead}");
    }

    fn twice(&self) -> usize {
        self.calls().values().sum::<usize>() - self.calls().len()
    }
}

async fn round(seed: u64, total: &mut BTreeMap<String, u64>) {
    println!("chaos of jobs, seed {seed}");
    let mut round = Round::new(seed).await;
    let end = Instant::now() + ROUND;
    let mut number = 0;
    while Instant::now() < end {
        round.enqueue(number);
        number += 1;
        if round.random.chance(500) {
            round.break_something();
        }
    }
    round.database.heal();
    send_signal(round.other, "CONT");
    round.verify();
    let mut add = |name: &str, times: usize| *total.entry(name.to_owned()).or_default() += times as u64;
    add("jobs", round.accepted.len());
    add("twice", round.twice());
    for provider in round.accepted.values() {
        add(&format!("accepted by {provider}"), 1);
    }
    for (fault, times) in &round.faults {
        add(fault, usize::try_from(*times).expect("few"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_breaks_every_job_that_was_accepted_runs() {
    let end = Instant::now() + Duration::from_secs(variable("BATCH_EXPORT_CHAOS_SECONDS", 0) / 2);
    let mut seed = variable("BATCH_EXPORT_CHAOS_SEED", SEED);
    let mut total = BTreeMap::new();
    loop {
        round(seed, &mut total).await;
        if Instant::now() >= end {
            break;
        }
        seed += 1;
    }
    println!("{total:#?}");
    report("job-chaos", &json!(total));
}
