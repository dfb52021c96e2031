//! The page of errors, made of the tables that decide, and the tables' names as the server knows them.
//!
//! `BATCH_EXPORT_WRITE_DOCS=1` writes the page anew.

use engine::error::ErrorKind;
use engine::sink::error::{Retry, Symptom, TABLE as S3};
use engine::source::error_code::TABLE as CLICKHOUSE;
use engine::source::failure::TABLE as WAY;

use crate::docs::assert_page;
use crate::exports::query;

const INTRODUCTION: &str = "# What goes wrong, and what happens then\n\n\
    Every failure has a kind, and the kind alone decides whether a run is tried again. Requests to S3 are tried again in place first: the same request, after a growing and jittered pause, up to eight \
    times. Reading from ClickHouse isn't, since a query's rows can't be continued in the middle; Temporal starts the run over.\n\n\
    This page is made of the tables in `engine/src/sink/error.rs`, `engine/src/source/error_code.rs` and `engine/src/source/failure.rs`; a test fails when it isn't what they say.\n\n";

const KINDS: [(ErrorKind, &str); 9] = [
    (ErrorKind::Config, "the configuration or the query is wrong: fix it"),
    (ErrorKind::Auth, "credentials or permissions are wrong: fix them"),
    (ErrorKind::NotFound, "a table, column, bucket or other named thing is missing: create it or fix the name"),
    (ErrorKind::Data, "the data can't be exported as configured: look at it"),
    (ErrorKind::SourceUnavailable, "ClickHouse can't be reached, or can't answer now"),
    (ErrorKind::DestinationUnavailable, "S3 can't be reached, or can't answer now"),
    (ErrorKind::Shutdown, "the worker is going down, or another attempt takes over"),
    (ErrorKind::Cancelled, "somebody asked the run to stop"),
    (ErrorKind::Internal, "a fault that isn't known, or ours: tried again at most 15 times"),
];

fn symptom(symptom: &Symptom) -> String {
    match symptom {
        Symptom::Code(code) => format!("`{code}`"),
        Symptom::Status(status) => format!("HTTP {status}"),
        Symptom::ServerError => "any other HTTP 5xx".to_owned(),
        Symptom::BadReply => "success without a proper result".to_owned(),
        Symptom::Dns => "a name that doesn't exist".to_owned(),
        Symptom::Tls => "a certificate or protocol that isn't acceptable".to_owned(),
        Symptom::Connect => "nobody listens".to_owned(),
        Symptom::Timeout => "no reply in time".to_owned(),
        Symptom::ConnectionLost => "a connection that breaks".to_owned(),
        Symptom::Credentials => "no credentials".to_owned(),
        Symptom::Request => "a request that can't be made".to_owned(),
        Symptom::Unknown => "everything else".to_owned(),
    }
}

const fn retried(retry: Retry) -> &'static str {
    match retry {
        Retry::InPlace => "in place, then by Temporal",
        Retry::ByTemporal => "by Temporal",
        Retry::Not => "no",
    }
}

fn page() -> String {
    let kinds = KINDS.map(|(kind, meaning)| {
        let again = if kind.is_retryable() { "yes" } else { "no" };
        format!("| {kind} | {meaning} | {again} |\n")
    });
    let s3 = S3.iter().map(|row| {
        let symptoms = row.symptoms.iter().map(symptom).collect::<Vec<_>>().join(", ");
        format!("| {symptoms} | {} | {} | {} |\n", row.kind, retried(row.retry), row.sentence.replace("{detail}", ""))
    });
    let clickhouse = CLICKHOUSE.iter().map(|row| {
        let codes = row.codes.iter().map(|(code, name)| format!("{code} `{name}`")).collect::<Vec<_>>().join(", ");
        let again = if row.kind.is_retryable() { "by Temporal" } else { "no" };
        format!("| {codes} | {} | {again} | {} |\n", row.kind, row.hint.unwrap_or_default())
    });
    let way = WAY.iter().map(|row| {
        let again = if row.kind.is_retryable() { "by Temporal" } else { "no" };
        let sentence = row.sentence.replace("{url}", "the URL").replace("{detail}", "…");
        format!("| {} | {} | {again} | {sentence} |\n", row.words, row.kind)
    });
    format!(
        "{INTRODUCTION}| kind | meaning | tried again |\n|---|---|---|\n{}\
         \n## S3\n\nA code wins over its status.\n\n| what the store says or does | kind | tried again | what you read |\n|---|---|---|---|\n{}\
         \n## ClickHouse's exceptions\n\nYou read the server's own words, with a way out behind them where there is one. A code that isn't here is Internal.\n\n\
         | code | kind | tried again | way out |\n|---|---|---|---|\n{}\n\
         ## ClickHouse without an exception\n\nAn exception within the stream, in either form, wins over what else is wrong with it.\n\n\
         | what happens | kind | tried again | what you read |\n|---|---|---|---|\n{}",
        kinds.concat(),
        s3.collect::<String>(),
        clickhouse.collect::<String>(),
        way.collect::<String>()
    )
}

#[test]
fn the_page_of_errors_is_what_the_tables_say() {
    assert_page("docs/errors.md", &page());
}

#[tokio::test]
async fn codes_have_the_names_that_the_server_gives_them() {
    for (code, name) in CLICKHOUSE.iter().flat_map(|row| row.codes) {
        assert_eq!(query(&format!("SELECT errorCodeToName({code})")).await, *name, "{code}");
    }
}
