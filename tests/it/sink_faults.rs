//! What happens when S3 breaks: either the object is whole and there once, or nothing is there and nothing is left.

use std::sync::Arc;
use std::time::Duration;

use engine::config::export::ExportConfig;
use engine::config::output::{JsonLinesCodec, Output, ParquetCodec};
use engine::error::{ErrorKind, Result};
use engine::pipeline::progress::Progress;
use engine::run::{Engine, RunContext, RunIdentity, RunReport};
use engine::stop::Stop;

use crate::exports::{self, STORES, Table};
use crate::report::Score;
use crate::s3_proxy::{Fault, Operation, Rule, S3Proxy};
use crate::services::{Bucket, Store};

/// Rows that make four parts of 5 MiB, uncompressed.
const ROWS: u64 = 60_000;

/// One run to a store through a proxy.
struct Rig {
    proxy: S3Proxy,
    bucket: Bucket,
    export: ExportConfig,
}

impl Rig {
    async fn new(store: Store, table: &Table, output: Output) -> Self {
        let (proxy, bucket) = (S3Proxy::start(store).await, Bucket::fresh(store).await);
        let mut export = exports::export("breaks", &table.template(), output, &bucket);
        export.destination.connection = proxy.connection();
        Self { proxy, bucket, export }
    }

    async fn run(&self) -> Result<RunReport> {
        exports::run(&self.export).await
    }

    /// The object is there, once, and ClickHouse reads in it what the table holds.
    async fn assert_whole(&self, what: &str, outcome: Result<RunReport>, table: &Table) {
        let report = outcome.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!((report.rows, report.files.len()), (ROWS, 1), "{what}");
        assert_eq!(self.bucket.keys().await, [report.files[0].key.as_str()], "{what}");
        exports::assert_clickhouse_reads(&self.bucket, &report.files[0].key, self.export.output, &table.source_sql());
        assert_eq!(self.bucket.uploads().await, [""; 0], "{what}");
        assert!(self.proxy.is_through(), "{what}: the fault never happened");
    }

    async fn assert_nothing(&self, what: &str, outcome: Result<RunReport>, kind: ErrorKind) {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), kind, "{what}: {error:?}");
        assert_eq!(self.bucket.keys().await, [""; 0], "{what}: {error:?}");
        assert_eq!(self.bucket.uploads().await, [""; 0], "{what}: {error:?}");
        assert!(self.proxy.is_through(), "{what}: the fault never happened");
    }
}

async fn table() -> Table {
    Table::of(&format!(
        "SELECT number AS id, toDateTime64('2026-01-01 00:00:00', 6, 'UTC') AS at, \
         repeat(base64Encode(SHA256(toString(number))), 8) AS text FROM numbers({ROWS})"
    ))
    .await
}

const OUTPUTS: [Output; 2] =
    [Output::Parquet(ParquetCodec::Uncompressed), Output::JsonLines(JsonLinesCodec::Uncompressed)];

/// Faults that pass: the same request is sent again, and the object is the one that it would have been.
#[tokio::test]
async fn faults_that_pass_are_ridden_out() {
    use Fault::{Delayed, Refused, ReplyLost, ResetAfterBody, ResetBeforeBody};
    use Operation::{Complete, Create, Part};
    const ERROR: &str = "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";
    const SPACED: &str = "<?xml version=\"1.0\"?>\n   \n\n<Error><Code>InternalError</Code></Error>";
    const TRUNCATED: &str = "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><Bucket>lake</Buck";
    let faults = [
        (Create, 2, Refused(503, "SlowDown")),
        (Create, 1, ResetAfterBody),
        (Part, 3, Refused(503, "SlowDown")),
        (Part, 2, Refused(500, "InternalError")),
        (Part, 1, Refused(400, "RequestTimeout")),
        (Part, 1, Refused(400, "BadDigest")),
        (Part, 2, ResetBeforeBody),
        (Part, 2, ResetAfterBody),
        (Part, 2, ReplyLost),
        (Part, 4, Delayed(Duration::from_millis(700))),
        (Complete, 2, Refused(503, "SlowDown")),
        (Complete, 1, ResetAfterBody),
        (Complete, 1, Fault::Pretended(ERROR)),
        (Complete, 1, Fault::Pretended(SPACED)),
        (Complete, 1, Fault::Pretended(TRUNCATED)),
        (Complete, 1, Fault::Pretended("")),
        (Complete, 1, Delayed(Duration::from_secs(2))),
    ];
    let table = table().await;
    let mut score = Score::new("s3 faults that pass");
    for store in STORES {
        for (number, (operation, times, fault)) in faults.into_iter().enumerate() {
            let rig = Rig::new(store, &table, OUTPUTS[number % 2]).await;
            rig.proxy.breaks(operation, times, fault);
            let what = format!("{store:?} {operation:?} {fault:?}");
            let kind = format!("{operation:?}: {}", fault.name());
            score.tried(&kind);
            let outcome = rig.run().await;
            rig.assert_whole(&what, outcome, &table).await;
            score.survived(&kind);
        }
    }
}

/// A Complete that was carried out and whose reply got lost is settled by what lies under the key, where the store keeps
/// metadata; elsewhere the run fails without an untruth, and the next attempt replaces the object.
#[tokio::test]
async fn a_lost_reply_to_complete_is_no_second_object_and_no_lie() {
    let table = table().await;
    for store in STORES {
        let rig = Rig::new(store, &table, OUTPUTS[0]).await;
        rig.proxy.breaks(Operation::Complete, 1, Fault::ReplyLost);
        match rig.run().await {
            Err(error) if !store.keeps_metadata() => {
                assert!(error.kind().is_retryable(), "{error:?}");
                let again = rig.run().await;
                rig.assert_whole(&format!("{store:?}, tried again"), again, &table).await;
            }
            outcome => rig.assert_whole(&format!("{store:?}"), outcome, &table).await,
        }
    }
}

/// Faults that don't pass end the run: no object, no upload, and the kind says whether another attempt may help.
#[tokio::test]
async fn faults_that_stay_publish_nothing() {
    use Fault::{Forgotten, Refused};
    use Operation::{Complete, Create, Part};
    let faults = [
        (Create, 1, Refused(403, "AccessDenied"), ErrorKind::Auth),
        (Part, 1, Refused(403, "AccessDenied"), ErrorKind::Auth),
        (Part, 1, Refused(400, "ExpiredToken"), ErrorKind::Auth),
        (Part, 1, Refused(400, "EntityTooSmall"), ErrorKind::Config),
        (Part, 1, Refused(507, "QuotaExceeded"), ErrorKind::DestinationUnavailable),
        (Part, 1, Refused(418, "Teapot"), ErrorKind::Internal),
        (Complete, 1, Refused(403, "AccessDenied"), ErrorKind::Auth),
        (Complete, 1, Refused(412, "PreconditionFailed"), ErrorKind::DestinationUnavailable),
        (Complete, 1, Refused(400, "InvalidPart"), ErrorKind::Internal),
        (Part, 1, Forgotten, ErrorKind::DestinationUnavailable),
        (Complete, 1, Forgotten, ErrorKind::DestinationUnavailable),
    ];
    let table = table().await;
    let mut score = Score::new("s3 faults that stay");
    for store in STORES {
        for (number, (operation, times, fault, kind)) in faults.into_iter().enumerate() {
            let rig = Rig::new(store, &table, OUTPUTS[number % 2]).await;
            rig.proxy.breaks(operation, times, fault);
            let what = format!("{store:?} {operation:?} {fault:?}");
            let name = format!("{operation:?}: {}", fault.name());
            score.tried(&name);
            let outcome = rig.run().await;
            rig.assert_nothing(&what, outcome, kind).await;
            score.survived(&name);
        }
    }
}

/// An abort that fails once is sent again; the run's own error leads.
#[tokio::test]
async fn an_abort_that_fails_is_sent_again() {
    let table = table().await;
    for store in STORES {
        let rig = Rig::new(store, &table, OUTPUTS[0]).await;
        rig.proxy.breaks(Operation::Part, 1, Fault::Refused(403, "AccessDenied"));
        rig.proxy.breaks(Operation::Abort, 2, Fault::Refused(503, "SlowDown"));
        let outcome = rig.run().await;
        rig.assert_nothing(&format!("{store:?}"), outcome, ErrorKind::Auth).await;
        assert_eq!(rig.proxy.seen(Operation::Abort), 3);
    }
}

/// Stores that demand parts of one size, or know no checksums, are served like any other.
#[tokio::test]
async fn stores_that_are_stricter_are_served() {
    let table = table().await;
    let mut score = Score::new("s3 stricter stores");
    for store in STORES {
        for rule in [Rule::EqualParts, Rule::NoChecksums] {
            for output in OUTPUTS {
                let rig = Rig::new(store, &table, output).await;
                rig.proxy.demands(rule);
                score.tried(&format!("{rule:?}"));
                let outcome = rig.run().await;
                rig.assert_whole(&format!("{store:?} {rule:?} {output}"), outcome, &table).await;
                score.survived(&format!("{rule:?}"));
            }
        }
    }
}

/// A store that takes fewer parts than S3 ends the run with what to do about it, and nothing is left.
#[tokio::test]
async fn a_store_that_takes_fewer_parts_is_no_short_object() {
    let table = table().await;
    for store in STORES {
        let rig = Rig::new(store, &table, OUTPUTS[1]).await;
        rig.proxy.demands(Rule::MaxParts(2));
        let outcome = rig.run().await;
        let message = outcome.as_ref().expect_err("must fail").message().to_owned();
        assert!(message.contains("part 3") || message.contains("part 4"), "{message}");
        rig.assert_nothing(&format!("{store:?}"), outcome, ErrorKind::Config).await;
    }
}

/// A store that reads everything and then says nothing for long is slow, not broken.
#[tokio::test]
async fn a_store_that_stalls_for_long_is_waited_for() {
    let table = table().await;
    let rig = Rig::new(STORES[0], &table, OUTPUTS[0]).await;
    rig.proxy.breaks(Operation::Part, 2, Fault::Delayed(Duration::from_secs(25)));
    rig.proxy.breaks(Operation::Complete, 1, Fault::Delayed(Duration::from_secs(10)));
    let outcome = rig.run().await;
    let parts = outcome.as_ref().expect("succeeds").files[0].parts;
    let seen = [Operation::Part, Operation::Complete].map(|operation| rig.proxy.seen(operation));
    assert_eq!(seen, [parts, 1], "nothing is sent twice");
    rig.assert_whole("stalled", outcome, &table).await;
}

/// What can't be aborted isn't forgotten: the attempt after the next still knows of it.
#[tokio::test]
async fn an_upload_that_could_not_be_aborted_is_aborted_later() {
    let (proxy, bucket) = (S3Proxy::start(Store::SeaweedFs).await, Bucket::fresh(Store::SeaweedFs).await);
    let attempt = async |number: u32, earlier: &[Arc<str>]| {
        let sql =
            "SELECT number AS id, randomPrintableASCII(1000) AS text FROM numbers(20000) WHERE now() > {interval_end}";
        let mut export = exports::export("leftover", sql, Output::JsonLines(JsonLinesCodec::Uncompressed), &bucket);
        export.destination.connection = proxy.connection();
        let identity = RunIdentity { attempt: number, ..exports::identity(&export) };
        let progress = Arc::new(Progress::with_leftovers(earlier.iter().map(AsRef::as_ref)));
        let context = RunContext { progress: Arc::clone(&progress), ..exports::context(&Stop::new()) };
        let outcome = Engine::new().expect("an engine").run(&export, &identity, &context).await;
        (outcome, progress.open_uploads().borrow().clone())
    };
    let refused = Fault::Refused(503, "SlowDown");
    let denied = Fault::Refused(403, "AccessDenied");
    proxy.breaks(Operation::Abort, 5, refused);
    proxy.breaks(Operation::Part, 1, denied);
    let (outcome, open) = attempt(1, &[]).await;
    outcome.expect_err("a part fails");
    assert_eq!((open.len(), bucket.uploads().await.len()), (1, 1), "the upload is left over");

    proxy.breaks(Operation::Abort, 5, refused);
    let (outcome, still_open) = attempt(2, &open).await;
    assert_eq!(outcome.expect("the run goes on").rows, 20_000);
    assert_eq!((&still_open, bucket.uploads().await.len()), (&open, 1), "its own upload is complete");

    proxy.breaks(Operation::Part, 1, denied);
    let (outcome, open) = attempt(3, &still_open).await;
    outcome.expect_err("a part fails");
    assert_eq!((open.len(), bucket.uploads().await.len()), (0, 0));
}
