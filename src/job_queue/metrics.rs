//! What the job queue counts, in the registry of the worker's own metrics.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jobs::breaker::BreakerState;
use jobs::memory::Memory;
use jobs::observer::{Execution, Observer};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::status::JobsStatus;
use crate::metrics::{Counters, Description, Gauges, Histograms, Labels, register, signed};

const ENQUEUE: Description = Description("jobqueue_enqueue", "Requests to take jobs, by provider and outcome");
const ENQUEUE_SECONDS: Description =
    Description("jobqueue_enqueue_seconds", "Time that a provider needed to take jobs, or to refuse them");
const FAILOVER: Description =
    Description("jobqueue_failover", "Requests that another provider took than the one that should have");
const BREAKER_STATE: Description =
    Description("jobqueue_breaker_state", "State of a provider's breaker: 0 closed, 1 half-open, 2 open");
const DEPTH: Description = Description("jobqueue_depth", "Jobs that a provider holds, due or scheduled");
const OLDEST_DUE: Description =
    Description("jobqueue_oldest_due_age_seconds", "For how long the oldest due job of a provider waits");
const EXECUTIONS: Description = Description("jobqueue_executions", "Attempts at jobs, by job and outcome");
const EXECUTION_SECONDS: Description = Description("jobqueue_execution_seconds", "Time that an attempt at a job took");
const MEMORY_BYTES: Description = Description("jobqueue_memory_bytes", "What the jobs in memory take");
const FLUSHED: Description =
    Description("jobqueue_flushed", "Jobs of memory that were kept elsewhere when a process ended, by where");
const DEAD: Description = Description("jobqueue_dead", "Jobs that joined the dead letters, by job");
const LEASE_HELD: Description =
    Description("jobqueue_lease_held", "Whether this process is the one reader of a provider that has one");

/// Buckets of a request's or an attempt's time: from a millisecond to five minutes. Unit: seconds.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// The metrics of the job queue, and how it stood at the last look.
#[derive(Debug)]
pub(crate) struct JobsMetrics {
    enqueue: Counters,
    enqueue_seconds: Histograms,
    failover: Counters,
    breaker_state: Gauges,
    depth: Gauges,
    oldest_due: Gauges,
    executions: Counters,
    execution_seconds: Histograms,
    memory_bytes: Gauge<i64, AtomicI64>,
    flushed: Counters,
    dead: Counters,
    lease_held: Gauges,
    memory: Mutex<Option<Arc<Memory>>>,
    status: Mutex<Option<JobsStatus>>,
}

impl JobsMetrics {
    /// Metrics at zero, in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let histograms = || Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        Self {
            enqueue: register(registry, ENQUEUE, Family::default()),
            enqueue_seconds: register(registry, ENQUEUE_SECONDS, histograms()),
            failover: register(registry, FAILOVER, Family::default()),
            breaker_state: register(registry, BREAKER_STATE, Family::default()),
            depth: register(registry, DEPTH, Family::default()),
            oldest_due: register(registry, OLDEST_DUE, Family::default()),
            executions: register(registry, EXECUTIONS, Family::default()),
            execution_seconds: register(registry, EXECUTION_SECONDS, histograms()),
            memory_bytes: register(registry, MEMORY_BYTES, Gauge::default()),
            flushed: register(registry, FLUSHED, Family::default()),
            dead: register(registry, DEAD, Family::<Labels, Counter<u64, AtomicU64>>::default()),
            lease_held: register(registry, LEASE_HELD, Family::default()),
            memory: Mutex::default(),
            status: Mutex::default(),
        }
    }

    /// The memory whose size is shown.
    pub(super) fn watch_memory(&self, memory: Option<Arc<Memory>>) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Brings what isn't counted but looked at up to date.
    pub(crate) fn look(&self) {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let num_bytes = memory.as_ref().map_or(0, |memory| memory.num_bytes());
        self.memory_bytes.set(i64::try_from(num_bytes).unwrap_or(i64::MAX));
    }

    /// How the queue stood at the last look; `None` before the first.
    pub(crate) fn status(&self) -> Option<JobsStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how the queue stands.
    pub(super) fn note_status(&self, status: JobsStatus) {
        for provider in &status.providers {
            let name = of(&provider.name, &[]);
            self.breaker_state.get_or_create(&name).set(match provider.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            });
            if let Some(holds_lease) = provider.holds_lease {
                self.lease_held.get_or_create(&name).set(holds_lease.into());
            }
            if let Some((due, scheduled)) = provider.due.zip(provider.scheduled) {
                self.depth.get_or_create(&of(&provider.name, &[("state", "due")])).set(signed(due));
                self.depth.get_or_create(&of(&provider.name, &[("state", "scheduled")])).set(signed(scheduled));
                let age = provider.oldest_due.map_or(0, |since| Timestamp::now().duration_since(since).as_secs());
                self.oldest_due.get_or_create(&name).set(age);
            }
        }
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

impl Observer for JobsMetrics {
    fn enqueued(&self, provider: &str, outcome: &'static str, took: Duration) {
        let labels = of(provider, &[("outcome", outcome)]);
        self.enqueue.get_or_create(&labels).inc();
        self.enqueue_seconds.get_or_create(&of(provider, &[])).observe(took.as_secs_f64());
    }

    fn failed_over(&self, from: &str, to: &str, reason: &'static str) {
        let labels = vec![("from", from.to_owned()), ("to", to.to_owned()), ("reason", reason.to_owned())];
        self.failover.get_or_create(&labels).inc();
    }

    fn executed(&self, job: &str, end: Execution, took: Duration) {
        let name = vec![("job", job.to_owned())];
        let labels = vec![("job", job.to_owned()), ("outcome", end.as_str().to_owned())];
        self.executions.get_or_create(&labels).inc();
        self.execution_seconds.get_or_create(&name).observe(took.as_secs_f64());
        if end == Execution::Died {
            self.dead.get_or_create(&name).inc();
        }
    }

    fn flushed(&self, to: &str, jobs: usize) {
        self.flushed.get_or_create(&vec![("to", to.to_owned())]).inc_by(u64::try_from(jobs).unwrap_or(u64::MAX));
    }
}

fn of(provider: &str, others: &[(&'static str, &str)]) -> Labels {
    let mut labels = vec![("provider", provider.to_owned())];
    labels.extend(others.iter().map(|(name, value)| (*name, (*value).to_owned())));
    labels
}
