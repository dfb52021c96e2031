use super::*;
use crate::sink::scripted::connection_to;

async fn connect(connection: &S3Connection) -> S3Client {
    S3Client::connect(connection).await.expect("endpoint, region and keys are given")
}

/// Where the client would send a request for an object.
async fn object_url(client: &S3Client) -> String {
    let expiry = PresigningConfig::expires_in(Duration::from_secs(60)).expect("a minute is fine");
    let request = client.sdk().get_object().bucket("a-bucket").key("key").presigned(expiry).await.expect("is signed");
    request.uri().split('?').next().expect("has a path").to_owned()
}

#[tokio::test]
async fn amazon_and_others_get_their_own_defaults() {
    for (url, checksums, object) in [
        ("http://127.0.0.1:9000", S3Checksums::WhenRequired, "http://127.0.0.1:9000/a-bucket/key"),
        ("https://minio.example/", S3Checksums::WhenRequired, "https://minio.example/a-bucket/key"),
        (
            "https://amazonaws.com.evil.example",
            S3Checksums::WhenRequired,
            "https://amazonaws.com.evil.example/a-bucket/key",
        ),
        (
            "https://s3.eu-west-1.amazonaws.com",
            S3Checksums::WhenSupported,
            "https://a-bucket.s3.eu-west-1.amazonaws.com/key",
        ),
    ] {
        let client = connect(&connection_to(url)).await;
        assert_eq!(client.checksums(), checksums, "{url}");
        assert_eq!(object_url(&client).await, object);
        assert_eq!(client.endpoint().to_string(), url.trim_end_matches('/'));
        assert_eq!(client.endpoint().is_encrypted(), url.starts_with("https"));
    }
}

#[tokio::test]
async fn the_connection_wins_over_defaults() {
    let connection = S3Connection {
        use_virtual_style_addressing: Some(true),
        checksums: Some(S3Checksums::WhenSupported),
        ..connection_to("https://store.example")
    };
    let client = connect(&connection).await;
    assert_eq!(client.checksums(), S3Checksums::WhenSupported);
    assert_eq!(object_url(&client).await, "https://a-bucket.store.example/key");
}

#[tokio::test]
async fn an_endpoint_of_another_scheme_is_refused() {
    let error = S3Client::connect(&connection_to("ftp://store.example")).await.expect_err("is no HTTP");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("https://host:port"), "{error}");
}

#[tokio::test]
async fn debug_shows_no_secret() {
    let client = connect(&connection_to("https://store.example")).await;
    assert!(!format!("{client:?}").contains(crate::sink::scripted::SECRET_KEY));
}

#[tokio::test]
async fn missing_credentials_are_a_sentence() {
    let provider = ProfileFileCredentialsProvider::builder().profile_name("no-such-profile-anywhere").build();
    let nobody = SharedCredentialsProvider::new(provider);
    let error = provide(&nobody).await.expect_err("there are none");
    assert_eq!(error.kind(), ErrorKind::Auth);
}

#[test]
fn uploads_have_time_by_their_size() {
    assert_eq!(upload_timeout(0), SMALL_REQUEST_TIMEOUT);
    // 100 MiB over 2 Mb/s take 420 s.
    assert!(upload_timeout(100 * 1024 * 1024) > Duration::from_secs(420));
}
