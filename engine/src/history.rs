//! What is remembered of a run from its earlier attempts, and what follows from it.

use std::fmt;

use futures::future::BoxFuture;

use crate::config::export::FewerRows;
use crate::error::{Error, Result};

/// The memory of a run, asked right before its object becomes visible.
pub trait History: Send + Sync + fmt::Debug {
    /// The most rows that any earlier attempt of the same run has read, as far as anybody remembers; 0 when nobody does.
    /// An attempt that broke off counts with the rows it had read by then.
    fn most_rows(&self) -> BoxFuture<'_, u64>;
}

/// The history of a run that nobody keeps a record of.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHistory;

impl History for NoHistory {
    fn most_rows(&self) -> BoxFuture<'_, u64> {
        Box::pin(std::future::ready(0))
    }
}

/// Refuses to publish less than an earlier attempt has already seen: rows that are deleted while a run is tried again
/// must not end as a short object that looks complete.
pub(crate) async fn require_no_fewer(rows: u64, history: &dyn History, policy: FewerRows) -> Result<()> {
    let most = history.most_rows().await;
    if rows >= most {
        return Ok(());
    }
    if policy == FewerRows::Allow {
        tracing::warn!(rows, earlier = most, "the window has fewer rows than an earlier attempt of this run read");
        return Ok(());
    }
    Err(Error::data(format!(
        "the window has {rows} rows now, but an earlier attempt of this run read {most}, so nothing was published; if they were \
         deleted or merged away on purpose, set source.fewer_rows to allow, else look for a replica that lags behind"
    )))
}
