//! A reader of jobs that is frozen for longer than its lease, while another one goes on: two that have the same jobs in hand.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::bench::{Bench, send_signal, until};
use crate::job_queue::{job_of, parsed, read_call};

/// How many jobs are in hand: fewer than a worker does at once.
const JOBS: usize = 6;

/// How long a reader that is awake again would need at most to write down what became of its jobs.
const WRITING: Duration = Duration::from_secs(3);

/// Takes calls and answers them when it is told to.
struct Holder {
    url: String,
    held: Arc<Mutex<Vec<Held>>>,
}

/// A call without an answer.
struct Held {
    job: String,
    stream: TcpStream,
}

impl Holder {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let held = Arc::new(Mutex::new(Vec::new()));
        let holds = Arc::clone(&held);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let call = read_call(&mut stream).await.expect("callers live");
                let held = Held { job: job_of(&call), stream };
                holds.lock().unwrap_or_else(PoisonError::into_inner).push(held);
            }
        });
        Self { url, held }
    }

    /// The jobs that wait for an answer.
    fn jobs(&self) -> Vec<String> {
        let mut jobs: Vec<_> =
            self.held.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|held| held.job.clone()).collect();
        jobs.sort_unstable();
        jobs
    }

    /// Waits for one call of each of these jobs, and no others.
    fn wait_for(&self, who: &str, jobs: &BTreeSet<String>) -> Vec<Held> {
        until(&format!("{who} has all jobs in hand"), || (self.jobs().len() >= jobs.len()).then_some(()));
        assert_eq!(self.jobs(), jobs.iter().cloned().collect::<Vec<_>>());
        std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Held {
    async fn answer(mut self, status: &str) {
        let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
        self.stream.write_all(answer.as_bytes()).await.expect("the caller is there");
    }
}

/// What waits, as ids and attempts.
fn waiting(bench: &Bench) -> BTreeSet<(String, u64)> {
    let listed = parsed(&bench.jobs(&["list"]));
    let jobs = listed["jobs"].as_array().expect("jobs").iter();
    jobs.map(|job| (job["id"].as_str().expect("an id").to_owned(), job["attempts"].as_u64().expect("a number")))
        .collect()
}

/// The answers that the first reader finds when it wakes would make it delete half of the jobs and write the others back.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_was_frozen_leaves_its_jobs_to_its_successor() {
    let holder = Holder::start().await;
    let mut bench = Bench::without_worker(vec![("HOOK", holder.url.clone())]).await;
    bench.write_jobs_file("version: 1\nproviders: [{type: files}]\nwebhooks: [{name: ops, url: \"${HOOK}\"}]\n");
    bench.start_worker();
    let enqueued = |number| {
        let done = parsed(&bench.jobs(&["enqueue", "webhook", &bench.call_of(number)]));
        done["jobs"][0]["id"].as_str().expect("an id").to_owned()
    };
    let jobs = (0..JOBS).map(enqueued).collect::<BTreeSet<_>>();
    let of_first = holder.wait_for("the first reader", &jobs);

    let first = bench.leave_worker();
    send_signal(first, "STOP");
    bench.start_worker();
    let of_second = holder.wait_for("its successor", &jobs);
    let before = waiting(&bench);
    assert_eq!(before, jobs.iter().map(|id| (id.clone(), 0)).collect());
    for (index, held) in of_first.into_iter().enumerate() {
        held.answer(if index % 2 == 0 { "204 No Content" } else { "503 Unavailable\r\nretry-after: 1" }).await;
    }
    send_signal(first, "CONT");
    let begin = std::time::Instant::now();
    while begin.elapsed() < WRITING {
        assert_eq!(waiting(&bench), before, "what another reader has in hand was changed");
    }

    for held in of_second {
        held.answer("204 No Content").await;
    }
    until("nothing is left", || bench.has_no_jobs().then_some(()));
    assert!(bench.end_worker("TERM").success(), "{}", bench.log());
    // The first reads again. Whatever it still had would be due before the job that comes now.
    let last = BTreeSet::from([{
        let done = parsed(&bench.jobs(&["enqueue", "webhook", &bench.call_of(JOBS)]));
        done["jobs"][0]["id"].as_str().expect("an id").to_owned()
    }]);
    for held in holder.wait_for("the first reader again", &last) {
        held.answer("204 No Content").await;
    }
    until("nothing is left", || bench.has_no_jobs().then_some(()));
    assert!(bench.has_no_dead() && holder.jobs().is_empty(), "{:?}", holder.jobs());
}
