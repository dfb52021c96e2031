//! What can go wrong with a job on its way into a queue, and with a queue itself.

/// Why a job is no job. Trying again doesn't help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJob {
    /// A name, a queue or a key.
    #[error("the job's {what} must be 1 to {limit} printable bytes, not `{text}`")]
    Name {
        /// Which of them.
        what: &'static str,
        /// What was given.
        text: String,
        /// The longest that may be. Unit: bytes.
        limit: usize,
    },
    /// The payload.
    #[error(
        "the payload of job `{name}` has {num_bytes} bytes as JSON, more than {limit}; keep large data elsewhere and name it here"
    )]
    PayloadTooLarge {
        /// The job.
        name: String,
        /// The payload's size.
        num_bytes: usize,
        /// The limit of the queue, or of its provider.
        limit: usize,
    },
    /// The payload.
    #[error("the payload of job `{name}` has text with the character 0, which Postgres can't keep; leave it out")]
    Nul {
        /// The job.
        name: String,
    },
    /// The payload.
    #[error("the payload of job `{name}` has lists or objects in each other, more than {limit} deep; make it flatter")]
    TooDeep {
        /// The job.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// The pattern of a repetition.
    #[error(
        "the pattern `{cron}` {why}; write minute, hour, day, month and day of the week, such as `0 3 * * MON`, or a word such as @daily"
    )]
    Cron {
        /// The pattern.
        cron: String,
        /// What is wrong.
        why: String,
    },
    /// The zone of a repetition.
    #[error("`{zone}` isn't a time zone; use a name such as UTC or Europe/Berlin")]
    Zone {
        /// What was given.
        zone: String,
    },
    /// A repetition with a key.
    #[error(
        "job `{name}` repeats and has a key; leave the key out: a repetition that is there already is not taken twice"
    )]
    KeyedRepetition {
        /// The job.
        name: String,
    },
    /// The number of attempts.
    #[error("max_attempts must be at least 1; a job that is never tried is none")]
    NoAttempts,
}

/// Why a provider did not take jobs.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// Nobody would take them.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// The provider is none for such jobs. It works well.
    #[error("{provider} is none for it: {why}")]
    Unsuited {
        /// The provider.
        provider: String,
        /// What it doesn't do.
        why: String,
    },
    /// The provider has no room. It works well.
    #[error("{provider} is full: {why}")]
    Full {
        /// The provider.
        provider: String,
        /// What there is no room for.
        why: String,
    },
    /// The provider doesn't work.
    #[error(transparent)]
    Unavailable(#[from] ProviderError),
    /// The provider did not answer in time: it may have the jobs or not. Their ids tell.
    #[error("{provider} did not answer within {seconds} s; it may have taken the jobs")]
    Timeout {
        /// The provider.
        provider: String,
        /// How long it was waited for.
        seconds: f32,
    },
}

impl EnqueueError {
    /// The name of the variant, in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Unsuited { .. } => "unsuited",
            Self::Full { .. } => "full",
            Self::Unavailable(_) => "unavailable",
            Self::Timeout { .. } => "timeout",
        }
    }
}

/// A provider doesn't work.
#[derive(Debug, thiserror::Error)]
#[error("{provider} {message}")]
pub struct ProviderError {
    /// The provider.
    pub provider: String,
    /// What it can't do, and why.
    pub message: String,
    /// What was said below.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ProviderError {
    /// An error of `provider` that says what it can't do.
    pub fn new(provider: &str, message: impl Into<String>) -> Self {
        Self { provider: provider.to_owned(), message: message.into(), source: None }
    }

    /// The same, with what was said below.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }
}
