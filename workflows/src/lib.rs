//! The workflow `s3-export` and the payloads that it shares with its activities.
//!
//! Owns the input's form, the interval of a run, the options of its activities and the meaning of their outcomes. Does
//! not own ClickHouse or S3: this crate never links their clients, and everything in it is deterministic: no clock, no
//! random numbers, no environment.

pub mod bounds;
pub mod contract;
pub mod options;
pub mod payload;
pub mod s3_export;
pub mod secret;

mod details;
mod fields;
mod outcome;
