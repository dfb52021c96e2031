use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::connection::{S3Checksums, S3Connection};
use crate::interval::Interval;
use crate::run::RunIdentity;
use crate::sink::scripted::{Request, Scripted, Step, connection_to};

const FAST: RetryPolicy = RetryPolicy {
    max_tries: 4,
    min_delay: Duration::from_millis(1),
    max_delay: Duration::from_millis(5),
    max_total: Duration::from_secs(30),
};

const RESULT: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CompleteMultipartUploadResult>\
    <ETag>&quot;whole&quot;</ETag></CompleteMultipartUploadResult>";

fn owner(attempt: u32) -> Ownership {
    let interval = Interval::new(
        "2026-01-01T00:00:00Z".parse().expect("a start"),
        "2026-01-01T01:00:00Z".parse().expect("an end"),
    );
    Ownership::new(
        "export",
        &RunIdentity {
            run_id: "run".to_owned(),
            execution_id: "execution".to_owned(),
            attempt,
            interval: interval.expect("a window"),
        },
    )
}

fn spec() -> ObjectSpec {
    ObjectSpec {
        bucket: "bucket".to_owned(),
        key: "a key/ü+1.parquet".to_owned(),
        content_type: "application/vnd.apache.parquet",
        owner: owner(1),
        encryption: None,
        precondition: Precondition::None,
    }
}

async fn object_of(server: &Scripted, spec: ObjectSpec) -> S3Object {
    S3Object::with_policy(server.client().await, spec, Stop::new(), Arc::default(), FAST)
}

async fn object(server: &Scripted) -> S3Object {
    object_of(server, spec()).await
}

fn created() -> Step {
    Step::reply(200, "<InitiateMultipartUploadResult><UploadId>id-1</UploadId></InitiateMultipartUploadResult>")
}

/// What HEAD tells of an object that attempt `attempt` wrote.
fn found(attempt: u32, num_bytes: usize) -> Step {
    let mut step = Step::Reply { status: 200, headers: Vec::new(), body: "x".repeat(num_bytes) };
    for (name, value) in owner(attempt).to_metadata() {
        let name = match name.as_str() {
            "export-id" => "x-amz-meta-export-id",
            "run-id" => "x-amz-meta-run-id",
            "execution-id" => "x-amz-meta-execution-id",
            "attempt" => "x-amz-meta-attempt",
            _ => continue,
        };
        step = step.with_header(name, value);
    }
    step.with_header("ETag", "\"found\"")
}

/// A store that works, but for what `special` says of the n-th Complete.
async fn store(special: impl Fn(usize) -> Option<Step> + Send + Sync + 'static, head: Step) -> Scripted {
    let completes = std::sync::atomic::AtomicUsize::new(0);
    Scripted::start(move |_, request| match kind_of(request) {
        "create" => created(),
        "part" => Step::etag("part"),
        "complete" => {
            let index = completes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            special(index).unwrap_or_else(|| Step::reply(200, RESULT))
        }
        "head" => head.clone(),
        _ => Step::reply(204, ""),
    })
    .await
}

fn kind_of(request: &Request) -> &'static str {
    let query = request.target.split_once('?').map_or("", |(_, query)| query);
    match (request.method.as_str(), query) {
        ("POST", query) if query.starts_with("uploads") => "create",
        ("POST", _) => "complete",
        ("PUT", query) if query.contains("partNumber") => "part",
        ("PUT", _) => "put",
        ("HEAD", _) => "head",
        ("DELETE", _) => "abort",
        _ => "other",
    }
}

fn kinds(server: &Scripted) -> Vec<&'static str> {
    server.requests().iter().map(kind_of).collect()
}

async fn upload(object: &S3Object, sizes: &[usize]) -> Vec<UploadedPart> {
    let (mut parts, mut number) = (Vec::new(), PartNumber::FIRST);
    for size in sizes {
        parts.push(object.upload_part(number, Bytes::from(vec![b'x'; *size])).await.expect("is uploaded"));
        number = number.next();
    }
    parts
}

#[tokio::test]
async fn put_sends_one_plain_request() {
    let server = Scripted::steps(vec![Step::etag("one")]).await;
    let mut spec = spec();
    spec.encryption = Some(Encryption::Kms { key_id: Some("key-7".to_owned()) });
    spec.precondition = Precondition::Unchanged("\"old\"".to_owned());
    let stored = object_of(&server, spec).await.put(Bytes::from_static(b"hello")).await.expect("is stored");
    assert_eq!(stored.etag.as_deref(), Some("\"one\""));

    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("one request: {requests:?}") };
    assert_eq!((request.method.as_str(), request.body.as_slice()), ("PUT", b"hello".as_slice()));
    assert_eq!(request.target.split('?').next(), Some("/bucket/a%20key/%C3%BC%2B1.parquet"));
    for (name, value) in [
        ("content-length", "5"),
        ("content-type", "application/vnd.apache.parquet"),
        ("if-match", "\"old\""),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "key-7"),
        ("x-amz-meta-export-id", "export"),
        ("x-amz-meta-run-id", "run"),
        ("x-amz-meta-attempt", "1"),
        ("x-amz-meta-interval-start", "2026-01-01T00:00:00+00:00"),
        ("x-amz-meta-format-version", "1"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let odd = |name: &&str| name.contains("checksum") || name.contains("trailer") || *name == "content-encoding";
    assert_eq!(request.header_names().find(odd), None, "a custom endpoint gets no checksums, no aws-chunked");
}

#[tokio::test]
async fn multipart_carries_what_it_must_where_it_must() {
    let server = store(|_| None, Step::reply(404, "")).await;
    let mut spec = spec();
    spec.encryption = Some(Encryption::Aes256);
    spec.precondition = Precondition::Absent;
    let object = object_of(&server, spec).await;
    let parts = upload(&object, &[3, 2]).await;
    assert_eq!(object.complete(parts).await.expect("is whole").etag.as_deref(), Some("\"whole\""));

    assert_eq!(kinds(&server), ["create", "part", "part", "complete"]);
    for request in server.requests() {
        let kind = kind_of(&request);
        assert_eq!(request.header("x-amz-server-side-encryption").is_some(), kind == "create", "{kind}");
        assert_eq!(request.header("x-amz-meta-run-id").is_some(), kind == "create", "{kind}");
        assert_eq!(request.header("if-none-match").is_some(), kind == "complete", "{kind}");
        assert!(request.header("content-encoding").is_none(), "{kind}");
    }
    let list = String::from_utf8(server.requests()[3].body.clone()).expect("is XML");
    assert!(list.find("<PartNumber>1<").expect("part 1") < list.find("<PartNumber>2<").expect("part 2"), "{list}");

    object.abort().await.expect("there is nothing left to abort");
    assert_eq!(server.lines().len(), 4);
}

#[tokio::test]
async fn checksums_go_with_parts_and_list_where_asked() {
    let server = Scripted::start(|_, request| match kind_of(request) {
        "create" => created(),
        "part" => {
            let checksum = request.header("x-amz-checksum-crc32").expect("every part has one").to_owned();
            Step::etag("part").with_header("x-amz-checksum-crc32", checksum)
        }
        _ => Step::reply(200, RESULT),
    })
    .await;
    let connection = S3Connection { checksums: Some(S3Checksums::WhenSupported), ..connection_to(&server.url) };
    let client = S3Client::connect(&connection).await.expect("nothing is sent yet");
    let object = S3Object::with_policy(client, spec(), Stop::new(), Arc::default(), FAST);
    let parts = upload(&object, &[3]).await;
    object.complete(parts).await.expect("is whole");
    let requests = server.requests();
    assert_eq!(requests[0].header("x-amz-checksum-algorithm"), Some("CRC32"));
    let checksum = requests[1].header("x-amz-checksum-crc32").expect("the part has one");
    let list = String::from_utf8(requests[2].body.clone()).expect("is XML");
    assert!(list.contains(&format!("<ChecksumCRC32>{checksum}</ChecksumCRC32>")), "{list}");
    assert!(requests.iter().all(|request| request.header("content-encoding").is_none()), "never aws-chunked");
}

#[tokio::test]
async fn the_upload_is_created_once_by_parts_at_once() {
    let server = store(|_| None, Step::reply(404, "")).await;
    let object = object(&server).await;
    let second = PartNumber::FIRST.next();
    let (two, one) = tokio::join!(
        object.upload_part(second, Bytes::from_static(b"22")),
        object.upload_part(PartNumber::FIRST, Bytes::from_static(b"1")),
    );
    object.complete(vec![one.expect("part 1"), two.expect("part 2")]).await.expect("is whole");
    assert_eq!(kinds(&server).iter().filter(|kind| **kind == "create").count(), 1);
}

#[tokio::test]
async fn a_failed_part_is_sent_again_whole() {
    let server = Scripted::steps(vec![
        created(),
        Step::error(503, "SlowDown"),
        Step::Close,
        Step::error(400, "RequestTimeout"),
        Step::etag("part"),
    ])
    .await;
    let object = object(&server).await;
    upload(&object, &[70_000]).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 5);
    assert!(requests[1..].iter().all(|request| request.body.len() == 70_000));
    assert_eq!(object.requests.progress.snapshot().retries, 3);
}

#[tokio::test]
async fn a_failure_that_no_retry_mends_is_final() {
    let server = Scripted::steps(vec![Step::error(404, "NoSuchBucket")]).await;
    let object = object(&server).await;
    for _ in 0..2 {
        let error = object.upload_part(PartNumber::FIRST, Bytes::new()).await.expect_err("there is no bucket");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().starts_with("upload part 1 of s3://bucket/"), "{error}");
    }
    assert_eq!(server.lines().len(), 1, "the second part doesn't ask again");
    object.abort().await.expect("nothing was created");
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn a_reply_of_success_that_is_none_is_tried_again() {
    let result_cut_off = RESULT[..RESULT.len() - 8].to_owned();
    for bad in [
        Step::error(200, "InternalError"),
        Step::error(200, "SlowDown"),
        Step::reply(200, "  \n\n<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>"),
        Step::reply(200, "\n  <Error><Code>InternalError</Code></Error>"),
        Step::reply(200, ""),
        Step::reply(200, "     "),
        Step::reply(200, result_cut_off.clone()),
        Step::CutOff { status: 200, body: result_cut_off },
        Step::reply(200, "<html>sign in</html>"),
    ] {
        let step = bad.clone();
        let server = store(move |index| (index == 0).then(|| step.clone()), Step::reply(404, "")).await;
        let object = object(&server).await;
        let parts = upload(&object, &[1]).await;
        object.complete(parts).await.unwrap_or_else(|error| panic!("{bad:?}: {error:?}"));
        assert_eq!(kinds(&server), ["create", "part", "complete", "complete"], "{bad:?}");
    }
}

#[tokio::test]
async fn success_is_never_taken_from_a_bad_reply_alone() {
    for bad in [Step::reply(200, ""), Step::error(200, "InternalError"), Step::Close] {
        let step = bad.clone();
        let server = store(move |_| Some(step.clone()), Step::reply(404, "")).await;
        let object = object(&server).await;
        let parts = upload(&object, &[1]).await;
        let error = object.complete(parts).await.expect_err("never became visible");
        assert!(error.is_retryable(), "{bad:?}: {error:?}");
        assert_eq!(kinds(&server).last(), Some(&"head"));
        object.abort().await.expect("is aborted");
        assert_eq!(kinds(&server).last(), Some(&"abort"));
    }
}

#[tokio::test]
async fn a_lost_reply_is_settled_by_the_object_itself() {
    let complete = |index| Some(if index == 0 { Step::Close } else { Step::error(404, "NoSuchUpload") });
    let object_with = async |head: Step| {
        let server = store(complete, head).await;
        let object = object(&server).await;
        let parts = upload(&object, &[2, 1]).await;
        object.complete(parts).await
    };
    assert_eq!(object_with(found(1, 3)).await.expect("it is ours").etag.as_deref(), Some("\"found\""));
    for (why, head) in [
        ("another attempt's", found(2, 3)),
        ("another size", found(1, 4)),
        ("missing", Step::reply(404, "")),
        ("unreadable", Step::reply(403, "")),
    ] {
        let error = object_with(head).await.expect_err(why);
        assert!(error.is_retryable(), "{why}: {error:?}");
        assert!(error.message().contains("lifecycle rule"), "{why}: {error:?}");
    }
}

#[tokio::test]
async fn a_lost_reply_to_a_conditional_put_is_settled_too() {
    let absent = || ObjectSpec { precondition: Precondition::Absent, ..spec() };
    let server = Scripted::steps(vec![Step::Close, Step::error(412, "PreconditionFailed"), found(1, 5)]).await;
    object_of(&server, absent()).await.put(Bytes::from_static(b"hello")).await.expect("the first try took effect");

    let server = Scripted::steps(vec![Step::error(412, "PreconditionFailed")]).await;
    let error = object_of(&server, absent()).await.put(Bytes::new()).await.expect_err("somebody else was faster");
    assert!(error.message().contains("was faster"), "{error}");
    assert_eq!(server.lines().len(), 1, "no look at the object: no try of ours can have taken effect");
}

#[tokio::test]
async fn a_store_that_does_not_know_conditions_is_written_without() {
    let server = Scripted::start(|_, request| match (kind_of(request), request.header("if-none-match")) {
        ("put" | "complete", Some(_)) => Step::error(501, "NotImplemented"),
        ("put", None) => Step::etag("one"),
        ("complete", None) => Step::reply(200, RESULT),
        ("part", _) => Step::etag("part"),
        _ => created(),
    })
    .await;
    let absent = || ObjectSpec { precondition: Precondition::Absent, ..spec() };
    object_of(&server, absent()).await.put(Bytes::new()).await.expect("is stored without");
    let object = object_of(&server, absent()).await;
    let parts = upload(&object, &[1]).await;
    object.complete(parts).await.expect("is whole without");
    assert_eq!(kinds(&server), ["put", "put", "create", "part", "complete", "complete"]);
}

#[tokio::test]
async fn incomplete_or_unordered_lists_are_never_completed() {
    let server = store(|_| None, Step::reply(404, "")).await;
    let object = object(&server).await;
    let parts = upload(&object, &[1, 1, 1]).await;
    let [one, two, three] = parts.as_slice() else { panic!("three parts") };
    for wrong in [vec![one, two], vec![one, three], vec![two, one, three], vec![one, two, two], vec![]] {
        let wrong = wrong.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(object.complete(wrong).await.expect_err("is refused").kind(), ErrorKind::Internal);
    }
    assert!(!kinds(&server).contains(&"complete"));
}

#[tokio::test]
async fn abort_is_idempotent_and_forgives_what_it_can() {
    for answer in [Step::reply(204, ""), Step::error(404, "NoSuchUpload"), Step::error(403, "AccessDenied")] {
        let step = answer.clone();
        let server = Scripted::start(move |_, request| match kind_of(request) {
            "create" => created(),
            "part" => Step::etag("part"),
            _ => step.clone(),
        })
        .await;
        let object = object(&server).await;
        object.abort().await.expect("nothing to abort yet");
        upload(&object, &[1]).await;
        object.abort().await.unwrap_or_else(|error| panic!("{answer:?}: {error:?}"));
        object.abort().await.expect("nothing left");
        assert_eq!(kinds(&server), ["create", "part", "abort"], "{answer:?}");
    }
}

#[tokio::test]
async fn abort_works_after_the_order_to_stop_and_finds_a_creation_under_way() {
    let server = Scripted::start(|_, request| match kind_of(request) {
        "create" => Step::Late(Duration::from_millis(300), Box::new(created())),
        _ => Step::reply(204, ""),
    })
    .await;
    let stop = Stop::new();
    let object = S3Object::with_policy(server.client().await, spec(), stop.clone(), Arc::default(), FAST);
    let part = object.upload_part(PartNumber::FIRST, Bytes::from_static(b"1"));
    assert!(tokio::time::timeout(Duration::from_millis(100), part).await.is_err(), "is dropped while creating");
    object.abort().await.expect("waits for the id and aborts it");
    assert_eq!(kinds(&server), ["create", "abort"]);
    assert!(server.lines()[1].contains("uploadId=id-1"), "{:?}", server.lines());

    stop.shut_down();
    let error = object.upload_part(PartNumber::FIRST, Bytes::new()).await.expect_err("is stopped");
    assert_eq!(error.to_string(), "the worker is shutting down");
}

#[tokio::test]
async fn abort_has_a_deadline() {
    let server = Scripted::steps(vec![created(), Step::etag("part"), Step::Hang]).await;
    let mut object = object(&server).await;
    assert_eq!(object.abort_deadline, ABORT_DEADLINE);
    object.abort_deadline = Duration::from_millis(50);
    upload(&object, &[1]).await;
    let error = object.abort().await.expect_err("the store hangs");
    assert!(error.message().starts_with("abort the upload of s3://"), "{error}");
    assert!(error.is_retryable());
}
