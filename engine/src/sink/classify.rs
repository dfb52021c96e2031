//! From what the SDK reports to a row of the table, and to one sentence without secrets.
//!
//! Owns the recognition of failures and the redaction of what other sides said. Does not own their meaning: see
//! [`super::error::TABLE`].

use std::error::Error as StdError;
use std::time::Duration;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use super::error::{Retry, Row, Symptom, find};
use crate::error::{Error, ErrorKind};
use crate::network::{NetworkFault, chain, innermost};

/// The longest text of another side that a message repeats. Unit: characters.
const MAX_DETAIL_CHARS: usize = 200;

/// One failed try of a request.
#[derive(Debug)]
pub(super) struct Failure {
    /// What the user sees.
    pub(super) error: Error,
    /// Where it is tried again.
    pub(super) retry: Retry,
    /// S3's error code, where the reply had one.
    pub(super) code: Option<String>,
    /// The reply's status, where there was one.
    pub(super) status: Option<u16>,
    /// Whether the request may have taken effect all the same.
    pub(super) ambiguous: bool,
}

/// What the request was about, for sentences.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) endpoint: String,
    pub(super) bucket: String,
    pub(super) key: String,
    /// Whether the endpoint has answered before: then its name and certificate are right, and a fault passes.
    pub(super) reached: bool,
}

/// What the operator sees behind the sentence.
#[derive(Debug, thiserror::Error)]
#[error("S3 error {code} (HTTP {status}, request id {request_id}): {message}")]
struct StoreFault {
    code: String,
    status: String,
    request_id: String,
    message: String,
}

impl Failure {
    /// The order to stop, as the failure of the try that it ended.
    pub(super) const fn stopped(order: Error) -> Self {
        Self { error: order, retry: Retry::Not, code: None, status: None, ambiguous: false }
    }

    /// A try that took longer than its own timeout.
    pub(super) fn timeout(target: &Target) -> Self {
        let facts = Facts { symptom: Symptom::Timeout, ..Facts::new(String::new()) };
        facts.into_failure(target)
    }

    /// A reply of success that lacks what it must carry.
    pub(super) fn no_result(target: &Target) -> Self {
        let facts = Facts { symptom: Symptom::BadReply, status: Some(200), ..Facts::new(String::new()) };
        facts.into_failure(target)
    }

    /// Whether S3 answered with this code.
    pub(super) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

/// Finds the row of a failed request and fills in its sentence.
pub(super) fn classify<E>(error: &SdkError<E, HttpResponse>, target: &Target) -> Failure
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let facts = match error {
        SdkError::ConstructionFailure(_) => Facts { symptom: Symptom::Request, ..Facts::new(innermost(error)) },
        SdkError::TimeoutError(_) => Facts { symptom: Symptom::Timeout, ..Facts::new(String::new()) },
        SdkError::DispatchFailure(failure) => {
            let symptom = dispatch_symptom(error, failure.is_timeout());
            let passes = target.reached && matches!(symptom, Symptom::Dns | Symptom::Tls);
            let symptom = if passes { Symptom::Connect } else { symptom };
            Facts { symptom, ..Facts::new(innermost(error)) }
        }
        SdkError::ResponseError(failure) => Facts::of_reply(failure.raw(), None, None),
        SdkError::ServiceError(failure) => {
            Facts::of_reply(failure.raw(), failure.err().code(), failure.err().message())
        }
        _ => Facts::new(innermost(error)),
    };
    facts.into_failure(target)
}

/// What is known about one failed try.
struct Facts {
    symptom: Symptom,
    code: Option<String>,
    status: Option<u16>,
    request_id: Option<String>,
    message: String,
    retry_after: Option<Duration>,
}

impl Facts {
    const fn new(message: String) -> Self {
        Self { symptom: Symptom::Unknown, code: None, status: None, request_id: None, message, retry_after: None }
    }

    fn of_reply(reply: &HttpResponse, code: Option<&str>, message: Option<&str>) -> Self {
        let status = reply.status().as_u16();
        let body = reply.body().bytes().map(String::from_utf8_lossy).unwrap_or_default();
        // The SDK doesn't see an error document behind leading white space, nor in a reply of success.
        let code =
            code.or_else(|| element(&body, "Code")).map(str::trim).filter(|code| is_code(code)).map(str::to_owned);
        let header = |name| reply.headers().get(name);
        let place = header("x-amz-bucket-region").map(|region| format!("the bucket is in {region}"));
        let said = message.or_else(|| element(&body, "Message")).unwrap_or_default();
        Self {
            symptom: if reply.status().is_success() { Symptom::BadReply } else { Symptom::Unknown },
            code,
            status: Some(status),
            request_id: header("x-amz-request-id").map(redact),
            message: place.unwrap_or_else(|| said.to_owned()),
            retry_after: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
        }
    }

    fn into_failure(self, target: &Target) -> Failure {
        let row = find(self.code.as_deref(), self.status, self.symptom);
        let message = redact(&self.message);
        let mut error = Error::new(row.kind, self.sentence(row, &message, target)).with_source(StoreFault {
            code: self.code_or_symptom(),
            status: self.status_text(),
            request_id: self.request_id.clone().unwrap_or_else(|| "none".to_owned()),
            message,
        });
        if let Some(delay) = self.retry_after {
            error = error.with_retry_after(delay);
        }
        let lost = matches!(self.symptom, Symptom::Timeout | Symptom::ConnectionLost | Symptom::BadReply);
        let ambiguous = lost || self.status.is_some_and(|status| status >= 500);
        Failure { error, retry: row.retry, code: self.code, status: self.status, ambiguous }
    }

    fn sentence(&self, row: &Row, message: &str, target: &Target) -> String {
        let detail = if message.is_empty() { String::new() } else { format!(" ({message})") };
        let mut sentence = String::new();
        let mut rest = row.sentence;
        while let Some((text, tail)) = rest.split_once('{') {
            let (name, tail) = tail.split_once('}').unwrap_or((tail, ""));
            sentence.push_str(text);
            sentence.push_str(match name {
                "bucket" => &target.bucket,
                "key" => &target.key,
                "endpoint" => &target.endpoint,
                "detail" => &detail,
                _ => "",
            });
            match name {
                "code" => sentence.push_str(&self.code_or_symptom()),
                "status" => sentence.push_str(&self.status_text()),
                _ => {}
            }
            rest = tail;
        }
        sentence + rest
    }

    fn code_or_symptom(&self) -> String {
        self.code.clone().unwrap_or_else(|| "no code".to_owned())
    }

    fn status_text(&self) -> String {
        self.status.map_or_else(|| "none".to_owned(), |status| status.to_string())
    }
}

/// Tells apart why a request never got a reply.
fn dispatch_symptom(error: &(dyn StdError + 'static), timed_out: bool) -> Symptom {
    // The SDK's only timeout is the connection's: ours are around it.
    if timed_out {
        return Symptom::Connect;
    }
    let fault = NetworkFault::of(error);
    let about_credentials = |text: String| text.contains("credentials") || text.contains("identity");
    // A source of credentials that can't be reached now is no lack of them.
    if fault != NetworkFault::Unreachable && chain(error).map(ToString::to_string).any(about_credentials) {
        return Symptom::Credentials;
    }
    match fault {
        NetworkFault::UnknownName => Symptom::Dns,
        NetworkFault::Unreachable => Symptom::Connect,
        NetworkFault::Untrusted | NetworkFault::WrongName | NetworkFault::Expired | NetworkFault::NoTls => Symptom::Tls,
        NetworkFault::ConnectionLost => Symptom::ConnectionLost,
    }
}

/// The text of the first such element.
fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, tail) = body.split_once(&format!("<{name}>"))?;
    tail.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

/// Whether a text has the form of an error code; anything else is not repeated.
fn is_code(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// Makes another side's text fit for messages: short, on one line, and without what could be a secret.
pub(super) fn redact(text: &str) -> String {
    const SECRET: [&str; 6] =
        ["signature", "credential=", "awsaccesskeyid", "x-amz-", "security-token", "stringtosign"];
    let lower = text.to_lowercase();
    if SECRET.iter().any(|mark| lower.contains(mark)) {
        return "the store's text is withheld, since it repeats parts of the signature".to_owned();
    }
    let words = text.split_whitespace().map(redact_word).collect::<Vec<_>>().join(" ");
    let mut short =
        words.chars().filter(|character| !character.is_control()).take(MAX_DETAIL_CHARS + 1).collect::<String>();
    if short.chars().count() > MAX_DETAIL_CHARS {
        short.pop();
        short.push('…');
    }
    short
}

/// Takes user and query out of a URL.
fn redact_word(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Whether an error of the engine is the store's refusal to let us do something.
pub(super) fn is_denied(error: &Error) -> bool {
    error.kind() == ErrorKind::Auth
}

#[cfg(test)]
mod tests;
