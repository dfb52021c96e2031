//! The queue: providers in the order in which they are tried.
//!
//! Owns the way of a job into a provider, and which providers are worth asking. Does not own what happens to it there.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::breaker::BreakerState;
use crate::consumer::{Consumer, Takes};
use crate::error::{EnqueueError, InvalidJob};
use crate::flow::{Flow, Level};
use crate::handler::Work;
use crate::job::Job;
use crate::mover::{MOVES, Mover};
use crate::observer::Observer;
use crate::provider::{Depth, Durability, Provider};
use crate::tier::Tier;

/// The longest that one provider is waited for.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// How often all providers are tried before the caller hears of it, and the pause between.
const ROUNDS: u32 = 3;
const ROUND_PAUSE: Duration = Duration::from_millis(200);

/// How often broken providers are looked at.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// How much may be on its way without anybody who waits for it.
const MAX_UNAWAITED_JOBS: u64 = 1_000;
const MAX_UNAWAITED_BYTES: u64 = 20 * 1024 * 1024;

/// What an accepted job is promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Who has it.
    pub provider: String,
    /// Whether it survives the end of the process.
    pub durability: Durability,
}

/// Why nobody took a job.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// Nobody would.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// Nobody could.
    #[error("no provider takes the job now: {}", reasons(.0))]
    NoProvider(Vec<(String, String)>),
    /// Too many jobs are on their way already.
    #[error("too many jobs are on their way into the queue; await some before you enqueue more")]
    TooMany,
}

/// Why the queue doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no place where jobs survive.
    #[error("no provider that keeps jobs on a disk works: {}; start one of them, or add local files to the list", reasons(.0))]
    NothingPersistent(Vec<(String, String)>),
}

/// How the queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every provider works.
    Normal,
    /// A provider is broken: jobs go to those after it.
    Degraded,
    /// Every provider works again, and jobs are brought back to where they belong.
    Recovering,
}

impl Mode {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Degraded => "degraded",
            Self::Recovering => "recovering",
        }
    }
}

/// How one provider stands.
#[derive(Debug)]
pub struct ProviderStatus {
    /// Its name.
    pub name: String,
    /// Whether it is asked.
    pub breaker: BreakerState,
    /// Whether this process is its one reader; `None` where any number may read.
    pub holds_lease: Option<bool>,
    /// What it holds, or why that can't be told.
    pub depth: Result<Depth, String>,
}

/// Providers in their order.
#[derive(Debug, Clone)]
pub struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    tiers: Vec<Tier>,
    unawaited: Flow,
    tasks: TaskTracker,
    observer: Arc<dyn Observer>,
}

impl Queue {
    /// Looks at all providers at once, for [`DEADLINE`] at most. One that doesn't work is left alone for now, and comes back
    /// by itself.
    ///
    /// # Errors
    /// When no persistent provider works.
    pub async fn start(providers: Vec<Arc<dyn Provider>>, observer: Arc<dyn Observer>) -> Result<Self, StartError> {
        let tiers = providers.into_iter().map(Tier::new).collect::<Vec<_>>();
        let probes = join_all(tiers.iter().map(Tier::probe)).await;
        let mut broken = Vec::new();
        let mut is_safe = false;
        for (tier, outcome) in tiers.iter().zip(probes) {
            match outcome {
                Ok(()) => is_safe |= tier.is_persistent(),
                Err(error) => {
                    tracing::warn!(provider = tier.name(), %error, "this provider of jobs does not work yet");
                    tier.breaker.open();
                    broken.push((tier.name().to_owned(), error.to_string()));
                }
            }
        }
        if !is_safe {
            return Err(StartError::NothingPersistent(broken));
        }
        let unawaited = Flow::new(MAX_UNAWAITED_JOBS, MAX_UNAWAITED_BYTES);
        Ok(Self(Arc::new(Shared { tiers, unawaited, tasks: TaskTracker::new(), observer })))
    }

    /// Gives jobs to the first provider that takes all of them within [`DEADLINE`]: of many, send a
    /// [batch](crate::batches::first_batch) at a time.
    ///
    /// # Order
    /// Jobs of serial queues run in the first persistent provider of the list only. What a stand-in has of them waits there
    /// to be brought back, and later ones go after it: so they run one at a time and in the order in which a process sends
    /// them. A process that begins while a stand-in is broken does not know what waits there, and does not wait for it.
    ///
    /// # Cancel safety
    /// Dropping the future may leave them taken; their ids tell.
    ///
    /// # Errors
    /// When nobody takes them, with every provider's reason.
    pub async fn enqueue(&self, jobs: &[Job], least: Durability) -> Result<Receipt, QueueError> {
        jobs.iter().try_for_each(Job::check)?;
        let mut pause = ROUND_PAUSE;
        for round in 1.. {
            let mut refusals = Vec::new();
            for tier in self.places(jobs, self.0.tiers.len()).await {
                match self.ask(tier, jobs, least).await {
                    Ok(()) => {
                        self.note_failover(&refusals, tier.name());
                        return Ok(Receipt { provider: tier.name().to_owned(), durability: tier.durability() });
                    }
                    Err(EnqueueError::Invalid(error)) => return Err(error.into()),
                    Err(error) => refusals.push((tier.name(), error)),
                }
            }
            if round == ROUNDS {
                let reasons = refusals.into_iter().map(|(name, error)| (name.to_owned(), error.to_string()));
                return Err(QueueError::NoProvider(reasons.collect()));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        unreachable!("the loop ends with its last round")
    }

    /// Where jobs may go of the first `end` providers, in the order in which they are tried. Those of serial queues follow the
    /// ones that were sent before, to the last place where such ones wait.
    pub(crate) async fn places(&self, jobs: &[Job], end: usize) -> &[Tier] {
        let tiers = &self.0.tiers[..end];
        if jobs.iter().any(Job::is_serial) {
            for (index, tier) in tiers.iter().enumerate().rev().filter(|(index, _)| self.stands_in(*index)) {
                if tier.holds_serial().await {
                    return &tiers[index..];
                }
            }
        }
        tiers
    }

    /// Whether it is a persistent provider that others are before.
    fn stands_in(&self, index: usize) -> bool {
        let tiers = &self.0.tiers;
        tiers[index].is_persistent() && tiers[..index].iter().any(Tier::is_persistent)
    }

    pub(crate) async fn ask(&self, tier: &Tier, jobs: &[Job], least: Durability) -> Result<(), EnqueueError> {
        let asked = Instant::now();
        let outcome = tier.try_enqueue(jobs, least).await;
        let word = outcome.as_ref().err().map_or("accepted", EnqueueError::as_str);
        self.0.observer.enqueued(tier.name(), word, asked.elapsed());
        outcome
    }

    /// The first that should have taken the jobs is the one that they came from.
    fn note_failover(&self, refusals: &[(&str, EnqueueError)], to: &str) {
        let failed = refusals.iter().find(|(_, error)| !matches!(error, EnqueueError::Unsuited { .. }));
        if let Some((from, error)) = failed {
            self.0.observer.failed_over(from, to, error.as_str());
        }
    }

    /// The same for a caller who doesn't wait: it can fail only for what is known at once, and later in the log.
    ///
    /// # Back-pressure
    /// None for the caller, so the number of jobs on their way is bounded.
    ///
    /// # Errors
    /// For a job that is none, and when too many are on their way.
    pub fn enqueue_unawaited(&self, job: Job) -> Result<(), QueueError> {
        job.check()?;
        if self.0.unawaited.level() >= Level::Pause {
            return Err(QueueError::TooMany);
        }
        let permit = self.0.unawaited.take(1, job.num_bytes() as u64);
        let queue = self.clone();
        self.0.tasks.spawn(async move {
            if let Err(error) = queue.enqueue(std::slice::from_ref(&job), Durability::Transient).await {
                tracing::error!(job = %job.id, name = job.name, %error, "a job that nobody waited for is lost");
            }
            drop(permit);
        });
        Ok(())
    }

    /// Brings broken providers back as soon as they work, until the order to stop.
    pub async fn watch(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(PROBE_INTERVAL)).await.is_some() {
            join_all(self.0.tiers.iter().filter(|tier| tier.breaker.take_probe()).map(Tier::try_to_close)).await;
        }
    }

    /// Handles the jobs of all providers until the consumer is told to stop. Jobs of a provider that stood in for a better one
    /// are moved there when it works again.
    pub async fn consume(&self, consumer: &Consumer) {
        let tiers = (0..self.0.tiers.len()).map(|index| self.consume_tier(index, consumer));
        join_all(tiers).await;
    }

    pub(crate) fn tiers(&self) -> &[Tier] {
        &self.0.tiers
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.0.observer
    }

    /// Handles the jobs of one provider, or moves them to a better one, as long as the consumer isn't told to stop.
    async fn consume_tier(&self, index: usize, consumer: &Consumer) {
        let tier = &self.0.tiers[index];
        while !consumer.stop.is_cancelled() {
            let is_best = self.better_than(index).is_none();
            let stop = consumer.stop.child_token();
            let changed = async {
                while self.better_than(index).is_none() == is_best {
                    tokio::time::sleep(PROBE_INTERVAL).await;
                }
                stop.cancel();
                std::future::pending::<()>().await;
            };
            let phase = if is_best {
                let takes = if self.stands_in(index) { Takes::DueWithoutQueue } else { Takes::Due };
                Consumer { takes, stop: stop.clone(), ..consumer.clone() }
            } else {
                let mover = Mover { queue: self.clone(), from: index, work: Arc::clone(&consumer.work) };
                let work: Arc<dyn Work> = Arc::new(mover);
                let takes = Takes::Everything;
                Consumer { work, takes, concurrency: MOVES, stop: stop.clone(), ..consumer.clone() }
            };
            tokio::select! {
                () = tier.consume(phase) => {}
                () = changed => {}
            }
        }
    }

    /// The first persistent provider before this one that works now.
    fn better_than(&self, index: usize) -> Option<&Tier> {
        let tiers = &self.0.tiers;
        if !tiers[index].is_persistent() {
            return None;
        }
        tiers[..index].iter().find(|tier| tier.is_usable())
    }

    /// How it stands, by what every provider says.
    #[must_use]
    pub fn mode(&self, status: &[ProviderStatus]) -> Mode {
        let holds = |status: &ProviderStatus| status.depth.as_ref().is_ok_and(|depth| depth.due + depth.scheduled > 0);
        let stands_in = |(index, _): &(usize, &ProviderStatus)| self.better_than(*index).is_some();
        let is_broken = |status: &ProviderStatus| status.breaker != BreakerState::Closed || status.depth.is_err();
        if status.iter().any(is_broken) {
            Mode::Degraded
        } else if status.iter().enumerate().filter(stands_in).any(|(_, status)| holds(status)) {
            Mode::Recovering
        } else {
            Mode::Normal
        }
    }

    /// How every provider stands, in their order.
    pub async fn status(&self) -> Vec<ProviderStatus> {
        join_all(self.0.tiers.iter().map(Tier::status)).await
    }
}

/// Names and reasons, in one line.
fn reasons(reasons: &[(String, String)]) -> impl fmt::Display {
    let all = reasons.iter().map(|(_, reason)| reason.as_str()).collect::<Vec<_>>();
    if all.is_empty() { "there is none".to_owned() } else { all.join("; ") }
}
