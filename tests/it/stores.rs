//! The page of stores, made of what the probe finds.
//!
//! `BATCH_EXPORT_WRITE_DOCS=1` writes the page anew.

use serde_json::Value;

use crate::docs::assert_page;
use crate::exports::STORES;
use crate::s3::capabilities;
use crate::services::{Bucket, Store};

const INTRODUCTION: &str = "# What stores do\n\n\
    `batch-export` needs little of a store: a PUT and multipart uploads. What a store does beyond that decides how much it can help to keep promises. This table is \
    made by the probe in `engine/src/sink/probe.rs` against the stores that the tests run on; a test fails when a store, or this page, changes.\n\n\
    *yes*: it does it · *ignored*: it takes the request and does as if it hadn't been asked · *refused*: it refuses the request\n\n";

const CONCLUSION: &str = "\nWhere both conditions on completing hold, an attempt that its successor has overtaken can't replace what the successor published: the store \
    itself refuses it. Where they are ignored, the last question to Temporal before completing is all there is; between its answer and the store's commit a stalled attempt \
    can still win, with the same window's rows. Where metadata is dropped, a lost reply to completing can't be settled by looking, so the run fails and is tried again.\n";

/// The probe's findings, in the page's words and order.
const ROWS: [(&str, &str); 15] = [
    ("put_if_absent", "`If-None-Match: *` on PUT"),
    ("put_if_unchanged", "`If-Match` on PUT"),
    ("complete_if_absent", "`If-None-Match: *` on completing an upload"),
    ("complete_if_unchanged", "`If-Match` on completing an upload"),
    ("minimum_part_size", "refuses parts under 5 MiB but for the last"),
    ("part_order", "refuses a list of parts that isn't in order"),
    ("unknown_part", "refuses a part that was never uploaded"),
    ("checksums", "takes CRC32 checksums"),
    ("checksums_verified", "refuses a body that doesn't fit its checksum"),
    ("unsigned_payload", "takes bodies left out of the signature"),
    ("encryption_aes256", "server-side encryption with AES256, as started here"),
    ("missing_bucket_at_create", "refuses an upload into a missing bucket when it is created"),
    ("metadata", "returns an object's metadata"),
    ("complete_twice", "completing an upload twice succeeds"),
    ("fenced", "a late attempt can't replace what its successor published"),
];

const fn name(store: Store) -> &'static str {
    match store {
        Store::SeaweedFs => "SeaweedFS",
        Store::JuiceFs => "JuiceFS gateway (MinIO's request handlers)",
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.as_str().expect("a word").to_lowercase(),
    }
}

async fn page() -> String {
    let mut columns = Vec::new();
    for store in STORES {
        let bucket = Bucket::fresh(store).await;
        columns.push(serde_json::to_value(capabilities(&bucket).await).expect("JSON"));
    }
    let found = columns[0].as_object().expect("an object");
    assert!(found.keys().all(|key| ROWS.iter().any(|(field, _)| field == key)), "the page leaves out one of {found:?}");
    let names = STORES.map(name).join(" | ");
    let rows = ROWS.map(|(field, text)| {
        let cells = columns.iter().map(|column| cell(&column[field])).collect::<Vec<_>>().join(" | ");
        format!("| {text} | {cells} |\n")
    });
    format!("{INTRODUCTION}| | {names} |\n|---|---|---|\n{}{CONCLUSION}", rows.concat())
}

#[tokio::test]
async fn the_page_of_stores_is_what_the_probe_finds() {
    let page = page().await;
    if !Store::SeaweedFs.is_unknown().await {
        return assert_page("docs/stores.md", &page);
    }
    // Of a store that the user brings the page says nothing.
    let last_cells = |page: &str| page.lines().filter_map(|line| Some(line.rsplit_once("| ")?.1.to_owned())).collect();
    let written: Vec<String> = last_cells(include_str!("../../docs/stores.md"));
    assert_eq!(last_cells(&page), written);
}
