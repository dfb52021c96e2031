//! The places that keep jobs, and how each of them breaks: a real Postgres and a real S3 of the test's own, and ClickHouse.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::own_services::OwnServices;
use crate::random::Random;
use crate::relay::{Network, Relay};
use crate::s3_proxy::{Fault, Operation, S3Proxy};
use crate::services::{Store, client, required};

const POSTGRES_URL: &str = "BATCH_EXPORT_TEST_POSTGRES_URL";

/// How often a request may come while a place is broken: as often as it likes.
const ALWAYS: u32 = u32::MAX;

/// A place that keeps jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Postgres,
    S3,
    ClickHouse,
}

/// How it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// The service ends, and whoever is connected with it.
    Stopped,
    /// The network does something else.
    Cut(Network),
    /// It works, and has no room.
    Full,
    /// The server is there, and what is asked for isn't: database or bucket.
    Wrong,
}

impl Place {
    /// In which ways it breaks here.
    pub(crate) const fn outages(self) -> &'static [Outage] {
        const ALL: [Outage; 7] = [
            Outage::Stopped,
            Outage::Full,
            Outage::Wrong,
            Outage::Cut(Network::Refuses),
            Outage::Cut(Network::Hangs),
            Outage::Cut(Network::Mute),
            Outage::Cut(Network::Slow),
        ];
        match self {
            Self::Postgres | Self::S3 => &ALL,
            // The one server here is everybody's.
            Self::ClickHouse => ALL.split_at(3).1,
        }
    }
}

/// Outages of some places, in such an order that each of them comes before any comes again.
pub(crate) struct Deck {
    random: Random,
    all: Vec<(Place, Outage)>,
    left: Vec<(Place, Outage)>,
    drawn: usize,
}

impl Deck {
    pub(crate) fn new(places: &[Place], seed: u64) -> Self {
        let of_place = |place: &Place| place.outages().iter().map(|outage| (*place, *outage)).collect::<Vec<_>>();
        Self { random: Random::new(seed), all: places.iter().flat_map(of_place).collect(), left: Vec::new(), drawn: 0 }
    }

    /// The next one.
    pub(crate) fn draw(&mut self) -> (Place, Outage) {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
            self.random.shuffle(&mut self.left);
        }
        self.drawn += 1;
        self.left.pop().expect("every place has outages")
    }

    /// Whether each has come.
    pub(crate) const fn is_through(&self) -> bool {
        self.drawn >= self.all.len()
    }

    /// What all of them are called.
    pub(crate) fn titles(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(|(place, outage)| title(*place, *outage))
    }
}

/// The places, each behind a network.
pub(crate) struct Places {
    services: OwnServices,
    schema: String,
    bucket: String,
    postgres: Relay,
    requests: S3Proxy,
    s3: Relay,
    clickhouse: Relay,
    broken: BTreeMap<Place, Outage>,
    /// How often each broke, by what happened.
    pub(crate) times: BTreeMap<String, u64>,
}

impl Places {
    /// All of them up and empty.
    pub(crate) async fn start() -> Self {
        let services = OwnServices::start(&["postgres", "s3"]);
        let postgres = Relay::start(address(services.variable(POSTGRES_URL))).await;
        let endpoint = services.variable("AWS_ENDPOINT_URL_S3").to_owned();
        let requests = S3Proxy::before(endpoint, Store::SeaweedFs).await;
        let s3 = Relay::start(requests.address()).await;
        let clickhouse = Relay::start(address(&required("CLICKHOUSE_URL"))).await;
        let (schema, bucket) = ("jobs".to_owned(), "jobs".to_owned());
        let (broken, times) = (BTreeMap::new(), BTreeMap::new());
        let places = Self { services, schema, bucket, postgres, requests, s3, clickhouse, broken, times };
        places.create_bucket().await;
        places
    }

    /// The providers, as a file of jobs lists them; files of this machine come last.
    pub(crate) fn yaml(&self, table: &str) -> String {
        format!(
            "  - type: postgres\n    url: ${{{POSTGRES_URL}}}\n    schema: {}\n  - type: s3\n    bucket: {}\n  \
             - type: clickhouse\n    table: {table}\n  - type: files\n",
            self.schema, self.bucket
        )
    }

    /// Where a worker finds them.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let service = |name: &'static str| (name, self.services.variable(name).to_owned());
        vec![
            (POSTGRES_URL, self.database_url(&self.postgres.address.to_string(), "batch_export")),
            ("AWS_ENDPOINT_URL_S3", format!("http://{}", self.s3.address)),
            service("AWS_ACCESS_KEY_ID"),
            service("AWS_SECRET_ACCESS_KEY"),
            ("CLICKHOUSE_URL", format!("http://{}", self.clickhouse.address)),
        ]
    }

    /// Breaks a place; what it had before is over.
    pub(crate) async fn break_one(&mut self, place: Place, outage: Outage) {
        self.heal(place).await;
        *self.times.entry(title(place, outage)).or_default() += 1;
        self.broken.insert(place, outage);
        match (place, outage) {
            (Place::Postgres, Outage::Stopped) => self.services.stop_one("postgres"),
            (Place::S3, Outage::Stopped) => self.services.stop_one("s3"),
            (Place::Postgres, Outage::Full) => self.set_full(true).await,
            (Place::S3, Outage::Full) => {
                self.requests.breaks(Operation::Put, ALWAYS, Fault::Refused(507, "QuotaExceeded"));
            }
            (Place::Postgres, Outage::Wrong) => self.rename("batch_export", "another").await,
            (Place::S3, Outage::Wrong) => {
                for operation in [Operation::Put, Operation::Other] {
                    self.requests.breaks(operation, ALWAYS, Fault::Refused(404, "NoSuchBucket"));
                }
            }
            (_, Outage::Cut(network)) => self.relay(place).set(network),
            (Place::ClickHouse, _) => unreachable!("isn't among its outages"),
        }
    }

    /// Makes it work again, if it is broken.
    pub(crate) async fn heal(&mut self, place: Place) {
        let Some(outage) = self.broken.remove(&place) else { return };
        match (place, outage) {
            (Place::Postgres, Outage::Stopped) => self.services.start_one("postgres"),
            (Place::S3, Outage::Stopped) => self.services.start_one("s3"),
            (Place::Postgres, Outage::Full) => self.set_full(false).await,
            (Place::Postgres, Outage::Wrong) => self.rename("another", "batch_export").await,
            (Place::S3, _) => self.requests.heals(),
            _ => {}
        }
        self.relay(place).set(Network::Up);
    }

    const fn relay(&self, place: Place) -> &Relay {
        match place {
            Place::Postgres => &self.postgres,
            Place::S3 => &self.s3,
            Place::ClickHouse => &self.clickhouse,
        }
    }

    /// Refuses rows that weren't there before, as a full disk does.
    async fn set_full(&self, is_full: bool) {
        let change = if is_full {
            "add constraint full_disk check (false) not valid"
        } else {
            "drop constraint if exists full_disk"
        };
        let statement = format!("alter table if exists {}._private_jobs {change}", self.schema);
        self.execute("batch_export", &[&statement]).await;
    }

    /// Gives the database another name, and ends whoever is connected with it.
    async fn rename(&self, from: &str, to: &str) {
        let ends = format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{from}'");
        let [closes, renames, opens] = [
            format!("alter database {from} with allow_connections false"),
            format!("alter database {from} rename to {to}"),
            format!("alter database {to} with allow_connections true"),
        ];
        self.execute("postgres", &[&closes, &ends, &renames, &opens]).await;
    }

    async fn execute(&self, database: &str, statements: &[&str]) {
        let url = self.database_url(&address(self.services.variable(POSTGRES_URL)), database);
        let mut connection = PgConnection::connect(&url).await.expect("the database is up");
        for statement in statements {
            let statement = AssertSqlSafe((*statement).to_owned());
            sqlx::query(statement).execute(&mut connection).await.expect("is done");
        }
    }

    fn database_url(&self, address: &str, database: &str) -> String {
        let url = self.services.variable(POSTGRES_URL);
        let (credentials, _) = url.rsplit_once('@').expect("a password");
        format!("{credentials}@{address}/{database}")
    }

    async fn create_bucket(&self) {
        let variables = ["AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        let client = client(variables.map(|name| self.services.variable(name).to_owned()));
        client.create_bucket().bucket(&self.bucket).send().await.expect("a bucket");
    }
}

/// Host and port of an address.
pub(crate) fn address(url: &str) -> String {
    let url = url.parse::<reqwest::Url>().expect("an address");
    format!("{}:{}", url.host_str().expect("a host"), url.port_or_known_default().unwrap_or(5432))
}

/// What an outage is called on the page of what was broken, which says what isn't quite the real thing.
fn title(place: Place, outage: Outage) -> String {
    let name = match (place, outage) {
        (_, Outage::Stopped) => "stopped",
        (Place::Postgres, Outage::Full) => "full (a constraint refuses rows)",
        (_, Outage::Full) => "full (507 for each object)",
        (Place::Postgres, Outage::Wrong) => "gone from its server (renamed)",
        (_, Outage::Wrong) => "gone from its server (404 for each request)",
        (_, Outage::Cut(Network::Refuses)) => "refuses connections",
        (_, Outage::Cut(Network::Hangs)) => "cut off",
        (_, Outage::Cut(Network::Mute)) => "answers get lost",
        (_, Outage::Cut(Network::Slow | Network::Up)) => "slow",
    };
    format!("{place:?}: {name}")
}

#[test]
fn every_outage_comes_before_any_comes_again() {
    let mut deck = Deck::new(&[Place::Postgres, Place::S3, Place::ClickHouse], 7);
    let mut orders = Vec::new();
    for _ in 0..2 {
        assert_eq!(deck.is_through(), !orders.is_empty());
        let order = (0..deck.all.len()).map(|_| deck.draw()).map(|(place, outage)| title(place, outage));
        orders.push(order.collect::<Vec<_>>());
    }
    let sorted = |order: &[String]| order.iter().cloned().collect::<BTreeSet<_>>();
    let all = deck.titles().collect::<BTreeSet<_>>();
    assert_eq!((all.len(), sorted(&orders[0]), sorted(&orders[1])), (18, all.clone(), all.clone()));
    assert_ne!(orders[0], orders[1]);
}
