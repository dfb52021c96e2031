//! Rows on their way into the table: whoever writes while an INSERT is under way goes with the next one.
//!
//! Every INSERT makes a part that the server has to merge, so a few large ones are better than many small ones. The waiting
//! makes no delay where there is no other INSERT.

use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};

use super::http::{DEADLINE, Failure, Http, SharedFailure};

/// An INSERT with so much isn't made longer. Unit: bytes. ClickHouse cuts what it reads into blocks at a multiple of this, and
/// only a block is written as a whole.
pub(super) const MAX_INSERT_BYTES: usize = 8 << 20;

/// How many orders wait at once; the rest waits before.
const MAX_ORDERS: usize = 64;

/// Writes rows of one table.
#[derive(Clone)]
pub(super) struct Writer {
    http: Http,
    /// `INSERT INTO … FORMAT JSONEachRow`.
    insert: Arc<str>,
    orders: Arc<OnceLock<mpsc::Sender<Order>>>,
}

/// Rows that belong together, and who wants to know of them.
struct Order {
    /// One JSON object per line.
    lines: String,
    done: oneshot::Sender<Result<(), SharedFailure>>,
}

impl Writer {
    pub(super) fn new(http: Http, insert: &str) -> Self {
        Self { http, insert: insert.into(), orders: Arc::default() }
    }

    /// Writes rows, all in one INSERT.
    ///
    /// # Cancel safety
    /// When the future is dropped the rows may be written; not if their INSERT has not begun.
    pub(super) async fn write(&self, lines: String) -> Result<(), SharedFailure> {
        let (done, outcome) = oneshot::channel();
        let ended = || Arc::new(Failure::Strange("the task that writes has ended".to_owned()));
        self.orders().send(Order { lines, done }).await.map_err(|_closed| ended())?;
        outcome.await.unwrap_or_else(|_dropped| Err(ended()))
    }

    /// The way to the task that writes, which lives as long as anybody has this.
    fn orders(&self) -> &mpsc::Sender<Order> {
        self.orders.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(MAX_ORDERS);
            tokio::spawn(write_all(self.http.clone(), Arc::clone(&self.insert), receiver));
            sender
        })
    }
}

async fn write_all(http: Http, insert: Arc<str>, mut orders: mpsc::Receiver<Order>) {
    while let Some(first) = orders.recv().await {
        let mut statement = format!("{insert}\n");
        let mut waiting = Vec::new();
        let mut next = Some(first);
        while let Some(order) = next {
            // Whoever waits no longer has found another place for its jobs.
            if !order.done.is_closed() {
                statement.push_str(&order.lines);
                waiting.push(order.done);
            }
            next = if statement.len() < MAX_INSERT_BYTES { orders.try_recv().ok() } else { None };
        }
        if waiting.is_empty() {
            continue;
        }
        let outcome = http.execute(statement, DEADLINE).await.map_err(Arc::new);
        for done in waiting {
            // Nobody to tell is nothing to do.
            drop(done.send(outcome.clone()));
        }
    }
}
