//! What every place that keeps jobs can do, and how they differ.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::consumer::Consumer;
use crate::error::{EnqueueError, ProviderError};
use crate::job::{Job, JobId};

/// Whether a job that was taken survives the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It ends with the process, unless that ends in good order.
    Transient,
    /// It is on a disk, here or elsewhere.
    Persistent,
}

/// Where jobs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locality {
    /// On this machine: other processes elsewhere can't reach them.
    Local,
    /// Behind a network.
    Remote,
}

/// How many jobs a second are reasonable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Throughput {
    /// Some: every job is a few requests.
    Low,
    /// Thousands.
    High,
}

/// Who may read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Any number of processes.
    Competing,
    /// One, which holds a lease.
    SingleReader,
}

/// How often a job that was taken is handled, whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Once, or never when the process is killed.
    AtMostOnce,
    /// Once, or more often when a process is killed between handling and acknowledging.
    AtLeastOnce,
}

/// How a provider differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// See [`Durability`].
    pub durability: Durability,
    /// See [`Locality`].
    pub locality: Locality,
    /// See [`Throughput`].
    pub throughput: Throughput,
    /// See [`ReadMode`].
    pub read_mode: ReadMode,
    /// See [`Delivery`].
    pub delivery: Delivery,
    /// How far in the future a job's time may be; `None` for any.
    pub max_delay: Option<Duration>,
    /// Whether it takes what a transient provider holds when the process ends.
    pub accepts_recovery_flush: bool,
    /// The largest payload as JSON. Unit: bytes.
    pub max_payload: usize,
}

/// How much a provider holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Jobs that are due, those at work included.
    pub due: u64,
    /// Jobs for later.
    pub scheduled: u64,
    /// Since when the oldest due job waits.
    pub oldest_due: Option<Timestamp>,
}

/// A place that keeps jobs.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Its name in configuration, logs and metrics.
    fn name(&self) -> &str;

    /// How it differs from the others. Never changes.
    fn capabilities(&self) -> Capabilities;

    /// Tells whether it works, by using it: reading and writing.
    ///
    /// # Errors
    /// What doesn't, in a sentence.
    fn probe(&self) -> BoxFuture<'_, Result<(), ProviderError>>;

    /// Takes jobs: all of them, as far as it answers.
    ///
    /// # Invariants
    /// A job whose id waits already is not taken twice. Keys do what their [`KeyMode`](crate::job::KeyMode) says.
    ///
    /// # Errors
    /// Without `Timeout`, none of the jobs is kept; or, where a provider takes several requests, those that are kept have the
    /// same ids when they are sent again.
    fn enqueue<'a>(&'a self, jobs: &'a [Job]) -> BoxFuture<'a, Result<(), EnqueueError>>;

    /// Handles jobs as they become due, until the consumer is told to stop.
    ///
    /// # Invariants
    /// At least once: a job is gone only after it was handled. Failures of the provider don't end this; they are waited out.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the jobs at work to be handled again.
    ///
    /// # Errors
    /// When it can't go on at all.
    fn consume(&self, consumer: Consumer) -> BoxFuture<'_, Result<(), ProviderError>>;

    /// Jobs that wait, about in the order in which they are due; those at work may be among them.
    fn waiting(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Job>, ProviderError>>;

    /// The job with this id, waiting or at work.
    fn find(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, ProviderError>>;

    /// Deletes jobs that wait; returns how many there were.
    fn remove<'a>(&'a self, ids: &'a [JobId]) -> BoxFuture<'a, Result<usize, ProviderError>>;

    /// Takes out what waits, for keeping it elsewhere before the process ends. What is persistent stays where it is.
    fn take_waiting(&self) -> Vec<Job> {
        Vec::new()
    }

    /// Takes out everything, jobs at work included, for keeping it elsewhere when the process ends; from then on nothing is
    /// taken. What is persistent stays where it is.
    fn take_all(&self) -> Vec<Job> {
        Vec::new()
    }

    /// Whether this process holds the lease of the one reader; `None` where any number may read.
    fn holds_lease(&self) -> Option<bool> {
        None
    }

    /// Whether jobs of serial queues wait here or are at work; one that this process took is seen at once.
    fn holds_serial(&self) -> BoxFuture<'_, Result<bool, ProviderError>>;

    /// How much it holds.
    fn depth(&self) -> BoxFuture<'_, Result<Depth, ProviderError>>;
}
