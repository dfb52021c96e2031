//! What becomes of rows that a plugin fails on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::PluginError;
use crate::plugin::Plugin;

/// What becomes of a row when `processEvent` fails on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorPolicy {
    /// The run fails.
    #[default]
    #[serde(rename = "fail_run")]
    Fail,
    /// The row is left out, as if the plugin had dropped it.
    #[serde(rename = "drop_row")]
    Drop,
    /// The row stays as it was.
    #[serde(rename = "pass_row")]
    Pass,
}

/// What became of rows.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Rows that go on, in their order.
    pub kept: Vec<Value>,
    /// Rows that the plugin left out.
    pub num_dropped: usize,
    /// Rows that it failed on, left out or kept as the policy says.
    pub num_failed: usize,
    /// What went wrong first.
    pub first_error: Option<PluginError>,
}

impl ErrorPolicy {
    /// Sends rows through a plugin.
    ///
    /// # Invariants
    /// Kept, dropped and failed rows add up to the given ones, failed ones being kept with [`Self::Pass`].
    ///
    /// # Cancel safety
    /// Dropping the future ends after the row at work.
    ///
    /// # Errors
    /// With [`Self::Fail`] the first failure; with every policy what keeps the plugin from seeing rows at
    /// all.
    pub async fn apply(self, plugin: &Plugin, rows: Vec<Value>) -> Result<Outcome, PluginError> {
        let mut outcome = Outcome::default();
        for row in plugin.batch(rows, self == Self::Fail).await? {
            match row {
                Ok(Some(row)) => outcome.kept.push(row),
                Ok(None) => outcome.num_dropped += 1,
                Err(failed) if self == Self::Fail || !failed.was_seen => return Err(failed.error),
                Err(failed) => {
                    outcome.num_failed += 1;
                    outcome.first_error.get_or_insert(failed.error);
                    if self == Self::Pass {
                        outcome.kept.push(failed.event);
                    }
                }
            }
        }
        Ok(outcome)
    }
}
