//! The lease that makes one reader of many, on a server that can only append and read.
//!
//! Leases have numbers; the highest one holds. Who finds it over claims the next number, waits until every other claim of that
//! number must be seen, and holds it if its own is the first (as in Fischer's algorithm). All times are the server's.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::http::{DEADLINE, Failure, Http};
use crate::job::JobId;

/// The fencing token of a lease: higher than that of every lease before.
pub(super) type Token = u64;

/// Where leases are, and their term.
#[derive(Clone)]
pub(super) struct Leases {
    pub(super) http: Http,
    /// The table of signs, quoted.
    pub(super) table: String,
    /// After so much time without a sign of its holder, a lease is over.
    pub(super) term: Duration,
}

/// The right to read, held by this process.
pub(super) struct Lease {
    leases: Leases,
    pub(super) token: Token,
    holder: Uuid,
    /// When it was claimed, as the server spells it.
    claimed_at: String,
    /// When the claim was sent: no later than what the server notes.
    claimed: Instant,
    /// What is in hand. Signs go one by one, so that the last one tells it.
    in_hand: Mutex<Vec<JobId>>,
    /// Set when the lease may not be held any more.
    pub(super) lost: CancellationToken,
}

/// The lease that holds, or held last.
struct Standing {
    token: Token,
    holder: Uuid,
    claimed_at: String,
    is_released: bool,
    /// Since the last sign of its holder.
    silence: Duration,
}

/// What a holder had in hand when it was last heard of.
pub(super) struct Remains {
    pub(super) token: Token,
    pub(super) holder: Uuid,
    pub(super) in_hand: Vec<JobId>,
}

/// The statement that makes the table of signs. Old ones are merged into the last of each holder, and forgotten after a week.
pub(super) fn create_table(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (number UInt64, holder UUID, at DateTime64(6, 'UTC') DEFAULT now64(6), \
         claimed_at DateTime64(6, 'UTC') DEFAULT at, released UInt8, in_hand Array(UUID)) \
         ENGINE = ReplacingMergeTree(at) ORDER BY (number, holder) TTL toDateTime(at) + INTERVAL 7 DAY"
    )
}

impl Leases {
    /// Waits until this process holds the lease.
    ///
    /// # Cancel safety
    /// Dropping the future may leave a claim that ends by itself.
    pub(super) async fn acquire(&self) -> Result<Lease, Failure> {
        loop {
            let standing = self.standing().await?;
            let is_over = standing.as_ref().is_none_or(|last| last.is_released || last.silence >= self.term);
            let next = standing.map_or(1, |last| last.token.saturating_add(1));
            if is_over && let Some(lease) = self.claim(next).await? {
                return Ok(lease);
            }
            // Not all at once again.
            tokio::time::sleep(self.term.div_f64(10.0 + 5.0 * fastrand::f64())).await;
        }
    }

    /// How long a claim may take to be seen, and how long whoever claims waits for the claims of others.
    fn settling(&self) -> Duration {
        self.term / 6
    }

    async fn claim(&self, token: Token) -> Result<Option<Lease>, Failure> {
        let mut lease = Lease {
            leases: self.clone(),
            token,
            holder: Uuid::new_v4(),
            claimed_at: String::new(),
            claimed: Instant::now(),
            in_hand: Mutex::default(),
            lost: CancellationToken::new(),
        };
        lease.sign(false).await?;
        // A claim that took longer than others wait for it may have been overlooked.
        if lease.claimed.elapsed() < self.settling() {
            tokio::time::sleep(self.settling()).await;
            let standing = self.standing().await?.filter(|standing| standing.is_of(&lease));
            if let Some(standing) = standing {
                lease.claimed_at = standing.claimed_at;
                return Ok(Some(lease));
            }
        }
        lease.sign(true).await?;
        Ok(None)
    }

    /// Of the claims to the highest number that were not taken back, the first.
    async fn standing(&self) -> Result<Option<Standing>, Failure> {
        let table = &self.table;
        let rows: Vec<(String, Uuid, u8, String, String)> = self
            .http
            .select(&format!(
                "SELECT toString(number), holder, max(released) AS is_released, toString(min(claimed_at) AS first_at), \
                 toString(dateDiff('millisecond', max(at), now64(6))) FROM {table} \
                 WHERE number = (SELECT max(number) FROM {table}) GROUP BY number, holder \
                 ORDER BY is_released, first_at, holder LIMIT 1"
            ))
            .await?;
        let Some((token, holder, is_released, claimed_at, silence)) = rows.into_iter().next() else { return Ok(None) };
        // A clock that was set back makes it negative: then the lease is fresh.
        let silence = Duration::from_millis(number::<i64>(&silence)?.max(0).unsigned_abs());
        Ok(Some(Standing { token: number(&token)?, holder, claimed_at, is_released: is_released != 0, silence }))
    }

    /// What holders of leases before `token` had in hand and nobody has looked after yet.
    pub(super) async fn remains(&self, token: Token) -> Result<Vec<Remains>, Failure> {
        let rows: Vec<(String, Uuid, Vec<JobId>)> = self
            .http
            .select(&format!(
                "SELECT toString(number), holder, argMax(in_hand, at) AS last FROM {} WHERE number < {token} \
                 GROUP BY number, holder HAVING notEmpty(last) ORDER BY number",
                self.table
            ))
            .await?;
        rows.into_iter()
            .map(|(token, holder, in_hand)| Ok(Remains { token: number(&token)?, holder, in_hand }))
            .collect()
    }

    /// Notes that what is left of a lease was looked after.
    pub(super) async fn clear(&self, remains: &Remains) -> Result<(), Failure> {
        self.write(remains.token, remains.holder, "", true, &[]).await
    }

    async fn write(
        &self,
        token: Token,
        holder: Uuid,
        claimed_at: &str,
        released: bool,
        in_hand: &[JobId],
    ) -> Result<(), Failure> {
        let mut sign = serde_json::json!({
            "number": token, "holder": holder, "released": u8::from(released), "in_hand": in_hand,
        });
        let mut columns = "number, holder, released, in_hand".to_owned();
        if !claimed_at.is_empty() {
            columns.push_str(", claimed_at");
            sign["claimed_at"] = claimed_at.into();
        }
        let statement = format!("INSERT INTO {} ({columns}) FORMAT JSONEachRow\n{sign}\n", self.table);
        self.http.execute(statement, DEADLINE).await
    }
}

impl Standing {
    fn is_of(&self, lease: &Lease) -> bool {
        (self.token, self.holder) == (lease.token, lease.holder)
    }
}

impl Lease {
    /// Keeps the lease until it is lost, or the future is dropped.
    ///
    /// # Invariants
    /// `lost` is set before anybody else may hold the lease, whatever the server does meanwhile.
    pub(super) async fn keep(&self) {
        let (pause, patience) = (self.leases.term / 3, self.leases.term.mul_f64(0.8));
        let mut renewed = self.claimed;
        while !self.lost.is_cancelled() {
            tokio::time::sleep_until(renewed + pause).await;
            let sent = Instant::now();
            match tokio::time::timeout_at(renewed + patience, self.renew()).await {
                Ok(Ok(true)) => renewed = sent,
                Ok(Ok(false)) => {
                    tracing::warn!(token = self.token, "another process has the lease");
                    self.lost.cancel();
                }
                Ok(Err(error)) => {
                    tracing::warn!(token = self.token, %error, "the lease could not be renewed");
                    tokio::time::sleep(pause / 4).await;
                }
                Err(_late) => {
                    tracing::warn!(token = self.token, "the lease could not be renewed in time");
                    self.lost.cancel();
                }
            }
        }
    }

    /// Gives a sign of life; `false` when somebody else has the lease.
    async fn renew(&self) -> Result<bool, Failure> {
        self.sign(false).await?;
        Ok(self.leases.standing().await?.is_some_and(|standing| standing.is_of(self) && !standing.is_released))
    }

    /// Tells the next reader what is in hand, before it is.
    pub(super) async fn note(&self, in_hand: Vec<JobId>) -> Result<(), Failure> {
        *self.in_hand.lock().await = in_hand;
        self.sign(false).await
    }

    /// Says, with the next sign, that nothing is in hand.
    pub(super) async fn forget_in_hand(&self) {
        self.in_hand.lock().await.clear();
    }

    /// Gives the lease up, so that the next reader need not wait for its end.
    pub(super) async fn release(self) {
        if self.lost.is_cancelled() {
            return;
        }
        match tokio::time::timeout(self.leases.term, self.sign(true)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the lease could not be released; it ends by itself"),
            Err(_late) => tracing::debug!("the lease could not be released in time; it ends by itself"),
        }
    }

    async fn sign(&self, released: bool) -> Result<(), Failure> {
        let in_hand = self.in_hand.lock().await;
        self.leases.write(self.token, self.holder, &self.claimed_at, released, &in_hand).await
    }
}

/// A number that ClickHouse wrote as text, as it does not everywhere.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|_error| Failure::Strange(format!("{text:?} where a number belongs")))
}
