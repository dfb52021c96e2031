//! One pinned object per format, byte for byte: a change of a library or of ours that changes what users get shows here.
//!
//! `BATCH_EXPORT_WRITE_GOLDEN=1` writes the files anew, for a change that is meant; the reviewer sees them in the diff.

use std::path::Path;

use engine::config::output::{JsonLinesCodec, Output, ParquetCodec};

use crate::exports::{self, STORES};
use crate::services::Bucket;

const SQL: &str = "SELECT number AS id, concat('line ', toString(number), '\\n\"ü😀') AS text, \
    if(number % 2 = 0, NULL, number / 4) AS half, toDateTime64('2026-01-01 00:00:00.5', 3, 'UTC') + number AS at, \
    toDate('2026-02-28') + number AS day, toDecimal64(number, 2) / 3 AS amount, [toString(number), 'x'] AS tags, \
    map('k', number) AS counts, tuple(number, 'y')::Tuple(a UInt64, b String) AS pair, \
    toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0') AS uuid, number = 1 AS is_one, toFixedString('ab', 3) AS fixed, \
    nan AS no_number, toInt64(-9223372036854775808) AS least, toUInt64(18446744073709551615) AS most, \
    toIPv4('127.0.0.1') AS address, CAST('b', 'Enum8(''a'' = 1, ''b'' = 2)') AS letter \
    FROM numbers(3) WHERE toDateTime64('2026-01-01 00:00:00', 6, 'UTC') < {interval_end} ORDER BY id";

#[tokio::test]
async fn objects_are_the_pinned_ones() {
    let bucket = Bucket::fresh(STORES[0]).await;
    for output in [Output::Parquet(ParquetCodec::Zstd), Output::JsonLines(JsonLinesCodec::Uncompressed)] {
        let report = exports::run(&exports::export("golden", SQL, output, &bucket)).await.expect("runs");
        let written = bucket.bytes(&report.files[0].key).await;
        let path = format!("{}/tests/it/golden/object.{}", env!("CARGO_MANIFEST_DIR"), output.extension());
        if std::env::var_os("BATCH_EXPORT_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("can be made");
            std::fs::write(&path, &written).expect("can be written");
        }
        let pinned = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(
            written == pinned,
            "{output} is not the pinned object any more:\n{}\n{}",
            String::from_utf8_lossy(&written),
            String::from_utf8_lossy(&pinned)
        );
    }
}
