//! One provider of the queue: whether it is asked, for how long, and for which jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::breaker::Breaker;
use crate::consumer::Consumer;
use crate::error::{EnqueueError, ProviderError};
use crate::job::{Job, json_len};
use crate::provider::{Durability, Provider};
use crate::queue::{DEADLINE, ProviderStatus};

/// A provider and what is known of it.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) breaker: Breaker,
    serial: Serial,
}

/// Whether the provider may hold jobs of serial queues, as far as this process knows.
#[derive(Debug)]
struct Serial {
    /// How often such jobs were sent there. Begins with 1, for what was there before.
    sent: AtomicU64,
    /// What that was when the provider held none.
    seen_empty: AtomicU64,
    /// Whether this process has seen or sent any.
    is_known: AtomicBool,
}

impl Serial {
    fn sends(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.is_known.store(true, Ordering::SeqCst);
    }
}

impl Tier {
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Self {
        let serial =
            Serial { sent: AtomicU64::new(1), seen_empty: AtomicU64::new(0), is_known: AtomicBool::new(false) };
        Self { provider, breaker: Breaker::default(), serial }
    }

    pub(crate) fn name(&self) -> &str {
        self.provider.name()
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.durability() == Durability::Persistent
    }

    /// Whether it keeps jobs on a disk, and works now.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_persistent() && self.breaker.is_closed()
    }

    /// Whether jobs of serial queues wait there. Asks no more once there are none, until some are sent there. While it is
    /// broken, those that this process knows of are believed to wait.
    pub(crate) async fn holds_serial(&self) -> bool {
        let sent = self.serial.sent.load(Ordering::SeqCst);
        if self.serial.seen_empty.load(Ordering::SeqCst) == sent {
            return false;
        }
        let is_known = self.serial.is_known.load(Ordering::SeqCst);
        if !self.breaker.is_closed() {
            return is_known;
        }
        match tokio::time::timeout(DEADLINE, self.provider.holds_serial()).await {
            Ok(Ok(holds)) => {
                if holds {
                    self.serial.is_known.store(true, Ordering::SeqCst);
                } else {
                    self.serial.seen_empty.store(sent, Ordering::SeqCst);
                }
                holds
            }
            Ok(Err(_)) | Err(_) => is_known,
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.provider.capabilities().durability
    }

    pub(crate) async fn probe(&self) -> Result<(), ProviderError> {
        let late = |_| ProviderError::new(self.name(), format!("did not answer within {DEADLINE:?}"));
        tokio::time::timeout(DEADLINE, self.provider.probe()).await.map_err(late)?
    }

    pub(crate) async fn try_to_close(&self) {
        match self.probe().await {
            Ok(()) => {
                tracing::info!(provider = self.name(), "this provider of jobs works again");
                self.breaker.succeeded();
            }
            Err(error) => {
                tracing::debug!(provider = self.name(), %error, "this provider of jobs still does not work");
                self.breaker.failed();
            }
        }
    }

    pub(crate) async fn try_enqueue(&self, jobs: &[Job], least: Durability) -> Result<(), EnqueueError> {
        self.require(jobs, least)?;
        if !self.breaker.is_closed() {
            return Err(ProviderError::new(self.name(), "is broken and not asked now").into());
        }
        if jobs.iter().any(Job::is_serial) {
            self.serial.sends();
        }
        let outcome = match tokio::time::timeout(DEADLINE, self.provider.enqueue(jobs)).await {
            Ok(outcome) => outcome,
            Err(_late) => {
                Err(EnqueueError::Timeout { provider: self.name().to_owned(), seconds: DEADLINE.as_secs_f32() })
            }
        };
        match &outcome {
            Ok(()) => self.breaker.succeeded(),
            // It works, and says no.
            Err(EnqueueError::Invalid(_) | EnqueueError::Unsuited { .. } | EnqueueError::Full { .. }) => {}
            Err(error) => {
                let is_open = self.breaker.failed();
                tracing::warn!(provider = self.name(), %error, is_open, "this provider of jobs failed");
            }
        }
        outcome
    }

    /// Whether the provider is one for such jobs.
    fn require(&self, jobs: &[Job], least: Durability) -> Result<(), EnqueueError> {
        let capabilities = self.provider.capabilities();
        let refuse = |why: String| Err(EnqueueError::Unsuited { provider: self.name().to_owned(), why });
        if capabilities.durability < least {
            return refuse("it forgets jobs when the process ends".to_owned());
        }
        if capabilities.durability == Durability::Transient && jobs.iter().any(Job::is_serial) {
            return refuse("jobs of a serial queue have one place, which survives the process".to_owned());
        }
        if let Some(max_delay) = capabilities.max_delay {
            let latest =
                SignedDuration::try_from(max_delay).ok().and_then(|delay| Timestamp::now().checked_add(delay).ok());
            if latest.is_some_and(|latest| jobs.iter().any(|job| job.run_at > latest)) {
                return refuse(format!("it takes jobs of the next {max_delay:?} only"));
            }
        }
        match jobs.iter().map(|job| json_len(&job.payload)).max() {
            Some(num_bytes) if num_bytes > capabilities.max_payload => {
                refuse(format!("it takes payloads of {} bytes only", capabilities.max_payload))
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn consume(&self, consumer: Consumer) {
        let stop = consumer.stop.clone();
        while !stop.is_cancelled() {
            match self.provider.consume(consumer.clone()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(provider = self.name(), %error, "reading jobs ended; it starts again");
                    tokio::select! {
                        () = tokio::time::sleep(DEADLINE) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
    }

    pub(crate) async fn status(&self) -> ProviderStatus {
        let depth = match tokio::time::timeout(DEADLINE, self.provider.depth()).await {
            Ok(depth) => depth.map_err(|error| error.to_string()),
            Err(_late) => Err(format!("no answer within {DEADLINE:?}")),
        };
        ProviderStatus {
            name: self.name().to_owned(),
            breaker: self.breaker.state(),
            holds_lease: self.provider.holds_lease(),
            depth,
        }
    }
}
