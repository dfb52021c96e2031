//! The durable job queue: deferred work that survives what it depends on.
//!
//! A [`job`] goes into the first provider of the [`queue`] that works; a [`consumer`] takes it when it is due and hands it to
//! its [`handler`]. Owns providers, failover and the promise *at least once*. Does not own what jobs do.

mod backoff;
pub mod batches;
pub mod breaker;
pub mod clickhouse;
pub mod consumer;
pub mod dead_letter;
pub mod deferred;
mod ending;
pub mod error;
pub mod flow;
pub mod handler;
pub mod job;
pub mod memory;
mod mover;
pub mod observer;
pub mod postgres;
pub mod provider;
pub mod queue;
mod reads;
mod recent;
pub mod repeating;
pub mod repetition;
pub mod spool;
pub mod store;
mod tier;
pub mod time_unit;
