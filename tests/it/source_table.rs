//! Every row of the tables of ClickHouse's failures, produced for real: on the way to it, and by its exceptions.

use std::time::Duration;

use engine::config::connection::ClickHouseConnection;
use engine::config::secret::Secret;
use engine::error::{Error, ErrorKind, Result};
use engine::network::NetworkFault;
use engine::source::error_code::TABLE as CODES;
use engine::source::failure::{Symptom, TABLE};
use engine::source::reader::ArrowStreamReader;
use engine::source::transport::{Request, Transport};
use tokio::net::TcpListener;

use crate::exports::{clickhouse, clickhouse_address};
use crate::http_proxy::{End, Exchange, Reply, listen};
use crate::tls_proxy::{Certificate, TlsProxy};

/// A way to a server that answers everything so.
async fn answering(status: u16, body: &[u8], end: End) -> ClickHouseConnection {
    let reply = Reply { status, headers: Vec::new(), body: body.to_vec() };
    doing(move |exchange| {
        let reply = reply.clone();
        async move { exchange.reply(&reply, end).await }
    })
    .await
}

/// A way to a server that does this with everything.
async fn doing<F>(handle: impl Fn(Exchange) -> F + Send + Sync + 'static) -> ClickHouseConnection
where
    F: Future<Output = ()> + Send + 'static,
{
    at(&format!("http://127.0.0.1:{}", listen(handle).await))
}

fn at(url: &str) -> ClickHouseConnection {
    ClickHouseConnection { url: url.parse().expect("a URL"), ..clickhouse() }
}

/// The same way for somebody who doesn't wait.
fn impatient(connection: ClickHouseConnection) -> ClickHouseConnection {
    let short = Duration::from_millis(300);
    ClickHouseConnection { first_byte_timeout: short, idle_timeout: short, ..connection }
}

async fn tls(certificate: Certificate) -> TlsProxy {
    TlsProxy::start(clickhouse_address(), certificate).await
}

/// A way on which the symptom shows itself; `tls` has a proxy for each certificate.
async fn produce(symptom: Symptom, tls: &[TlsProxy; 3]) -> ClickHouseConnection {
    let [proper, of_another, expired] = tls;
    match symptom {
        Symptom::Denied => answering(403, b"<html>no</html>", End::Clean).await,
        Symptom::Busy => answering(502, b"<html>Bad Gateway</html>", End::Clean).await,
        Symptom::NotClickHouse => answering(302, b"", End::Clean).await,
        Symptom::Unframed => doing(|exchange| exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nrows")).await,
        Symptom::Unsendable => {
            ClickHouseConnection { password: Secret::new("line\nbreak"), ..at("http://127.0.0.1:8123") }
        }
        Symptom::Network(NetworkFault::UnknownName) => at("http://clickhouse.invalid:8123"),
        Symptom::Network(NetworkFault::Unreachable) => {
            let unused = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
            at(&format!("http://{}", unused.local_addr().expect("is bound")))
        }
        Symptom::Network(NetworkFault::Untrusted) => proper.untrusted(),
        Symptom::Network(NetworkFault::WrongName) => of_another.trusted(),
        Symptom::Network(NetworkFault::Expired) => expired.trusted(),
        Symptom::Network(NetworkFault::NoTls) => at(&format!("https://{}", clickhouse_address())),
        Symptom::Network(NetworkFault::ConnectionLost) => doing(|exchange| async { exchange.reset() }).await,
        Symptom::FirstByteLate => impatient(doing(hold).await),
        Symptom::Idle => impatient(answering(200, &[0xff], End::Stalled).await),
        Symptom::Cut => answering(200, &[0xff], End::Closed).await,
        Symptom::NotArrow => answering(200, &[[0xff; 4], [4, 0, 0, 0], [7; 4]].concat(), End::Clean).await,
        other => panic!("produce {other:?}, too"),
    }
}

/// Keeps a connection open and says nothing.
async fn hold(exchange: Exchange) {
    std::future::pending::<()>().await;
    drop(exchange);
}

async fn read(connection: &ClickHouseConnection) -> Result<()> {
    let transport = Transport::new(connection)?;
    let body = transport.send(&Request { sql: "SELECT 1".to_owned(), ..Request::default() }).await?;
    ArrowStreamReader::open(body).await?;
    Ok(())
}

/// Whether the error is that of a machine that has nobody to ask for names.
fn has_no_resolver(error: &Error) -> bool {
    error.message().contains("Temporary failure in name resolution")
}

#[tokio::test]
async fn every_row_is_met_as_the_table_says() {
    let proxies = [tls(Certificate::Proper).await, tls(Certificate::OfAnother).await, tls(Certificate::Expired).await];
    for row in TABLE {
        let connection = produce(row.symptom, &proxies).await;
        let error = read(&connection).await.expect_err("must fail");
        if row.symptom == Symptom::Network(NetworkFault::UnknownName) && has_no_resolver(&error) {
            assert_eq!(error.kind(), ErrorKind::SourceUnavailable, "{error:?}");
            continue;
        }
        assert_eq!(error.kind(), row.kind, "{row:?}: {error:?}");
        let filled = row.sentence.replace("{url}", connection.url.as_str());
        for fixed in filled.split("{detail}") {
            assert!(error.message().contains(fixed), "{:?}: {error}", row.symptom);
        }
    }
}

/// Before the answer as an error's status, and within it as bare text behind a beginning of the stream.
#[tokio::test]
async fn every_code_is_met_as_the_table_says() {
    let unknown = (ErrorKind::Internal, 4_000, "NOBODY_KNOWS", None);
    let known = CODES.iter().flat_map(|row| row.codes.iter().map(|(code, name)| (row.kind, *code, *name, row.hint)));
    for (kind, code, name, hint) in known.chain([unknown]) {
        let text = format!("Code: {code}. DB::Exception: a test's own. ({name}) (version 26.9.1)\n");
        let within = [&[0xff; 4][..], text.as_bytes()].concat();
        for connection in [
            answering(500, text.as_bytes(), End::Clean).await,
            answering(200, &within, End::Clean).await,
            answering(200, &within, End::Closed).await,
        ] {
            let error = read(&connection).await.expect_err("must fail");
            assert_eq!(error.kind(), kind, "{code} {name}: {error:?}");
            assert!(error.message().contains(&format!("Code: {code}. DB::Exception: a test's own.")), "{error}");
            assert!(error.message().contains(hint.unwrap_or_default()), "{error}");
        }
    }
}
