//! A queue of two places, of which the network takes one away.

use std::sync::Arc;

use jobs::breaker::BreakerState;
use jobs::handler::Work;
use jobs::job::Job;
use jobs::observer::NoObserver;
use jobs::provider::{Durability, Provider};
use jobs::queue::{Queue, QueueError};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::places::{Files, Place as _, Remote};
use crate::relay::Relay;
use crate::rig::{WORK, consumer};

/// A queue over a place behind a relay, and local files.
pub(crate) struct Tiers {
    pub(crate) relay: Relay,
    pub(crate) remote: Arc<dyn Provider>,
    pub(crate) files: Arc<dyn Provider>,
    pub(crate) queue: Queue,
    stop: CancellationToken,
    _folder: Files,
}

impl Tiers {
    pub(crate) async fn start<R: Remote>() -> Self {
        let (place, relay) = R::relayed().await;
        let (remote, folder) = (place.open(), Files::fresh().await);
        let files = folder.open();
        let stop = CancellationToken::new();
        let queue = another(&remote, &files, &stop).await;
        Self { relay, remote, files, queue, stop, _folder: folder }
    }

    /// The queue as another process has it.
    pub(crate) async fn another(&self) -> Queue {
        another(&self.remote, &self.files, &self.stop).await
    }

    pub(crate) async fn enqueue(&self, number: u32) -> Result<String, QueueError> {
        let job = Job::new(WORK, json!(number)).expect("a job");
        self.queue.enqueue(&[job], Durability::Persistent).await.map(|receipt| receipt.provider)
    }

    /// Handles the queue's jobs.
    pub(crate) fn consume(&self, work: Arc<dyn Work>) {
        let consumer = consumer(work, &self.stop);
        let queue = self.queue.clone();
        tokio::spawn(async move { queue.consume(&consumer).await });
    }

    pub(crate) async fn breaker(&self) -> BreakerState {
        self.queue.status().await[0].breaker
    }
}

async fn another(remote: &Arc<dyn Provider>, files: &Arc<dyn Provider>, stop: &CancellationToken) -> Queue {
    let places = vec![Arc::clone(remote), Arc::clone(files)];
    let queue = Queue::start(places, Arc::new(NoObserver)).await.expect("files work");
    let (watched, stopped) = (queue.clone(), stop.clone());
    tokio::spawn(async move { watched.watch(stopped).await });
    queue
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Every test of places behind a network, for each of them.
macro_rules! for_every_remote {
    ($($test:ident),* $(,)?) => {
        mod s3 { $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test::<$crate::places::S3>().await; })* }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test::<$crate::places::Database>().await; })*
        }
        mod clickhouse {
            $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test::<$crate::places::ClickHouseTable>().await; })*
        }
    };
}

pub(crate) use for_every_remote;
