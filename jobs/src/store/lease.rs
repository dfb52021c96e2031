//! The lease that makes one reader of many: numbered objects, of which the highest holds.
//!
//! Nobody's clock is compared with another's: a lease is over when it hasn't changed for its term by the clock of whoever
//! waits for it, and its holder gives it up earlier than that by its own.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The fencing token of a lease: higher than that of every lease before.
pub(super) type Token = u64;

/// Where leases are, and their term.
#[derive(Debug, Clone)]
pub(super) struct Leases {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) folder: Path,
    /// After so much time without a sign of its holder, a lease is over.
    pub(super) term: Duration,
}

/// The right to read, held by this process.
#[derive(Debug)]
pub(super) struct Lease {
    leases: Leases,
    pub(super) token: Token,
    holder: Uuid,
    /// Set when the lease may not be held any more.
    pub(super) lost: CancellationToken,
}

/// What an object says of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    holder: Uuid,
    /// Grows with every sign of life.
    renewals: u64,
    /// Whether the holder has given it up.
    released: bool,
}

impl Leases {
    /// Waits until this process holds the lease.
    ///
    /// # Cancel safety
    /// Dropping the future in the moment of success leaves a lease that ends by itself.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn acquire(&self) -> Result<Lease, Error> {
        let mut seen: Option<(Token, Option<Record>, Instant)> = None;
        loop {
            let highest = self.highest().await?;
            let Some(token) = highest else {
                if let Some(lease) = self.create(1).await? {
                    return Ok(lease);
                }
                continue;
            };
            let record = self.read(token).await?;
            let is_over = match (&record, &seen) {
                (Some(record), _) if record.released => true,
                (_, Some((seen_token, seen_record, since))) if (*seen_token, seen_record) == (token, &record) => {
                    since.elapsed() >= self.term
                }
                _ => {
                    seen = Some((token, record, Instant::now()));
                    false
                }
            };
            if is_over && let Some(lease) = self.create(token.saturating_add(1)).await? {
                return Ok(lease);
            }
            tokio::time::sleep(self.term / 10).await;
        }
    }

    /// The number of the lease that holds now, or held last.
    pub(super) async fn highest(&self) -> Result<Option<Token>, Error> {
        let tokens = self.store.list(Some(&self.folder)).map_ok(|object| token_of(&object.location));
        tokens.try_fold(None, |highest, token| std::future::ready(Ok(highest.max(token)))).await
    }

    fn path(&self, token: Token) -> Path {
        self.folder.clone().join(format!("{token:020}.json"))
    }

    async fn read(&self, token: Token) -> Result<Option<Record>, Error> {
        match self.store.get(&self.path(token)).await {
            // One that nobody can read is over like one that nobody renews.
            Ok(object) => Ok(serde_json::from_slice(&object.bytes().await?).ok()),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the lease with this number, unless somebody else has.
    async fn create(&self, token: Token) -> Result<Option<Lease>, Error> {
        let record = Record { holder: Uuid::new_v4(), renewals: 0, released: false };
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&self.path(token), payload(&record), options).await {
            Ok(_) => {}
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        // A store that ignores the condition lets two succeed: the last one's record stays.
        if self.read(token).await?.is_none_or(|now| now.holder != record.holder) {
            return Ok(None);
        }
        self.forget_before(token).await;
        let lost = CancellationToken::new();
        Ok(Some(Lease { leases: self.clone(), token, holder: record.holder, lost }))
    }

    /// Removes leases that are over. They do no harm if that fails.
    async fn forget_before(&self, token: Token) {
        let objects = self.store.list(Some(&self.folder));
        let removed = objects.try_for_each(|object| async move {
            if token_of(&object.location).is_some_and(|other| other < token) {
                self.store.delete(&object.location).await?;
            }
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::debug!(%error, "old leases could not be removed");
        }
    }
}

impl Lease {
    /// Keeps the lease until it is lost, or the future is dropped.
    ///
    /// # Invariants
    /// `lost` is set before anybody else may hold the lease, whatever the store does meanwhile.
    pub(super) async fn keep(&self) {
        let (pause, patience) = (self.leases.term / 3, self.leases.term.mul_f64(0.8));
        let mut renewals = 0;
        let mut renewed = Instant::now();
        while !self.lost.is_cancelled() {
            tokio::time::sleep(pause).await;
            renewals += 1;
            let sent = Instant::now();
            match tokio::time::timeout_at(renewed + patience, self.renew(renewals, false)).await {
                Ok(Ok(true)) => renewed = sent,
                Ok(Ok(false)) => {
                    tracing::warn!(token = self.token, "another process has the lease");
                    self.lost.cancel();
                }
                Ok(Err(error)) => tracing::warn!(token = self.token, %error, "the lease could not be renewed"),
                Err(_late) => {
                    tracing::warn!(token = self.token, "the lease could not be renewed in time");
                    self.lost.cancel();
                }
            }
        }
    }

    /// Gives the lease up, so that the next reader need not wait for its end.
    pub(super) async fn release(self) {
        if self.lost.is_cancelled() {
            return;
        }
        match tokio::time::timeout(self.leases.term, self.renew(u64::MAX, true)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the lease could not be released; it ends by itself"),
            Err(_late) => tracing::debug!("the lease could not be released in time; it ends by itself"),
        }
    }

    /// Writes a sign of life; `false` when somebody else has the lease.
    async fn renew(&self, renewals: u64, released: bool) -> Result<bool, Error> {
        let leases = &self.leases;
        let is_mine = leases.highest().await? == Some(self.token)
            && leases.read(self.token).await?.is_some_and(|record| record.holder == self.holder);
        if is_mine {
            let record = Record { holder: self.holder, renewals, released };
            leases.store.put(&leases.path(self.token), payload(&record)).await?;
        }
        Ok(is_mine)
    }
}

fn token_of(path: &Path) -> Option<Token> {
    path.filename()?.strip_suffix(".json")?.parse().ok()
}

fn payload(record: &Record) -> PutPayload {
    // Numbers and a UUID have no way to fail; an empty object would only be a lease that nobody renews.
    serde_json::to_vec(record).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn leases(term: Duration) -> Leases {
        Leases { store: Arc::new(InMemory::new()), folder: Path::from("lease"), term }
    }

    #[tokio::test(start_paused = true)]
    async fn one_holds_it_until_it_gives_it_up() {
        let leases = leases(Duration::from_secs(10));
        let first = leases.acquire().await.expect("a lease");
        let waiting = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::select! {
                second = leases.acquire() => second,
                () = first.keep() => unreachable!("it is kept"),
            }
        });
        assert!(waiting.await.is_err(), "two held it");
        let token = first.token;
        first.release().await;
        let second =
            tokio::time::timeout(Duration::from_secs(2), leases.acquire()).await.expect("at once").expect("a lease");
        assert_eq!(second.token, token + 1);
    }

    /// A holder that is frozen loses it, and notices before it does anything else.
    #[tokio::test(start_paused = true)]
    async fn the_next_one_gets_it_when_nobody_keeps_it() {
        let leases = leases(Duration::from_secs(10));
        let first = leases.acquire().await.expect("a lease");
        let start = Instant::now();
        let second = leases.acquire().await.expect("a lease");
        assert!(start.elapsed() >= leases.term, "{:?}", start.elapsed());
        assert!(second.token > first.token);
        first.keep().await;
        assert!(first.lost.is_cancelled() && !second.lost.is_cancelled());
    }

    /// A store that doesn't answer any more: the holder stops before its successor may start.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_cannot_renew_stops_within_the_term() {
        let leases = leases(Duration::from_secs(10));
        let lease = leases.acquire().await.expect("a lease");
        leases.store.delete(&leases.path(lease.token)).await.expect("deleted behind its back");
        let start = Instant::now();
        lease.keep().await;
        assert!(lease.lost.is_cancelled() && start.elapsed() < leases.term);
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_that_want_it_at_once_one_gets_it() {
        let leases = leases(Duration::from_secs(10));
        let (one, other) = (leases.create(1).await.expect("works"), leases.create(1).await.expect("works"));
        assert!(one.is_some() && other.is_none());
    }
}
