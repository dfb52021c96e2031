//! What can go wrong with a plugin.

use std::time::Duration;

/// Why a plugin, or one call of it, failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The plugin's name.
    #[error("`{name}` can't be a plugin's name; use 1 to 64 letters, digits, dots, dashes and underscores")]
    Name {
        /// What was given.
        name: String,
    },
    /// A limit is too small to work with.
    #[error("plugin `{plugin}` has a {limit} limit of {num_bytes} bytes; use at least {least}")]
    Limit {
        /// The plugin.
        plugin: String,
        /// Which of its limits.
        limit: &'static str,
        /// What was given. Unit: bytes.
        num_bytes: usize,
        /// The least. Unit: bytes.
        least: usize,
    },
    /// The file.
    #[error("plugin `{plugin}` is not valid JavaScript: {message} at {place}; correct that line")]
    Syntax {
        /// The plugin.
        plugin: String,
        /// File, line and column.
        place: String,
        /// What the engine says.
        message: String,
    },
    /// It wants more than its file.
    #[error("plugin `{plugin}` imports `{module}`, but a plugin is one file; put what it needs into that file")]
    Import {
        /// The plugin.
        plugin: String,
        /// What it imports.
        module: String,
    },
    /// An export is of a wrong kind.
    #[error("plugin `{plugin}` exports `{export}` as {got}, not as {expected}; correct the export or remove it")]
    Export {
        /// The plugin.
        plugin: String,
        /// The export.
        export: String,
        /// What it is.
        got: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// It doesn't do what is asked of it.
    #[error("plugin `{plugin}` exports no `{function}`; export it, or don't use the plugin for that")]
    Missing {
        /// The plugin.
        plugin: String,
        /// What is asked for.
        function: &'static str,
    },
    /// A job is asked for that it doesn't have.
    #[error("plugin `{plugin}` has no job `{job}`; it has {known}: export the job, or remove what asks for it")]
    UnknownJob {
        /// The plugin.
        plugin: String,
        /// What is asked for.
        job: String,
        /// Those that it has.
        known: String,
    },
    /// It threw.
    #[error("plugin `{plugin}` failed in {function}: {message}{}; correct the plugin, or catch this there", at(.place))]
    Exception {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// What was thrown.
        message: String,
        /// The innermost line of the plugin that it comes from.
        place: Option<String>,
    },
    /// A call took too long. The runtime is made anew.
    #[error("plugin `{plugin}` did not end {function} within {limit:?}; make it do less, or raise its time limit")]
    TimeLimit {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// The limit.
        limit: Duration,
    },
    /// A call took too much memory. The runtime is made anew.
    #[error(
        "plugin `{plugin}` needs more than {limit} bytes of memory in {function}; make it keep less, or raise its memory limit"
    )]
    MemoryLimit {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// The limit. Unit: bytes.
        limit: usize,
    },
    /// Calls went too deep.
    #[error(
        "plugin `{plugin}` calls too deep in {function}{}; end the recursion earlier, or raise its stack limit", at(.place)
    )]
    StackOverflow {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// The innermost line of the plugin.
        place: Option<String>,
    },
    /// A call waits for what never comes.
    #[error(
        "plugin `{plugin}` waits in {function} for a promise that nothing will resolve; only jobs that are enqueued can be waited for"
    )]
    NeverResolves {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
    },
    /// `processEvent` returned something else than an event.
    #[error("plugin `{plugin}` returned {got} from processEvent; return the event, or null to drop it")]
    WrongType {
        /// The plugin.
        plugin: String,
        /// What it returned.
        got: &'static str,
    },
    /// A value has no place in JSON.
    #[error("plugin `{plugin}` has {what}{} in {function}, which JSON can't hold; use null or text instead", at_path(.path))]
    NotJson {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// Where in the value; empty for the value itself.
        path: String,
        /// What is there.
        what: String,
    },
    /// A value is too large to go in or out.
    #[error(
        "a value that goes into or comes out of plugin `{plugin}` in {function} takes more than {limit} bytes; make it smaller, or leave such rows out"
    )]
    TooLarge {
        /// The plugin.
        plugin: String,
        /// What was called.
        function: String,
        /// The limit. Unit: bytes.
        limit: usize,
    },
    /// The engine itself can't be interrupted now.
    #[error(
        "plugin `{plugin}` is stuck in the JavaScript engine, {overdue:?} beyond its time limit; look for calls over huge arrays, and restart the process"
    )]
    Stuck {
        /// The plugin.
        plugin: String,
        /// How long the call at work is over its deadline.
        overdue: Duration,
    },
    /// It was closed.
    #[error("plugin `{plugin}` is closed; start it again")]
    Closed {
        /// The plugin.
        plugin: String,
    },
    /// What surrounds it failed.
    #[error("plugin `{plugin}` can't run: {why}; look at this machine's memory and limits")]
    Host {
        /// The plugin.
        plugin: String,
        /// What failed.
        why: String,
    },
}

impl PluginError {
    /// Whether the runtime can't be trusted any more after this.
    pub(crate) fn spends_runtime(&self) -> bool {
        matches!(self, Self::TimeLimit { .. } | Self::MemoryLimit { .. })
    }
}

fn at(place: &Option<String>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!(" at {place}"))
}

fn at_path(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" at `{path}`") }
}
