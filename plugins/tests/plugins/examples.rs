//! Examples of plugins as their authors wrote them, word for word.
//!
//! Some call what a browser or a server has and this host does not (`fetch`, `posthog`, a package that buffers events). Those
//! names are declared after the example, so that it stays as it is; imports of packages are taken out, since a plugin is one
//! file.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use jobs::job::Job;
use plugins::definition::Limits;
use plugins::error::PluginError;
use serde_json::{Value, json};

use crate::log;
use crate::rig::{Kept, Manner, start, start_error, start_with, until};

const RETRY: &str = "export async function onRetry (type, payload, meta) {
    if (type === 'processEvent') {
        console.log('retrying event!', type)
    }
}
export async function processEvent (event, meta) {
    if (event.properties?.hi === 'ha') {
        meta.retry('processEvent', event, 30) // try again in 30 seconds
    }
    return event
}
";

const RETRY_SOON: &str = "export async function onRetry (type, payload, meta) {
    if (type === 'processEvent') {
        console.log('retrying event!', type)
    }
}
export async function processEvent (event, meta) {
    console.log('queuing retry')
    meta.retry('processEvent', event, 3)
    return event
}
";

const RETRY_UNAWAITED: &str = "export async function processEvent (event, meta) {
    console.log('queuing retry')
    meta.retry('processEvent', event, 3) // not awaited, so throws somewhere outside of this block
    return event
}
";

const RETRY_IN_THE_PAST: &str = "async function processEvent(event, { config, retry }) {  
    await retry('haha', { bla: 'asd' }, -1)
    return event
}
";

const JOBS: &str = "export const jobs = {
    retryProcessEvent: (event, meta) => {
        console.log('retrying event!', event)
    }
}
export async function processEvent (event, meta) {
    if (event.properties?.hi === 'ha') {
        meta.jobs.retryProcessEvent(event).runIn(30, 'seconds')
        meta.jobs.retryProcessEvent(event).runNow()
        meta.jobs.retryProcessEvent(event).runAt(new Date())
    }
    return event
}
";

const SESSION: &str = "export async function processEvent(event, { cache, tasks }) {
    if ((await cache.incr(`session_${event.distinct_id}`)) === 1) {
        posthog.capture(\"session start\", { distinct_id: event.distinct_id })
        await tasks.runIn(30, 'minutes').checkSessionEnd({ distinct_id: event.distinct_id })
    }
    await cache.expire(`session_${event.distinct_id}`, 30 * 60)
}
";

/// Isn't JavaScript: a parenthesis too many, and `await` in a function that isn't async.
const SESSION_TASK: &str = "export const tasks = {
    checkSessionEnd: ({ distinct_id }, ({ cache, tasks }) => {
        const ping = await cache.get(`session_${distinct_id}`, null)
        if (!ping) {
            posthog.capture(\"session end\", { distinct_id })
        } else {
            await tasks.runIn(1, 'minute').checkSessionEnd({ distinct_id })
        }
    }
}
";

/// What `SESSION_TASK` means.
const SESSION_TASK_REPAIRED: &str = "export const tasks = {
    checkSessionEnd: async ({ distinct_id }, { cache, tasks }) => {
        const ping = await cache.get(`session_${distinct_id}`, null)
        if (!ping) {
            posthog.capture(\"session end\", { distinct_id })
        } else {
            await tasks.runIn(1, 'minute').checkSessionEnd({ distinct_id })
        }
    }
}
";

const BUFFER_IMPORTS: &str = "import { createBuffer } from '@posthog/plugin-contrib'
import fetch from 'node-fetch'
";

const BUFFER: &str = "
export const tasks = {
    flushBatch: async ({ batch, retryCount = 0 }, { tasks }) => {
        const resp = await fetch('https://httpbin.org/post', {
            method: 'post',
            body: JSON.stringify(batch),
            headers: { 'Content-Type': 'application/json' },
        })
        if (resp.status !== 200) {
            if (retryCount > 5) {
                console.error('Could not post batch', batch)
                return
            }
            tasks.runIn(30, 'seconds').flushBatch({ batch, retryCount: retryCount + 1 })
        }
    }
}

export function setupPlugin({ global, tasks }) {
    global.buffer = createBuffer({
        limit: 10 * 1024 * 1024, // 10 MB
        timeoutSeconds: 10 * 60, // 10 minutes
        onFlush: async (batch) => {
            await tasks.runDirectly().flushBatch({ batch }) 
        },
    })
}

export function teardownPlugin({ global }) {
    global.buffer.flush()
}

export function processEvent(event, { config, global }) {
    global.buffer.add(event, JSON.stringify(event).length)
    return event
}
";

/// What the examples call that this host doesn't have.
const SURROUNDINGS: &str = "
const posthog = { capture: (name, properties) => console.info('captured', name, properties) };
const fetch = async (url, request) => { console.info('posted', request.body); return { status: 503 } };
const createBuffer = ({ onFlush }) => {
    const events = [];
    return { add: (event) => events.push(event), flush: () => onFlush(events.splice(0)) };
};
";

fn seconds_from_now(job: &Job) -> i64 {
    let half = SignedDuration::from_millis(500);
    Timestamp::now().duration_until(job.run_at).saturating_add(half).as_secs()
}

#[tokio::test]
async fn an_event_is_retried() {
    for (name, source, delay) in [("retry", RETRY, 30), ("retry-soon", RETRY_SOON, 3)] {
        let outbox = Kept::new(Manner::Takes);
        let plugin = start_with(name, source, Limits::default(), Arc::clone(&outbox)).await;
        let event = json!({ "event": "x", "properties": { "hi": "ha" } });
        assert_eq!(plugin.process_event(event.clone()).await, Ok(Some(event.clone())));
        until("the retry is enqueued", || outbox.jobs().len() == 1).await;
        let job = &outbox.jobs()[0];
        assert_eq!((job.name.as_str(), seconds_from_now(job)), (format!("plugin-retry:{name}").as_str(), delay));
        assert_eq!(job.payload, json!({ "type": "processEvent", "payload": event }));
        plugin.retry("processEvent", event).await.expect("retried");
        assert!(log::has(name, "INFO", "retrying event! processEvent"));
        let other = json!({ "event": "x", "properties": null });
        assert_eq!(plugin.process_event(other.clone()).await, Ok(Some(other)));
        plugin.close().await.expect("closes");
        assert_eq!(outbox.jobs().len(), if name == "retry" { 1 } else { 2 }, "closing waits for jobs on their way");
    }
}

#[tokio::test]
async fn a_retry_that_fails_unheard_takes_nothing_down() {
    let plugin = start("retry-unawaited", RETRY_UNAWAITED).await;
    let event = json!({ "event": "x" });
    assert_eq!(plugin.process_event(event.clone()).await, Ok(Some(event.clone())));
    assert_eq!(plugin.process_event(event.clone()).await, Ok(Some(event)));
    assert!(log::has("retry-unawaited", "INFO", "queuing retry"));
    assert!(log::has(
        "retry-unawaited",
        "WARN",
        "a promise that failed: TypeError: retry needs the plugin to export onRetry"
    ));
}

#[tokio::test]
async fn a_retry_in_the_past_is_refused() {
    // Without `onRetry` that is what is wrong first.
    for (name, source, message) in [
        ("past-alone", RETRY_IN_THE_PAST.to_owned(), "TypeError: retry needs the plugin to export onRetry"),
        (
            "past",
            format!("{RETRY_IN_THE_PAST}async function onRetry() {{}}"),
            "RangeError: retry takes 1 to 86400 seconds, not -1",
        ),
    ] {
        let plugin = start(name, &source).await;
        let error = plugin.process_event(json!({})).await.expect_err("refused");
        let PluginError::Exception { message: said, place, .. } = &error else { panic!("{error}") };
        assert_eq!(
            (said.as_str(), place.as_deref()),
            (message, Some(format!("processEvent ({name}.js:2:11)").as_str()))
        );
    }
}

#[tokio::test]
async fn jobs_run_now_later_and_at_a_time() {
    let outbox = Kept::new(Manner::Takes);
    let plugin = start_with("jobs", JOBS, Limits::default(), Arc::clone(&outbox)).await;
    let event = json!({ "event": "x", "properties": { "hi": "ha" } });
    assert_eq!(plugin.process_event(event.clone()).await, Ok(Some(event.clone())));
    until("three jobs are enqueued", || outbox.jobs().len() == 3).await;
    let mut jobs = outbox.jobs();
    jobs.sort_by_key(|job| job.id);
    assert_eq!(jobs.iter().map(seconds_from_now).collect::<Vec<_>>(), [30, 0, 0]);
    assert!(jobs.iter().all(|job| job.name == "plugin:jobs:retryProcessEvent" && job.payload == event));
    plugin.run_job("retryProcessEvent", event).await.expect("runs");
    assert!(log::has("jobs", "INFO", "retrying event! {\\\"event\\\":\\\"x\\\""), "{:?}", log::lines("jobs"));
}

#[tokio::test]
async fn a_session_begins_and_ends() {
    let source = [SESSION, SESSION_TASK_REPAIRED, SURROUNDINGS].concat();
    let outbox = Kept::new(Manner::Takes);
    let plugin = start_with("session", &source, Limits::default(), Arc::clone(&outbox)).await;
    for _ in 0..3 {
        assert_eq!(plugin.process_event(json!({ "distinct_id": "u1" })).await, Ok(None));
    }
    let jobs = outbox.jobs();
    assert_eq!(jobs.len(), 1, "once for a session");
    assert_eq!((jobs[0].name.as_str(), seconds_from_now(&jobs[0])), ("plugin:session:checkSessionEnd", 1800));
    plugin.run_job("checkSessionEnd", jobs[0].payload.clone()).await.expect("runs");
    assert_eq!(seconds_from_now(&outbox.jobs()[1]), 60, "the session goes on, so that it is looked at again");
    plugin.run_job("checkSessionEnd", json!({ "distinct_id": "u2" })).await.expect("runs");
    assert!(log::has("session", "INFO", "captured session end {\\\"distinct_id\\\":\\\"u2\\\"}"));
    assert_eq!(outbox.jobs().len(), 2);
}

#[tokio::test]
async fn a_session_alone_lacks_its_task() {
    let plugin = start("session-alone", &[SESSION, SURROUNDINGS].concat()).await;
    let error = plugin.process_event(json!({ "distinct_id": "u1" })).await.expect_err("no such task").to_string();
    assert!(
        error.contains("the plugin has no job `checkSessionEnd`; it has none at processEvent (session-alone.js:4:"),
        "{error}"
    );
    let error = start_error("session-task", SESSION_TASK).await;
    assert!(matches!(&error, PluginError::Syntax { place, .. } if place.starts_with("session-task.js:3:")), "{error}");
}

#[tokio::test]
async fn events_are_buffered_and_posted_at_the_end() {
    let whole = [BUFFER_IMPORTS, BUFFER].concat();
    let error = start_error("buffer", &whole).await;
    assert!(matches!(&error, PluginError::Import { module, .. } if module == "@posthog/plugin-contrib"), "{error}");

    let outbox = Kept::new(Manner::Takes);
    let source = [BUFFER, SURROUNDINGS].concat();
    let plugin = start_with("buffer", &source, Limits::default(), Arc::clone(&outbox)).await;
    for n in 0..2 {
        assert!(plugin.process_event(json!({ "n": n })).await.is_ok_and(|event| event.is_some()));
    }
    plugin.close().await.expect("closes");
    assert!(log::has("buffer", "INFO", "posted [{\\\"n\\\":0},{\\\"n\\\":1}]"), "{:?}", log::lines("buffer"));
    let jobs = outbox.jobs();
    assert_eq!(jobs.len(), 1, "what could not be posted is tried again");
    assert_eq!((jobs[0].name.as_str(), seconds_from_now(&jobs[0])), ("plugin:buffer:flushBatch", 30));
    let payload: &Value = &jobs[0].payload;
    assert_eq!(payload, &json!({ "batch": [{ "n": 0 }, { "n": 1 }], "retryCount": 1 }));

    let plugin = start("buffer-again", &source).await;
    plugin.run_job("flushBatch", json!({ "batch": [1], "retryCount": 6 })).await.expect("runs");
    assert!(log::has("buffer-again", "ERROR", "Could not post batch [1]"));
}
