//! A proxy on loopback that breaks chosen requests on their way to a real S3 service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::config::connection::S3Connection;

use crate::http_proxy::{End, Exchange, Reply, listen};
use crate::random::Random;
use crate::services::Store;

/// The requests that a run makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Create,
    Part,
    Complete,
    Abort,
    Put,
    Other,
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The service gets it later.
    Delayed(Duration),
    /// The connection is reset before the body is read: the service never sees it.
    ResetBeforeBody,
    /// The connection is reset after the body is read: the service never sees it.
    ResetAfterBody,
    /// The service never sees it, and the answer is an error.
    Refused(u16, &'static str),
    /// The service does it, and its answer is lost.
    ReplyLost,
    /// The service never sees it, and the answer is success with this body.
    Pretended(&'static str),
    /// The upload is aborted behind the client's back, then the service gets the request.
    Forgotten,
    /// The service never sees it, and no answer comes.
    HeldBefore,
    /// The service does it, and no answer comes.
    HeldAfter,
}

impl Fault {
    /// Its kind, in words.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Delayed(_) => "delayed".to_owned(),
            Self::ResetBeforeBody => "reset before the body".to_owned(),
            Self::ResetAfterBody => "reset after the body".to_owned(),
            Self::Refused(status, code) => format!("{status} {code}"),
            Self::ReplyLost => "lost reply".to_owned(),
            Self::Pretended(_) => "200 without a proper result".to_owned(),
            Self::Forgotten => "forgotten upload".to_owned(),
            Self::HeldBefore | Self::HeldAfter => "no answer".to_owned(),
        }
    }
}

/// What a store demands or leaves out that others don't.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// All parts but the last have one size, and the last is no larger.
    EqualParts,
    /// No checksums, trailers or chunks that are signed.
    NoChecksums,
    /// No more parts than this.
    MaxParts(u32),
}

#[derive(Debug, Default)]
struct Plan {
    rule: Option<Rule>,
    part_sizes: BTreeMap<u32, usize>,
    faults: Vec<(Operation, u32, Fault)>,
    seen: BTreeMap<Operation, u32>,
    held: u32,
    /// What decides whether a request meets a fault of its own, in so many cases of a thousand.
    random: Option<(Random, u64)>,
    happened: BTreeMap<&'static str, u64>,
}

/// The proxy; it serves as long as the test's runtime lives.
#[derive(Debug)]
pub(crate) struct S3Proxy {
    store: Store,
    port: u16,
    plan: Arc<Mutex<Plan>>,
}

impl S3Proxy {
    pub(crate) async fn start(store: Store) -> Self {
        let endpoint = store.connection().endpoint_url.expect("an endpoint");
        Self::before(endpoint.to_string(), store).await
    }

    /// Before another service; uploads are forgotten in the store alone.
    pub(crate) async fn before(endpoint: String, store: Store) -> Self {
        let plan = Arc::new(Mutex::new(Plan::default()));
        let plans = Arc::clone(&plan);
        let port = listen(move |exchange| serve(exchange, endpoint.clone(), store, Arc::clone(&plans))).await;
        Self { store, port, plan }
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The way to the store through the proxy.
    pub(crate) fn connection(&self) -> S3Connection {
        let mut connection = self.store.connection();
        let url = connection.endpoint_url.as_mut().expect("an endpoint");
        url.set_port(Some(self.port)).expect("an http URL");
        connection
    }

    /// Breaks the next `times` requests of a kind.
    pub(crate) fn breaks(&self, operation: Operation, times: u32, fault: Fault) {
        self.plan().faults.push((operation, times, fault));
    }

    /// Breaks no more of what was to break.
    pub(crate) fn heals(&self) {
        self.plan().faults.clear();
    }

    /// Makes the store stricter than it is.
    pub(crate) fn demands(&self, rule: Rule) {
        self.plan().rule = Some(rule);
    }

    /// Breaks so many of a thousand further requests, each in a way that passes when it is sent again or the run is tried
    /// again; 0 lets all pass.
    pub(crate) fn breaks_at_random(&self, seed: u64, permille: u64) {
        self.plan().random = Some((Random::new(seed), permille));
    }

    /// How often each kind of random fault has happened.
    pub(crate) fn happened(&self) -> BTreeMap<&'static str, u64> {
        self.plan().happened.clone()
    }

    /// How many requests of a kind came.
    pub(crate) fn seen(&self, operation: Operation) -> u32 {
        self.plan().seen.get(&operation).copied().unwrap_or_default()
    }

    /// How many requests are held.
    pub(crate) fn held(&self) -> u32 {
        self.plan().held
    }

    /// Whether every fault has happened as often as it should.
    pub(crate) fn is_through(&self) -> bool {
        self.plan().faults.iter().all(|(_, times, _)| *times == 0)
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    /// Counts a request and takes the fault that is meant for it.
    fn meet(&mut self, operation: Operation) -> Option<Fault> {
        *self.seen.entry(operation).or_default() += 1;
        match self.faults.iter_mut().find(|(on, times, _)| *on == operation && *times > 0) {
            Some((_, times, fault)) => {
                *times -= 1;
                Some(*fault)
            }
            None => self.random_fault(operation),
        }
    }

    /// The answer to a request that breaks the rule.
    fn judge(&mut self, exchange: &Exchange, operation: Operation, num_bytes: usize) -> Option<(u16, &'static str)> {
        match (self.rule?, operation) {
            (Rule::EqualParts, Operation::Part) => {
                self.part_sizes.insert(part_number(exchange), num_bytes);
                None
            }
            (Rule::EqualParts, Operation::Complete) => {
                let (_, last) = self.part_sizes.pop_last().expect("parts");
                let sizes =
                    std::mem::take(&mut self.part_sizes).into_values().collect::<std::collections::BTreeSet<_>>();
                let is_even = sizes.len() <= 1 && sizes.iter().all(|size| last <= *size);
                (!is_even).then_some((400, "InvalidPart"))
            }
            (Rule::NoChecksums, _) => {
                const REFUSED: [&str; 5] = [
                    "x-amz-sdk-checksum-algorithm",
                    "x-amz-checksum-algorithm",
                    "x-amz-checksum-crc32",
                    "x-amz-trailer",
                    "content-encoding",
                ];
                REFUSED.iter().any(|name| exchange.header(name).is_some()).then_some((501, "NotImplemented"))
            }
            (Rule::MaxParts(most), Operation::Part) => {
                (part_number(exchange) > most).then_some((400, "InvalidArgument"))
            }
            _ => None,
        }
    }

    fn random_fault(&mut self, operation: Operation) -> Option<Fault> {
        let (random, permille) = self.random.as_mut()?;
        if !random.chance(*permille) {
            return None;
        }
        let (name, fault) = match (operation, random.below(9)) {
            // One that is opened late, by a worker that is dead by then, is an upload that nobody has heard of.
            (Operation::Create, 0) => return None,
            (_, 0) => ("delayed", Fault::Delayed(Duration::from_millis(random.below(700)))),
            (_, 1) => ("reset before the body", Fault::ResetBeforeBody),
            (_, 2) => ("reset after the body", Fault::ResetAfterBody),
            (_, 3) => ("503 SlowDown", Fault::Refused(503, "SlowDown")),
            (_, 4) => ("500 InternalError", Fault::Refused(500, "InternalError")),
            (Operation::Part, 5) => ("400 RequestTimeout", Fault::Refused(400, "RequestTimeout")),
            (Operation::Complete, 5) => ("200 with an error", Fault::Pretended(ERROR_IN_200)),
            // An upload that nobody has heard of can't be aborted by anybody.
            (Operation::Part | Operation::Complete | Operation::Put, 6 | 7) => ("lost reply", Fault::ReplyLost),
            (Operation::Part | Operation::Complete, 8) => ("forgotten upload", Fault::Forgotten),
            _ => return None,
        };
        *self.happened.entry(name).or_default() += 1;
        Some(fault)
    }
}

/// What S3 says when it fails after it has begun to answer.
const ERROR_IN_200: &str = "<Error><Code>InternalError</Code><Message>a test's own</Message></Error>";

fn operation(exchange: &Exchange) -> Operation {
    let has_query = |name: &str| exchange.target.contains(name);
    match exchange.method.as_str() {
        "POST" if has_query("uploadId=") => Operation::Complete,
        "POST" if has_query("uploads") => Operation::Create,
        "PUT" if has_query("partNumber=") => Operation::Part,
        "DELETE" if has_query("uploadId=") => Operation::Abort,
        "PUT" => Operation::Put,
        _ => Operation::Other,
    }
}

async fn serve(mut exchange: Exchange, endpoint: String, store: Store, plan: Arc<Mutex<Plan>>) {
    let operation = operation(&exchange);
    let fault = plan.lock().unwrap_or_else(PoisonError::into_inner).meet(operation);
    if fault == Some(Fault::ResetBeforeBody) {
        return exchange.reset();
    }
    let Some(body) = exchange.body().await else { return };
    let refusal = plan.lock().unwrap_or_else(PoisonError::into_inner).judge(&exchange, operation, body.len());
    if let Some((status, code)) = refusal {
        return exchange.reply(&error(status, code), End::Clean).await;
    }
    match fault {
        Some(Fault::Refused(status, code)) => return exchange.reply(&error(status, code), End::Clean).await,
        Some(Fault::Pretended(body)) => return exchange.reply(&document(200, body), End::Clean).await,
        Some(Fault::ResetAfterBody | Fault::ResetBeforeBody) => return exchange.reset(),
        Some(Fault::Delayed(delay)) => tokio::time::sleep(delay).await,
        Some(Fault::Forgotten) => forget(&exchange, store).await,
        Some(Fault::HeldBefore) => return hold(exchange, &plan).await,
        Some(Fault::HeldAfter | Fault::ReplyLost) | None => {}
    }
    let Some(reply) = exchange.forward(&endpoint, body).await else { return exchange.reset() };
    match fault {
        Some(Fault::ReplyLost) => exchange.reset(),
        Some(Fault::HeldAfter) => hold(exchange, &plan).await,
        _ => exchange.reply(&reply, End::Clean).await,
    }
}

/// Keeps the connection open, for as long as the test's runtime lives.
async fn hold(exchange: Exchange, plan: &Mutex<Plan>) {
    plan.lock().unwrap_or_else(PoisonError::into_inner).held += 1;
    std::future::pending::<()>().await;
    drop(exchange);
}

fn part_number(exchange: &Exchange) -> u32 {
    let (_, query) = exchange.target.split_once('?').expect("a query");
    let number = query.split('&').find_map(|pair| pair.strip_prefix("partNumber=")).expect("a part");
    number.parse().expect("a number")
}

/// Aborts the upload that a request is about, as a lifecycle rule would.
async fn forget(exchange: &Exchange, store: Store) {
    let (path, query) = exchange.target.split_once('?').expect("a query");
    let id = query.split('&').find_map(|pair| pair.strip_prefix("uploadId=")).expect("an upload");
    let (bucket, key) = path.trim_start_matches('/').split_once('/').expect("bucket and key");
    let request = store.admin().abort_multipart_upload().bucket(bucket).key(key).upload_id(id);
    // Another request may have been forgotten already.
    drop(request.send().await);
}

fn error(status: u16, code: &str) -> Reply {
    document(
        status,
        &format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a test's own</Message></Error>"),
    )
}

fn document(status: u16, body: &str) -> Reply {
    let headers = vec![("content-type".to_owned(), "application/xml".to_owned())];
    Reply { status, headers, body: body.as_bytes().to_vec() }
}
