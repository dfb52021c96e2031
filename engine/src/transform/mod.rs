//! Rows that somebody else changes, or leaves out, on their way from the source into the file.
//!
//! Owns how rows become JSON and come back as the types that are written, and what becomes of rows that fail. Does not own
//! who changes them: that is behind [`RowTransform`].

pub(crate) mod cell;
pub(crate) mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::error::{Error, Result};

/// What becomes of a row that a transform fails on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run fails, and names the row.
    #[default]
    FailRun,
    /// The row is left out and counted.
    DropRow,
    /// The row stays as it was, and is counted.
    PassRow,
}

impl OnError {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::FailRun, Self::DropRow, Self::PassRow];

    /// Its name in configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailRun => "fail_run",
            Self::DropRow => "drop_row",
            Self::PassRow => "pass_row",
        }
    }
}

/// What an export says about its transform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransformConfig {
    /// The name that the process knows it by.
    pub name: String,
    /// What becomes of rows that it fails on.
    pub on_error: OnError,
}

/// Consecutive rows for a transform.
#[derive(Debug)]
pub struct TransformBatch {
    /// The rows: objects with a member for each column, as JSONLines has them.
    pub rows: Vec<Value>,
    /// What all results together may take in memory, about. Unit: bytes.
    pub room: usize,
    /// Whether rows after the first one that fails needn't be looked at.
    pub stops_at_failure: bool,
}

/// What became of one row.
#[derive(Debug)]
pub struct TransformedRow {
    /// The row as it was.
    pub before: Value,
    /// The row as it is now; `None` when it is left out; or why the transform failed on it, in a sentence.
    pub after: Result<Option<Value>, String>,
}

/// Changes rows, or leaves them out.
pub trait RowTransform: Send + Sync + fmt::Debug {
    /// Tells whether it is one that looks at rows.
    ///
    /// # Errors
    /// Why it isn't, and the way out.
    fn check(&self) -> Result<()>;

    /// Changes rows: one result for each, in their order; fewer only after a failure, where that was asked for.
    ///
    /// # Back-pressure
    /// The run reads no more rows meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open which rows it has seen.
    ///
    /// # Errors
    /// What keeps it from looking at rows at all, which fails the run whatever its policy.
    fn apply(&self, batch: TransformBatch) -> BoxFuture<'_, Result<Vec<TransformedRow>>>;
}

/// The transforms that a process knows, by name.
#[derive(Debug, Clone, Default)]
pub struct Transforms(Arc<BTreeMap<String, Arc<dyn RowTransform>>>);

impl Transforms {
    /// Those with these names.
    #[must_use]
    pub fn new(transforms: BTreeMap<String, Arc<dyn RowTransform>>) -> Self {
        Self(Arc::new(transforms))
    }

    /// The transform that an export asks for.
    ///
    /// # Errors
    /// `Config` when the process knows none by that name; its own when it doesn't look at rows.
    pub fn find(&self, config: &TransformConfig) -> Result<Arc<dyn RowTransform>> {
        let transform = self.0.get(&config.name).cloned().ok_or_else(|| self.unknown(&config.name))?;
        transform.check()?;
        Ok(transform)
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {known}") };
        Error::config(format!(
            "the export asks for the plugin `{name}`, which this process doesn't have; {known}: add it to plugins in the file that \
             --jobs names"
        ))
    }
}
