//! Plugins as their users have them, with jobs that go nowhere or through the real queue.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod errors;
mod examples;
mod limits;
mod log;
mod meta;
mod page;
mod queue;
mod rig;
mod transform;
