use proptest::prelude::*;

use super::*;
use crate::config::output::{JsonLinesCodec, ParquetCodec};
use crate::error::ErrorKind;

const PARQUET: Output = Output::Parquet(ParquetCodec::Zstd);
const JSONL: Output = Output::JsonLines(JsonLinesCodec::Uncompressed);
const JSONL_GZIP: Output = Output::JsonLines(JsonLinesCodec::Gzip);
const JSONL_BROTLI: Output = Output::JsonLines(JsonLinesCodec::Brotli);
const SNAPPY: Output = Output::Parquet(ParquetCodec::Snappy);

fn interval(start: &str, end: &str) -> Interval {
    Interval::new(start.parse().expect("a start"), end.parse().expect("an end")).expect("a window")
}

fn hour() -> Interval {
    interval("2023-01-01T14:00:00Z", "2023-01-01T15:00:00Z")
}

fn reference(prefix: &str, output: Output) -> String {
    object_key(prefix, KeyLayout::Reference, "export", "events", &hour(), output).expect("a key")
}

fn default(prefix: &str, export_id: &str, interval: &Interval) -> String {
    object_key(prefix, KeyLayout::Default, export_id, "events", interval, PARQUET).expect("a key")
}

#[test]
fn reference_layout_takes_every_slash_form() {
    let file = "2023-01-01T14:00:00+00:00-2023-01-01T15:00:00+00:00";
    for (prefix, output, wanted) in [
        ("/", JSONL, format!("{file}.jsonl")),
        ("", JSONL, format!("{file}.jsonl")),
        ("", JSONL_GZIP, format!("{file}.jsonl.gz")),
        ("", JSONL_BROTLI, format!("{file}.jsonl.br")),
        ("my-fancy-prefix", JSONL, format!("my-fancy-prefix/{file}.jsonl")),
        ("/my-fancy-prefix", JSONL_GZIP, format!("my-fancy-prefix/{file}.jsonl.gz")),
        ("my-fancy-prefix/", JSONL_BROTLI, format!("my-fancy-prefix/{file}.jsonl.br")),
        ("/my-fancy-prefix/", JSONL, format!("my-fancy-prefix/{file}.jsonl")),
        ("//my-fancy-prefix//", JSONL, format!("my-fancy-prefix/{file}.jsonl")),
        ("nested/prefix", JSONL, format!("nested/prefix/{file}.jsonl")),
        ("/nested/prefix", JSONL_GZIP, format!("nested/prefix/{file}.jsonl.gz")),
        ("nested/prefix/", JSONL_BROTLI, format!("nested/prefix/{file}.jsonl.br")),
        ("/nested/prefix/", JSONL, format!("nested/prefix/{file}.jsonl")),
        ("/nested/prefix/", SNAPPY, format!("nested/prefix/{file}.parquet")),
        ("/nested/prefix/", PARQUET, format!("nested/prefix/{file}.parquet")),
        ("/", SNAPPY, format!("{file}.parquet")),
        ("/a/../b/./c", JSONL, format!("b/c/{file}.jsonl")),
        ("a//b", JSONL, format!("a//b/{file}.jsonl")),
        ("with space+plus%25#?é🦀", JSONL, format!("with space+plus%25#?é🦀/{file}.jsonl")),
    ] {
        assert_eq!(reference(prefix, output), wanted, "prefix {prefix:?}, {output}");
    }
}

#[test]
fn variables_come_from_the_end_in_utc() {
    let window = interval("2024-02-28T23:58:59Z", "2024-02-29T01:02:03.000004Z");
    let prefix =
        "{table}/{year}/{month}/{day}/{hour}-{minute}-{second}/{data_interval_start}/{data_interval_end}/{{x}}";
    let key = object_key(prefix, KeyLayout::Reference, "e", "persons", &window, JSONL).expect("a key");
    assert_eq!(
        key,
        "persons/2024/02/29/01-02-03/2024-02-28T23:58:59+00:00/2024-02-29T01:02:03.000004+00:00/{x}/\
         2024-02-28T23:58:59+00:00-2024-02-29T01:02:03.000004+00:00.jsonl"
    );
}

#[test]
fn bad_templates_are_refused_by_name() {
    for (prefix, part) in [
        ("a/{years}", "unknown variable {years}"),
        ("a/{}", "unknown variable {}"),
        ("a/{0}", "unknown variable {0}"),
        ("a/{year!r}", "{year!r}: format access"),
        ("a/{table.x}", "{table.x}: format access"),
        ("a/{table[0]}", "{table[0]}: format access"),
        ("a/{year:04d}", "{year:04d}: format access"),
        ("a/{year", "{ without a }"),
        ("a/year}", "} without a {"),
        ("a/{{year}", "} without a {"),
        ("a\n", "control character"),
    ] {
        let sentence = check_prefix(prefix).expect_err("is refused");
        assert!(sentence.contains(part), "{prefix:?}: {sentence}");
        let error = object_key(prefix, KeyLayout::Default, "e", "events", &hour(), JSONL)
            .expect_err("is refused by the key too");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    assert_eq!(check_prefix("{{}}/{year}"), Ok(()));
}

#[test]
fn default_layout_is_safe_and_readable() {
    let day = interval("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    assert_eq!(
        default("raw/{year}", "events-daily", &day),
        "raw/2026/events-daily/2026-01-01T00-00-00Z--2026-01-02T00-00-00Z.parquet"
    );
    assert_eq!(
        default("", "café/..", &interval("2026-01-01T00:00:00.5Z", "2026-01-02T00:00:00Z")),
        "caf~C3~A9~2F../2026-01-01T00-00-00.500000Z--2026-01-02T00-00-00Z.parquet"
    );
    assert!(default("/", "..", &day).starts_with("~2E./"));
    assert!(default("/", "~2E.", &day).starts_with("~7E2E./"));
}

#[test]
fn over_long_keys_and_empty_ids_are_refused() {
    // The rest of the key, with its slashes, has 50 + 1 + 1 + 1 bytes.
    let longest = "é".repeat((MAX_KEY_BYTES - 53) / 2);
    let key = default(&format!("{longest}a"), "e", &hour());
    assert_eq!(key.len(), MAX_KEY_BYTES);
    let long = object_key(&format!("{longest}ab"), KeyLayout::Default, "e", "events", &hour(), PARQUET);
    assert!(long.expect_err("one byte too long").message().contains("1025 bytes"));
    let empty = object_key("", KeyLayout::Default, "", "events", &hour(), PARQUET);
    assert_eq!(empty.expect_err("no id").kind(), ErrorKind::Config);
}

#[test]
fn uris_are_as_other_tools_write_them() {
    assert_eq!(uri("bucket", "a/b"), "s3://bucket/a/b");
}

prop_compose! {
    fn windows()(start in -62_000_000_000_000_000_i64..250_000_000_000_000_000, length in 1_i64..100_000_000_000) -> Interval {
        let at = |micros| Timestamp::from_microsecond(micros).expect("in range");
        Interval::new(at(start), at(start + length)).expect("a window")
    }
}

/// The two segments that carry the run's identity.
fn tail(key: &str) -> &str {
    let (head, _) = key.rsplit_once('/').expect("a directory");
    &key[head.rfind('/').map_or(0, |at| at + 1)..]
}

proptest! {
    #[test]
    fn default_keys_are_injective(
        ids in ("[~2EF./a-]{1,4}|.{1,20}", "[~2EF./a-]{1,4}|.{1,20}"),
        windows in (windows(), windows()),
        prefixes in (prop_oneof![Just(""), Just("/"), Just("p/{day}")], prop_oneof![Just(""), Just("/"), Just("p/{day}")]),
        (same_id, same_window) in (any::<bool>(), any::<bool>()),
    ) {
        let second = (if same_id { &ids.0 } else { &ids.1 }, if same_window { &windows.0 } else { &windows.1 });
        let keys = (default(prefixes.0, &ids.0, &windows.0), default(prefixes.1, second.0, second.1));
        let same_run = &ids.0 == second.0 && &windows.0 == second.1;
        prop_assert_eq!(tail(&keys.0) == tail(&keys.1), same_run);
    }

    #[test]
    fn escapes_can_be_undone(id in "\\PC{0,30}|[.~%/ -]{1,6}") {
        let escaped = escape(&id);
        let mut bytes = Vec::new();
        let mut rest = escaped.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            prop_assert!(first.is_ascii_alphanumeric() || b"-_.~".contains(&first));
            if first == b'~' {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).expect("hex"), 16).expect("hex"));
                rest = &tail[2..];
            } else {
                bytes.push(first);
                rest = tail;
            }
        }
        prop_assert_eq!(String::from_utf8(bytes).expect("text"), id);
    }
}
