//! A consumer whose handler notes what it does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use jobs::consumer::Consumer;
use jobs::dead_letter::StoredDeadLetters;
use jobs::flow::Flow;
use jobs::handler::{Dispatcher, Failure, Handler, Work};
use jobs::job::Job;
use jobs::provider::Provider;
use object_store::memory::InMemory;
use object_store::path::Path;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of the jobs that are handled.
pub(crate) const WORK: &str = "work";

/// What happened to jobs, in order: `begin` and `end` with the payload.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<(&'static str, Value)>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<(&'static str, Value)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The payloads of attempts that began, in order.
    pub(crate) fn begun(&self) -> Vec<Value> {
        self.all().into_iter().filter(|(what, _)| *what == "begin").map(|(_, payload)| payload).collect()
    }

    fn note(&self, what: &'static str, payload: &Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((what, payload.clone()));
    }
}

/// Does what the payload says: `{"sleep": ms}`, `{"fail": n}` the first n times, `{"fatal": true}`, `{"panic": true}`.
struct Script(Arc<Log>);

impl Handler for Script {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.0.note("begin", &job.payload);
            if let Some(milliseconds) = job.payload["sleep"].as_u64() {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            }
            assert!(!job.payload["panic"].as_bool().unwrap_or(false), "told to panic");
            if job.payload["fatal"].as_bool().unwrap_or(false) {
                return Err(Failure::fatal("hopeless"));
            }
            if job.payload["fail"].as_u64().is_some_and(|times| u64::from(job.attempts) < times) {
                return Err(Failure::new("not yet").retry_after(Duration::from_millis(50)));
            }
            self.0.note("end", &job.payload);
            Ok(())
        })
    }
}

/// A consumer that lets much in, and ends soon.
pub(crate) fn consumer(work: Arc<dyn Work>, stop: &CancellationToken) -> Consumer {
    Consumer::new(work, Flow::new(1_000, 100 << 20), 8, stop.clone(), Duration::from_secs(1))
}

/// One process at work on a place.
pub(crate) struct Rig {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) log: Arc<Log>,
    pub(crate) dead: Arc<StoredDeadLetters>,
    pub(crate) flow: Flow,
    concurrency: usize,
}

impl Rig {
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Self {
        let dead = Arc::new(StoredDeadLetters::new(Arc::new(InMemory::new()), Path::from("dead")));
        Self { provider, log: Arc::default(), dead, flow: Flow::new(1_000, 100 << 20), concurrency: 8 }
    }

    pub(crate) fn with_concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    pub(crate) async fn enqueue(&self, jobs: &[Job]) {
        self.provider.enqueue(jobs).await.expect("taken");
    }

    /// What is done with jobs here.
    pub(crate) fn work(&self) -> Arc<dyn Work> {
        let dispatcher = Dispatcher::new(Arc::<StoredDeadLetters>::clone(&self.dead));
        Arc::new(dispatcher.with_handler(WORK, Arc::new(Script(Arc::clone(&self.log)))))
    }

    /// Starts to handle jobs.
    pub(crate) fn start(&self) -> Running {
        let stop = CancellationToken::new();
        let consumer =
            Consumer::new(self.work(), self.flow.clone(), self.concurrency, stop.clone(), Duration::from_secs(10));
        let provider = Arc::clone(&self.provider);
        let task = tokio::spawn(async move { provider.consume(consumer).await.expect("goes on") });
        Running { stop, task }
    }

    /// Waits until as many attempts have begun or ended.
    pub(crate) async fn wait_for(&self, what: &'static str, times: usize) {
        let seen = || self.log.all().iter().filter(|(noted, _)| *noted == what).count();
        until(&format!("{times} times {what}"), async || seen() >= times).await;
    }

    /// Waits until nothing is left in the provider.
    pub(crate) async fn wait_until_empty(&self) {
        until("nothing is left", async || {
            let depth = self.provider.depth().await.expect("works");
            depth.due + depth.scheduled == 0
        })
        .await;
    }
}

/// Jobs being handled.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Stops in good order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("stops").expect("no panic");
    }

    /// Ends at once, as a process that is killed.
    pub(crate) async fn kill(self) {
        self.task.abort();
        self.task.await.expect_err("aborted");
    }
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}
