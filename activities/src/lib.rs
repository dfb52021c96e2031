//! The activities of `s3-export`: thin adapters between Temporal and the engine.
//!
//! Owns heartbeats, the reasons to stop an attempt, the mapping of the engine's errors to Temporal's failures and the
//! writing of run records. Does not own a decision whether an error is worth a retry (the engine does), nor how data is
//! read or written.
//!
//! ```text
//! insert_into_s3_activity
//!   attempt ---------- spawns --> engine run (a task of its own: a panic ends only that run)
//!     ^  |                          ^      |
//!     |  +-- stop order ------------+      +-- confirm() right before the object becomes visible
//!     |          ^                                          |
//!     |          +---- heartbeat task <---------------------+
//!     |                   | acknowledged, or refused, or too long unheard
//!     +-- cancelled, shutdown, deadline
//! ```

mod activities;
mod attempt;
mod export;
mod exporter;
mod failure;
mod heartbeat;
pub mod history;
mod observer;
mod task;

pub use activities::{Activities, Parts};
pub use export::ExportResolver;
pub use exporter::{Exporter, Resolver};
pub use failure::INTERNAL_ATTEMPTS;
pub use observer::{AttemptEnd, NoObserver, RunEnd, RunEnded, RunEnds, RunObserver};
pub use task::{Answer, Task, TaskFactory, TemporalTask};
