//! The one reader of a store: it knows which jobs are due by their names, and reads those that it hands out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use tokio::time::Instant;

use super::Store;
use super::lease::Token;
use super::name::Name;
use crate::consumer::Claims;
use crate::error::ProviderError;
use crate::handler::{Verdict, Work};
use crate::job::{Job, JobId, KeyMode};

/// How many names of due jobs are known at once; the rest is listed later. A name takes about 100 bytes.
const MAX_KNOWN: usize = 10_000;

/// A job that was in hand at the end of so many processes ends them, most likely.
const MAX_STALLS: u16 = 5;

/// Reads under one lease.
#[derive(Debug)]
pub(super) struct Reader {
    store: Store,
    token: Token,
    work: Arc<dyn Work>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Due, and not in hand.
    due: BTreeSet<Name>,
    /// In hand, with the names of their objects.
    at_work: HashMap<JobId, Name>,
    /// When they were listed; `None` when there is something new.
    listed: Option<Instant>,
    /// Whether more were due than are known.
    is_cut: bool,
}

impl Reader {
    pub(super) fn new(store: Store, token: Token, work: Arc<dyn Work>) -> Self {
        Self { store, token, work, known: Mutex::default() }
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
        let stalls = job.stalls.saturating_add(1);
        tracing::warn!(job = %job.id, name = job.name, stalls, "a process ended while it was at work on the job");
        let last_error = Some(format!("a process ended during the attempt, {stalls} times by now"));
        let job = Job { stalls, last_error, ..job };
        if stalls < MAX_STALLS {
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

    /// Lists what is due.
    async fn list(&self, now: Timestamp) -> Result<(), ProviderError> {
        let mut due = self.store.names(false, Some(now), MAX_KNOWN).await?;
        let keyed = self.store.names(true, None, usize::MAX).await?;
        due.extend(self.merge(keyed).await?.into_iter().filter(|name| name.is_due(now)));
        let mut known = self.lock();
        known.is_cut = due.len() >= MAX_KNOWN;
        known.due = due.into_iter().filter(|name| !known.at_work.contains_key(&name.id)).collect();
        known.listed = Some(Instant::now());
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
    fn choose(&self, room: usize) -> Vec<Name> {
        let mut known = self.lock();
        let mut queues = known.at_work.values().filter_map(|name| name.queue).collect::<HashSet<_>>();
        // The set's order is by time, so the first of each queue is the one that is due first.
        let mut chosen = known
            .due
            .iter()
            .filter(|name| name.queue.is_none_or(|queue| queues.insert(queue)))
            .copied()
            .collect::<Vec<_>>();
        chosen.sort_by_key(|name| (name.priority, name.run_at_ms, name.id));
        chosen.truncate(room);
        for name in &chosen {
            known.due.remove(name);
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
            let is_old = known.listed.is_none_or(|listed| listed.elapsed() >= self.store.options().poll);
            is_old || (known.is_cut && known.due.is_empty())
        };
        if is_stale {
            self.list(now).await?;
        }
        let names = self.choose(room);
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
    fn claim<'a>(
        &'a self,
        room: usize,
        now: Timestamp,
        _busy: &'a HashSet<String>,
    ) -> BoxFuture<'a, Result<Vec<Job>, ProviderError>> {
        self.claim_due(room, now).boxed()
    }

    fn settle<'a>(&'a self, job: &'a Job, verdict: &'a Verdict) -> BoxFuture<'a, Result<(), ProviderError>> {
        async move {
            let name = self.lock().at_work.get(&job.id).copied();
            if let Some(name) = name {
                self.replace(&name, verdict).await?;
                self.lock().at_work.remove(&job.id);
            }
            Ok(())
        }
        .boxed()
    }

    fn worth_a_look(&self, _last: Timestamp) -> BoxFuture<'_, ()> {
        async {
            tokio::select! {
                () = tokio::time::sleep(self.store.options().poll) => {}
                () = self.store.shared.changed.notified() => self.lock().listed = None,
            }
        }
        .boxed()
    }
}
