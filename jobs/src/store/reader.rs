//! The one reader of a store: it knows which jobs are due by their names, and reads those that it hands out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use tokio::time::Instant;

use super::Store;
use super::lease::Token;
use super::name::Name;
use crate::consumer::{Claims, Consumer, Takes};
use crate::error::ProviderError;
use crate::handler::{Verdict, Work};
use crate::job::{Job, JobId, KeyMode, MAX_STALLS};

/// How many names of due jobs are known at once, and how many of jobs with keys; the rest is listed later. A name takes about
/// 100 bytes. Keys make one job of many only among those that are known.
const MAX_KNOWN: usize = 10_000;

/// Listing takes a tenth of the time at most, however many jobs wait.
const LISTING_SHARE: u32 = 10;

/// Reads under one lease.
#[derive(Debug)]
pub(super) struct Reader {
    store: Store,
    token: Token,
    work: Arc<dyn Work>,
    leaves_serial: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Due now or before the next listing, and not in hand.
    soon: BTreeSet<Name>,
    /// In hand, with the names of their objects.
    at_work: HashMap<JobId, Name>,
    /// When they are to be listed again; `None` when there is something new.
    list_at: Option<Instant>,
    /// Whether more were due than are known.
    is_cut: bool,
}

impl Reader {
    pub(super) fn new(store: Store, token: Token, consumer: &Consumer) -> Self {
        let (work, leaves_serial) = (Arc::clone(&consumer.work), consumer.takes == Takes::DueWithoutQueue);
        Self { store, token, work, leaves_serial, known: Mutex::default() }
    }

    /// Notes which jobs earlier readers had in hand when they went away without a word. Some ends are the jobs' own work:
    /// after a few, they are buried.
    pub(super) async fn take_over(&self) {
        if let Err(error) = self.note_stalls().await {
            tracing::warn!(%error, "what the reader before had in hand can't be told");
        }
    }

    async fn note_stalls(&self) -> Result<(), ProviderError> {
        let folder = self.store.folder("at-work");
        let objects = self.store.objects().list(Some(&folder));
        let objects: Vec<_> =
            objects.try_collect().await.map_err(|error| self.store.error("can't list what is at work", error))?;
        for object in objects {
            let read = async { self.store.objects().get(&object.location).await?.bytes().await };
            let bytes = read.await.map_err(|error| self.store.error("can't read what is at work", error))?;
            let files: Vec<String> = serde_json::from_slice(&bytes).unwrap_or_default();
            for name in files.iter().filter_map(|file| Name::parse(file)) {
                if let Some(job) = self.store.get(&name).await? {
                    self.stalled(&name, job).await?;
                }
            }
            self.store.delete(&object.location).await?;
        }
        Ok(())
    }

    async fn stalled(&self, name: &Name, job: Job) -> Result<(), ProviderError> {
        let job = job.stalled(1);
        tracing::warn!(job = %job.id, name = job.name, stalls = job.stalls, "a process ended while it was at work on the job");
        if job.stalls < MAX_STALLS {
            return self.store.put(&job).await;
        }
        let verdict = self.work.bury(job.clone()).await;
        self.replace(name, &verdict).await
    }

    /// Does to a job's object what the verdict says: first what is written, then what is deleted.
    async fn replace(&self, name: &Name, verdict: &Verdict) -> Result<(), ProviderError> {
        if let Verdict::Again(again) = verdict {
            self.store.put(again).await?;
            if Name::of(again) == *name {
                return Ok(());
            }
        }
        self.store.delete(&self.store.path(name)).await
    }

    /// Lists what is due, now or before it is listed again.
    async fn list(&self, now: Timestamp) -> Result<(), ProviderError> {
        let poll = self.store.options().poll;
        let started = Instant::now();
        let soon = now.saturating_add(poll).unwrap_or(Timestamp::MAX);
        let is_ours = |name: &Name| !self.leaves_serial || name.queue.is_none();
        let mut names = self.store.names(false, Some(soon), is_ours, MAX_KNOWN).await?;
        let keyed = self.store.names(true, None, is_ours, MAX_KNOWN).await?;
        names.extend(self.merge(keyed).await?.into_iter().filter(|name| name.is_due(soon)));
        let mut known = self.lock();
        known.is_cut = names.len() >= MAX_KNOWN;
        known.soon = names.into_iter().filter(|name| !known.at_work.contains_key(&name.id)).collect();
        let pause = poll.max(started.elapsed() * LISTING_SHARE);
        known.list_at = Some(started + pause);
        Ok(())
    }

    /// Of the jobs with one key, leaves the one that is to run.
    async fn merge(&self, names: Vec<Name>) -> Result<Vec<Name>, ProviderError> {
        let mut by_key: BTreeMap<Option<u64>, Vec<Name>> = BTreeMap::new();
        let at_work = self.lock().at_work.keys().copied().collect::<HashSet<_>>();
        for name in names.into_iter().filter(|name| !at_work.contains(&name.id)) {
            by_key.entry(name.key).or_default().push(name);
        }
        let mut merged = Vec::new();
        for mut names in by_key.into_values() {
            if names.len() == 1 {
                merged.extend(names);
                continue;
            }
            // In the order in which they were made.
            names.sort_unstable_by_key(|name| name.id);
            let mut winners: BTreeMap<String, Job> = BTreeMap::new();
            for later in self.store.read_all(names).await? {
                // Numbers of two keys may be the same; keys themselves tell.
                let Some(key) = later.key.clone() else { continue };
                match winners.remove(&key.key) {
                    None => winners.insert(key.key, later),
                    Some(earlier) => winners.insert(key.key, self.resolve(earlier, later, key.mode).await?),
                };
            }
            merged.extend(winners.values().map(Name::of));
        }
        Ok(merged)
    }

    /// Deletes one of two jobs with a key, as the later one wants it.
    async fn resolve(&self, earlier: Job, later: Job, mode: KeyMode) -> Result<Job, ProviderError> {
        let stays = match mode {
            KeyMode::Skip => {
                self.store.delete(&self.store.path(&Name::of(&later))).await?;
                return Ok(earlier);
            }
            KeyMode::Replace => later,
            KeyMode::KeepRunTime => {
                let kept = Job { run_at: earlier.run_at, ..later.clone() };
                self.replace(&Name::of(&later), &Verdict::Again(Box::new(kept.clone()))).await?;
                kept
            }
        };
        self.store.delete(&self.store.path(&Name::of(&earlier))).await?;
        Ok(stays)
    }

    /// Chooses due jobs by their names, as [`select`](crate::consumer::select) does.
    fn choose(&self, room: usize, now: Timestamp) -> Vec<Name> {
        let mut known = self.lock();
        let mut queues = known.at_work.values().filter_map(|name| name.queue).collect::<HashSet<_>>();
        // The set's order is by time, so the first of each queue is the one that is due first.
        let mut chosen = known
            .soon
            .iter()
            .take_while(|name| name.is_due(now))
            .filter(|name| name.queue.is_none_or(|queue| queues.insert(queue)))
            .copied()
            .collect::<Vec<_>>();
        chosen.sort_by_key(|name| (name.priority, name.run_at_ms, name.id));
        chosen.truncate(room);
        for name in &chosen {
            known.soon.remove(name);
            known.at_work.insert(name.id, *name);
        }
        chosen
    }

    /// Leaves in good order: what is still in hand is nobody's fault.
    pub(super) async fn leave(&self) {
        if let Err(error) = self.store.delete(&self.at_work_path()).await {
            tracing::debug!(%error, "the note of what is at work stays; the next reader takes it for an accident");
        }
    }

    fn at_work_path(&self) -> Path {
        self.store.folder("at-work").join(format!("{:020}.json", self.token))
    }

    /// Tells the next reader what is in hand, before it is.
    async fn note_at_work(&self) -> Result<(), ProviderError> {
        let files = self.lock().at_work.values().map(Name::file).collect::<Vec<_>>();
        let bytes = serde_json::to_vec(&files).unwrap_or_default();
        let put = self.store.objects().put(&self.at_work_path(), PutPayload::from(bytes)).await;
        put.map(|_| ()).map_err(|error| self.store.error("can't note what is at work", error))
    }

    async fn claim_due(&self, room: usize, now: Timestamp) -> Result<Vec<Job>, ProviderError> {
        let is_stale = {
            let known = self.lock();
            let is_old = known.list_at.is_none_or(|list_at| list_at <= Instant::now());
            is_old || (known.is_cut && known.soon.is_empty())
        };
        if is_stale {
            self.list(now).await?;
        }
        let names = self.choose(room, now);
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let read = async {
            self.note_at_work().await?;
            self.store.read_all(names.clone()).await
        };
        let outcome = read.await;
        let mut known = self.lock();
        let found =
            outcome.as_ref().map(|jobs| jobs.iter().map(|job| job.id).collect::<HashSet<_>>()).unwrap_or_default();
        for name in names {
            if !found.contains(&name.id) {
                known.at_work.remove(&name.id);
            }
        }
        drop(known);
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims for Reader {
    fn claim(&self, room: usize, now: Timestamp) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>> {
        self.claim_due(room, now).boxed()
    }

    fn settle<'a>(&'a self, job: &'a Job, verdict: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>> {
        async move {
            let name = self.lock().at_work.get(&job.id).copied();
            if let Some(name) = name {
                self.replace(&name, verdict).await?;
                let mut known = self.lock();
                known.at_work.remove(&job.id);
                match verdict {
                    // Before those of its queue that come after it. With a key, others may have come meanwhile.
                    Verdict::Again(again) if again.key.is_none() => {
                        known.soon.insert(Name::of(again));
                    }
                    Verdict::Again(_) => known.list_at = None,
                    Verdict::Gone => {}
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn worth_a_look(&self, last: Timestamp) -> BoxFuture<'_, ()> {
        let known = self.lock();
        let list_at = known.list_at.unwrap_or_else(Instant::now);
        // Those that were due at the last look wait for something else than time.
        let next = known.soon.iter().find(|name| !name.is_due(last)).and_then(Name::run_at);
        drop(known);
        let wait = next.map(|next| Duration::try_from(Timestamp::now().duration_until(next)).unwrap_or_default());
        let look_at = wait.map_or(list_at, |wait| list_at.min(Instant::now() + wait));
        async move {
            tokio::select! {
                () = tokio::time::sleep_until(look_at) => {}
                () = self.store.shared.changed.notified() => self.lock().list_at = None,
            }
        }
        .boxed()
    }
}
