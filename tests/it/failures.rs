//! Bad input and interruptions: one plain sentence, and nothing left behind.

use std::time::Duration;

use engine::config::output::{JsonLinesCodec, Output};
use engine::config::secret::Secret;
use engine::error::{Error, ErrorKind};
use engine::run::{Engine, RunIdentity};
use engine::source::control;
use engine::source::transport::{Request, Transport};
use engine::stop::Stop;

use crate::exports::{self, STORES};
use crate::services::Bucket;
use crate::tls_proxy::{Certificate, TlsProxy};

const PLAIN: Output = Output::JsonLines(JsonLinesCodec::Uncompressed);

async fn assert_nothing_left(bucket: &Bucket) {
    assert_eq!(bucket.keys().await, [""; 0], "an object was left");
    assert_eq!(bucket.uploads().await, [""; 0], "an upload was left");
}

async fn failure(sql: &str) -> Error {
    let bucket = Bucket::fresh(STORES[0]).await;
    let error = exports::run(&exports::export("bad", sql, PLAIN, &bucket)).await.expect_err("must fail");
    assert_nothing_left(&bucket).await;
    error
}

#[tokio::test]
async fn an_unknown_table_is_named() {
    let error = failure("SELECT 1 FROM no_such_table WHERE now() > {interval_end}").await;
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("no_such_table"), "{error}");
}

#[tokio::test]
async fn an_unknown_column_is_named() {
    let error = failure("SELECT no_such_column FROM numbers(3) WHERE now() > {interval_end}").await;
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("no_such_column"), "{error}");
}

#[tokio::test]
async fn a_column_that_cannot_be_written_is_named_with_a_cast() {
    let error = failure("SELECT uniqState(number) AS visitors FROM numbers(3) WHERE now() > {interval_end}").await;
    assert!(!error.is_retryable());
    assert!(error.message().contains("visitors") && error.message().contains("AggregateFunction"), "{error}");
}

/// An exception after the response has begun, with rows already on their way.
#[tokio::test]
async fn an_exception_within_the_stream_fails_the_run_with_the_servers_words() {
    let sql = "SELECT number AS id, repeat('x', 2000) AS text, throwIf(number = 150000, 'boom in the middle') AS bad \
               FROM numbers(200000) WHERE now() > {interval_end}";
    let error = failure(sql).await;
    assert_eq!(error.kind(), ErrorKind::Data, "{error:?}");
    assert!(error.message().contains("boom in the middle"), "{error}");
}

#[tokio::test]
async fn words_of_an_exception_within_the_data_are_data() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let sql = "SELECT number AS id, 'Code: 395. DB::Exception: only data __exception__' AS text FROM numbers(1000) WHERE now() > {interval_end}";
    let report = exports::run(&exports::export("words", sql, PLAIN, &bucket)).await.expect("succeeds");
    assert_eq!(report.rows, 1000);
}

#[tokio::test]
async fn wrong_credentials_are_an_auth_error_on_either_side() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let sql = "SELECT 1 AS id WHERE now() > {interval_end}";
    let mut export = exports::export("auth", sql, PLAIN, &bucket);
    export.source.connection.password = Secret::new("not-the-password");
    let error = exports::run(&export).await.expect_err("must fail");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error:?}");
    assert!(error.message().contains("user and password"), "{error}");
    assert!(!format!("{error:?}").contains("not-the-password"));

    let mut export = exports::export("auth", sql, PLAIN, &bucket);
    let credentials = export.destination.connection.credentials.as_mut().expect("given");
    credentials.secret_access_key = Secret::new("not-the-secret");
    let error = exports::run(&export).await.expect_err("must fail");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error:?}");
    assert!(!format!("{error:?}").contains("not-the-secret"));
    assert_nothing_left(&bucket).await;
}

#[tokio::test]
async fn a_missing_bucket_is_named() {
    let bucket = Bucket::fresh(STORES[0]).await;
    for rows in [1, 300_000] {
        let sql = format!(
            "SELECT number AS id, hex(SHA256(toString(number))) AS text FROM numbers({rows}) WHERE now() > {{interval_end}}"
        );
        let mut export = exports::export("no-bucket", &sql, PLAIN, &bucket);
        export.destination.bucket = "no-such-bucket".to_owned();
        let error = exports::run(&export).await.expect_err("must fail");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.message().contains("no-such-bucket"), "{error}");
    }
}

#[tokio::test]
async fn an_unreachable_host_is_named_and_a_retry_may_help() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let mut export = exports::export("away", "SELECT 1 AS id WHERE now() > {interval_end}", PLAIN, &bucket);
    export.source.connection.url = "http://127.0.0.1:1".parse().expect("a URL");
    let error = exports::run(&export).await.expect_err("must fail");
    assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{error:?}");
    assert!(error.message().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn tls_works_with_an_authority_of_ones_own() {
    let bucket = Bucket::fresh(STORES[0]).await;
    let proxy = TlsProxy::start(exports::clickhouse_address(), Certificate::Proper).await;
    let mut export = exports::export("tls", "SELECT 7 AS id WHERE now() > {interval_end}", PLAIN, &bucket);
    export.source.connection = proxy.trusted();
    assert_eq!(exports::run(&export).await.expect("succeeds").rows, 1);
}

/// Stopping a run half-way leaves no upload, no object and no running query.
#[tokio::test]
async fn a_cancelled_run_leaves_nothing() {
    for store in STORES {
        let bucket = Bucket::fresh(store).await;
        let sql = "SELECT number AS id, base64Encode(SHA256(toString(number))) AS text, sleepEachRow(0.00001) AS slow \
                   FROM numbers(100000000) WHERE now() > {interval_end}";
        let export = exports::export("cancelled", sql, PLAIN, &bucket);
        let (stop, identity) = (Stop::new(), exports::identity(&export));
        let context = exports::context(&stop);
        let engine = Engine::new().expect("an engine");
        let running = engine.run(&export, &identity, &context);
        let stopping = async {
            let half_way = async {
                while context.progress.snapshot().parts_written < 1 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), half_way).await.expect("a part is uploaded");
            assert_ne!(running_queries(&identity).await, "0");
            stop.cancel();
        };
        let (result, ()) = tokio::join!(running, stopping);
        assert_eq!(result.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        assert_nothing_left(&bucket).await;
        let gone = async {
            while running_queries(&identity).await != "0" {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the query ends");
    }
}

/// KILL works by itself: a proxy may hold the connection open when we have gone.
#[tokio::test]
async fn a_query_is_killed_by_its_id_while_its_connection_stays() {
    let transport = Transport::new(&exports::clickhouse()).expect("a client");
    let query_id = format!("it's-{}", uuid::Uuid::new_v4());
    let sql =
        "SELECT number, sleepEachRow(0.001) FROM numbers(1000000) SETTINGS max_block_size = 10 FORMAT TabSeparated";
    let request = Request { sql: sql.to_owned(), query_id: query_id.clone(), ..Request::default() };
    let body = transport.send(&request).await.expect("begins to answer");
    let literal = query_id.replace('\'', "\\'");
    let running = format!("SELECT count() FROM system.processes WHERE query_id = '{literal}' FORMAT TabSeparatedRaw");
    assert_eq!(exports::query(&running).await, "1");
    control::kill(&transport, &query_id).await.expect("is killed");
    let gone = async {
        while exports::query(&running).await != "0" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the query ends");
    drop(body);
}

async fn running_queries(identity: &RunIdentity) -> String {
    exports::query(&format!(
        "SELECT count() FROM system.processes WHERE query_id = 'batch-export-{}-{}-1' FORMAT TabSeparatedRaw",
        identity.run_id, identity.execution_id
    ))
    .await
}
