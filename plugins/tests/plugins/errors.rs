//! Every failure and its sentence.

use std::time::Duration;

use plugins::definition::{Definition, Limits};
use plugins::error::PluginError;
use plugins::plugin::Plugin;
use serde_json::{Value, json};

use crate::rig::{Kept, Manner, definition, short_limits, start, start_error, start_with};

/// What an event's failure says.
async fn says(name: &str, source: &str, event: Value) -> String {
    let plugin = start_with(name, source, short_limits(), Kept::new(Manner::Hangs)).await;
    plugin.process_event(event).await.expect_err("fails").to_string()
}

#[tokio::test]
async fn files_that_are_no_plugins() {
    for (source, sentence) in [
        (
            "export const a = 1\nexport function (",
            "plugin `p` is not valid JavaScript: function name expected at p.js:2:17; correct that line",
        ),
        (
            "if (true) {\n",
            "plugin `p` is not valid JavaScript: unexpected token in expression: '' at p.js:2:1; correct that line",
        ),
        ("/* open", "plugin `p` is not valid JavaScript: unexpected end of comment at p.js:1:1; correct that line"),
        (
            "export const a = 1 // \0",
            "plugin `p` failed in its file: String contained internal null bytes: nul byte found in provided data at position: 22; correct the plugin, or catch this there",
        ),
        (
            "import { readFile } from 'fs'",
            "plugin `p` imports `fs`, but a plugin is one file; put what it needs into that file",
        ),
        (
            "const fs = await import('fs')",
            "plugin `p` imports `fs`, but a plugin is one file; put what it needs into that file",
        ),
        (
            "export const processEvent = 5",
            "plugin `p` exports `processEvent` as a number, not as a function; correct the export or remove it",
        ),
        (
            "export const jobs = [() => 1]",
            "plugin `p` exports `jobs` as an array, not as an object of functions; correct the export or remove it",
        ),
        (
            "export const jobs = { send: 'mail' }",
            "plugin `p` exports `jobs.send` as text, not as a function; correct the export or remove it",
        ),
        (
            "const a = {}\na.b.c()",
            "plugin `p` failed in its file: TypeError: cannot read property 'c' of undefined at <anonymous> (p.js:2:1); correct the plugin, or catch this there",
        ),
        (
            "export function setupPlugin({ config }) { throw new Error(`no ${config.key}`) }",
            "plugin `p` failed in setupPlugin: no undefined at setupPlugin (p.js:1:65); correct the plugin, or catch this there",
        ),
        (
            "export { nothing }",
            "plugin `p` is not valid JavaScript: exported variable 'nothing' does not exist at p.js; correct that line",
        ),
    ] {
        assert_eq!(start_error("p", source).await.to_string(), sentence);
    }
    for name in ["", "a b", "a:b", &"x".repeat(65)] {
        let error =
            Plugin::start(definition(name, ""), Kept::new(Manner::Takes)).await.expect_err("no name").to_string();
        assert_eq!(
            error,
            format!(
                "`{}` can't be a plugin's name; use 1 to 64 letters, digits, dots, dashes and underscores",
                &name[..name.len().min(64)]
            )
        );
    }
    for (limits, sentence) in [
        (
            Limits { memory_bytes: 0, ..short_limits() },
            "plugin `p` has a memory limit of 0 bytes; use at least 1048576",
        ),
        (
            Limits { stack_bytes: 65_535, ..short_limits() },
            "plugin `p` has a stack limit of 65535 bytes; use at least 65536",
        ),
    ] {
        let small = Definition { limits, ..definition("p", "") };
        let error = Plugin::start(small, Kept::new(Manner::Takes)).await.expect_err("too small").to_string();
        assert_eq!(error, sentence);
    }
    let error = start_error("none", "fetch('x')").await.to_string();
    assert!(error.contains("ReferenceError: fetch is not defined"), "{error}");
}

#[tokio::test]
async fn events_that_fail() {
    for (source, sentence) in [
        (
            "function price(e) {\n  throw new RangeError('bad price')\n}\nexport function processEvent(e) { price(e) }",
            "plugin `q` failed in processEvent: RangeError: bad price at price (q.js:2:13); correct the plugin, or catch this there",
        ),
        (
            "export async function processEvent(e) { throw 'plain\\ntext' }",
            "plugin `q` failed in processEvent: plain text; correct the plugin, or catch this there",
        ),
        (
            "export const processEvent = () => { throw { code: 5 } }",
            "plugin `q` failed in processEvent: {\"code\":5}; correct the plugin, or catch this there",
        ),
        (
            "export const processEvent = () => 5",
            "plugin `q` returned a number from processEvent; return the event, or null to drop it",
        ),
        (
            "export const processEvent = async () => [1]",
            "plugin `q` returned an array from processEvent; return the event, or null to drop it",
        ),
        (
            "export const processEvent = () => () => 1",
            "plugin `q` returned a function from processEvent; return the event, or null to drop it",
        ),
        (
            "export const processEvent = () => 5n",
            "plugin `q` returned a BigInt from processEvent; return the event, or null to drop it",
        ),
        (
            "export const processEvent = () => true",
            "plugin `q` returned true or false from processEvent; return the event, or null to drop it",
        ),
        (
            "export const processEvent = () => ({ a: [1, { b: 0 / 0 }] })",
            "plugin `q` has NaN at `a[1].b` in processEvent, which JSON can't hold; use null or text instead",
        ),
        (
            "export const processEvent = () => ({ a: -1 / 0 })",
            "plugin `q` has -inf at `a` in processEvent, which JSON can't hold; use null or text instead",
        ),
        (
            "export const processEvent = () => ({ a: 2n ** 64n })",
            "plugin `q` has a BigInt of more than 64 bits at `a` in processEvent, which JSON can't hold; use null or text instead",
        ),
        (
            "export const processEvent = () => { while (true); }",
            "plugin `q` did not end processEvent within 200ms; make it do less, or raise its time limit",
        ),
        (
            "export const processEvent = () => 'x'.repeat(1e8)",
            "plugin `q` needs more than 16777216 bytes of memory in processEvent; make it keep less, or raise its memory limit",
        ),
        (
            "function deep() { return 1 + deep() }\nexport const processEvent = deep",
            "plugin `q` calls too deep in processEvent at deep (q.js:1:29); end the recursion earlier, or raise its stack limit",
        ),
        (
            "export const processEvent = () => new Promise(() => {})",
            "plugin `q` waits in processEvent for a promise that nothing will resolve; only jobs that are enqueued can be waited for",
        ),
        (
            "export const onRetry = () => {}\nexport const processEvent = (e, { retry }) => retry('x', e)",
            "plugin `q` did not end processEvent within 200ms; make it do less, or raise its time limit",
        ),
        (
            "export const processEvent = () => import('./other.js')",
            "plugin `q` imports `other.js`, but a plugin is one file; put what it needs into that file",
        ),
        ("", "plugin `q` exports no `processEvent`; export it, or don't use the plugin for that"),
    ] {
        assert_eq!(says("q", source, json!({})).await, sentence);
    }
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({ "a": deep });
    }
    let error = says("deep", "export const processEvent = (e) => e", deep).await;
    assert_eq!(
        error,
        "plugin `deep` has a value nested deeper than 128 in processEvent, which JSON can't hold; use null or text instead"
    );
}

#[tokio::test]
async fn what_is_too_large_stays_out() {
    let limits = Limits { memory_bytes: 256 << 20, ..Limits::default() };
    let source = "export const processEvent = (e) => e.grow ? { a: 'x'.repeat(17 << 20) } : e";
    let plugin = start_with("large", source, limits, Kept::new(Manner::Takes)).await;
    let sentence = "a value that goes into or comes out of plugin `large` in processEvent takes more than 16777216 bytes; make it smaller, or leave such rows out";
    for event in [json!({ "grow": true }), json!({ "a": "x".repeat(17 << 20) })] {
        assert_eq!(plugin.process_event(event).await.expect_err("too large").to_string(), sentence);
    }
    let events = (0..10).map(|_| json!({ "a": "x".repeat(8 << 20) })).collect::<Vec<_>>();
    let results = plugin.process_events(events).await;
    let num_ok = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!((num_ok, results.len()), (7, 10), "the results of a batch take 64 MiB at most");
}

#[tokio::test]
async fn jobs_that_are_not_there() {
    let plugin = start("no-jobs", "export function processEvent(e, meta) { return e }").await;
    let error = plugin.run_job("a", Value::Null).await.expect_err("none").to_string();
    assert_eq!(error, "plugin `no-jobs` has no job `a`; it has none: export the job, or remove what asks for it");
    let error = plugin.retry("a", Value::Null).await.expect_err("none").to_string();
    assert_eq!(error, "plugin `no-jobs` exports no `onRetry`; export it, or don't use the plugin for that");
    let plugin = start("some-jobs", "export const jobs = { b() {}, a() { throw new Error('x') } }").await;
    let error = plugin.run_job("c", Value::Null).await.expect_err("none").to_string();
    assert_eq!(error, "plugin `some-jobs` has no job `c`; it has a, b: export the job, or remove what asks for it");
    let error = plugin.run_job("a", Value::Null).await.expect_err("throws").to_string();
    assert_eq!(
        error,
        "plugin `some-jobs` failed in job `a`: x at a (some-jobs.js:1:47); correct the plugin, or catch this there"
    );
}

#[tokio::test]
async fn a_closed_plugin_says_so() {
    let plugin = start(
        "closed",
        "export const processEvent = (e) => e\nexport const teardownPlugin = () => { throw new Error('bad end') }",
    )
    .await;
    let other = plugin.clone();
    let error = plugin.close().await.expect_err("throws").to_string();
    assert!(error.starts_with("plugin `closed` failed in teardownPlugin: bad end at "), "{error}");
    let sentence = "plugin `closed` is closed; start it again";
    assert_eq!(other.process_event(json!({})).await.expect_err("closed").to_string(), sentence);
    assert_eq!(other.close().await.expect_err("closed").to_string(), sentence);
    assert_eq!(other.run_job("a", Value::Null).await.expect_err("closed").to_string(), sentence);
}

/// Some loops of the engine never look at the clock. Whoever waits is told.
#[tokio::test]
async fn a_stuck_engine_is_left_alone() {
    let source = "export const processEvent = (e) => { [].reverse.call({ length: 4e8 }); return e }";
    let plugin = start_with("stuck", source, short_limits(), Kept::new(Manner::Takes)).await;
    for _ in 0..2 {
        let sentence = plugin.process_event(json!({})).await.expect_err("stuck").to_string();
        assert!(sentence.starts_with("plugin `stuck` is stuck in the JavaScript engine, 2."), "{sentence}");
        assert!(
            sentence.ends_with("s beyond its time limit; look for calls over huge arrays, and restart the process"),
            "{sentence}"
        );
    }
}

#[tokio::test]
async fn a_setup_that_fails_again_fails_what_is_asked() {
    let source = "export function setupPlugin({ cache, config }) {
            return cache.incr('starts').then((n) => { if (n > 1) throw new Error('not again') })
        }
        export function processEvent(e) { while (e.loop) {} return e }";
    let definition = Definition {
        limits: Limits { time: Duration::from_millis(100), ..short_limits() },
        ..definition("again", source)
    };
    let plugin = Plugin::start(definition, Kept::new(Manner::Takes)).await.expect("starts once");
    let events = vec![json!({ "n": 1 }), json!({ "loop": 1 }), json!({ "n": 2 }), json!({ "n": 3 })];
    let results = plugin.process_events(events).await;
    assert!(results[0].is_ok() && matches!(results[1], Err(PluginError::TimeLimit { .. })), "{results:?}");
    for result in results[2..].iter().cloned().chain([plugin.process_event(json!({})).await]) {
        let error = result.expect_err("not set up").to_string();
        assert!(
            error.starts_with("plugin `again` failed in setupPlugin: not again at <anonymous> (again.js:2:"),
            "{error}"
        );
    }
    plugin.close().await.expect("closes");
}
