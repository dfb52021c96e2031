//! Text that claims to be JSON, made safe for a line.

use serde::de::IgnoredAny;

/// What takes the place of half a surrogate pair: strict readers refuse the half alone.
const REPLACEMENT: &[u8; 6] = b"\\ufffd";

/// Appends `text` as a JSON value when it is one, else as a quoted string.
///
/// # Invariants
/// What is appended is one valid JSON value without a line break. Unpaired surrogate escapes become U+FFFD; good pairs
/// stay. Numbers keep their digits, keys their order.
pub(super) fn append(text: &str, out: &mut Vec<u8>) {
    if serde_json::from_str::<IgnoredAny>(text).is_err() && !is_json_with_lone_surrogates(text) {
        return append_quoted(text, out);
    }
    let start = out.len();
    if has_surrogate_escape(text.as_bytes()) {
        append_repaired(text.as_bytes(), out);
    } else {
        out.extend_from_slice(text.as_bytes());
    }
    // In valid JSON a raw line break stands between tokens only, where a blank means the same.
    for byte in &mut out[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// Appends `text` as a JSON string.
pub(super) fn append_quoted(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, text).is_err() {
        // Writing a str to memory has no way to fail; an empty string would still be valid JSON.
        out.truncate(start);
        out.extend_from_slice(b"\"\"");
    }
}

/// The parser refuses lone surrogates only: with them repaired, is it JSON?
fn is_json_with_lone_surrogates(text: &str) -> bool {
    if !has_surrogate_escape(text.as_bytes()) {
        return false;
    }
    let mut repaired = Vec::with_capacity(text.len());
    append_repaired(text.as_bytes(), &mut repaired);
    serde_json::from_slice::<IgnoredAny>(&repaired).is_ok()
}

fn has_surrogate_escape(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\\', text).any(|at| surrogate(&text[at..]).is_some())
}

/// The escape `\uD800` to `\uDFFF` at the start of `text`: its code unit.
fn surrogate(text: &[u8]) -> Option<u16> {
    let [b'\\', b'u', a, b, c, d, ..] = text else { return None };
    let digits = [*a, *b, *c, *d];
    let unit = u16::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
    (0xd800..=0xdfff).contains(&unit).then_some(unit)
}

fn append_repaired(text: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let copied = match surrogate(rest) {
            Some(0xd800..=0xdbff) if rest.get(6..).and_then(surrogate).is_some_and(|low| low >= 0xdc00) => 12,
            Some(_) => {
                out.extend_from_slice(REPLACEMENT);
                at += 6;
                continue;
            }
            // An escape is taken whole, so that an escaped backslash doesn't look like the start of one.
            None if rest[0] == b'\\' => rest.len().min(2),
            None => memchr::memchr(b'\\', rest).unwrap_or(rest.len()),
        };
        out.extend_from_slice(&rest[..copied]);
        at += copied;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn appended(text: &str) -> String {
        let mut out = Vec::new();
        append(text, &mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn json_stays_and_the_rest_is_quoted() {
        assert_eq!(appended(r#"{"b": 1, "a": 12345678901234567890123}"#), r#"{"b": 1, "a": 12345678901234567890123}"#);
        assert_eq!(appended("{\n\"a\":1}"), r#"{ "a":1}"#);
        assert_eq!(appended("{oops"), r#""{oops""#);
        assert_eq!(appended(""), r#""""#);
    }

    #[test]
    fn only_the_unpaired_half_is_replaced() {
        assert_eq!(appended(r#""\ud83d""#), r#""\ufffd""#);
        assert_eq!(appended(r#""\ude00""#), r#""\ufffd""#);
        assert_eq!(appended(r#""\ude00\ud83d""#), r#""\ufffd\ufffd""#);
        assert_eq!(appended(r#""\ud83d\ude00\ud83d""#), r#""\ud83d\ude00\ufffd""#);
        assert_eq!(appended(r#""\\ud83d""#), r#""\\ud83d""#);
    }

    #[test]
    fn deep_nesting_is_no_trouble() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(appended(&deep), deep);
    }

    proptest! {
        #[test]
        fn whatever_comes_the_line_is_one_json_value(text in "\\PC*|[\\\\ud83e0n\"{}:,\\n ]{0,40}") {
            let line = appended(&text);
            prop_assert!(!line.contains('\n') && !line.contains('\r'));
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{}", line);
        }
    }
}
