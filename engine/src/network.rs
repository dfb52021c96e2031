//! Why a request never got a reply, as both HTTP clients report it.
//!
//! They give no types for it, so the texts of the chain of causes have to do; they are looked at here and nowhere else.

use std::error::Error as StdError;
use std::io;

/// What resolvers say of a name that doesn't exist: glibc, and musl.
const UNKNOWN_NAME: [&str; 3] =
    ["Name or service not known", "No address associated with hostname", "Name does not resolve"];

/// What kept a request from its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkFault {
    /// The host's name doesn't exist.
    UnknownName,
    /// Nobody listens, the way there is closed, or names can't be resolved now.
    Unreachable,
    /// The certificate's authority isn't known, or the certificate is not acceptable for a reason without a name here.
    Untrusted,
    /// The certificate is for another name.
    WrongName,
    /// The certificate is not valid today.
    Expired,
    /// The other side doesn't speak TLS, or none that we do.
    NoTls,
    /// The connection broke.
    ConnectionLost,
}

impl NetworkFault {
    /// Looks through an error's causes.
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Self {
        if chain(error).any(is_unreachable) {
            return Self::Unreachable;
        }
        let text = chain(error).map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
        if has(&["dns error", "failed to lookup address"]) {
            // Whatever isn't certain may pass.
            if has(&UNKNOWN_NAME) { Self::UnknownName } else { Self::Unreachable }
        } else if has(&["handshake eof"]) {
            // The other side went away before it had said a word: a server that restarts, not one without TLS.
            Self::ConnectionLost
        } else if has(&["not valid for name", "NotValidForName"]) {
            Self::WrongName
        } else if has(&["certificate expired", "certificate not valid yet"]) {
            Self::Expired
        } else if has(&["certificate", "UnknownIssuer"]) {
            Self::Untrusted
        } else if has(&["InvalidContentType", "corrupt message", "handshake", "HandshakeFailure"]) {
            Self::NoTls
        } else {
            Self::ConnectionLost
        }
    }
}

/// The error and its causes, the innermost last.
pub(crate) fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn StdError + 'static) = *error;
        error.source()
    })
}

/// The text of the innermost cause: the one that says something.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn is_unreachable(cause: &(dyn StdError + 'static)) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    cause.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            ConnectionRefused | HostUnreachable | NetworkUnreachable | NetworkDown | AddrNotAvailable
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_exist_is_told_from_one_that_cannot_be_asked_for() {
        let fault = |text: &str| NetworkFault::of(&io::Error::other(text.to_owned()));
        let lookup = "failed to lookup address information: ";
        assert_eq!(fault(&format!("{lookup}Name or service not known")), NetworkFault::UnknownName);
        for passing in
            ["Temporary failure in name resolution", "Try again", "Non-recoverable failure in name resolution"]
        {
            assert_eq!(fault(&format!("{lookup}{passing}")), NetworkFault::Unreachable, "{passing}");
        }
        assert_eq!(fault("client error (Connect)\ntls handshake eof"), NetworkFault::ConnectionLost);
        assert_eq!(fault("connection closed before message completed"), NetworkFault::ConnectionLost);
        assert_eq!(NetworkFault::of(&io::Error::from(io::ErrorKind::ConnectionRefused)), NetworkFault::Unreachable);
    }
}
