//! Jobs in memory: for now and for the next seconds, in front of what is slower.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::consumer::{Claims, Consumer, consume, select};
use crate::error::{EnqueueError, ProviderError};
use crate::handler::Verdict;
use crate::job::{Job, JobId, KeyMode, MAX_PAYLOAD_BYTES};
use crate::provider::{Capabilities, Delivery, Depth, Durability, Locality, Provider, ReadMode, Throughput};

/// How much is held, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The most jobs, those at work included.
    pub max_jobs: usize,
    /// The most that they take. Unit: bytes.
    pub max_bytes: usize,
    /// How far in the future a job may be: what is for later belongs where it survives.
    pub max_delay: Duration,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { max_jobs: 1_000, max_bytes: 20 * 1024 * 1024, max_delay: Duration::from_secs(10) }
    }
}

/// Jobs in memory.
///
/// # Invariants
/// Never holds more than its limits, but for jobs that are tried again with a longer error text.
#[derive(Debug)]
pub struct Memory {
    limits: MemoryLimits,
    jobs: Mutex<Jobs>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: BTreeMap<JobId, Job>,
    by_key: HashMap<String, JobId>,
    /// Those at work.
    claimed: HashMap<JobId, Job>,
    num_bytes: usize,
    /// Whether the process ends, and no more are taken.
    is_closed: bool,
}

impl Memory {
    /// Room for jobs up to `limits`.
    #[must_use]
    pub fn new(limits: MemoryLimits) -> Self {
        Self { limits, jobs: Mutex::default(), changed: Notify::new() }
    }

    /// What they take now. Unit: bytes.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.lock().num_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, why: String) -> EnqueueError {
        EnqueueError::Full { provider: self.name().to_owned(), why }
    }

    fn take(&self, jobs: &[Job]) -> Result<(), EnqueueError> {
        let latest = Timestamp::now().saturating_add(self.limits.max_delay).unwrap_or(Timestamp::MAX);
        if jobs.iter().any(|job| job.run_at > latest) {
            return Err(self.full(format!("it takes jobs of the next {:?} only", self.limits.max_delay)));
        }
        let mut held = self.lock();
        if held.is_closed {
            return Err(self.full("the process ends".to_owned()));
        }
        // All or none. That some may take the place of others isn't counted: then it is full a little early.
        let num_bytes = jobs.iter().map(Job::num_bytes).sum::<usize>();
        let MemoryLimits { max_jobs, max_bytes, .. } = self.limits;
        if held.len() + jobs.len() > max_jobs || held.num_bytes + num_bytes > max_bytes {
            let (jobs, bytes) = (held.len(), held.num_bytes);
            return Err(
                self.full(format!("it holds {jobs} of {max_jobs} jobs, which take {bytes} of {max_bytes} bytes"))
            );
        }
        jobs.iter().for_each(|job| held.push(job));
        drop(held);
        self.changed.notify_one();
        Ok(())
    }
}

impl Jobs {
    fn len(&self) -> usize {
        self.waiting.len() + self.claimed.len()
    }

    /// Takes a job as its key says.
    fn push(&mut self, job: &Job) {
        if self.waiting.contains_key(&job.id) || self.claimed.contains_key(&job.id) {
            return;
        }
        let mut job = job.clone();
        if let Some(key) = &job.key {
            let earlier = self.by_key.get(&key.key).copied().filter(|id| self.waiting.contains_key(id));
            match (earlier, key.mode) {
                (Some(_), KeyMode::Skip) => return,
                (Some(id), KeyMode::KeepRunTime) => {
                    job.run_at = self.remove(id).map_or(job.run_at, |earlier| earlier.run_at);
                }
                (Some(id), KeyMode::Replace) => {
                    self.remove(id);
                }
                (None, _) => {}
            }
        }
        self.insert(job);
    }

    fn insert(&mut self, job: Job) {
        if let Some(key) = &job.key {
            self.by_key.insert(key.key.clone(), job.id);
        }
        self.num_bytes += job.num_bytes();
        self.waiting.insert(job.id, job);
    }

    fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.waiting.remove(&id)?;
        self.forget(&job);
        Some(job)
    }

    fn claim(&mut self, id: JobId) -> Option<Job> {
        let job = self.waiting.remove(&id)?;
        self.claimed.insert(id, job.clone());
        Some(job)
    }

    fn settle(&mut self, id: JobId, verdict: &Verdict) {
        let Some(job) = self.claimed.remove(&id) else { return };
        self.forget(&job);
        if let Verdict::Again(again) = verdict {
            // Another job may have come with its key meanwhile: that one is newer, and stays.
            let is_superseded = again.key.as_ref().is_some_and(|key| self.by_key.contains_key(&key.key));
            if !is_superseded {
                self.insert(Job::clone(again));
            }
        }
    }

    /// Counts a job that is held no longer.
    fn forget(&mut self, job: &Job) {
        self.num_bytes -= job.num_bytes();
        if let Some(key) = &job.key
            && self.by_key.get(&key.key) == Some(&job.id)
        {
            self.by_key.remove(&key.key);
        }
    }
}

impl Provider for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durability: Durability::Transient,
            locality: Locality::Local,
            throughput: Throughput::High,
            read_mode: ReadMode::SingleReader,
            delivery: Delivery::AtMostOnce,
            max_delay: Some(self.limits.max_delay),
            accepts_recovery_flush: false,
            max_payload: MAX_PAYLOAD_BYTES.min(self.limits.max_bytes),
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>> {
        std::future::ready(self.take(jobs)).boxed()
    }

    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            consume(self, &consumer).await;
            Ok(())
        }
        .boxed()
    }

    fn waiting(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        let mut jobs = self.lock().waiting.values().cloned().collect::<Vec<_>>();
        jobs.sort_by_key(|job| (job.run_at, job.id));
        jobs.truncate(limit);
        std::future::ready(Ok(jobs)).boxed()
    }

    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>> {
        let jobs = self.lock();
        let job = jobs.waiting.get(&id).or_else(|| jobs.claimed.get(&id)).cloned();
        std::future::ready(Ok(job)).boxed()
    }

    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>> {
        let mut jobs = self.lock();
        let removed = ids.iter().filter(|id| jobs.remove(**id).is_some()).count();
        std::future::ready(Ok(removed)).boxed()
    }

    fn take_waiting(&self) -> Vec<Job> {
        let mut jobs = self.lock();
        let ids = jobs.waiting.keys().copied().collect::<Vec<_>>();
        ids.into_iter().filter_map(|id| jobs.remove(id)).collect()
    }

    fn take_all(&self) -> Vec<Job> {
        let jobs = std::mem::replace(&mut *self.lock(), Jobs { is_closed: true, ..Jobs::default() });
        jobs.claimed.into_values().chain(jobs.waiting.into_values()).collect()
    }

    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>> {
        let jobs = self.lock();
        let holds = jobs.waiting.values().chain(jobs.claimed.values()).any(Job::is_serial);
        std::future::ready(Ok(holds)).boxed()
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>> {
        let (jobs, now) = (self.lock(), Timestamp::now());
        let due = jobs.waiting.values().filter(|job| job.is_due(now));
        let waiting = due.clone().count();
        let depth = Depth {
            due: (waiting + jobs.claimed.len()) as u64,
            scheduled: (jobs.waiting.len() - waiting) as u64,
            oldest_due: due.map(|job| job.run_at).min(),
        };
        std::future::ready(Ok(depth)).boxed()
    }
}

impl Claims for Memory {
    fn claim(&self, room: usize, now: Timestamp) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        let mut jobs = self.lock();
        let due = jobs.waiting.values().filter(|job| job.is_due(now));
        let busy = jobs.claimed.values().filter_map(|job| job.queue.as_deref()).collect::<HashSet<_>>();
        let selected = select(due, room, busy).iter().map(|job| job.id).collect::<Vec<_>>();
        let claimed = selected.into_iter().filter_map(|id| jobs.claim(id)).collect();
        std::future::ready(Ok(claimed)).boxed()
    }

    fn settle<'a>(&'a self, job: &'a Job, verdict: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.lock().settle(job.id, verdict);
        std::future::ready(Ok(())).boxed()
    }

    fn worth_a_look(&self, last: Timestamp) -> BoxFuture<'_, ()> {
        // Those that were due at the last look wait for something else than time.
        let next = self.lock().waiting.values().map(|job| job.run_at).filter(|run_at| *run_at > last).min();
        let wait = next.map(|next| Timestamp::now().duration_until(next).max(SignedDuration::from_millis(1)));
        async move {
            match wait.and_then(|wait| Duration::try_from(wait).ok()) {
                Some(wait) => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
        .boxed()
    }
}
