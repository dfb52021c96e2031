//! What a plugin is, before it runs, and what it may take.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::error::PluginError;

/// The longest name. Unit: bytes.
const MAX_NAME_BYTES: usize = 64;

/// The least memory and stack. The engine takes 0 for no limit, and it ends the process when there is too little memory for
/// its own start, which takes about a tenth of this. Unit: bytes.
const MIN_MEMORY_BYTES: usize = 1024 * 1024;
const MIN_STACK_BYTES: usize = 64 * 1024;

/// A plugin before it runs. What it is configured with may be secret, and isn't shown.
#[derive(Clone)]
pub struct Definition {
    /// Its name in logs, errors and the names of its jobs: letters, digits, dots, dashes and underscores.
    pub name: String,
    /// The name of its file, for errors.
    pub file: String,
    /// What is in the file: one ECMAScript module.
    pub source: String,
    /// What it gets as `meta.config`.
    pub config: Value,
    /// What it may take.
    pub limits: Limits,
}

/// What a plugin may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All that its runtime holds. At least 1 MiB. Unit: bytes.
    pub memory_bytes: usize,
    /// How deep its calls may go. At least 64 KiB. Unit: bytes.
    pub stack_bytes: usize,
    /// How long one call may take: one event, one job, one `setupPlugin`.
    pub time: Duration,
    /// How many keys its cache holds.
    pub cache_entries: usize,
    /// What its cache holds, about. Unit: bytes.
    pub cache_bytes: usize,
}

impl fmt::Debug for Definition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, file, limits, .. } = self;
        let mut shown = formatter.debug_struct("Definition");
        shown.field("name", name).field("file", file).field("limits", limits).finish_non_exhaustive()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 * 1024 * 1024,
            // What the engine itself takes when nobody says so; its thread has more than that.
            stack_bytes: 1024 * 1024,
            time: Duration::from_secs(30),
            cache_entries: 10_000,
            cache_bytes: 16 * 1024 * 1024,
        }
    }
}

impl Definition {
    /// A plugin with an empty configuration and the usual limits.
    pub fn new(name: impl Into<String>, file: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            file: file.into(),
            source: source.into(),
            config: Value::Object(serde_json::Map::new()),
            limits: Limits::default(),
        }
    }

    /// Checks what can be checked without running it.
    ///
    /// # Errors
    /// What is wrong with its name or its limits.
    pub fn check(&self) -> Result<(), PluginError> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !self.name.chars().all(is_plain) {
            return Err(PluginError::Name { name: self.name.chars().take(MAX_NAME_BYTES).collect() });
        }
        let Limits { memory_bytes, stack_bytes, .. } = self.limits;
        for (limit, num_bytes, least) in
            [("memory", memory_bytes, MIN_MEMORY_BYTES), ("stack", stack_bytes, MIN_STACK_BYTES)]
        {
            if num_bytes < least {
                return Err(PluginError::Limit { plugin: self.name.clone(), limit, num_bytes, least });
            }
        }
        Ok(())
    }
}
