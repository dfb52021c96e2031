//! The record of runs: what ran, when, with which outcome.
//!
//! Owns one SQLite file per host. Does not own the truth about exported data: the object in the destination is that, and
//! Temporal's history is the truth about the workflow. So nothing on the data path waits for this crate.

mod instant;
mod record;
mod store;

pub use record::{RunFile, RunRecord, RunStatus, UnknownStatus};
pub use store::{RunFilter, RunStore, StoreError};
