//! What ClickHouse says when a query fails, before or within the response's body.
//!
//! Owns finding the exception. Does not own what it means: see [`super::error_code`]. Does not look at data that arrived well-framed: a value that contains the
//! same words is only data.

use super::error_code;
use crate::error::Error;

/// How the tagged form begins and ends.
///
/// Source: <https://clickhouse.com/docs/interfaces/http#http_response_codes_caveats>, since ClickHouse 25.11.
const MARKER: &str = "__exception__";

/// How the bare form begins, after the code.
const BARE: &str = ". DB::Exception: ";

/// An exception as the server worded it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ServerException {
    /// ClickHouse's number for it.
    pub code: u32,
    /// The whole text, beginning with `Code: `.
    pub text: String,
}

impl ServerException {
    /// Reads the text of an exception: the body of a response with an error status.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let start = text.find("Code: ")?;
        let text = text[start..].trim();
        let numbered = text.strip_prefix("Code: ")?;
        let digits = numbered.split(|c: char| !c.is_ascii_digit()).next()?;
        let rest = numbered.strip_prefix(digits)?.strip_prefix(BARE)?;
        if rest.is_empty() {
            return None;
        }
        Some(Self { code: digits.parse().ok()?, text: text.to_owned() })
    }

    /// Looks for an exception at the end of a body that broke off. Call it only when the framing failed.
    ///
    /// A response that announced a tag frames its exception with it; nothing else counts there, since rows may hold the
    /// same words. Older servers write the marker without a tag, or the bare text: it must run to the end of the body.
    #[must_use]
    pub fn find_in_tail(tail: &[u8], tag: Option<&str>) -> Option<Self> {
        let text = String::from_utf8_lossy(tail);
        if let Some(tag) = tag {
            let open = format!("{MARKER}\r\n{tag}\r\n");
            let framed = &text[text.rfind(&open)? + open.len()..];
            let end = framed.find(MARKER).map_or(framed.len(), |end| end_of_message(&framed[..end], tag));
            return Self::parse(&framed[..end]);
        }
        let (start, _) = text.rmatch_indices("Code: ").find(|(start, _)| {
            let rest = text[start + "Code: ".len()..].trim_start_matches(|c: char| c.is_ascii_digit());
            rest.starts_with(BARE)
        })?;
        let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
        text[start..]
            .chars()
            .all(|c| is_text(c) && c != char::REPLACEMENT_CHARACTER)
            .then(|| Self::parse(&text[start..]))?
    }

    /// The exception behind an error, if there is one.
    #[must_use]
    pub fn behind(error: &Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }

    /// The setting that the server doesn't know, when that is the exception.
    #[must_use]
    pub fn unknown_setting(&self) -> Option<&str> {
        const UNKNOWN_SETTING: u32 = 115;
        let (_, rest) = (self.code == UNKNOWN_SETTING).then(|| self.text.split_once("etting "))??;
        rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).find(|word| !word.is_empty())
    }

    /// The engine's error for it; `doing` is what the query was for.
    #[must_use]
    pub fn into_error(self, doing: &str) -> Error {
        let kind = error_code::kind_of(self.code);
        let hint = error_code::hint_of(self.code).map(|hint| format!("; {hint}")).unwrap_or_default();
        Error::new(kind, format!("{doing}: ClickHouse answered {}{hint}", self.summary())).with_source(self)
    }

    /// The text without stack trace and version.
    fn summary(&self) -> String {
        let text = self.text.split("\nStack trace").next().unwrap_or(&self.text);
        let text = text.split(" (version ").next().unwrap_or(text).trim();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(1_000) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// The tagged form closes with `<length> <tag>\r\n` before the second marker.
fn end_of_message(framed: &str, tag: &str) -> usize {
    framed.rfind(&format!(" {tag}\r\n")).map_or(framed.len(), |close| {
        framed[..close].trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['\r', '\n']).len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "abcdefghijklmnop";
    const TEXT: &str = "Code: 395. DB::Exception: Value passed to 'throwIf' function is non-zero. (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO) (version 26.9.1)";

    /// An answer may be cut anywhere, also within the words that announce an exception.
    #[test]
    fn what_only_begins_like_an_exception_is_none() {
        for end in 0..TEXT.find("Value").expect("its message") {
            assert_eq!(ServerException::parse(&TEXT[..end]), None, "{}", &TEXT[..end]);
        }
        assert_eq!(ServerException::parse("Code: "), None);
    }

    #[test]
    fn finds_the_tagged_form_at_the_end() {
        let tail = format!("data\x00\r\n{MARKER}\r\n{TAG}\r\n{TEXT}\n{} {TAG}\r\n{MARKER}\r\n", TEXT.len());
        let found = ServerException::find_in_tail(tail.as_bytes(), Some(TAG)).expect("an exception");
        assert_eq!(found.code, 395);
        assert_eq!(found.text, TEXT);
    }

    #[test]
    fn finds_the_bare_form_and_the_last_one_wins() {
        let tail = format!("Code: 1. DB::Exception: only data\0more{TEXT}\n");
        let found = ServerException::find_in_tail(tail.as_bytes(), None).expect("an exception");
        assert_eq!(found.code, 395);
    }

    #[test]
    fn words_alone_are_not_an_exception() {
        assert_eq!(ServerException::find_in_tail(b"Code: red. Nothing to see", None), None);
        assert_eq!(ServerException::find_in_tail(b"__exception__", Some(TAG)), None);
        let row = b"text: Code: 62. DB::Exception: only a row";
        assert_eq!(ServerException::find_in_tail(row, Some(TAG)), None);
        assert_eq!(ServerException::find_in_tail(&[row.as_slice(), b"\0\x07"].concat(), None), None);
        assert_eq!(ServerException::parse("Code: 62. DB::Exception: "), None);
    }

    #[test]
    fn the_error_has_the_servers_words_without_the_version() {
        let error = ServerException::parse(TEXT).expect("parses").into_error("run the export's query");
        assert_eq!(error.kind(), crate::error::ErrorKind::Data);
        assert!(error.message().contains("throwIf"), "{error}");
        assert!(!error.message().contains("version"), "{error}");
    }

    #[test]
    fn names_the_unknown_setting_in_either_wording() {
        for wording in [
            "Unknown setting 'output_x': use the",
            "Setting output_x is neither a builtin setting nor",
            "Unknown setting output_x.",
        ] {
            let exception = ServerException::parse(&format!("Code: 115. DB::Exception: {wording}")).expect("parses");
            assert_eq!(exception.unknown_setting(), Some("output_x"));
        }
        assert_eq!(ServerException::parse(TEXT).expect("parses").unknown_setting(), None);
    }
}
