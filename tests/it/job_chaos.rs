//! Jobs while everything that keeps them breaks at random, from a seed: two workers that are killed, stopped and frozen, with
//! clocks that are wrong, and a database, a bucket and a table that are stopped, full, gone, slow or cut off. Then all is calm,
//! and every job that was accepted must have run; those of a serial queue in their order, as long as only its own place broke;
//! and none more often than faults explain.
//!
//! `make chaos` runs it for longer: `BATCH_EXPORT_CHAOS_SECONDS` and `BATCH_EXPORT_CHAOS_SEED` say how long, and from where. The
//! order of outages runs on from round to round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::{Bench, send_signal, until};
use crate::chaos::variable;
use crate::clock::Clocks;
use crate::job_faults::Faults;
use crate::job_outages::{Deck, Place, Places};
use crate::job_queue::{Receiver, job_of, parsed};
use crate::random::Random;
use crate::report::report;

/// Where the set that runs with every test begins.
const SEED: u64 = 20_261_201;

/// How long things break, before all is calm.
const ROUND: Duration = Duration::from_secs(20);

/// How long the last job may take then: leases of those that were killed have to end, and clocks that are ahead make jobs late.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many jobs are sent when all is calm again: nothing explains a second call of one of these.
const CALM_JOBS: usize = 8;

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

impl Kind {
    const fn places(self) -> &'static [Place] {
        match self {
            Self::First => &[Place::Postgres],
            Self::Everything => &[Place::Postgres, Place::S3, Place::ClickHouse],
        }
    }
}

/// A job that a provider took.
struct Accepted {
    provider: String,
    /// Before anybody had it.
    sent: Instant,
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
    /// How often what happened.
    times: BTreeMap<&'static str, u64>,
    /// Those that can make a job run twice. Wrong clocks can't, and neither can a stop in good order: whatever keeps a worker
    /// from ending its jobs in time is a fault of its own.
    faults: Faults,
    /// Jobs that were accepted, by their ids.
    accepted: BTreeMap<String, Accepted>,
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
        let (times, faults, accepted, serial) = (BTreeMap::new(), Faults::default(), BTreeMap::new(), Vec::new());
        Self { kind, random, places, clocks, receiver, bench, other, times, faults, accepted, serial }
    }

    /// Sends some job.
    fn enqueue(&mut self, number: usize) {
        let mut arguments = Vec::new();
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
        let accepted = self.send(number, &arguments, &clock);
        self.serial.extend(accepted.filter(|_| is_serial));
    }

    /// Sends a job; returns its id if somebody took it.
    fn send(&mut self, number: usize, more: &[&str], clock: &[(&'static str, String)]) -> Option<String> {
        let payload = self.bench.call_of(number);
        let sent = Instant::now();
        let answer = self.bench.jobs_with(&[&["enqueue", "webhook", payload.as_str()], more].concat(), clock);
        if answer.code != Some(0) {
            return None;
        }
        let done: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        let text = |name: &str| done["jobs"][0][name].as_str().expect("text").to_owned();
        self.accepted.insert(text("id"), Accepted { provider: text("provider"), sent });
        Some(text("id"))
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

    fn count(&mut self, what: &'static str) {
        *self.times.entry(what).or_default() += 1;
    }

    async fn break_something(&mut self, deck: &mut Deck) {
        match self.random.below(12) {
            0 => {
                self.faults.happens("a worker killed");
                self.replace_worker("KILL", "a worker killed");
            }
            1 => self.replace_worker("TERM", "a worker told to stop"),
            2 => {
                // However short: what it was sending when it froze may have arrived, and be given up.
                self.faults.begins("frozen");
                send_signal(self.other, "STOP");
                self.count("a worker frozen");
            }
            3 => self.thaw(),
            4..9 => {
                let (place, outage) = deck.draw();
                self.faults.begins(&format!("{place:?}"));
                self.places.break_one(place, outage).await;
            }
            _ => {
                let place = self.random.pick(self.kind.places());
                self.heal(place).await;
            }
        }
    }

    fn thaw(&mut self) {
        send_signal(self.other, "CONT");
        self.faults.ends("frozen");
    }

    async fn heal(&mut self, place: Place) {
        self.places.heal(place).await;
        self.faults.ends(&format!("{place:?}"));
    }

    fn replace_worker(&mut self, signal: &str, what: &'static str) {
        self.bench.end_worker(signal);
        let clock = self.some_clock();
        self.bench.start_worker_with(&clock);
        self.count(what);
    }

    /// The calls of each job.
    fn calls(&self) -> BTreeMap<String, Vec<Instant>> {
        let mut calls: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
        for (time, call) in self.receiver.calls_with_times() {
            calls.entry(job_of(&call)).or_default().push(time);
        }
        calls
    }

    fn wait_for_all(&self) {
        let begin = Instant::now();
        loop {
            let calls = self.calls();
            let missing = self.accepted.iter().filter(|(id, _)| !calls.contains_key(*id));
            let missing = missing.map(|(id, job)| (id, &job.provider)).collect::<Vec<_>>();
            if missing.is_empty() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "of {} jobs these were lost: {missing:?}", self.accepted.len());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What must hold when nothing breaks any more.
    fn verify(&mut self) {
        self.wait_for_all();
        for number in 0..CALM_JOBS {
            self.send(number, &[], &[]).expect("all is calm");
        }
        self.wait_for_all();
        // Then nothing can run again.
        until("nothing is left", || {
            parsed(&self.bench.jobs(&["list"]))["jobs"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
        let calls = self.calls();
        for (id, job) in &self.accepted {
            let (calls, place) = (&calls[id], &job.provider);
            assert!(
                self.faults.explain(job.sent, calls),
                "{id}, which {place} took: {calls:?} after {:?}",
                self.faults
            );
        }
        if self.kind == Kind::First {
            let mut seen = BTreeSet::new();
            let ids = self.receiver.calls().into_iter().map(|call| job_of(&call));
            let firsts = ids.filter(|id| self.serial.contains(id) && seen.insert(id.clone()));
            assert_eq!(firsts.collect::<Vec<_>>(), self.serial, "the serial queue's order");
        }
        let dead = parsed(&self.bench.jobs(&["dead"]));
        assert!(dead["dead"].as_array().is_some_and(Vec::is_empty), "{dead}");
    }

    fn twice(&self) -> usize {
        self.calls().values().map(|calls| calls.len() - 1).sum()
    }
}

async fn round(kind: Kind, seed: u64, deck: &mut Deck, total: &mut BTreeMap<String, u64>) {
    println!("chaos of jobs, {kind:?}, seed {seed}");
    let mut round = Round::new(kind, seed).await;
    let end = Instant::now() + ROUND;
    let mut number = 0;
    while Instant::now() < end {
        round.enqueue(number);
        number += 1;
        if round.random.chance(600) {
            round.break_something(deck).await;
        }
    }
    for place in kind.places() {
        round.heal(*place).await;
    }
    round.thaw();
    round.verify();
    let mut add = |name: &str, times: u64| *total.entry(name.to_owned()).or_default() += times;
    add("jobs", round.accepted.len() as u64);
    add("serial", if kind == Kind::First { round.serial.len() as u64 } else { 0 });
    add("twice", round.twice() as u64);
    for Accepted { provider, .. } in round.accepted.values() {
        add(&format!("accepted by {provider}"), 1);
    }
    for (what, times) in &round.times {
        add(what, *times);
    }
    for (outage, times) in &round.places.times {
        add(outage, *times);
    }
}

async fn rounds(kind: Kind) {
    let seconds = Duration::from_secs(variable("BATCH_EXPORT_CHAOS_SECONDS", 0) / 2);
    let begin = Instant::now();
    let first_seed = variable("BATCH_EXPORT_CHAOS_SEED", SEED);
    let mut deck = Deck::new(kind.places(), first_seed);
    // What never came is on the page as well.
    let mut total = deck.titles().map(|title| (title, 0)).collect::<BTreeMap<_, _>>();
    for seed in first_seed.. {
        round(kind, seed, &mut deck, &mut total).await;
        // Whoever has time for several rounds wants to see each outage.
        if begin.elapsed() >= seconds && (seconds.is_zero() || deck.is_through()) {
            break;
        }
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
