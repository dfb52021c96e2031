//! Rows through plugins: values unchanged, policies, batches.

use std::time::Duration;

use plugins::definition::Limits;
use plugins::error::PluginError;
use plugins::plugin::Plugin;
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Number, Value, json};

use crate::rig::{Kept, Manner, short_limits, start, start_with, until};

const PICKY: &str = "export async function processEvent(event) {
    if (event.n % 4 === 1) return null
    if (event.n % 4 === 2) throw new Error('bad row')
    return { ...event, seen: true }
}";

fn rows(range: std::ops::Range<i32>) -> Vec<Value> {
    range.map(|n| json!({ "n": n })).collect()
}

#[tokio::test]
async fn a_batch_tells_what_became_of_each_row() {
    let plugin = start("picky", PICKY).await;
    let batch = plugin.process_batch(rows(0..4), 1 << 20, false).await.expect("goes on");
    assert_eq!(batch.iter().map(|row| row.event.clone()).collect::<Vec<_>>(), rows(0..4));
    assert!(batch.iter().all(|row| row.was_seen));
    let outcomes = batch.into_iter().map(|row| row.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes[..2], [Ok(Some(json!({ "n": 0, "seen": true }))), Ok(None)]);
    assert!(matches!(&outcomes[2], Err(PluginError::Exception { message, .. }) if message == "bad row"));
    assert_eq!(outcomes[3], Ok(Some(json!({ "n": 3, "seen": true }))));
    let other = start("none", "export const jobs = {}").await;
    let refusal = other.process_batch(rows(0..2), 1 << 20, false).await;
    assert!(matches!(refusal, Err(PluginError::Missing { .. })));
}

#[tokio::test]
async fn rows_that_a_plugin_never_saw_are_told_from_those_that_failed() {
    let source = "export const setupPlugin = async ({ cache }) => { if (await cache.incr('starts') > 1) throw new Error('not again') }
        export const processEvent = (event) => { while (event.n === 1); return event }";
    let plugin = start_with("blind", source, short_limits(), Kept::new(Manner::Takes)).await;
    for (range, seen) in [(0..2, [true, true]), (2..4, [false, false])] {
        let batch = plugin.process_batch(rows(range), 1 << 20, false).await.expect("answers");
        assert_eq!(batch.iter().map(|row| row.was_seen).collect::<Vec<_>>(), seen);
        let error = batch[1].outcome.clone().expect_err("fails").to_string();
        assert_eq!(error.starts_with("plugin `blind` failed in setupPlugin: not again at "), !seen[1], "{error}");
    }
}

#[tokio::test]
async fn a_batch_ends_at_the_first_failure_if_told_so() {
    let source = "export async function processEvent(event, { global }) {
        global.n = (global.n ?? 0) + 1; if (event.n === 2) throw 'x'; return { n: global.n } }";
    let plugin = start("first-failure", source).await;
    let batch = plugin.process_batch(rows(0..1_000), 1 << 20, true).await.expect("answers");
    assert_eq!((batch.len(), batch[2].outcome.is_err()), (3, true));
    assert_eq!(plugin.process_event(json!({})).await, Ok(Some(json!({ "n": 4 }))));
}

#[tokio::test]
async fn the_results_of_a_batch_have_the_room_that_they_are_given() {
    let plugin = start("room", "export const processEvent = (e) => ({ a: 'x'.repeat(1000) })").await;
    let batch = plugin.process_batch(rows(0..10), 5_000, false).await.expect("answers");
    let num_ok = batch.iter().take_while(|row| row.outcome.is_ok()).count();
    assert!((3..5).contains(&num_ok), "{num_ok}");
    assert!(batch[num_ok..].iter().all(|row| matches!(row.outcome, Err(PluginError::TooLarge { .. }))));
}

#[tokio::test]
async fn a_batch_goes_on_in_a_new_runtime() {
    let source = "export const setupPlugin = async ({ cache, global }) => { global.life = await cache.incr('lives') }
        export function processEvent(event, { global }) { if (event.n % 3 === 2) while (true) {} return { n: event.n, life: global.life } }";
    let limits = Limits { time: Duration::from_millis(50), ..short_limits() };
    let plugin = start_with("lives", source, limits, Kept::new(Manner::Takes)).await;
    let results = plugin.process_events(rows(0..9)).await;
    for (n, result) in results.into_iter().enumerate() {
        if n % 3 == 2 {
            assert!(matches!(result, Err(PluginError::TimeLimit { .. })), "{n}: {result:?}");
        } else {
            assert_eq!(result, Ok(Some(json!({ "n": n, "life": n / 3 + 1 }))));
        }
    }
    assert_eq!(plugin.process_events(Vec::new()).await, []);
}

#[tokio::test]
async fn nobody_waits_for_a_batch_that_was_given_up() {
    let source = "export function processEvent(event, { global }) {
        global.n = (global.n ?? 0) + 1; const end = Date.now() + (event.slow ?? 0); while (Date.now() < end); return { n: global.n } }";
    let plugin = start("given-up", source).await;
    let events = (0..1_000).map(|_| json!({ "slow": 20 })).collect::<Vec<_>>();
    let late = tokio::time::timeout(Duration::from_millis(50), plugin.process_events(events)).await;
    assert!(late.is_err());
    let event = plugin.process_event(json!({})).await.expect("fine").expect("kept");
    assert!(event["n"].as_i64().is_some_and(|n| n < 100), "{event}");
}

#[tokio::test]
async fn calls_from_many_tasks_take_turns() {
    let plugin = start("turns", "export async function processEvent(e, { global }) { global.n = (global.n ?? 0) + 1; await null; return { n: global.n } }").await;
    let tasks = (0..100).map(|_| {
        let plugin = plugin.clone();
        tokio::spawn(async move { plugin.process_event(json!({})).await })
    });
    let mut seen = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        seen.push(task.await.expect("no panic").expect("fine").expect("kept")["n"].as_i64().expect("a number"));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn scripts_without_exports_are_plugins_too() {
    let plugin =
        start("script", "const jobs = { a: () => 1 }\nfunction processEvent(e) { return { ...e, a: 1 } }").await;
    assert_eq!(plugin.process_event(json!({})).await, Ok(Some(json!({ "a": 1 }))));
    assert_eq!(plugin.offer().jobs, ["a"]);
    let plugin = start("module", "const jobs = 5\nexport { f as processEvent }\nfunction f(e) { return e }").await;
    assert_eq!(plugin.process_event(json!({})).await, Ok(Some(json!({}))), "with exports only these count");
}

#[tokio::test]
async fn integers_beyond_doubles_stay_exact() {
    let source = "export function processEvent(e) {
        const kinds = Object.fromEntries(Object.entries(e).map(([key, value]) => [key, typeof value]))
        return { same: e, kinds, more: e.large + 1n, sum: e.safe + 1, text: JSON.stringify([e.large, e.most]) }
    }";
    let plugin = start("integers", source).await;
    let event = json!({ "large": 9_007_199_254_740_993_i64, "safe": 9_007_199_254_740_991_i64, "least": i64::MIN, "most": u64::MAX, "real": 1e300 });
    let result = plugin.process_event(event.clone()).await.expect("fine").expect("kept");
    assert_eq!(result["same"].to_string(), event.to_string());
    let kinds = json!({ "large": "bigint", "safe": "number", "least": "bigint", "most": "bigint", "real": "number" });
    assert_eq!(result["kinds"], kinds);
    assert_eq!(result["text"], "[9007199254740993,18446744073709551615]");
    assert_eq!(result["more"], json!(9_007_199_254_740_994_i64));
    // Beyond the safe range a number is no exact integer any more, and isn't taken for one.
    assert_eq!(result["sum"], json!(9_007_199_254_740_992.0));
}

#[tokio::test]
async fn what_json_has_no_place_for_goes_as_in_json() {
    let source = "export const processEvent = () => ({
        no: undefined, f() {}, [Symbol('s')]: 1, list: [undefined, () => 1, 1], date: new Date(0), bad: new Date(NaN),
        map: new Map([[1, 2]]), text: '\\ud800x', ['\\ud800']: 1, nul: 'a\\0b', ['a\\0b']: 1, bytes: new Uint8Array([1, 2]),
        zero: -0, whole: 5.0, __proto__: { inherited: 1 }, ['__proto__']: 1, then: 5,
    })";
    let result = start("as-json", source).await.process_event(json!({})).await.expect("fine").expect("kept");
    let expected = json!({
        "list": [null, null, 1], "date": "1970-01-01T00:00:00.000Z", "bad": null, "map": {}, "text": "\u{fffd}x", "\u{fffd}": 1,
        "nul": "a\0b", "a\0b": 1, "bytes": { "0": 1, "1": 2 }, "zero": -0.0, "whole": 5, "__proto__": 1, "then": 5,
    });
    assert_eq!(result, expected);
}

/// Keys that mean something to JavaScript, and all others.
fn keys() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("__proto__".to_owned()),
        Just("constructor".to_owned()),
        Just("toJSON".to_owned()),
        Just("then".to_owned()),
        Just("length".to_owned()),
        Just(String::new()),
        "[0-9]{1,11}",
        any::<String>(),
    ]
}

fn numbers() -> impl Strategy<Value = Number> {
    let real = any::<f64>().prop_filter_map("finite", Number::from_f64);
    prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<u64>().prop_map(Number::from),
        any::<i8>().prop_map(Number::from),
        real
    ]
}

fn values() -> impl Strategy<Value = Value> {
    let leaves = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        numbers().prop_map(Value::Number),
        any::<String>().prop_map(Value::String),
    ];
    leaves.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![vec(inner.clone(), 0..8).prop_map(Value::Array), objects(inner).prop_map(Value::Object)]
    })
}

fn objects(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    hash_map(keys(), inner, 0..8).prop_map(|members| members.into_iter().collect())
}

/// What comes back: numbers without a fraction come back as integers.
fn normal(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(real)
                if real.fract() == 0.0
                    && real.abs() < 9_007_199_254_740_992.0
                    && (real != 0.0 || real.is_sign_positive()) =>
            {
                Value::from(real as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(normal).collect(),
        Value::Object(members) => members.into_iter().map(|(key, member)| (key, normal(member))).collect(),
        other => other,
    }
}

#[test]
fn events_pass_unchanged() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let plugins: [Plugin; 2] = runtime.block_on(async {
        [
            start("identity", "export const processEvent = (e) => e").await,
            start(
                "copy",
                "const copy = (v) => Array.isArray(v) ? v.map(copy) : typeof v === 'object' && v !== null
                ? Object.fromEntries(Object.entries(v).map(([key, member]) => [key, copy(member)])) : v
                export const processEvent = async (e) => copy(e)",
            )
            .await,
        ]
    });
    proptest!(|(events in vec(objects(values()).prop_map(Value::Object), 1..6))| {
        let expected = events.iter().cloned().map(|event| Ok(Some(normal(event)))).collect::<Vec<_>>();
        for plugin in &plugins {
            prop_assert_eq!(&runtime.block_on(plugin.process_events(events.clone())), &expected);
        }
    });
}

#[tokio::test]
async fn members_keep_the_order_that_they_come_in() {
    let plugin = start("order", "export const processEvent = (e) => ({ keys: Object.keys(e).join(' ') })").await;
    let event = json!({ "b": 1, "a": 2, "c": { "z": 1 } });
    let keys = event.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(plugin.process_event(event).await, Ok(Some(json!({ "keys": keys }))));
}

#[tokio::test]
async fn a_plugin_can_be_dropped_while_it_works() {
    let plugin = start_with(
        "dropped",
        "export const processEvent = () => { while (true) {} }",
        short_limits(),
        Kept::new(Manner::Takes),
    )
    .await;
    let weak = plugin.clone();
    drop(tokio::time::timeout(Duration::from_millis(20), plugin.process_event(json!({}))).await);
    drop((plugin, weak));
    let other = start("dropped", "export const processEvent = (e) => e").await;
    until("another one works", || true).await;
    assert_eq!(other.process_event(json!({})).await, Ok(Some(json!({}))));
}
