//! The conformance suite of the destination: every test runs against every store.

use std::sync::Arc;

use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use bytes::Bytes;
use engine::config::connection::{S3Checksums, S3Connection};
use engine::config::secret::Secret;
use engine::error::ErrorKind;
use engine::interval::Interval;
use engine::run::RunIdentity;
use engine::sink::client::S3Client;
use engine::sink::existing::{Existing, Writer, find_existing};
use engine::sink::metadata::Ownership;
use engine::sink::object::{ObjectSink as _, PartNumber, UploadedPart};
use engine::sink::probe::{StoreCapabilities, Support, probe};
use engine::sink::retry::RetryPolicy;
use engine::sink::s3_object::{ObjectSpec, Precondition, S3Object};
use engine::stop::Stop;

use crate::s3_proxy::{Fault, Operation, S3Proxy};
use crate::services::{Bucket, Store};

/// S3's smallest part but the last.
const PART_BYTES: usize = 5 * 1024 * 1024;

macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod seaweedfs {
            $(#[tokio::test] async fn $test() { super::$test(super::Store::SeaweedFs).await; })*
        }
        mod juicefs {
            $(#[tokio::test] async fn $test() { super::$test(super::Store::JuiceFs).await; })*
        }
    };
}

on_every_store!(
    puts_one_object_with_its_metadata,
    completes_parts_that_arrive_in_any_order,
    takes_checksums_where_asked,
    stores_odd_keys_exactly,
    abort_leaves_nothing,
    a_dropped_part_leaves_nothing_after_abort,
    a_missing_bucket_is_not_found,
    wrong_credentials_are_an_auth_error,
    conditions_hold_as_the_probe_says,
    a_lost_reply_to_complete_is_settled,
    finds_what_lies_under_a_key,
    does_what_the_matrix_says,
);

fn owner(export_id: &str, attempt: u32) -> Ownership {
    let interval = Interval::new(
        "2026-01-01T00:00:00Z".parse().expect("a start"),
        "2026-01-01T01:00:00Z".parse().expect("an end"),
    );
    let interval = interval.expect("a window");
    Ownership::new(
        export_id,
        &RunIdentity { run_id: "run-1".to_owned(), execution_id: "execution-1".to_owned(), attempt, interval },
    )
}

fn spec(bucket: &str, key: &str) -> ObjectSpec {
    ObjectSpec {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        content_type: "application/x-ndjson",
        owner: owner("export", 1),
        encryption: None,
        precondition: Precondition::None,
    }
}

async fn client(connection: &S3Connection) -> S3Client {
    S3Client::connect(connection).await.expect("endpoint and keys are known")
}

async fn object_at(connection: &S3Connection, spec: ObjectSpec) -> S3Object {
    S3Object::with_policy(client(connection).await, spec, Stop::new(), Arc::default(), RetryPolicy::CHECK)
}

async fn object(bucket: &Bucket, key: &str) -> S3Object {
    object_at(&bucket.store.connection(), spec(&bucket.name, key)).await
}

/// Bytes that differ from part to part.
fn body(seed: u8, len: usize) -> Bytes {
    (0..len).map(|index| seed.wrapping_add(u8::try_from(index % 251).expect("is small"))).collect()
}

fn numbers(count: usize) -> Vec<PartNumber> {
    std::iter::successors(Some(PartNumber::FIRST), |number| Some(number.next())).take(count).collect()
}

async fn upload(object: &S3Object, bodies: &[Bytes]) -> Vec<UploadedPart> {
    let mut parts = Vec::new();
    for (number, body) in numbers(bodies.len()).into_iter().zip(bodies) {
        parts.push(object.upload_part(number, body.clone()).await.expect("is uploaded"));
    }
    parts
}

/// The object says what it is and who wrote it.
fn assert_described(head: &HeadObjectOutput) {
    assert_eq!(head.content_type(), Some("application/x-ndjson"));
    let metadata = head.metadata().expect("has metadata");
    for (name, value) in [
        ("export-id", "export"),
        ("run-id", "run-1"),
        ("attempt", "1"),
        ("interval-start", "2026-01-01T00:00:00+00:00"),
        ("interval-end", "2026-01-01T01:00:00+00:00"),
        ("format-version", "1"),
    ] {
        assert_eq!(metadata.get(name).map(String::as_str), Some(value), "{name}");
    }
}

async fn puts_one_object_with_its_metadata(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let stored = object(&bucket, "a/b.jsonl").await.put(Bytes::from_static(b"hello\n")).await.expect("is stored");
    assert!(stored.etag.is_some());
    let head = bucket.admin.head_object().bucket(&bucket.name).key("a/b.jsonl").send().await.expect("is there");
    assert_eq!(head.content_encoding(), None);
    if store.keeps_metadata() {
        assert_described(&head);
    }
    assert_eq!(bucket.bytes("a/b.jsonl").await, b"hello\n");
}

async fn completes_parts_that_arrive_in_any_order(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let object = object(&bucket, "parts.jsonl").await;
    let bodies = [body(1, PART_BYTES), body(2, PART_BYTES), body(3, 1_000)];
    let [one, two, three] = [0, 1, 2].map(|index| (numbers(3)[index], bodies[index].clone()));
    let third = object.upload_part(three.0, three.1).await.expect("part 3");
    let (second, first) = tokio::join!(object.upload_part(two.0, two.1), object.upload_part(one.0, one.1));
    assert_eq!(bucket.keys().await, Vec::<String>::new(), "nothing is visible before the end");
    let parts = vec![first.expect("part 1"), second.expect("part 2"), third];
    object.complete(parts).await.expect("is whole");
    assert_eq!(bucket.bytes("parts.jsonl").await, bodies.concat());
    let head = bucket.admin.head_object().bucket(&bucket.name).key("parts.jsonl").send().await.expect("is there");
    if store.keeps_metadata() {
        assert_described(&head);
    }
    assert_eq!(bucket.uploads().await, Vec::<String>::new());
}

async fn takes_checksums_where_asked(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let connection = S3Connection { checksums: Some(S3Checksums::WhenSupported), ..store.connection() };
    let one = object_at(&connection, spec(&bucket.name, "one")).await;
    one.put(body(1, 100)).await.expect("is stored");
    assert_eq!(bucket.bytes("one").await, body(1, 100));
    let many = object_at(&connection, spec(&bucket.name, "many")).await;
    let bodies = [body(1, PART_BYTES), body(2, 10)];
    let parts = upload(&many, &bodies).await;
    many.complete(parts).await.expect("is whole");
    assert_eq!(bucket.bytes("many").await, bodies.concat());
}

async fn stores_odd_keys_exactly(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let mut keys = [
        "a space/x",
        "plus+percent%25/x",
        "hash#question?amp&/x",
        "colon:2023-01-01T14:00:00+00:00-2023-01-01T15:00:00+00:00.jsonl",
        "tilde~2F/é/🦀/x",
        "quotes'\"<>/x",
    ];
    for key in keys {
        object(&bucket, key)
            .await
            .put(Bytes::from_static(b"x"))
            .await
            .unwrap_or_else(|error| panic!("{key}: {error:?}"));
        let object = object(&bucket, &format!("{key}-parts")).await;
        let parts = upload(&object, &[body(1, 10)]).await;
        object.complete(parts).await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
        assert_eq!(bucket.bytes(&format!("{key}-parts")).await, body(1, 10), "{key}");
    }
    keys.sort_unstable();
    let mut found = bucket.keys().await;
    found.retain(|key| !key.ends_with("-parts"));
    found.sort_unstable();
    assert_eq!(found, keys);
}

async fn abort_leaves_nothing(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let object = object(&bucket, "aborted").await;
    object.abort().await.expect("there is nothing yet");
    upload(&object, &[body(1, PART_BYTES), body(2, 10)]).await;
    assert_eq!(bucket.uploads().await, ["aborted"], "the upload can be seen while it is open");
    object.abort().await.expect("is aborted");
    object.abort().await.expect("is aborted already");
    assert_eq!(bucket.uploads().await, Vec::<String>::new());
    assert_eq!(bucket.keys().await, Vec::<String>::new());
}

async fn a_dropped_part_leaves_nothing_after_abort(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let object = object(&bucket, "dropped").await;
    for patience in [0, 1, 5, 20] {
        let part = object.upload_part(PartNumber::FIRST, body(1, PART_BYTES));
        drop(tokio::time::timeout(std::time::Duration::from_millis(patience), part).await);
        object.abort().await.expect("is aborted");
    }
    assert_eq!(bucket.uploads().await, Vec::<String>::new());
    assert_eq!(bucket.keys().await, Vec::<String>::new());
}

async fn a_missing_bucket_is_not_found(store: Store) {
    let missing = || spec("batch-export-no-such-bucket", "key");
    let put = object_at(&store.connection(), missing()).await.put(Bytes::from_static(b"x")).await;
    let error = put.expect_err("there is no bucket");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.message().contains("bucket batch-export-no-such-bucket"), "{error}");

    let many = object_at(&store.connection(), missing()).await;
    let error = many.upload_part(PartNumber::FIRST, body(1, 10)).await.expect_err("there is no bucket");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    many.abort().await.expect("there is nothing to abort");
}

async fn wrong_credentials_are_an_auth_error(store: Store) {
    let bucket = Bucket::fresh(store).await;
    for wrong_id in [true, false] {
        let mut connection = store.connection();
        let keys = connection.credentials.as_mut().expect("the store's keys");
        if wrong_id {
            keys.access_key_id = "nobody-at-all-0000000".to_owned();
        } else {
            keys.secret_access_key = Secret::new("wrong-marker-secret");
        }
        for multipart in [true, false] {
            let object = object_at(&connection, spec(&bucket.name, "key")).await;
            let outcome = if multipart {
                object.upload_part(PartNumber::FIRST, body(1, 10)).await.map(drop)
            } else {
                object.put(body(1, 10)).await.map(drop)
            };
            let error = outcome.expect_err("is refused");
            assert_eq!(error.kind(), ErrorKind::Auth, "{error:?}");
            assert!(!error.is_retryable());
            assert!(!format!("{error:?}").contains("wrong-marker-secret"));
        }
    }
    assert_eq!(bucket.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_unreachable_store_is_retryable() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let url = format!("http://{}", unused.local_addr().expect("is bound"));
    drop(unused);
    let connection = S3Connection { endpoint_url: Some(url.parse().expect("a URL")), ..Store::SeaweedFs.connection() };
    let error =
        object_at(&connection, spec("bucket", "key")).await.put(Bytes::new()).await.expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::DestinationUnavailable, "{error:?}");
    assert!(error.message().contains(&format!("{url} can't be reached")), "{error}");
}

#[tokio::test]
async fn the_environment_says_what_the_connection_leaves_open() {
    let bucket = Bucket::fresh(Store::SeaweedFs).await;
    let object = object_at(&S3Connection::default(), spec(&bucket.name, "by-environment")).await;
    object.put(Bytes::from_static(b"x")).await.expect("is stored");
    assert_eq!(bucket.keys().await, ["by-environment"]);
    let client = client(&S3Connection::default()).await;
    assert_eq!(client.checksums(), S3Checksums::WhenRequired, "the endpoint is not Amazon's, wherever it was named");
}

/// Writes with a condition, by PUT or by parts.
async fn write_if(bucket: &Bucket, key: &str, precondition: Precondition, multipart: bool) -> Result<(), ErrorKind> {
    let spec = ObjectSpec { precondition, ..spec(&bucket.name, key) };
    let object = object_at(&bucket.store.connection(), spec).await;
    let outcome = if multipart {
        let parts = upload(&object, &[body(1, 10)]).await;
        object.complete(parts).await
    } else {
        object.put(body(1, 10)).await
    };
    object.abort().await.expect("is cleaned up");
    outcome.map(drop).map_err(|error| error.kind())
}

async fn conditions_hold_as_the_probe_says(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let found = capabilities(&bucket).await;
    for (multipart, absent, unchanged) in [
        (false, found.put_if_absent, found.put_if_unchanged),
        (true, found.complete_if_absent, found.complete_if_unchanged),
    ] {
        let key = format!("conditional-{multipart}");
        let refused = |support| if support == Support::Yes { Err(ErrorKind::DestinationUnavailable) } else { Ok(()) };
        assert_eq!(write_if(&bucket, &key, Precondition::Absent, multipart).await, Ok(()));
        assert_eq!(write_if(&bucket, &key, Precondition::Absent, multipart).await, refused(absent));
        let wrong = Precondition::Unchanged("\"00000000000000000000000000000000\"".to_owned());
        assert_eq!(write_if(&bucket, &key, wrong, multipart).await, refused(unchanged));
        let client = client(&store.connection()).await;
        let existing = find_existing(&client, &bucket.name, &key, &Stop::new(), &Default::default()).await;
        let Existing::Object(object) = existing.expect("can be looked at") else { panic!("{key} is there") };
        let right = Precondition::Unchanged(object.etag.expect("has an etag"));
        assert_eq!(write_if(&bucket, &key, right, multipart).await, Ok(()));
    }
    assert_eq!(bucket.uploads().await, Vec::<String>::new());
}

async fn a_lost_reply_to_complete_is_settled(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let proxy = S3Proxy::start(store).await;
    proxy.breaks(Operation::Complete, 1, Fault::ReplyLost);
    let object = object_at(&proxy.connection(), spec(&bucket.name, "lost")).await;
    let bodies = [body(1, PART_BYTES), body(2, 10)];
    let parts = upload(&object, &bodies).await;
    let outcome = object.complete(parts).await;
    assert!(proxy.is_through(), "no reply was lost");
    if store.keeps_metadata() {
        outcome.expect("the object became visible by the first try");
    } else {
        // Whose object it is can't be told, so the run starts over and writes it once more.
        assert!(outcome.expect_err("nothing says that it is ours").is_retryable());
    }
    assert_eq!(bucket.bytes("lost").await, bodies.concat());
    assert_eq!(bucket.uploads().await, Vec::<String>::new());
}

async fn finds_what_lies_under_a_key(store: Store) {
    let bucket = Bucket::fresh(store).await;
    let client = client(&store.connection()).await;
    let (stop, progress) = (Stop::new(), Default::default());
    let find = async || {
        let existing = find_existing(&client, &bucket.name, "key", &stop, &progress).await;
        existing.expect("can be looked at")
    };
    assert_eq!(find().await, Existing::Nothing);
    object(&bucket, "key").await.put(body(1, 10)).await.expect("is stored");
    let found = find().await;
    let Existing::Object(object) = &found else { panic!("the object is there: {found:?}") };
    assert_eq!(object.bytes, 10);
    found.require_replaceable(&owner("export", 7), "s3://b/key").expect("it is the same export's, or can't be told");
    if store.keeps_metadata() {
        assert_eq!(object.writer, Writer::Export("export".to_owned()));
        let error = found.require_replaceable(&owner("other", 1), "s3://b/key").expect_err("it is another export's");
        assert!(error.message().contains("belongs to the export export"), "{error}");
        let foreign = bucket.admin.put_object().bucket(&bucket.name).key("key").metadata("tool", "theirs").send().await;
        foreign.expect("somebody else writes it");
        find().await.require_replaceable(&owner("export", 1), "s3://b/key").expect_err("it is nobody's of ours");
    } else {
        assert_eq!(object.writer, Writer::Unknown);
    }
}

pub(crate) async fn capabilities(bucket: &Bucket) -> StoreCapabilities {
    let client = client(&bucket.store.connection()).await;
    probe(&client, &bucket.name, "probe/").await.expect("the store can be tried")
}

/// The documentation's store matrix: a store that changes shows here.
async fn does_what_the_matrix_says(store: Store) {
    use Support::{Ignored, Refused, Yes};
    let bucket = Bucket::fresh(store).await;
    if store.is_unknown().await {
        let found = capabilities(&bucket).await;
        assert_eq!((found.part_order, found.unknown_part), (Yes, Yes), "what no store may leave out");
        return;
    }
    let expected = match store {
        Store::SeaweedFs => StoreCapabilities {
            put_if_absent: Yes,
            put_if_unchanged: Yes,
            complete_if_absent: Yes,
            complete_if_unchanged: Yes,
            minimum_part_size: Yes,
            part_order: Yes,
            unknown_part: Yes,
            checksums: Yes,
            checksums_verified: Yes,
            unsigned_payload: Yes,
            encryption_aes256: Refused,
            missing_bucket_at_create: Yes,
            metadata: Yes,
            complete_twice: Yes,
            fenced: true,
        },
        Store::JuiceFs => StoreCapabilities {
            put_if_absent: Ignored,
            put_if_unchanged: Ignored,
            complete_if_absent: Ignored,
            complete_if_unchanged: Ignored,
            minimum_part_size: Ignored,
            part_order: Yes,
            unknown_part: Yes,
            checksums: Yes,
            checksums_verified: Ignored,
            unsigned_payload: Yes,
            encryption_aes256: Refused,
            missing_bucket_at_create: Yes,
            metadata: Ignored,
            complete_twice: Refused,
            fenced: false,
        },
    };
    assert_eq!(capabilities(&bucket).await, expected);
    assert_eq!(bucket.keys().await, Vec::<String>::new(), "the probe cleans up");
    assert_eq!(bucket.uploads().await, Vec::<String>::new(), "the probe cleans up");
}
