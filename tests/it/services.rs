//! Where the real services are, from the environment, and a fresh corner of each for every test.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation};
use engine::config::connection::{S3Connection, S3Credentials};
use engine::config::secret::Secret;

/// A variable that the services' environment has.
pub(crate) fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start the services with `make services` \
             (python3 dev/services.py up --name test) and read their variables with `. .dev/run/test/env`"
        )
    })
}

/// Where Temporal's server listens: `host:port`.
pub(crate) fn temporal_address() -> String {
    required("TEMPORAL_ADDRESS").trim_start_matches("http://").to_owned()
}

/// The S3 services that every test of the destination runs against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// SeaweedFS: strict about parts, honors conditions. Or the store that the user brings.
    SeaweedFs,
    /// The gateway of JuiceFS: MinIO's request handlers of 2022.
    JuiceFs,
}

impl Store {
    /// How the engine reaches it.
    pub(crate) fn connection(self) -> S3Connection {
        let [endpoint, key_id, secret] = self.variables().map(required);
        S3Connection {
            region: Some("us-east-1".to_owned()),
            endpoint_url: Some(endpoint.parse().expect("the endpoint is a URL")),
            credentials: Some(S3Credentials {
                access_key_id: key_id,
                secret_access_key: Secret::new(secret),
                session_token: None,
            }),
            ..S3Connection::default()
        }
    }

    /// A client of the test's own, apart from the engine's.
    pub(crate) fn admin(self) -> Client {
        client(self.variables().map(required))
    }

    /// Whether it is another store that the user brings, of which only the probe knows what it does.
    pub(crate) async fn is_unknown(self) -> bool {
        let endpoint = self.connection().endpoint_url.expect("an endpoint");
        let answer = reqwest::get(endpoint).await.expect("the store is up");
        let name = answer.headers().get("server").map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
        self == Self::SeaweedFs && !name.is_some_and(|name| name.contains("SeaweedFS"))
    }

    /// Gives a command of another program this store's address and keys, by the usual variables.
    pub(crate) fn give_to(self, command: &mut std::process::Command) {
        let names = Self::SeaweedFs.variables();
        command.envs(names.into_iter().zip(self.variables().map(required)));
    }

    /// Whether it keeps an object's metadata and type; the gateway drops them unless it is started with `--object-meta`.
    pub(crate) const fn keeps_metadata(self) -> bool {
        matches!(self, Self::SeaweedFs)
    }

    const fn variables(self) -> [&'static str; 3] {
        match self {
            Self::SeaweedFs => ["AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            Self::JuiceFs => [
                "BATCH_EXPORT_TEST_JUICEFS_ENDPOINT",
                "BATCH_EXPORT_TEST_JUICEFS_ACCESS_KEY_ID",
                "BATCH_EXPORT_TEST_JUICEFS_SECRET_ACCESS_KEY",
            ],
        }
    }
}

/// A client of the S3 service with this endpoint, key and secret.
pub(crate) fn client([endpoint, key_id, secret]: [String; 3]) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .endpoint_url(endpoint)
        .force_path_style(true)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .credentials_provider(Credentials::new(key_id, secret, None, None, "tests"));
    Client::from_conf(config.build())
}

/// A bucket of one test's own.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) store: Store,
    pub(crate) name: String,
    pub(crate) admin: Client,
}

impl Bucket {
    /// A new, empty bucket.
    pub(crate) async fn fresh(store: Store) -> Self {
        let (admin, name) = (store.admin(), format!("it-{}", uuid::Uuid::new_v4().simple()));
        let created = admin.create_bucket().bucket(&name).send().await;
        created.unwrap_or_else(|error| {
            panic!("{store:?} does not answer; start it again with `make services`: {error:?}")
        });
        Self { store, name, admin }
    }

    /// The keys of all visible objects, in order.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let listed = self.admin.list_objects_v2().bucket(&self.name).send().await.expect("can be listed");
        listed.contents().iter().map(|object| object.key().expect("has a key").to_owned()).collect()
    }

    /// What the store calls the content of every visible object, in order of keys.
    pub(crate) async fn etags(&self) -> Vec<String> {
        let listed = self.admin.list_objects_v2().bucket(&self.name).send().await.expect("can be listed");
        listed.contents().iter().map(|object| object.e_tag().expect("has an etag").to_owned()).collect()
    }

    /// An object's bytes.
    pub(crate) async fn bytes(&self, key: &str) -> Vec<u8> {
        let object = self.admin.get_object().bucket(&self.name).key(key).send().await.expect("is there");
        object.body.collect().await.expect("can be read").to_vec()
    }

    /// Removes an object.
    pub(crate) async fn delete(&self, key: &str) {
        self.admin.delete_object().bucket(&self.name).key(key).send().await.expect("can be deleted");
    }

    /// Opens an upload that nobody goes on with.
    pub(crate) async fn open_upload(&self, key: &str) {
        self.admin.create_multipart_upload().bucket(&self.name).key(key).send().await.expect("can be opened");
    }

    /// The keys of uploads that are neither complete nor aborted.
    pub(crate) async fn uploads(&self) -> Vec<String> {
        let listed = self.admin.list_multipart_uploads().bucket(&self.name).send().await.expect("can be listed");
        listed.uploads().iter().map(|upload| upload.key().expect("has a key").to_owned()).collect()
    }
}
