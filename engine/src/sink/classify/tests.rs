use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;

use super::*;
use crate::sink::client::S3Client;
use crate::sink::error::TABLE;
use crate::sink::scripted::{SECRET_KEY, Scripted, Step, client_of};

const PATIENCE: Duration = Duration::from_secs(10);

async fn put(client: &S3Client, bucket: &str, timeout: Duration) -> Failure {
    let request = client.sdk().put_object().bucket(bucket).key("the-key").body(ByteStream::from_static(b"x")).send();
    client.send(bucket, "the-key", timeout, request).await.expect_err("fails")
}

async fn put_to(step: Step) -> Failure {
    let server = Scripted::steps(vec![step]).await;
    put(&server.client().await, "the-bucket", PATIENCE).await
}

/// Produces a symptom for real; `None` where only its text can be had.
async fn produce(symptom: Symptom) -> Option<Failure> {
    Some(match symptom {
        Symptom::Code(code) => put_to(Step::error(400, code)).await,
        Symptom::Status(status) => put_to(Step::reply(status, "<html>a proxy says no</html>")).await,
        Symptom::ServerError => put_to(Step::reply(502, "")).await,
        Symptom::Unknown => put_to(Step::error(400, "SomethingNew")).await,
        Symptom::ConnectionLost => put_to(Step::Close).await,
        Symptom::Timeout => {
            let server = Scripted::steps(vec![Step::Hang]).await;
            put(&server.client().await, "the-bucket", Duration::from_millis(100)).await
        }
        Symptom::BadReply => {
            let server = Scripted::steps(vec![Step::reply(200, "<html>sign in</html>")]).await;
            let client = server.client().await;
            let request = client.sdk().create_multipart_upload().bucket("the-bucket").key("the-key").send();
            client.send("the-bucket", "the-key", PATIENCE, request).await.expect_err("is no result")
        }
        Symptom::Connect => {
            let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
            let address = unused.local_addr().expect("is bound");
            drop(unused);
            put(&client_of(&format!("http://{address}")).await, "the-bucket", PATIENCE).await
        }
        Symptom::Tls => {
            let server = Scripted::steps(Vec::new()).await;
            put(&client_of(&server.url.replace("http:", "https:")).await, "the-bucket", PATIENCE).await
        }
        Symptom::Request => {
            let server = Scripted::steps(Vec::new()).await;
            put(&server.client().await, "", PATIENCE).await
        }
        // A name that can't be resolved and an identity that can't be loaded need a world that tests don't have.
        Symptom::Dns | Symptom::Credentials => return None,
    })
}

#[tokio::test]
async fn every_row_is_met_as_the_table_says() {
    for row in TABLE {
        for symptom in row.symptoms {
            let Some(failure) = produce(*symptom).await else { continue };
            let error = &failure.error;
            assert_eq!((error.kind(), failure.retry), (row.kind, row.retry), "{symptom:?}: {failure:?}");
            let start = row.sentence.split_once('{').map_or(row.sentence, |(start, _)| start);
            assert!(error.message().starts_with(start), "{symptom:?}: {error}");
            assert!(!error.message().contains(['{', '}']), "{symptom:?}: {error}");
            assert!(!error.message().ends_with('.'), "{symptom:?}: {error}");
            assert!(!format!("{error:?}").contains(SECRET_KEY), "{symptom:?}: {error:?}");
        }
    }
}

#[test]
fn the_table_agrees_with_itself() {
    let mut seen: Vec<Symptom> = Vec::new();
    for row in TABLE {
        assert_eq!(row.retry == Retry::Not, !row.kind.is_retryable(), "{row:?}");
        for symptom in row.symptoms {
            assert!(!seen.contains(symptom), "{symptom:?} is in two rows");
            seen.push(*symptom);
        }
    }
    assert_eq!(TABLE.last().map(|row| row.symptoms), Some([Symptom::Unknown].as_slice()));
}

/// A chain of causes as the SDK's connector builds it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Link(&'static str, #[source] Option<Box<Link>>);

fn links(texts: &[&'static str]) -> Link {
    let mut texts = texts.iter().rev();
    let innermost = Link(texts.next().expect("one text at least"), None);
    texts.fold(innermost, |link, text| Link(text, Some(Box::new(link))))
}

#[test]
fn causes_are_told_apart_by_their_texts() {
    for (texts, symptom) in [
        (
            vec!["io error", "dns error", "failed to lookup address information: Name or service not known"],
            Symptom::Dns,
        ),
        (
            vec!["io error", "dns error", "failed to lookup address information: Temporary failure in name resolution"],
            Symptom::Connect,
        ),
        (vec!["io error", "client error (Connect)", "invalid peer certificate: UnknownIssuer"], Symptom::Tls),
        (vec!["other", "the credentials provider was not properly configured"], Symptom::Credentials),
        (vec!["io error", "connection closed before message completed"], Symptom::ConnectionLost),
    ] {
        assert_eq!(dispatch_symptom(&links(&texts), false), symptom, "{texts:?}");
    }
}

#[tokio::test]
async fn a_host_that_has_answered_is_not_a_wrong_name() {
    let server = Scripted::steps(vec![Step::reply(500, "")]).await;
    let client = server.client().await;
    let before = client.no_result("b", "k");
    assert!(before.ambiguous);
    put(&client, "the-bucket", PATIENCE).await;
    let target = Target { endpoint: "e".to_owned(), bucket: "b".to_owned(), key: "k".to_owned(), reached: true };
    let connector = || {
        let chain = links(&["dns error", "Name or service not known"]);
        aws_smithy_runtime_api_connector(chain)
    };
    let first = classify::<NoError>(&connector(), &Target { reached: false, ..target.clone() });
    assert_eq!((first.error.kind(), first.retry), (ErrorKind::Config, Retry::Not));
    let later = classify::<NoError>(&connector(), &target);
    assert_eq!((later.error.kind(), later.retry), (ErrorKind::DestinationUnavailable, Retry::InPlace));
}

type NoError = aws_sdk_s3::operation::put_object::PutObjectError;

fn aws_smithy_runtime_api_connector(cause: Link) -> SdkError<NoError, HttpResponse> {
    SdkError::dispatch_failure(aws_sdk_s3::error::ConnectorError::io(Box::new(cause)))
}

#[tokio::test]
async fn retry_after_and_region_are_read() {
    let failure = put_to(Step::error(503, "SlowDown").with_header("Retry-After", "7")).await;
    assert_eq!(failure.error.retry_after(), Some(Duration::from_secs(7)));

    let failure = put_to(Step::reply(301, "").with_header("x-amz-bucket-region", "eu-west-1")).await;
    assert!(failure.error.message().contains("(the bucket is in eu-west-1)"), "{}", failure.error);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Scripted::steps(Vec::new()).await;
    let failure = put_to(Step::reply(307, "").with_header("Location", elsewhere.url.clone())).await;
    assert_eq!(failure.error.kind(), ErrorKind::Config);
    assert_eq!(elsewhere.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn what_may_have_taken_effect_is_ambiguous() {
    for (step, ambiguous) in [
        (Step::Close, true),
        (Step::reply(500, ""), true),
        (Step::error(503, "SlowDown"), true),
        (Step::error(400, "RequestTimeout"), false),
        (Step::error(412, "PreconditionFailed"), false),
        (Step::error(403, "AccessDenied"), false),
    ] {
        assert_eq!(put_to(step.clone()).await.ambiguous, ambiguous, "{step:?}");
    }
}

#[test]
fn other_sides_texts_are_redacted() {
    for (text, shown) in [
        ("plain\n text", "plain text"),
        ("see https://user:pass@host/a?token=1 now", "see https://host/a now"),
        ("http://host/a?X-Amz-Signature=abc", "the store's text is withheld, since it repeats parts of the signature"),
        ("<StringToSign>AWS4", "the store's text is withheld, since it repeats parts of the signature"),
    ] {
        assert_eq!(redact(text), shown);
    }
    let long = redact(&"é".repeat(1_000));
    assert_eq!(long.chars().count(), MAX_DETAIL_CHARS + 1);
    assert!(long.ends_with('…'));
}

#[tokio::test]
async fn a_refused_signature_repeats_nothing_of_it() {
    let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>StringToSign AKIAEXAMPLE</Message>\
                <StringToSign>AKIAEXAMPLE</StringToSign></Error>";
    let failure = put_to(Step::reply(403, body)).await;
    assert_eq!(failure.error.kind(), ErrorKind::Auth);
    assert!(!format!("{:?}", failure.error).contains("AKIAEXAMPLE"));
}
