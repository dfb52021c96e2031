//! What is in a worker's memory when it is told to stop: a plugin's job of the next seconds, that no other process knows of.

use serde_json::json;

use crate::bench::{Bench, until};
use crate::job_outages::address;
use crate::job_queue::parsed;
use crate::relay::{Network, Relay};
use crate::services::required;

const POSTGRES_URL: &str = "BATCH_EXPORT_TEST_POSTGRES_URL";
const S3_URL: &str = "AWS_ENDPOINT_URL_S3";

const PLUGIN: &str = "
export const jobs = {
  async begin(_, meta) {
    await meta.jobs.end({ word: 'goodbye' }).runIn(9, 'seconds');
    console.log('begun');
  },
  async end({ word }) { console.log('ended with', word) },
};
";

/// A worker whose jobs are in its memory, in Postgres or in S3; the ways to the latter can be cut.
struct Desk {
    bench: Bench,
    postgres: Relay,
    s3: Relay,
}

impl Desk {
    /// With a job in the worker's memory, and nowhere else.
    async fn with_a_job_in_memory() -> Self {
        let (postgres, s3) =
            (Relay::start(address(&required(POSTGRES_URL))).await, Relay::start(address(&required(S3_URL))).await);
        let mut database = required(POSTGRES_URL).parse::<reqwest::Url>().expect("an address");
        database.set_host(Some("127.0.0.1")).expect("a host");
        database.set_port(Some(postgres.address.port())).expect("a port");
        let variables = vec![(POSTGRES_URL, database.to_string()), (S3_URL, format!("http://{}", s3.address))];
        let mut bench = Bench::without_worker(variables).await;
        std::fs::write(bench.file("teller.js"), PLUGIN).expect("a file");
        bench.write_jobs_file(&format!(
            "version: 1\nfolder: own\nproviders:\n  - type: memory\n  - type: postgres\n    url: ${{{POSTGRES_URL}}}\n    \
             schema: {}\n  - type: s3\n    bucket: {}\nplugins:\n  - file: teller.js\n    name: teller\n",
            bench.name, bench.bucket.name
        ));
        bench.start_worker();
        parsed(&bench.jobs(&["enqueue", "plugin:teller:begin"]));
        until("the plugin has put a job into the queue", || bench.log().contains("begun").then_some(()));
        until("that job alone is left, in memory", || bench.has_no_jobs().then_some(()));
        Self { bench, postgres, s3 }
    }

    /// Tells the worker to stop while the ways to what keeps jobs are like this.
    fn stop(&mut self, postgres: Network, s3: Network) {
        self.postgres.set(postgres);
        self.s3.set(s3);
        assert!(self.bench.end_worker("TERM").success(), "{}", self.bench.log());
        assert!(!self.bench.log().contains("ended with"), "it wasn't due yet");
        self.postgres.set(Network::Up);
        self.s3.set(Network::Up);
    }

    /// Where the job is now, by what other processes see.
    fn place(&self) -> Option<String> {
        let listed = parsed(&self.bench.jobs(&["list"]));
        let jobs = listed["jobs"].as_array().expect("jobs");
        assert!(jobs.len() <= 1 && jobs.iter().all(|job| job["payload"] == json!({"word": "goodbye"})), "{listed}");
        Some(jobs.first()?["provider"].as_str().expect("a name").to_owned())
    }

    /// The jobs in files of the worker's folder, one a line.
    fn spooled(&self) -> Vec<String> {
        let Ok(files) = std::fs::read_dir(self.bench.file("own/spool")) else { return Vec::new() };
        let texts = files.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"));
        texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// The next worker does it, and once.
    fn ends_in_the_next_worker(mut self) {
        self.bench.start_worker();
        until("the job is done", || self.bench.log().contains("ended with goodbye").then_some(()));
        until("nothing is left", || self.bench.has_no_jobs().then_some(()));
        assert!(self.bench.end_worker("TERM").success(), "{}", self.bench.log());
        assert_eq!(self.bench.log().matches("ended with").count(), 1, "{}", self.bench.log());
        assert!(self.bench.has_no_jobs() && self.bench.has_no_dead() && self.spooled().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_memory_at_the_end_is_kept_in_the_first_place() {
    let mut desk = Desk::with_a_job_in_memory().await;
    desk.stop(Network::Up, Network::Up);
    assert_eq!((desk.place().as_deref(), desk.spooled()), (Some("postgres"), Vec::new()));
    desk.ends_in_the_next_worker();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_memory_at_the_end_is_kept_in_the_next_place_when_the_first_is_broken() {
    let mut desk = Desk::with_a_job_in_memory().await;
    desk.stop(Network::Hangs, Network::Up);
    assert_eq!((desk.place().as_deref(), desk.spooled()), (Some("s3"), Vec::new()));
    desk.ends_in_the_next_worker();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_memory_at_the_end_is_kept_in_a_file_when_every_place_is_broken() {
    let mut desk = Desk::with_a_job_in_memory().await;
    desk.stop(Network::Refuses, Network::Refuses);
    assert_eq!(desk.place(), None);
    let spooled = desk.spooled();
    assert!(spooled.len() == 1 && spooled[0].contains("plugin:teller:end"), "{spooled:?}");
    desk.ends_in_the_next_worker();
}
