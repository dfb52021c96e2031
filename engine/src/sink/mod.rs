//! The destination: one S3 object per run.
//!
//! Owns keys, requests, their retries and the mapping of S3's errors. Does not own the order or the numbers of parts:
//! the file assembler does.
//!
//! A run makes one [`client::S3Client`], and one [`s3_object::S3Object`] per file from it and the file's
//! [`key`](key::object_key). Every request goes through the client's one way out, which adds a timeout and turns a
//! failure into a row of [`error::TABLE`]; [`retry`] tries again what that row says.

pub mod client;
pub mod error;
pub mod existing;
pub mod key;
pub(crate) mod ledger;
pub mod metadata;
pub mod object;
pub mod orphans;
pub(crate) mod part_cutter;
pub mod probe;
pub mod retry;
pub mod s3_object;

mod classify;
mod requests;
mod result_check;
mod upload;

#[cfg(test)]
mod scripted;
