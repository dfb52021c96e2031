//! Every ClickHouse setting that an export sends, in one place.
//!
//! Owns what the export depends on: whatever a profile of the server says, the output is the same and nothing is
//! silently left out. Does not own what a query means: settings that change the rows' values are the user's.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// A setting that is sent with every export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    name: &'static str,
    value: &'static str,
    rule: Rule,
}

/// Who may change a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The export depends on it, and every supported server knows it.
    Fixed,
    /// The export depends on it where the server knows it; older servers behave as asked without it.
    FixedIfKnown,
    /// A default: the user's own value wins.
    Default,
    /// A default that older servers don't know.
    DefaultIfKnown,
}

const fn fixed(name: &'static str, value: &'static str) -> Setting {
    Setting { name, value, rule: Rule::Fixed }
}

const fn fixed_if_known(name: &'static str, value: &'static str) -> Setting {
    Setting { name, value, rule: Rule::FixedIfKnown }
}

const fn default(name: &'static str, value: &'static str) -> Setting {
    Setting { name, value, rule: Rule::Default }
}

const fn default_if_known(name: &'static str, value: &'static str) -> Setting {
    Setting { name, value, rule: Rule::DefaultIfKnown }
}

/// The settings of the export's stream.
///
/// # Source
/// <https://clickhouse.com/docs/operations/settings/settings> and `…/formats`; those marked `…_if_known` are newer than
/// 22.8.
const EXPORT: &[Setting] = &[
    // What is on the wire. The plan of types casts everything else away (UUID, Variant, Enum, …).
    fixed("output_format_arrow_string_as_string", "0"),
    fixed("output_format_arrow_low_cardinality_as_dictionary", "0"),
    fixed_if_known("output_format_arrow_fixed_string_as_fixed_byte_array", "1"),
    fixed_if_known("output_format_arrow_compression_method", "none"),
    fixed_if_known("output_format_arrow_date_as_uint16", "0"),
    fixed_if_known("output_format_arrow_unsupported_types_as_binary", "0"),
    fixed_if_known("output_format_arrow_uuid_as_fixed_byte_array", "0"),
    fixed_if_known("output_format_arrow_variant_as_string", "0"),
    // How many rows come in one message: as they come from the query, so that messages stay small.
    default("max_block_size", "8192"),
    default_if_known("output_format_arrow_record_batch_size", "0"),
    default_if_known("output_format_arrow_record_batch_size_bytes", "0"),
    // How values look that the server turns into text: JSON, Dynamic, Variant.
    fixed("date_time_output_format", "simple"),
    fixed("bool_true_representation", "true"),
    fixed("bool_false_representation", "false"),
    fixed("output_format_json_quote_64bit_integers", "0"),
    fixed("output_format_json_quote_denormals", "0"),
    fixed("output_format_json_escape_forward_slashes", "0"),
    fixed("output_format_json_named_tuples_as_objects", "1"),
    fixed_if_known("output_format_json_quote_64bit_floats", "0"),
    fixed_if_known("output_format_json_quote_decimals", "0"),
    fixed_if_known("output_format_json_map_as_array_of_tuples", "0"),
    fixed_if_known("output_format_json_skip_null_value_in_named_tuples", "0"),
    fixed_if_known("output_format_decimal_trailing_zeros", "0"),
    fixed_if_known("json_type_escape_dots_in_keys", "0"),
    // A time without a zone is in UTC, in text and in literals, whatever the server's zone is.
    default_if_known("session_timezone", "UTC"),
    // The order of the inner query is the order of the rows.
    fixed_if_known("query_plan_remove_redundant_sorting", "0"),
    fixed_if_known("optimize_duplicate_order_by_and_distinct", "0"),
    // Nothing is left out in silence: a limit that is reached is an error.
    fixed("limit", "0"),
    fixed("offset", "0"),
    fixed("result_overflow_mode", "throw"),
    fixed("read_overflow_mode", "throw"),
    fixed("timeout_overflow_mode", "throw"),
    fixed("sort_overflow_mode", "throw"),
    fixed("group_by_overflow_mode", "throw"),
    fixed("distinct_overflow_mode", "throw"),
    fixed("join_overflow_mode", "throw"),
    fixed("set_overflow_mode", "throw"),
    fixed("transfer_overflow_mode", "throw"),
    fixed("skip_unavailable_shards", "0"),
    fixed_if_known("read_overflow_mode_leaf", "throw"),
    fixed_if_known("partial_result_on_first_cancel", "0"),
    fixed_if_known("use_query_cache", "0"),
    // How the answer travels: raw, streamed, with a failure that can be seen, and never on when nobody listens.
    fixed("enable_http_compression", "0"),
    fixed("wait_end_of_query", "0"),
    fixed("send_progress_in_http_headers", "0"),
    fixed("cancel_http_readonly_queries_on_client_close", "1"),
    fixed_if_known("http_write_exception_in_output_format", "0"),
    // How long it may take. A slow destination must not look dead to the server. Unit: seconds.
    default("http_send_timeout", "600"),
    default("max_execution_time", "86400"),
];

/// Names that the HTTP interface takes for something else than settings.
const RESERVED: &[&str] = &[
    "buffer_size",
    "close_session",
    "compress",
    "database",
    "decompress",
    "default_format",
    "password",
    "query",
    "query_id",
    "quota_key",
    "readonly",
    "role",
    "session_check",
    "session_id",
    "session_timeout",
    "stacktrace",
    "user",
];

/// Why the user may not set `name`; `None` when they may.
#[must_use]
pub fn refusal(name: &str) -> Option<String> {
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    if !is_name {
        return Some("isn't the name of a ClickHouse setting; use letters, digits and _".to_owned());
    }
    if RESERVED.contains(&name) || name.starts_with("param_") {
        return Some("isn't a ClickHouse setting that a query may carry; remove it".to_owned());
    }
    let setting = EXPORT.iter().find(|setting| setting.name == name)?;
    matches!(setting.rule, Rule::Fixed | Rule::FixedIfKnown)
        .then(|| format!("is always {} here, since the export depends on it; remove it", setting.value))
}

/// The settings of an export: ours, and the user's own, which win where the export doesn't depend on ours.
///
/// # Errors
/// `Config` for a setting that the user may not set.
pub(crate) fn for_export(user_settings: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let mut settings =
        EXPORT.iter().map(|setting| (setting.name.to_owned(), setting.value.to_owned())).collect::<BTreeMap<_, _>>();
    for (name, value) in user_settings {
        if let Some(reason) = refusal(name) {
            return Err(Error::config(format!("the setting {name} {reason}")));
        }
        settings.insert(name.clone(), value.clone());
    }
    Ok(settings)
}

/// Whether the export can do without a setting that the server doesn't know.
pub(crate) fn is_droppable(name: &str) -> bool {
    EXPORT
        .iter()
        .any(|setting| setting.name == name && matches!(setting.rule, Rule::FixedIfKnown | Rule::DefaultIfKnown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn the_users_own_settings_win_over_defaults() {
        let settings = for_export(&user("max_block_size", "100")).expect("allowed");
        assert_eq!(settings["max_block_size"], "100");
        assert_eq!(settings["output_format_arrow_string_as_string"], "0");
        assert_eq!(for_export(&user("max_threads", "2")).expect("allowed")["max_threads"], "2");
        assert_eq!(for_export(&BTreeMap::new()).expect("ours")["max_block_size"], "8192");
    }

    #[test]
    fn settings_that_the_export_depends_on_are_refused_by_name() {
        let error = for_export(&user("output_format_arrow_string_as_string", "1")).expect_err("ours");
        assert_eq!(
            error.to_string(),
            "the setting output_format_arrow_string_as_string is always 0 here, since the export depends on it; remove it"
        );
        for name in ["query_id", "param_x", "a b", "", "1a", "result_overflow_mode", "readonly"] {
            assert!(for_export(&user(name, "1")).is_err(), "{name}");
        }
    }

    #[test]
    fn every_name_occurs_once() {
        let mut names = EXPORT.iter().map(|setting| setting.name).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPORT.len());
    }
}
