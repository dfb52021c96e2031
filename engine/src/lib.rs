//! The engine of `batch-export`: a ClickHouse window becomes one S3 object, whole or not at all.
//!
//! It reads an Arrow stream, cuts it into blocks, encodes them on several threads and uploads them as parts, in bounded
//! memory. It knows nothing of Temporal: see [`run::Engine::run`].

pub mod check;
pub mod config;
pub mod error;
pub mod history;
pub mod interval;
pub mod network;
pub mod pipeline;
pub mod run;
pub mod sink;
pub mod source;
pub mod stop;
pub mod transform;

mod encode;
#[cfg(test)]
mod fuzz;
