//! Plugins to be tested, and places for their jobs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jobs::job::Job;
use plugins::definition::{Definition, Limits};
use plugins::error::PluginError;
use plugins::outbox::Outbox;
use plugins::plugin::Plugin;

use crate::log;

/// Keeps jobs, or does worse.
#[derive(Default)]
pub(crate) struct Kept {
    jobs: Mutex<Vec<Job>>,
    manner: Manner,
}

#[derive(Default, Clone, Copy)]
pub(crate) enum Manner {
    #[default]
    Takes,
    Refuses,
    /// Never answers.
    Hangs,
}

impl Kept {
    pub(crate) fn new(manner: Manner) -> Arc<Self> {
        Arc::new(Self { manner, ..Self::default() })
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Outbox for Kept {
    fn enqueue(&self, job: Job) -> BoxFuture<'_, Result<(), String>> {
        async move {
            match self.manner {
                Manner::Takes => {
                    // As a real one: not at once.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
                    Ok(())
                }
                Manner::Refuses => Err("no provider takes the job now".to_owned()),
                Manner::Hangs => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// Limits that tests can wait for.
pub(crate) fn short_limits() -> Limits {
    Limits { time: Duration::from_millis(200), memory_bytes: 16 * 1024 * 1024, ..Limits::default() }
}

pub(crate) fn definition(name: &str, source: &str) -> Definition {
    log::listen();
    Definition::new(name, format!("{name}.js"), source)
}

/// A plugin whose jobs nobody needs.
pub(crate) async fn start(name: &str, source: &str) -> Plugin {
    start_with(name, source, Limits::default(), Kept::new(Manner::Takes)).await
}

pub(crate) async fn start_with(name: &str, source: &str, limits: Limits, outbox: Arc<Kept>) -> Plugin {
    let definition = Definition { limits, ..definition(name, source) };
    Plugin::start(definition, outbox).await.expect("starts")
}

/// Why a plugin doesn't start.
pub(crate) async fn start_error(name: &str, source: &str) -> PluginError {
    let definition = Definition { limits: short_limits(), ..definition(name, source) };
    Plugin::start(definition, Kept::new(Manner::Takes)).await.expect_err("doesn't start")
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
