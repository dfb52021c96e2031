//! The one error of the engine.
//!
//! Owns the decision whether an error is worth a retry. Does not own the wording of single faults: each module
//! builds its message where the fault is seen.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What the reader of an error has to do. The kind alone decides about retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration or the query is wrong: fix it.
    Config,
    /// The credentials or their permissions are wrong: fix them.
    Auth,
    /// A table, column, bucket or other named thing is missing: create it or fix the name.
    NotFound,
    /// ClickHouse can't be reached or can't answer now: a retry may help.
    SourceUnavailable,
    /// S3 can't be reached or can't answer now: a retry may help.
    DestinationUnavailable,
    /// The data can't be exported as configured: look at it.
    Data,
    /// Somebody asked the run to stop.
    Cancelled,
    /// The worker is going down: another one takes the run over.
    Shutdown,
    /// A fault that we don't know or that is ours: a retry may help, up to a cap.
    Internal,
}

impl ErrorKind {
    /// Whether the same run may succeed when it is tried again without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::SourceUnavailable | Self::DestinationUnavailable | Self::Shutdown | Self::Internal => true,
            Self::Config | Self::Auth | Self::NotFound | Self::Data | Self::Cancelled => false,
        }
    }

    /// The stable name of the kind, as it appears in Temporal failures, run records and JSON output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Config => "Config",
            Self::Auth => "Auth",
            Self::NotFound => "NotFound",
            Self::SourceUnavailable => "SourceUnavailable",
            Self::DestinationUnavailable => "DestinationUnavailable",
            Self::Data => "Data",
            Self::Cancelled => "Cancelled",
            Self::Shutdown => "Shutdown",
            Self::Internal => "Internal",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why a run, a check or a configuration failed.
///
/// `Display` is one sentence for the user: it names the thing and, where there is one, the way out. The cause, for
/// operators, is behind [`source`](StdError::source); other failures of the same group are in [`others`](Self::others).
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    retry_after: Option<Duration>,
    others: Vec<Error>,
}

/// The result of everything in the engine that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` with a sentence for the user.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, retry_after: None, others: Vec::new() }
    }

    /// Keeps the cause for the operator's log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Asks whoever retries to wait at least this long.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Says what was being done, in front of the message: `upload part 7: …`.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// Attaches further failures of the same group; the receiver stays the one that leads.
    #[must_use]
    pub fn with_others(mut self, others: Vec<Self>) -> Self {
        self.others = others;
        self
    }

    /// What the reader has to do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence for the user.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How long to wait before a retry, where the other side said so.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The further failures of the group that this error leads.
    #[must_use]
    pub fn others(&self) -> &[Self] {
        &self.others
    }

    /// Whether a retry may help: the only place that decides it.
    ///
    /// # Invariants
    /// A group is retryable when any of its failures is; cancellations that the group caused itself don't count.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable() || self.others.iter().any(Self::is_retryable)
    }

    /// An error of the configuration or the query.
    #[must_use]
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// An error of the data.
    #[must_use]
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// A fault of ours.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// A stop that somebody asked for.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "the run was cancelled")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kind, self.message)?;
        let mut cause = self.source.as_deref().map(|source| source as &dyn StdError);
        while let Some(error) = cause {
            write!(formatter, "; caused by: {error}")?;
            cause = error.source();
        }
        for other in &self.others {
            write!(formatter, "; also: {other:?}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Makes one error of the failures of a task group.
///
/// The first failure that isn't a cancellation leads, since cancellations are what the group did to the others. It
/// returns `None` for no failures.
#[must_use]
pub fn group(failures: Vec<Error>) -> Option<Error> {
    let (cancelled, mut real): (Vec<_>, Vec<_>) =
        failures.into_iter().partition(|error| error.kind() == ErrorKind::Cancelled);
    if real.is_empty() {
        return cancelled.into_iter().next();
    }
    let mut first = real.remove(0);
    let mut others = std::mem::take(&mut first.others);
    others.extend(real);
    Some(first.with_others(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_retryable_when_any_failure_is() {
        let error = group(vec![
            Error::new(ErrorKind::Cancelled, "stopped by the group"),
            Error::data("bad row"),
            Error::new(ErrorKind::DestinationUnavailable, "slow down"),
        ])
        .expect("three failures");
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.is_retryable());
        assert_eq!(error.others().len(), 1);
    }

    #[test]
    fn a_group_of_user_mistakes_is_not_retryable() {
        let error = group(vec![Error::data("bad row"), Error::cancelled()]).expect("two failures");
        assert!(!error.is_retryable());
        assert!(group(Vec::new()).is_none());
        assert_eq!(group(vec![Error::cancelled()]).expect("one").kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn debug_shows_causes_and_display_only_the_sentence() {
        let error = Error::internal("read the stream").with_source(std::io::Error::other("reset"));
        assert_eq!(error.to_string(), "read the stream");
        assert_eq!(format!("{error:?}"), "Internal: read the stream; caused by: reset");
    }
}
