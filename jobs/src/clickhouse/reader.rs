//! The one reader of a table: it knows the heads of jobs that are due soon, and reads those that it hands out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::ClickHouse;
use super::keys::{Merged, merge};
use super::lease::{Lease, Remains};
use super::table::{Content, Found, Head};
use crate::consumer::{Claims, Consumer, Takes, select};
use crate::error::ProviderError;
use crate::handler::{Verdict, Work};
use crate::job::{Job, JobId, MAX_STALLS};

/// How many heads of due jobs are known at once, and how many of jobs with keys; the rest is read later. A head takes about
/// 300 bytes. Keys make one job of many only among those that are known.
const MAX_KNOWN: usize = 10_000;

/// Looking takes a tenth of the time at most, however many jobs wait.
const LOOKING_SHARE: u32 = 10;

/// How often the table is tidied up.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

/// How much is kept of what is no job. Unit: characters.
const CORRUPT_CHARS: usize = 10_000;

/// Reads under one lease.
pub(super) struct Reader<'a> {
    provider: &'a ClickHouse,
    lease: &'a Lease,
    work: Arc<dyn Work>,
    leaves_serial: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Due now or before the next look, and not in hand.
    soon: BTreeMap<JobId, Head>,
    /// In hand.
    at_work: HashMap<JobId, Head>,
    /// When to look again; `None` when there is something new.
    look_at: Option<Instant>,
    /// Whether more were due than are known.
    is_cut: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(provider: &'a ClickHouse, lease: &'a Lease, consumer: &Consumer) -> Self {
        let (work, leaves_serial) = (Arc::clone(&consumer.work), consumer.takes == Takes::DueWithoutQueue);
        Self { provider, lease, work, leaves_serial, known: Mutex::default() }
    }

    /// Notes which jobs earlier readers had in hand when they went away without a word. Some ends are the jobs' own work:
    /// after a few, they are buried.
    pub(super) async fn take_over(&self) {
        if let Err(error) = self.note_stalls().await {
            tracing::warn!(%error, "what the reader before had in hand can't be told");
        }
    }

    async fn note_stalls(&self) -> Result<(), ProviderError> {
        let error = |failure| self.provider.error("can't tell what was at work", failure);
        let leases = self.provider.leases();
        for remains in leases.remains(self.lease.token).await.map_err(error)? {
            self.note_stalls_of(&remains).await?;
            leases.clear(&remains).await.map_err(error)?;
        }
        Ok(())
    }

    async fn note_stalls_of(&self, remains: &Remains) -> Result<(), ProviderError> {
        for found in self.find(&remains.in_hand).await? {
            let Content::Job(job) = found.content else { continue };
            let job = job.stalled(1);
            tracing::warn!(job = %job.id, name = job.name, stalls = job.stalls, "a process ended while it was at work on the job");
            let verdict =
                if job.stalls < MAX_STALLS { Verdict::Again(Box::new(job)) } else { self.work.bury(job).await };
            self.replace(found.id, &found.entries, &verdict).await?;
        }
        Ok(())
    }

    /// Keeps the table small, as long as this reads.
    pub(super) async fn sweep(&self) {
        loop {
            if let Err(failure) = self.provider.table().sweep().await {
                tracing::warn!(provider = self.provider.options().name, %failure, "the table of jobs can't be tidied up; it grows");
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
        }
    }

    /// Leaves in good order: what is still in hand is nobody's fault.
    pub(super) async fn leave(&self) {
        self.lease.forget_in_hand().await;
    }

    async fn find(&self, ids: &[JobId]) -> Result<Vec<Found>, ProviderError> {
        self.provider.table().find(ids).await.map_err(|failure| self.provider.error("can't read jobs", failure))
    }

    /// Does to a job's entries what the verdict says, all at once. Returns the job's new head, if it has one.
    async fn replace(&self, id: JobId, entries: &[Uuid], verdict: &Verdict) -> Result<Option<Head>, ProviderError> {
        let gone = entries.iter().map(|entry| (id, *entry)).collect::<Vec<_>>();
        let entry = Uuid::new_v4();
        let again = match verdict {
            Verdict::Gone => None,
            Verdict::Again(again) => Some(again.as_ref()),
        };
        let here = again.map(|job| (job, entry)).into_iter().collect::<Vec<_>>();
        let replaced = self.provider.table().replace(&gone, &here).await;
        replaced.map_err(|failure| self.provider.error("can't write what became of a job", failure))?;
        Ok(again.map(|job| Head { job: Job { payload: Value::Null, ..job.clone() }, entries: vec![entry] }))
    }

    /// Looks for what is due, now or before the next look.
    async fn look(&self, now: Timestamp) -> Result<(), ProviderError> {
        let poll = self.provider.options().poll;
        let started = Instant::now();
        let soon = now.saturating_add(poll).unwrap_or(Timestamp::MAX);
        let heads = self.provider.table().soon(soon, self.leaves_serial, MAX_KNOWN).await;
        let mut heads = heads.map_err(|failure| self.provider.error("can't look for jobs", failure))?;
        heads.retain(|head| !self.lock().at_work.contains_key(&head.job.id));
        let (keyed, mut heads): (Vec<_>, Vec<_>) = heads.into_iter().partition(|head| head.job.key.is_some());
        let is_cut = heads.len() >= MAX_KNOWN;
        heads.extend(self.settle_keys(merge(keyed)).await?.into_iter().filter(|head| head.job.is_due(soon)));
        let mut known = self.lock();
        known.is_cut = is_cut;
        known.soon = heads.into_iter().map(|head| (head.job.id, head)).collect();
        known.look_at = Some(started + poll.max(started.elapsed() * LOOKING_SHARE));
        Ok(())
    }

    /// Writes what became of jobs with keys; returns those that stay.
    async fn settle_keys(&self, merged: Merged) -> Result<Vec<Head>, ProviderError> {
        let Merged { mut stay, moved, mut gone } = merged;
        let ids = moved.iter().map(|(head, _)| head.job.id).collect::<Vec<_>>();
        let times = moved.into_iter().map(|(head, run_at)| (head.job.id, run_at)).collect::<HashMap<_, _>>();
        let mut jobs = Vec::new();
        for found in self.find(&ids).await? {
            let (Content::Job(job), Some(run_at)) = (found.content, times.get(&found.id)) else { continue };
            gone.extend(found.entries.iter().map(|entry| (found.id, *entry)));
            jobs.push((job.run_at(*run_at), Uuid::new_v4()));
        }
        let here = jobs.iter().map(|(job, entry)| (job, *entry)).collect::<Vec<_>>();
        let replaced = self.provider.table().replace(&gone, &here).await;
        replaced.map_err(|failure| self.provider.error("can't write what became of jobs with keys", failure))?;
        stay.extend(jobs.into_iter().map(|(job, entry)| Head { job, entries: vec![entry] }));
        Ok(stay)
    }

    /// Takes due jobs in hand.
    fn choose(&self, room: usize, now: Timestamp) -> Vec<JobId> {
        let mut known = self.lock();
        let busy = known.at_work.values().filter_map(|head| head.job.queue.as_deref()).collect();
        let due = known.soon.values().map(|head| &head.job).filter(|job| job.is_due(now));
        let chosen = select(due, room, busy).iter().map(|job| job.id).collect::<Vec<_>>();
        for id in &chosen {
            if let Some(head) = known.soon.remove(id) {
                known.at_work.insert(*id, head);
            }
        }
        chosen
    }

    async fn claim_due(&self, room: usize, now: Timestamp) -> Result<Vec<Job>, ProviderError> {
        let is_stale = {
            let known = self.lock();
            let is_old = known.look_at.is_none_or(|look_at| look_at <= Instant::now());
            is_old || (known.is_cut && known.soon.is_empty())
        };
        if is_stale {
            self.look(now).await?;
        }
        let chosen = self.choose(room, now);
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = self.take_in_hand(&chosen).await;
        let in_hand =
            outcome.as_ref().map(|jobs| jobs.iter().map(|job| job.id).collect()).unwrap_or_else(|_| Vec::new());
        let mut known = self.lock();
        for id in chosen.iter().filter(|id| !in_hand.contains(id)) {
            known.at_work.remove(id);
        }
        drop(known);
        outcome
    }

    /// Says that they are in hand, and then reads them.
    async fn take_in_hand(&self, chosen: &[JobId]) -> Result<Vec<Job>, ProviderError> {
        let all = self.lock().at_work.keys().copied().collect::<Vec<_>>();
        let noted = self.lease.note(all).await;
        noted.map_err(|failure| self.provider.error("can't note what is at work", failure))?;
        let mut jobs = Vec::new();
        for Found { id, entries, content } in self.find(chosen).await? {
            match content {
                Content::Job(job) => {
                    if let Some(head) = self.lock().at_work.get_mut(&id) {
                        head.entries = entries;
                    }
                    jobs.push(*job);
                }
                Content::Corrupt(text) => self.bury_what_is_no_job(id, &entries, &text).await?,
            }
        }
        Ok(jobs)
    }

    /// Keeps it among the dead, where somebody finds it.
    async fn bury_what_is_no_job(&self, id: JobId, entries: &[Uuid], text: &str) -> Result<(), ProviderError> {
        tracing::error!(job = %id, provider = self.provider.options().name, "this row is no job; it joins the dead letters");
        let text = text.replace('\0', "").chars().take(CORRUPT_CHARS).collect::<String>();
        // Text of this length without the character 0 is a payload.
        if let Ok(job) = Job::new("corrupt", Value::String(text)) {
            let job = Job { last_error: Some("this is no job".to_owned()), ..job };
            if self.work.bury(job).await == Verdict::Gone {
                self.replace(id, entries, &Verdict::Gone).await?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims for Reader<'_> {
    fn claim(&self, room: usize, now: Timestamp) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        self.claim_due(room, now).boxed()
    }

    fn settle<'a>(&'a self, job: &'a Job, verdict: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>> {
        async move {
            let entries = self.lock().at_work.get(&job.id).map(|head| head.entries.clone());
            if let Some(entries) = entries {
                let again = self.replace(job.id, &entries, verdict).await?;
                let mut known = self.lock();
                known.at_work.remove(&job.id);
                known.soon.extend(again.map(|head| (job.id, head)));
            }
            Ok(())
        }
        .boxed()
    }

    fn worth_a_look(&self, last: Timestamp) -> BoxFuture<'_, ()> {
        let known = self.lock();
        let look_at = known.look_at.unwrap_or_else(Instant::now);
        // Those that were due at the last look wait for something else than time.
        let next = known.soon.values().map(|head| head.job.run_at).filter(|run_at| *run_at > last).min();
        drop(known);
        let wait = next.map(|next| Duration::try_from(Timestamp::now().duration_until(next)).unwrap_or_default());
        let look_at = wait.map_or(look_at, |wait| look_at.min(Instant::now() + wait));
        async move {
            tokio::select! {
                () = tokio::time::sleep_until(look_at) => {}
                () = self.provider.changed().notified() => self.lock().look_at = None,
            }
        }
        .boxed()
    }
}
