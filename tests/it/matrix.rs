//! Every format and compression, over no rows, one row, many blocks and a row larger than a part, on both stores.

use engine::config::output::{JsonLinesCodec, Output, ParquetCodec};

use crate::exports::{self, STORES, Table};
use crate::services::Bucket;

/// Text that no codec can make small, in order to have several parts.
const NOISE: &str =
    "arrayStringConcat(arrayMap(x -> base64Encode(SHA256(concat(toString(number), '-', toString(x)))), range(";

fn rows(count: u64, noise: u64) -> String {
    format!(
        "SELECT number AS id, toDateTime64('2026-01-01 00:00:00', 6, 'UTC') + toIntervalMicrosecond(number) AS at, \
         concat('row ', toString(number), ' \"ü\" \\\\ 😀 ', {NOISE}{noise})))) AS text, \
         if(number % 3 = 0, NULL, toString(number)) AS maybe, toDecimal64(number, 4) / 7 AS amount, \
         toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0') AS uuid, toInt64(number) - 5 AS small, \
         toDate('2026-01-01') + number % 300 AS day, number % 2 = 0 AS even FROM numbers({count})"
    )
}

async fn matrix(select: &str, parts: std::ops::RangeInclusive<u32>) {
    let table = Table::of(select).await;
    let expected = exports::source_reads(&table).await;
    for store in STORES {
        let bucket = Bucket::fresh(store).await;
        let mut objects = Vec::new();
        for output in Output::ALL {
            let export = exports::export(&format!("m-{output}"), &table.template(), output, &bucket);
            let report = exports::run(&export).await.unwrap_or_else(|error| panic!("{store:?} {output}: {error:?}"));
            let [file] = report.files.as_slice() else { panic!("{store:?} {output}: {report:?}") };
            if output.codec_name().is_none() {
                assert!(parts.contains(&file.parts), "{store:?} {output}: {} parts", file.parts);
            }
            assert!(file.key.ends_with(output.extension()), "{}", file.key);
            exports::assert_clickhouse_reads(&bucket, &file.key, output, &table.source_sql());
            let bytes = bucket.bytes(&file.key).await;
            assert_eq!(bytes.len() as u64, file.bytes, "{store:?} {output}");
            objects.push((output, bytes));
        }
        for ((output, _), read) in objects.iter().zip(exports::pyarrow_reads(&objects)) {
            assert_eq!(read, expected, "{store:?} {output}");
        }
        assert_eq!(bucket.uploads().await, [""; 0], "{store:?} has leftover uploads");
    }
}

#[tokio::test]
async fn no_rows() {
    matrix(&rows(0, 1), 0..=0).await;
}

#[tokio::test]
async fn one_row() {
    matrix(&rows(1, 1), 0..=0).await;
}

#[tokio::test]
async fn many_blocks() {
    matrix(&rows(30_000, 8), 3..=4).await;
}

#[tokio::test]
async fn a_row_larger_than_a_part() {
    matrix(
        &format!("{} UNION ALL {}", rows(1, 150_000), rows(5, 3).replace("number AS id", "number + 1 AS id")),
        2..=2,
    )
    .await;
}

/// Promise 1, against real services: the bytes are those of the rows and the configuration, whoever encodes them.
#[tokio::test]
async fn the_objects_bytes_do_not_depend_on_the_number_of_consumers() {
    let table = Table::of(&rows(30_000, 8)).await;
    let bucket = Bucket::fresh(STORES[0]).await;
    for output in Output::ALL {
        let mut objects = Vec::new();
        for consumers in [1, 2, 8] {
            let mut export = exports::export(&format!("c{consumers}-{output}"), &table.template(), output, &bucket);
            export.limits.consumers = consumers;
            let report = exports::run(&export).await.expect("runs");
            objects.push(bucket.bytes(&report.files[0].key).await);
        }
        assert!(objects[0] == objects[1] && objects[0] == objects[2], "{output} differs");
    }
}

/// Without `write_empty`, a window without rows leaves no object.
#[tokio::test]
async fn no_rows_write_no_object_by_default() {
    let table = Table::of(&rows(0, 1)).await;
    let bucket = Bucket::fresh(STORES[0]).await;
    for output in Output::ALL {
        let mut export = exports::export(&format!("e-{output}"), &table.template(), output, &bucket);
        export.destination.write_empty = false;
        let report = exports::run(&export).await.expect("runs");
        assert_eq!((report.rows, report.files.len()), (0, 0));
    }
    assert_eq!(bucket.keys().await, [""; 0]);
}

/// JSON has only text as names; Parquet keeps the keys' own type.
#[tokio::test]
async fn keys_of_maps_are_text_in_json_lines_only() {
    let sql = "SELECT 1 AS id, map(toUInt64(7), 'x') AS numbers, map(toDate('2026-01-02'), [map(toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0'), 2.5)]) AS nested \
               WHERE now() > {interval_end}";
    let bucket = Bucket::fresh(STORES[0]).await;
    let lines = Output::JsonLines(JsonLinesCodec::Uncompressed);
    let report = exports::run(&exports::export("map-lines", sql, lines, &bucket)).await.expect("runs");
    let line = bucket.bytes(&report.files[0].key).await;
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&line).expect("JSON"),
        serde_json::json!({
            "id": 1,
            "numbers": { "7": "x" },
            "nested": { "2026-01-02": [{ "61f0c404-5cb3-11e7-907b-a6006ad3dba0": 2.5 }] },
        })
    );
    let parquet = Output::Parquet(ParquetCodec::Zstd);
    let report = exports::run(&exports::export("map-parquet", sql, parquet, &bucket)).await.expect("runs");
    let (source, _window) = sql.split_once(" WHERE").expect("a window");
    exports::assert_clickhouse_reads(&bucket, &report.files[0].key, parquet, source);
}
