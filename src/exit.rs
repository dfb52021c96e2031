//! How the program ends: exit codes, and failures as people and machines read them.

use std::fmt;
use std::process::ExitCode;

use engine::config::fault::Faults;
use engine::error::{Error, ErrorKind};
use serde::Serialize;

/// An exit code. They are API: rclone's and Vector's meanings where those exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Another failure.
    Other = 1,
    /// Wrong usage.
    Usage = 2,
    /// Something that was named on the command line doesn't exist.
    NotFound = 3,
    /// A temporary failure: a retry may help.
    Temporary = 5,
    /// A permanent failure: credentials, bucket, table, data.
    Permanent = 7,
    /// Nothing was exported, and that was to be an error.
    Empty = 9,
    /// The time limit was reached.
    TimeLimit = 10,
    /// The configuration or the query is wrong.
    Config = 78,
    /// Somebody interrupted it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// The code of an error of the engine.
    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Shutdown => Self::Interrupted,
            // One failure of the group may pass; the run is worth another try.
            _ if error.others().iter().any(Error::is_retryable) => Self::Temporary,
            ErrorKind::Config => Self::Config,
            ErrorKind::Auth | ErrorKind::NotFound | ErrorKind::Data => Self::Permanent,
            ErrorKind::SourceUnavailable | ErrorKind::DestinationUnavailable => Self::Temporary,
            _ => Self::Other,
        }
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    report: Box<FailureReport>,
    /// What people read, where it is longer than the message.
    text: Option<String>,
    is_written: bool,
}

/// A failure as a machine reads it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailureReport {
    /// The stable name of the kind.
    kind: &'static str,
    /// What is wrong and the way out.
    message: String,
    /// Whether the same command may succeed when it is tried again.
    retryable: bool,
    exit_code: u8,
    /// What else failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<String>,
    /// The faults of a configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<FaultReport>,
}

/// A fault of a configuration as a machine reads it.
#[derive(Debug, Clone, Serialize)]
struct FaultReport {
    file: String,
    path: String,
    message: String,
    line: Option<usize>,
    column: Option<usize>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Self {
        let report = FailureReport {
            kind,
            message: message.into(),
            retryable: exit == Exit::Temporary,
            exit_code: exit as u8,
            others: Vec::new(),
            faults: Vec::new(),
        };
        Self { exit, report: Box::new(report), text: None, is_written: false }
    }

    /// Something that was named on the command line doesn't exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, "NotFound", message)
    }

    /// The same failure with another code.
    pub(crate) fn with_exit(mut self, exit: Exit, kind: &'static str) -> Self {
        self.exit = exit;
        self.report.kind = kind;
        self.report.exit_code = exit as u8;
        self
    }

    /// The same failure, with another one beside it that doesn't change the code.
    pub(crate) fn with_other(mut self, other: &Error) -> Self {
        self.report.others.push(other.to_string());
        self
    }

    /// The same failure, which a machine has read as a part of a document.
    pub(crate) fn written(mut self) -> Self {
        self.is_written = true;
        self
    }

    /// Whether a machine has read it.
    pub(crate) const fn is_written(&self) -> bool {
        self.is_written
    }

    /// The stable name of the kind.
    pub(crate) const fn kind(&self) -> &'static str {
        self.report.kind
    }

    /// The failure as a machine reads it.
    pub(crate) fn report(&self) -> &FailureReport {
        &self.report
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text.as_deref().unwrap_or(&self.report.message))?;
        for other in &self.report.others {
            write!(formatter, "\nalso: {other}")?;
        }
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let mut failure = Self::new(Exit::of(error), error.kind().as_str(), error.message());
        failure.report.retryable = error.is_retryable();
        failure.report.others = error.others().iter().map(ToString::to_string).collect();
        failure
    }
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        let text = faults.to_string();
        let mut failure = Self::new(Exit::Config, "Config", text.lines().next().unwrap_or_default());
        failure.text = Some(text);
        failure.report.faults = faults
            .faults()
            .iter()
            .map(|fault| FaultReport {
                file: faults.file.clone(),
                path: fault.path.clone(),
                message: fault.message.clone(),
                line: fault.position.map(|position| position.line),
                column: fault.position.map(|position| position.column),
            })
            .collect();
        failure
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Other, "Other", format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        let cases = [
            (ErrorKind::Config, 78),
            (ErrorKind::Auth, 7),
            (ErrorKind::NotFound, 7),
            (ErrorKind::Data, 7),
            (ErrorKind::SourceUnavailable, 5),
            (ErrorKind::DestinationUnavailable, 5),
            (ErrorKind::Cancelled, 130),
            (ErrorKind::Shutdown, 130),
            (ErrorKind::Internal, 1),
        ];
        for (kind, code) in cases {
            let failure = Failure::from(Error::new(kind, "x"));
            assert_eq!(failure.exit as u8, code, "{kind}");
            assert_eq!(failure.report.kind, kind.as_str());
        }
    }

    #[test]
    fn a_group_with_a_temporary_failure_is_temporary() {
        let error = Error::data("bad").with_others(vec![Error::new(ErrorKind::DestinationUnavailable, "slow down")]);
        let failure = Failure::from(error);
        assert_eq!(failure.exit, Exit::Temporary);
        assert!(failure.report.retryable);
        assert_eq!(failure.to_string(), "bad\nalso: slow down");
    }
}
