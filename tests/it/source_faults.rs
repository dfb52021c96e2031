//! What happens when ClickHouse's stream breaks: nothing is published, nothing is left, and the error says what broke.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::config::export::ExportConfig;
use engine::config::output::{JsonLinesCodec, Output, ParquetCodec};
use engine::error::{Error, ErrorKind};

use crate::clickhouse_proxy::{ClickHouseProxy, Damage, Stream, tagged};
use crate::exports::{self, STORES};
use crate::http_proxy::End;
use crate::report::Score;
use crate::services::Bucket;

const SQL: &str = "SELECT number AS id, repeat(toString(number), 20) AS text FROM numbers(20000) \
                   WHERE now() > {interval_end}";
const EXCEPTION: &str = "Code: 241. DB::Exception: Query memory limit exceeded: would use 9.31 GiB. (MEMORY_LIMIT_EXCEEDED) (version 26.9.1)";

/// An export whose stream passes the proxy.
struct Rig {
    proxy: ClickHouseProxy,
    bucket: Bucket,
    outputs: [ExportConfig; 2],
    kind: &'static str,
    score: Mutex<Score>,
}

impl Rig {
    /// For faults of one kind.
    async fn new(kind: &'static str) -> Self {
        let proxy = ClickHouseProxy::start().await;
        let bucket = Bucket::fresh(STORES[0]).await;
        let formats = [Output::Parquet(ParquetCodec::Zstd), Output::JsonLines(JsonLinesCodec::Gzip)];
        let outputs = formats.map(|output| {
            let mut export = exports::export(&format!("broken-{output}"), SQL, output, &bucket);
            export.source.connection = proxy.connection();
            export.source.settings.insert("max_block_size".to_owned(), "4000".to_owned());
            export
        });
        let score = Mutex::new(Score::new(&format!("clickhouse faults {kind}")));
        Self { proxy, bucket, outputs, kind, score }
    }

    /// The stream as it is, from a run that the proxy leaves alone; its objects are removed again.
    async fn whole(&self) -> Stream {
        for export in &self.outputs {
            let report = exports::run(export).await.expect("the proxy forwards faithfully");
            assert_eq!(report.rows, 20_000);
            self.bucket.delete(&report.files[0].key).await;
        }
        self.proxy.last_stream()
    }

    /// Runs both formats over a damaged stream. Neither may publish or leave anything.
    async fn run(&self, what: &str, damage: impl Fn(&Stream) -> Damage + Send + Sync + 'static) -> Error {
        self.proxy.damage(damage);
        let mut last = None;
        for export in &self.outputs {
            self.score().tried(self.kind);
            match exports::run(export).await {
                Ok(report) => panic!("{what}: {} is published with {} rows", export.output, report.rows),
                Err(error) => last = Some(error),
            }
            assert_eq!(self.bucket.keys().await, [""; 0], "{what}");
            assert_eq!(self.bucket.uploads().await, [""; 0], "{what}");
            self.score().survived(self.kind);
        }
        last.expect("two runs")
    }

    fn score(&self) -> MutexGuard<'_, Score> {
        self.score.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts at message boundaries, around them, and anywhere: with a clean end of the HTTP response, which is what a proxy
/// that buffers makes of a server's crash, and with a closed connection.
#[tokio::test]
async fn a_stream_that_is_cut_anywhere_publishes_nothing() {
    let rig = Rig::new("cut").await;
    let stream = rig.whole().await;
    assert!(stream.messages.len() > 5, "{:?}", stream.messages);
    let boundaries = stream.messages.iter().flat_map(|at| [at.saturating_sub(1), *at, at + 1, at + 7, at + 9]);
    // Numbers that look random, and are the same every time.
    let anywhere = (1..40_usize).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % stream.bytes.len());
    let cuts =
        boundaries.chain(anywhere).filter(|at| *at < stream.bytes.len()).collect::<std::collections::BTreeSet<_>>();
    for at in cuts {
        for end in [End::Clean, End::Closed] {
            let error = rig.run(&format!("{at} {end:?}"), move |stream| stream.cut(at, end)).await;
            assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{at} {end:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_whole_stream_without_its_last_chunk_publishes_nothing() {
    let rig = Rig::new("no last chunk, reset").await;
    rig.whole().await;
    let error = rig.run("no last chunk", |stream| stream.cut(stream.bytes.len(), End::Closed)).await;
    assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{error:?}");
    let error = rig.run("reset", |stream| stream.cut(stream.bytes.len() / 2, End::Reset)).await;
    assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{error:?}");
}

#[tokio::test]
async fn a_stream_that_stalls_is_given_up() {
    let rig = Rig::new("stalled").await;
    for at in [0, 3, 5_000] {
        let error = rig.run("stalls", move |stream| stream.cut(at, End::Stalled)).await;
        assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{error:?}");
        assert!(error.message().contains("sent nothing for 500ms"), "{error}");
    }
}

/// In both forms, and in every place: instead of the schema, between messages, in the middle of one, and behind the end.
#[tokio::test]
async fn an_exception_anywhere_fails_the_run_with_the_servers_words() {
    let rig = Rig::new("exception").await;
    let stream = rig.whole().await;
    let places = [0, stream.messages[1], stream.messages[2], stream.messages[3] + 100, stream.bytes.len()];
    for at in places {
        for end in [End::Clean, End::Closed] {
            for is_tagged in [true, false] {
                let text = if is_tagged { tagged(EXCEPTION) } else { EXCEPTION.as_bytes().to_vec() };
                let what = format!("{at} {end:?} tagged {is_tagged}");
                let damage = move |stream: &Stream| {
                    let body = [&stream.bytes[..at], &text].concat();
                    Damage { body, end, is_tagged }
                };
                let error = rig.run(&what, damage).await;
                assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{what}: {error:?}");
                assert!(error.message().contains("Code: 241. DB::Exception: Query memory limit"), "{what}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_arrow_stream_is_refused() {
    let rig = Rig::new("no Arrow stream").await;
    let page = b"<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>".repeat(40);
    for body in [page, Vec::new(), b"\xff\xff\xff\xff\x00\x00\x00\x00".to_vec(), vec![0; 4096]] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(20)]).into_owned();
        let damage = Damage { body, end: End::Clean, is_tagged: false };
        let error = rig.run(&shown, move |_| damage.clone()).await;
        assert!(matches!(error.kind(), ErrorKind::SourceUnavailable | ErrorKind::Data), "{shown}: {error:?}");
    }
}

#[tokio::test]
async fn a_schema_that_changes_on_the_way_fails_the_run() {
    let rig = Rig::new("another schema").await;
    let ours = rig.whole().await;
    let other = Rig::new("whole, for parts of it").await;
    let mut export = other.outputs[0].clone();
    export.source.model = exports::export(
        "other",
        "SELECT toDate('2026-01-01') AS id, 1.5 AS number, 'x' AS text WHERE now() > {interval_end}",
        export.output,
        &other.bucket,
    )
    .source
    .model;
    exports::run(&export).await.expect("runs");
    let others = other.proxy.last_stream();
    let batch = [others.message(1), ours.message(ours.messages.len() - 1)].concat();
    let again = [ours.message(0), ours.message(2), ours.message(ours.messages.len() - 1)].concat();
    let whole_other = others.bytes.clone();
    for (what, rest) in [("another batch", batch), ("a second schema", again), ("another stream", whole_other)] {
        let error = rig.run(what, move |stream| stream.followed_by(2, &rest)).await;
        assert!(matches!(error.kind(), ErrorKind::SourceUnavailable | ErrorKind::Data), "{what}: {error:?}");
    }
}
