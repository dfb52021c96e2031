//! Configuration: raw (as written) to validated (as used).
//!
//! Owns the rules about fields and their sums. Does not own files on disk or the environment's variables: the program
//! reads those once and passes them in.

pub mod connection;
pub mod connections;
pub mod export;
pub mod fault;
pub mod limits;
pub mod load;
pub mod output;
pub mod raw;
pub mod secret;
pub mod timing;
pub mod validate;

mod lenient;
mod yaml;
