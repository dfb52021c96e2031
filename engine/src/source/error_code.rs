//! The closed table of ClickHouse's error codes: what each means for a run, and the way out.
//!
//! Owns kinds and hints. Does not own how an exception is found in a response: see [`super::exception`].

use crate::error::ErrorKind::{self, Auth, Config, Data, Internal, NotFound, SourceUnavailable};

/// One row: codes with one meaning.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What the reader has to do; it alone decides about retries.
    pub kind: ErrorKind,
    /// The codes, with ClickHouse's names for them.
    pub codes: &'static [(u32, &'static str)],
    /// The way out, behind the server's own words, where it doesn't follow from them.
    pub hint: Option<&'static str>,
}

const fn row(kind: ErrorKind, codes: &'static [(u32, &'static str)]) -> Row {
    Row { kind, codes, hint: None }
}

const fn hinted(kind: ErrorKind, codes: &'static [(u32, &'static str)], hint: &'static str) -> Row {
    Row { kind, codes, hint: Some(hint) }
}

/// Every code that we know. All others are `Internal`: tried again, up to a cap.
///
/// # Invariants
/// No code is in two rows.
///
/// # Source
/// `src/Common/ErrorCodes.cpp` of ClickHouse; a server tells its names by `errorCodeToName`.
pub const TABLE: &[Row] = &[
    hinted(
        Auth,
        &[(516, "AUTHENTICATION_FAILED"), (192, "UNKNOWN_USER"), (193, "WRONG_PASSWORD"), (194, "REQUIRED_PASSWORD")],
        "check the connection's user and password",
    ),
    hinted(
        Auth,
        &[(497, "ACCESS_DENIED"), (291, "DATABASE_ACCESS_DENIED")],
        "grant the user SELECT on what the query reads",
    ),
    hinted(Auth, &[(195, "IP_ADDRESS_NOT_ALLOWED")], "allow the user to connect from this machine's address"),
    row(Auth, &[(511, "UNKNOWN_ROLE")]),
    hinted(
        NotFound,
        &[(60, "UNKNOWN_TABLE"), (81, "UNKNOWN_DATABASE"), (218, "TABLE_IS_DROPPED")],
        "check the name and the connection's database",
    ),
    hinted(
        NotFound,
        &[
            (47, "UNKNOWN_IDENTIFIER"),
            (16, "NO_SUCH_COLUMN_IN_TABLE"),
            (10, "NOT_FOUND_COLUMN_IN_BLOCK"),
            (8, "THERE_IS_NO_COLUMN"),
        ],
        "check the column's name",
    ),
    row(NotFound, &[(107, "FILE_DOESNT_EXIST"), (701, "CLUSTER_DOESNT_EXIST")]),
    hinted(Config, &[(115, "UNKNOWN_SETTING")], "check the setting's name in source.settings"),
    hinted(Config, &[(164, "READONLY")], "the user's profile needs readonly = 2 or 0, so that settings can be sent"),
    hinted(
        Config,
        &[(452, "SETTING_CONSTRAINT_VIOLATION")],
        "the user's profile doesn't allow that value; change it in source.settings, or the profile",
    ),
    row(
        Config,
        &[
            (1, "UNSUPPORTED_METHOD"),
            (36, "BAD_ARGUMENTS"),
            (42, "NUMBER_OF_ARGUMENTS_DOESNT_MATCH"),
            (43, "ILLEGAL_TYPE_OF_ARGUMENT"),
            (44, "ILLEGAL_COLUMN"),
            (46, "UNKNOWN_FUNCTION"),
            (48, "NOT_IMPLEMENTED"),
            (50, "UNKNOWN_TYPE"),
            (53, "TYPE_MISMATCH"),
            (62, "SYNTAX_ERROR"),
            (63, "UNKNOWN_AGGREGATE_FUNCTION"),
            (161, "TOO_MANY_COLUMNS"),
            (162, "TOO_DEEP_SUBQUERIES"),
            (167, "TOO_DEEP_AST"),
            (168, "TOO_BIG_AST"),
            (179, "MULTIPLE_EXPRESSIONS_FOR_ALIAS"),
            (184, "ILLEGAL_AGGREGATION"),
            (207, "AMBIGUOUS_IDENTIFIER"),
            (215, "NOT_AN_AGGREGATE"),
            (352, "AMBIGUOUS_COLUMN_NAME"),
            (386, "NO_COMMON_TYPE"),
            (403, "INVALID_JOIN_ON_EXPRESSION"),
            (456, "UNKNOWN_QUERY_PARAMETER"),
            (457, "BAD_QUERY_PARAMETER"),
        ],
    ),
    row(
        Data,
        &[
            (6, "CANNOT_PARSE_TEXT"),
            (27, "CANNOT_PARSE_INPUT_ASSERTION_FAILED"),
            (38, "CANNOT_PARSE_DATE"),
            (41, "CANNOT_PARSE_DATETIME"),
            (70, "CANNOT_CONVERT_TYPE"),
            (72, "CANNOT_PARSE_NUMBER"),
            (117, "INCORRECT_DATA"),
            (125, "INCORRECT_RESULT_OF_SCALAR_SUBQUERY"),
            (130, "CANNOT_READ_ARRAY_FROM_TEXT"),
            (131, "TOO_LARGE_STRING_SIZE"),
            (153, "ILLEGAL_DIVISION"),
            (321, "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE"),
            (349, "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
            (376, "CANNOT_PARSE_UUID"),
            (395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
            (407, "DECIMAL_OVERFLOW"),
            (691, "UNKNOWN_ELEMENT_OF_ENUM"),
        ],
    ),
    hinted(
        Data,
        &[
            (158, "TOO_MANY_ROWS"),
            (307, "TOO_MANY_BYTES"),
            (396, "TOO_MANY_ROWS_OR_BYTES"),
            (191, "SET_SIZE_LIMIT_EXCEEDED"),
        ],
        "the window is larger than the user's limits; choose a shorter interval, or raise the limit in source.settings",
    ),
    hinted(
        SourceUnavailable,
        &[(241, "MEMORY_LIMIT_EXCEEDED"), (173, "CANNOT_ALLOCATE_MEMORY")],
        "give the query more memory (max_memory_usage), or let it spill (max_bytes_before_external_sort)",
    ),
    hinted(
        SourceUnavailable,
        &[(159, "TIMEOUT_EXCEEDED"), (160, "TOO_SLOW")],
        "give the query more time (max_execution_time in source.settings, or the user's profile)",
    ),
    hinted(
        SourceUnavailable,
        &[(201, "QUOTA_EXCEEDED")],
        "the user's quota is used up; it is tried again, and passes when the quota begins anew",
    ),
    row(
        SourceUnavailable,
        &[
            (3, "UNEXPECTED_END_OF_FILE"),
            (32, "ATTEMPT_TO_READ_AFTER_EOF"),
            (33, "CANNOT_READ_ALL_DATA"),
            (40, "CHECKSUM_DOESNT_MATCH"),
            (198, "DNS_ERROR"),
            (202, "TOO_MANY_SIMULTANEOUS_QUERIES"),
            (203, "NO_FREE_CONNECTION"),
            (209, "SOCKET_TIMEOUT"),
            (210, "NETWORK_ERROR"),
            (216, "QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING"),
            (225, "NO_ZOOKEEPER"),
            (236, "ABORTED"),
            (242, "TABLE_IS_READ_ONLY"),
            (243, "NOT_ENOUGH_SPACE"),
            (244, "UNEXPECTED_ZOOKEEPER_ERROR"),
            (271, "CANNOT_DECOMPRESS"),
            (279, "ALL_CONNECTION_TRIES_FAILED"),
            (369, "ALL_REPLICAS_ARE_STALE"),
            (394, "QUERY_WAS_CANCELLED"),
            (425, "SYSTEM_ERROR"),
            (439, "CANNOT_SCHEDULE_TASK"),
            (473, "DEADLOCK_AVOIDED"),
            (499, "S3_ERROR"),
            (519, "NO_REMOTE_SHARD_AVAILABLE"),
            (700, "USER_SESSION_LIMIT_EXCEEDED"),
            (722, "ASYNC_LOAD_WAIT_FAILED"),
            (733, "TABLE_IS_BEING_RESTARTED"),
            (735, "QUERY_WAS_CANCELLED_BY_CLIENT"),
            (999, "KEEPER_EXCEPTION"),
            (1000, "POCO_EXCEPTION"),
        ],
    ),
];

/// What the reader has to do about a code.
#[must_use]
pub fn kind_of(code: u32) -> ErrorKind {
    find(code).map_or(Internal, |row| row.kind)
}

/// The way out, where the server's words don't say it.
pub(super) fn hint_of(code: u32) -> Option<&'static str> {
    find(code)?.hint
}

fn find(code: u32) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.codes.iter().any(|(known, _)| *known == code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_in_one_row_only() {
        let mut seen = std::collections::BTreeSet::new();
        for (code, name) in TABLE.iter().flat_map(|row| row.codes) {
            assert!(seen.insert(code), "{code} {name} stands twice");
        }
    }

    #[test]
    fn codes_that_nobody_knows_are_ours_to_look_at() {
        assert_eq!((kind_of(4_000), hint_of(4_000)), (Internal, None));
        assert_eq!(kind_of(62), Config);
    }
}
