//! Jobs while everything that keeps them breaks at random, from a seed: two workers that are killed, stopped and frozen, with
//! clocks that are wrong, and a database, a bucket and a table that are stopped, full, gone, slow or cut off. Then all is calm,
//! and every job that was accepted must have run; those of a serial queue in their order, as long as only its own place broke.
//!
//! `make chaos` runs it for longer: `BATCH_EXPORT_CHAOS_SECONDS` and `BATCH_EXPORT_CHAOS_SEED` say how long, and from where.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, send_signal};
use crate::chaos::variable;
use crate::clock::Clocks;
use crate::job_outages::{Place, Places};
use crate::job_queue::{Receiver, parsed};
use crate::random::Random;
use crate::report::report;

/// Where the set that runs with every test begins.
const SEED: u64 = 20_261_201;

/// How long things break, before all is calm.
const ROUND: Duration = Duration::from_secs(20);

/// How long the last job may take then: leases of those that were killed have to end, and clocks that are ahead make jobs late.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many calls of one job are too many, for each worker that was killed or frozen: as many jobs are at work at once, in each
/// place.
const AT_WORK: usize = 32;

/// How wrong a clock is.
const SKEW_SECONDS: [i64; 4] = [0, 0, 25, -25];

/// What a round breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The first place alone: serial queues keep their order.
    First,
    /// Every place, several at once.
    Everything,
}

/// The rig of one round.
struct Round {
    kind: Kind,
    random: Random,
    places: Places,
    clocks: Clocks,
    receiver: Receiver,
    bench: Bench,
    /// A worker that lives through the round, and is frozen now and then.
    other: u32,
    faults: BTreeMap<&'static str, u64>,
    /// Jobs that were accepted, by who has them.
    accepted: BTreeMap<String, String>,
    /// Those of them that are in a serial queue, in the order in which they were sent.
    serial: Vec<String>,
}

impl Round {
    async fn new(kind: Kind, seed: u64) -> Self {
        let places = Places::start().await;
        let receiver = Receiver::start(0).await;
        let mut variables = places.variables();
        variables.push(("HOOK", receiver.url.clone()));
        let mut bench = Bench::without_worker(variables).await;
        let providers = places.yaml(&format!("jobs of {}", bench.name));
        bench.write_jobs_file(&format!(
            "version: 1\nproviders:\n{providers}webhooks:\n  - name: ops\n    url: ${{HOOK}}\n    statuses: [Cancelled]\n"
        ));
        bench.start_worker();
        let other = bench.leave_worker();
        bench.start_worker();
        let (random, clocks) = (Random::new(seed), Clocks::new());
        let (faults, accepted, serial) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { kind, random, places, clocks, receiver, bench, other, faults, accepted, serial }
    }

    fn enqueue(&mut self, number: usize) {
        let run = json!({
            "run_id": format!("run {number}"), "export_id": self.bench.name, "workflow_id": null, "status": "Cancelled",
            "interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-01T01:00:00Z", "attempt": 1, "rows": 0, "bytes": 0,
            "files": [], "error_kind": null, "error": null, "started_at": "2026-01-01T00:00:00Z", "finished_at": null,
        });
        let payload = json!({"webhook": "ops", "run": run}).to_string();
        let mut arguments = vec!["enqueue", "webhook", payload.as_str()];
        let mut clock = Vec::new();
        let is_serial = self.random.chance(400);
        if is_serial {
            // Their order is that of one clock.
            arguments.extend(["--queue", "one by one"]);
        } else {
            clock = self.some_clock();
            if self.random.chance(300) {
                arguments.extend(["--in", "2 seconds"]);
            }
        }
        let answer = self.bench.jobs_with(&arguments, &clock);
        if answer.code == Some(0) {
            let done: Value = serde_json::from_str(&answer.stdout).expect("JSON");
            let text = |name: &str| done["jobs"][0][name].as_str().expect("text").to_owned();
            self.accepted.insert(text("id"), text("provider"));
            self.serial.extend(is_serial.then(|| text("id")));
        }
    }

    /// The variables of a process whose clock may be wrong.
    fn some_clock(&mut self) -> Vec<(&'static str, String)> {
        let seconds = self.random.pick(&SKEW_SECONDS);
        if seconds == 0 {
            return Vec::new();
        }
        self.count("a clock wrong by 25 seconds");
        self.clocks.ahead(seconds)
    }

    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    async fn break_something(&mut self) {
        let place = match self.kind {
            Kind::First => Place::Postgres,
            Kind::Everything => self.random.pick(&[Place::Postgres, Place::S3, Place::ClickHouse]),
        };
        match self.random.below(12) {
            0 => self.replace_worker("KILL", "a worker killed"),
            1 => self.replace_worker("TERM", "a worker told to stop"),
            2 => {
                send_signal(self.other, "STOP");
                self.count("a worker frozen");
            }
            3 => send_signal(self.other, "CONT"),
            4..9 => self.places.break_one(place, &mut self.random).await,
            _ => self.places.heal(place).await,
        }
    }

    fn replace_worker(&mut self, signal: &str, fault: &'static str) {
        self.bench.end_worker(signal);
        let clock = self.some_clock();
        self.bench.start_worker_with(&clock);
        self.count(fault);
    }

    /// The jobs that were done, in the order in which they were.
    fn calls(&self) -> Vec<String> {
        let id = |call: String| {
            call.lines().find_map(|line| line.strip_prefix("webhook-id: ")).expect("an id").trim().to_owned()
        };
        self.receiver.calls().into_iter().map(id).collect()
    }

    fn missing(&self) -> Vec<(&String, &String)> {
        let calls = self.calls().into_iter().collect::<BTreeSet<_>>();
        self.accepted.iter().filter(|(id, _)| !calls.contains(*id)).collect()
    }

    fn verify(&self) {
        let calm = Instant::now();
        while !self.missing().is_empty() && calm.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(self.missing().is_empty(), "of {} jobs these were lost: {:?}", self.accepted.len(), self.missing());
        let faults = self.faults.values().chain(self.places.times.values()).sum::<u64>();
        assert!(
            self.twice() <= AT_WORK * usize::try_from(faults).expect("few"),
            "{} calls too many after {faults} faults",
            self.twice()
        );
        if self.kind == Kind::First {
            let mut seen = BTreeSet::new();
            let firsts = self.calls().into_iter().filter(|id| self.serial.contains(id) && seen.insert(id.clone()));
            assert_eq!(firsts.collect::<Vec<_>>(), self.serial, "the serial queue's order");
        }
        let dead = parsed(&self.bench.jobs(&["dead"]));
        assert!(dead["dead"].as_array().is_some_and(Vec::is_empty), "{dead}");
    }

    fn twice(&self) -> usize {
        let calls = self.calls();
        calls.len() - calls.iter().collect::<BTreeSet<_>>().len()
    }
}

async fn round(kind: Kind, seed: u64, total: &mut BTreeMap<String, u64>) {
    println!("chaos of jobs, {kind:?}, seed {seed}");
    let mut round = Round::new(kind, seed).await;
    let end = Instant::now() + ROUND;
    let mut number = 0;
    while Instant::now() < end {
        round.enqueue(number);
        number += 1;
        if round.random.chance(600) {
            round.break_something().await;
        }
    }
    round.places.heal_all().await;
    send_signal(round.other, "CONT");
    round.verify();
    let mut add = |name: &str, times: u64| *total.entry(name.to_owned()).or_default() += times;
    add("jobs", round.accepted.len() as u64);
    add("serial", if kind == Kind::First { round.serial.len() as u64 } else { 0 });
    add("twice", round.twice() as u64);
    for provider in round.accepted.values() {
        add(&format!("accepted by {provider}"), 1);
    }
    for (fault, times) in &round.faults {
        add(fault, *times);
    }
    for (fault, times) in &round.places.times {
        add(fault, *times);
    }
}

async fn rounds(kind: Kind) {
    let end = Instant::now() + Duration::from_secs(variable("BATCH_EXPORT_CHAOS_SECONDS", 0) / 2);
    let mut seed = variable("BATCH_EXPORT_CHAOS_SEED", SEED);
    let mut total = BTreeMap::new();
    loop {
        round(kind, seed, &mut total).await;
        if Instant::now() >= end {
            break;
        }
        seed += 1;
    }
    println!("{total:#?}");
    report(&format!("job-chaos {kind:?}"), &json!(total));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_breaks_every_job_that_was_accepted_runs() {
    rounds(Kind::Everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_becomes_of_its_place_a_serial_queue_keeps_its_order() {
    rounds(Kind::First).await;
}
