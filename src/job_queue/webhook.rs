//! Webhooks: who hears of the ends of runs.
//!
//! # Shape
//! A POST of JSON, `{"type": "run.ended", "timestamp": …, "data": {the run's record}}`, with the headers of
//! [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id` is the same for every attempt, `webhook-timestamp` is in
//! seconds, and where there is a secret, `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over
//! `{id}.{timestamp}.{body}`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use activities::RunEnded;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::config::connections::Surroundings;
use engine::config::secret::Secret;
use engine::config::validate::Check;
use futures::future::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use jobs::error::InvalidJob;
use jobs::handler::{Failure, Handler};
use jobs::job::{Job, KeyMode};
use reqwest::header::RETRY_AFTER;
use reqwest::{StatusCode, Url, redirect};
use runs::{RunRecord, RunStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;

use super::configuration::RawWebhook;
use super::short_key;

/// The name of jobs that call a webhook.
pub(super) const JOB: &str = "webhook";

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest pause that a receiver may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// What precedes a secret in the notation of Standard Webhooks.
const SECRET_PREFIX: &str = "whsec_";

/// Somebody who hears of the ends of runs.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    /// Its name in jobs, which know no address.
    pub(super) name: String,
    url: Secret,
    key: Option<Secret>,
    statuses: Vec<RunStatus>,
    exports: Option<Vec<String>>,
}

/// What a job knows.
#[derive(Debug, Serialize, Deserialize)]
struct Call {
    webhook: String,
    /// The run that ended; without one it is a call to see whether calls arrive.
    run: Option<RunRecord>,
}

impl Webhook {
    pub(super) fn validate(
        check: &mut Check,
        index: usize,
        raw: RawWebhook,
        surroundings: Surroundings<'_>,
    ) -> Option<Self> {
        let field = |name: &str| format!("webhooks[{index}].{name}");
        let name = check.required(&field("name"), raw.name.as_deref(), "give the webhook a name");
        let url = match (raw.url, raw.url_file) {
            (Some(url), None) => Some(url),
            (None, Some(file)) => {
                let text = (surroundings.read_file)(Path::new(&file));
                check.take(&field("url_file"), text.map_err(|error| format!("can't read {file}: {error}")))
            }
            (Some(_), Some(_)) => {
                check.fault(&field("url_file"), "stands beside url; keep one of the two");
                None
            }
            (None, None) => {
                check.fault(&field("url"), "is missing; write https://host/path, ${NAME} of a variable, or url_file");
                None
            }
        };
        let url = url.and_then(|url| check.take(&field("url"), address(&url)));
        let key = check.secret(&field("secret"), raw.secret, raw.secret_file, surroundings);
        if let Some(key) = &key
            && signing_key(key).is_none()
        {
            check.fault(&field("secret"), "is no base64 after whsec_");
        }
        let statuses = raw.statuses.map_or_else(
            || Some(RunStatus::ALL.into_iter().filter(|status| status.is_final()).collect()),
            |words| {
                let parsed = words.iter().map(|word| word.parse::<RunStatus>()).collect::<Result<Vec<_>, _>>();
                check.take(&field("statuses"), parsed.map_err(|error| error.to_string()))
            },
        );
        Some(Self { name: name?, url: url?, key, statuses: statuses?, exports: raw.exports })
    }

    /// The job that tells of a run's end, if this webhook wants to hear of it. A run that is noted twice is told of once.
    pub(super) fn job(&self, end: &RunEnded<'_>) -> Option<Result<Job, InvalidJob>> {
        let run = end.record;
        let is_wanted = self.statuses.contains(&run.status)
            && self.exports.as_ref().is_none_or(|exports| exports.contains(&run.export_id));
        is_wanted.then(|| {
            let key = short_key(JOB, &[&self.name, &run.run_id, end.execution_id]);
            // Not every provider keeps the character 0, and an error may quote it.
            let error = run.error.as_ref().map(|error| error.replace('\0', ""));
            let run = RunRecord { error, ..run.clone() };
            Job::new(JOB, json!({ "webhook": self.name, "run": run }))?.with_key(key, KeyMode::Replace)
        })
    }
}

/// A web address, which isn't repeated: it may hold a token.
fn address(text: &str) -> Result<Secret, &'static str> {
    let wrong = "isn't a web address; write https://host/path";
    let url = Url::parse(text.trim()).map_err(|_| wrong)?;
    let is_web = ["http", "https"].contains(&url.scheme()) && url.host_str().is_some();
    if is_web { Ok(Secret::new(text.trim())) } else { Err(wrong) }
}

/// The bytes of a secret: base64 after `whsec_`, else the text itself.
fn signing_key(secret: &Secret) -> Option<Vec<u8>> {
    match secret.expose().strip_prefix(SECRET_PREFIX) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).ok(),
        None => Some(secret.expose().as_bytes().to_vec()),
    }
}

/// Calls webhooks.
#[derive(Debug)]
pub(super) struct WebhookHandler {
    client: reqwest::Client,
    webhooks: BTreeMap<String, Webhook>,
}

impl WebhookHandler {
    pub(super) fn new(webhooks: &[Webhook]) -> anyhow::Result<Self> {
        // What answers with another address would hear of a run, and nobody said that it may.
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(redirect::Policy::none())
            .user_agent(concat!("batch-export/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let webhooks = webhooks.iter().map(|webhook| (webhook.name.clone(), webhook.clone())).collect();
        Ok(Self { client, webhooks })
    }

    async fn call(&self, job: &Job) -> Result<(), Failure> {
        let call =
            Call::deserialize(&job.payload).map_err(|error| Failure::fatal(format!("this is no call: {error}")))?;
        let name = &call.webhook;
        // It may come back with the next start of the process.
        let webhook = self.webhooks.get(name).ok_or_else(|| Failure::new(format!("no webhook is named `{name}`")))?;
        let now = Timestamp::now();
        let body = match &call.run {
            Some(run) => json!({ "type": "run.ended", "timestamp": now, "data": run }),
            None => json!({ "type": "ping", "timestamp": now, "data": {} }),
        };
        let body = body.to_string();
        let (id, seconds) = (job.id.to_string(), now.as_second().to_string());
        let mut request = self
            .client
            .post(webhook.url.expose())
            .header("content-type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", &seconds);
        if let Some(signature) = webhook.key.as_ref().and_then(|key| sign(key, &id, &seconds, &body)) {
            request = request.header("webhook-signature", signature);
        }
        // The address stays out of the text: it may hold a token.
        let answer = request.body(body).send().await.map_err(|error| {
            Failure::new(format!("webhook `{name}` can't be reached: {:#}", anyhow::Error::from(error.without_url())))
        })?;
        judge(name, &answer)
    }
}

impl Handler for WebhookHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.call(job))
    }
}

fn sign(key: &Secret, id: &str, seconds: &str, body: &str) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&signing_key(key)?).ok()?;
    mac.update(format!("{id}.{seconds}.{body}").as_bytes());
    Some(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
}

/// Whatever isn't a success is tried again, since a receiver may be mended; only who says that he is gone isn't asked again.
fn judge(name: &str, answer: &reqwest::Response) -> Result<(), Failure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let message = format!("webhook `{name}` answered {status}");
    if status == StatusCode::GONE {
        return Err(Failure::fatal(message));
    }
    let seconds = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let failure = Failure::new(message);
    Err(match seconds {
        Some(seconds) => failure.not_before(Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
        None => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn signatures_are_the_specifications() {
        let key = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signature = sign(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", r#"{"test": 2432232314}"#);
        assert_eq!(signature.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }
}
