//! The check against the real services: what it proves, what it names, and that it leaves nothing.

use engine::check::{CheckReport, Depth, Outcome, check};
use engine::config::export::{Encryption, ExportConfig};
use engine::config::output::{Output, ParquetCodec};
use engine::config::secret::Secret;
use engine::error::{Error, ErrorKind};
use engine::transform::Transforms;

use crate::exports::{day, export};
use crate::services::{Bucket, Store};

const SQL: &str = "SELECT toUInt64(1) AS id, toNullable('x') AS text, {interval_start} AS at WHERE at < {interval_end}";

fn export_to(bucket: &Bucket, sql: &str) -> ExportConfig {
    export("check", sql, Output::Parquet(ParquetCodec::Zstd), bucket)
}

/// The steps with their outcomes, in order.
fn outcomes(report: &CheckReport) -> Vec<(&'static str, Outcome)> {
    report.steps.iter().map(|step| (step.name, step.outcome)).collect()
}

#[tokio::test]
async fn an_export_that_works_passes_and_leaves_nothing() {
    use Outcome::{Ok, Skipped, Warning};
    for store in [Store::SeaweedFs, Store::JuiceFs] {
        let bucket = Bucket::fresh(store).await;
        let export = export_to(&bucket, SQL);
        let report = check(&export, &day(), Depth::NoTrace, &Transforms::default()).await;
        let steps =
            [("source", Ok), ("query", Ok), ("key", Ok), ("credentials", Ok), ("upload", Ok), ("store", Skipped)];
        assert_eq!(outcomes(&report), steps, "{report:?}");
        let columns = report.columns.iter().map(|column| (column.name.as_str(), column.nullable)).collect::<Vec<_>>();
        assert_eq!(columns, [("id", false), ("text", true), ("at", false)]);
        assert!(report.failures().is_empty());

        let report = check(&export, &day(), Depth::Full, &Transforms::default()).await;
        let found = report.store.as_ref().expect("the store was probed");
        assert_eq!(outcomes(&report).last(), Some(&("store", if found.fenced { Ok } else { Warning })), "{report:?}");
        assert_eq!((bucket.keys().await, bucket.uploads().await), (Vec::new(), Vec::new()), "{store:?}");
    }
}

#[tokio::test]
async fn both_sides_faults_are_named_at_once() {
    use Outcome::{Failed, Ok, Skipped};
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let mut export = export_to(&bucket, "SELECT * FROM no_such_table WHERE at < {interval_end}");
    export.destination.bucket = "batch-export-no-such-bucket".to_owned();
    let report = check(&export, &day(), Depth::Full, &Transforms::default()).await;
    assert_eq!(
        outcomes(&report),
        [("source", Ok), ("query", Failed), ("key", Ok), ("credentials", Ok), ("upload", Failed), ("store", Skipped)]
    );
    assert!(report.steps[1].message.contains("no_such_table"), "{report:?}");
    assert!(report.steps[4].message.contains("batch-export-no-such-bucket"), "{report:?}");
    assert_eq!(report.failures().len(), 2);
}

#[tokio::test]
async fn wrong_passwords_are_named_and_not_shown() {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let mut export = export_to(&bucket, SQL);
    export.source.connection.password = Secret::new("marker-password");
    let keys = export.destination.connection.credentials.as_mut().expect("the store's keys");
    keys.secret_access_key = Secret::new("marker-secret");
    let report = check(&export, &day(), Depth::NoTrace, &Transforms::default()).await;
    let failed = report.steps.iter().filter(|step| step.outcome == Outcome::Failed).map(|step| step.name);
    assert_eq!(failed.collect::<Vec<_>>(), ["source", "upload"], "{report:?}");
    let shown = format!("{report:?}");
    assert!(!shown.contains("marker-"), "{shown}");
    assert_eq!(report.failures().iter().map(Error::kind).collect::<Vec<_>>(), [ErrorKind::Auth, ErrorKind::Auth]);
}

#[tokio::test]
async fn the_exports_own_encryption_is_tried() {
    let bucket = Bucket::fresh(Store::JuiceFs).await;
    let mut export = export_to(&bucket, SQL);
    export.destination.encryption = Some(Encryption::Aes256);
    let report = check(&export, &day(), Depth::NoTrace, &Transforms::default()).await;
    let step = report.steps.iter().find(|step| step.name == "upload").expect("is tried");
    assert_eq!((step.outcome, step.kind), (Outcome::Failed, Some("Config")), "{report:?}");
    assert!(step.message.contains("leave encryption out"), "{report:?}");
}
