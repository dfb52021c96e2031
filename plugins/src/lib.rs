//! A host for plugins in JavaScript: rows go through them, and they put jobs into the queue that they do themselves later.
//!
//! A [`plugin::Plugin`] is one file that runs in a thread and a JavaScript runtime of its own, within [`definition::Limits`].
//! Owns what a plugin can reach (`meta` and `console`), its limits, and what becomes of its failures. Does not own the queue,
//! which is behind an [`outbox::Outbox`], nor what rows are.
//!
//! The limits guard against plugins with mistakes. The JavaScript engine is C in this process: they are no wall against
//! plugins that mean harm.

mod cache;
mod clock;
mod console;
pub mod definition;
pub mod error;
mod exports;
mod fault;
mod garbage;
pub mod handler;
mod inbox;
mod instance;
mod json;
mod meta;
pub mod name;
pub mod outbox;
pub mod plugin;
mod session;
mod worker;
