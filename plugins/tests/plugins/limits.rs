//! Plugins that take too much: each is stopped in time, and works again afterwards.

use std::time::{Duration, Instant};

use plugins::definition::Limits;
use plugins::error::PluginError;
use serde_json::{Value, json};

use crate::rig::{Kept, Manner, short_limits, start, start_with};

/// What is expected of a plugin that was told to do something.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Time,
    Memory,
    Stack,
    Never,
    Thrown,
    Fine,
}

fn kind(result: &Result<Option<Value>, PluginError>) -> Kind {
    match result {
        Ok(_) => Kind::Fine,
        Err(PluginError::TimeLimit { .. }) => Kind::Time,
        Err(PluginError::MemoryLimit { .. }) => Kind::Memory,
        Err(PluginError::StackOverflow { .. }) => Kind::Stack,
        Err(PluginError::NeverResolves { .. }) => Kind::Never,
        Err(_) => Kind::Thrown,
    }
}

/// Runs `body` in `processEvent` with short limits, then sees whether the plugin still works.
async fn check(name: &str, body: &str, expected: &[Kind]) {
    let source = format!(
        "export function setupPlugin({{ global }}) {{ global.starts = 1 }}
        export async function processEvent(event, meta) {{ if (event.bad) {{ {body} }} return {{ ok: meta.global.starts }} }}"
    );
    // What is to run out of memory first must have the time, on a busy machine too.
    let time = Duration::from_millis(if expected.contains(&Kind::Time) { 200 } else { 1_000 });
    let limits = Limits { time, memory_bytes: 4 * 1024 * 1024, ..short_limits() };
    let plugin = start_with(name, &source, limits, Kept::new(Manner::Hangs)).await;
    for round in 0..2 {
        let start = Instant::now();
        let bad = plugin.process_event(json!({ "bad": true })).await;
        assert!(start.elapsed() < time + Duration::from_millis(800), "{name}: {:?} for {bad:?}", start.elapsed());
        assert!(expected.contains(&kind(&bad)), "{name}, round {round}: {bad:?}");
        let good = plugin.process_event(json!({})).await;
        assert_eq!(good, Ok(Some(json!({ "ok": 1 }))), "{name}, round {round}");
    }
    plugin.close().await.expect("closes");
}

macro_rules! bombs {
    ($($name:ident: $body:expr => $($kind:ident)|+;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(stringify!($name), $body, &[$(Kind::$kind),+]).await;
            }
        )*
    };
}

bombs! {
    endless_loop: "while (true) {}" => Time;
    endless_loop_in_try: "while (true) { try { while (true) {} } catch {} finally { continue } }" => Time;
    endless_recursion_in_try: "function f() { try { f() } catch { f() } } f()" => Time;
    regex_backtracking: "/^(a+)+$/.test('a'.repeat(40) + 'b')" => Time;
    sort_comparator: "[1, 2].sort(() => { while (true) {} })" => Time;
    json_replacer: "JSON.stringify([1], () => { while (true) {} })" => Time;
    getter_of_result: "return { get a() { while (true) {} } }" => Time;
    to_json_of_result: "return { toJSON() { while (true) {} } }" => Time;
    thenable: "return { then() { while (true) {} } }" => Time;
    message_of_error: "throw { get message() { while (true) {} }, __proto__: Error.prototype }" => Time;
    getter_of_error: "const error = new Error('x'); Object.defineProperty(error, 'message', { get() { while (true) {} } }); throw error" => Time;
    generator: "function* f() { while (true) yield 1 } for (const _ of f()) {}" => Time;
    microtasks: "while (true) await null" => Time;
    microtasks_in_try: "while (true) { try { while (true) await null } catch {} }" => Time;
    microtasks_unawaited: "(async () => { while (true) await null })()" => Time;
    microtasks_multiply: "const f = async () => { await null; f(); f() }; f()" => Time | Memory;
    promise_of_endless_job: "await Promise.resolve().then(() => { while (true) {} })" => Time;
    never_resolved: "await new Promise(() => {})" => Never;
    never_settled_thenable: "return { then() {} }" => Never;
    array_bomb: "const a = []; while (true) a.push({})" => Memory;
    array_bomb_in_try: "const a = []; try { while (true) a.push([1]) } catch (error) { throw error }" => Memory;
    array_bomb_async: "const a = []; while (true) { await null; a.push(new Array(1000).fill(1)) }" => Memory;
    array_bomb_in_job: "await Promise.all([1, 2, 3].map(async () => { const a = []; while (true) { await null; a.push(new Array(100).fill(1)) } }))" => Memory;
    property_bomb: "const a = {}; for (let i = 0; ; i++) a['key ' + i] = i" => Memory;
    list_bomb: "let a = null; while (true) a = { a }" => Memory;
    closure_bomb: "let a = () => 1; while (true) { const b = a; a = () => b }" => Memory;
    map_bomb: "const a = new Map(); for (let i = 0; ; i++) a.set('key ' + i, i)" => Memory;
    promise_bomb: "const a = []; while (true) a.push(new Promise(() => {}))" => Memory;
    rejection_bomb: "while (true) Promise.reject(new Error('x'))" => Memory | Time;
    string_bomb: "let a = 'x'; while (true) a += a" => Memory | Thrown;
    string_repeat: "return { a: 'x'.repeat(1e8) }" => Memory;
    typed_array: "return { a: new ArrayBuffer(1e9) }" => Memory;
    buffers: "const a = []; while (true) a.push(new ArrayBuffer(1000))" => Memory;
    big_int: "let a = 2n; while (true) a *= 3n" => Time | Memory | Thrown;
    recursion: "function f() { return f() + 1 } f()" => Stack;
    recursion_async: "async function f() { return await f() } await f()" => Stack;
    recursion_promise: "function f() { return new Promise((resolve) => resolve(f())) } await f()" => Stack;
    recursion_thenable: "const a = { get then() { return a.then } }; return a" => Stack;
    recursion_async_thenable: "async function f() { return { get then() { f() } } } await f()" => Stack | Fine | Never | Thrown;
    recursion_getter: "const a = { get b() { return a.b } }; return a" => Stack;
    recursion_json: "const a = {}; a.a = a; JSON.stringify(a)" => Thrown;
    recursion_regex: "new RegExp('('.repeat(100000))" => Stack | Thrown;
    recursion_parser: "eval('['.repeat(1000000))" => Stack | Thrown | Memory;
    recursion_array_to_string: "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; String(a)" => Stack | Memory;
    atomics_wait: "Atomics.wait(new Int32Array(new SharedArrayBuffer(8)), 0, 0)" => Thrown;
    cyclic_result: "const a = {}; a.a = a; return a" => Thrown;
    widening_result: "let a = []; for (let i = 0; i < 60; i++) a = [a, a]; return { a }" => Thrown;
    wide_result: "return { a: new Uint8Array(300000) }" => Thrown | Memory;
    sparse_result: "return { a: new Array(4e9) }" => Thrown;
}

#[tokio::test]
async fn a_top_level_that_never_ends_does_not_start() {
    for source in [
        "while (true) {}",
        "await (async () => { while (true) await null })()",
        "export function setupPlugin() { while (true) {} }",
    ] {
        let error = crate::rig::start_error("endless", source).await;
        assert!(matches!(error, PluginError::TimeLimit { .. }), "{error}");
    }
    let error = crate::rig::start_error("endless", "await new Promise(() => {})").await;
    assert!(matches!(error, PluginError::NeverResolves { .. }), "{error}");
}

#[tokio::test]
async fn calls_may_go_as_deep_as_the_limit_says() {
    let source =
        "const f = (n) => n === 0 ? 0 : 1 + f(n - 1); export const processEvent = (event) => ({ n: f(event.n) })";
    let plugin = start("depth", source).await;
    assert_eq!(plugin.process_event(json!({ "n": 1_500 })).await, Ok(Some(json!({ "n": 1_500 }))));
    let limits = Limits { stack_bytes: 64 * 1024, ..Limits::default() };
    let plugin = start_with("depth-least", source, limits, Kept::new(Manner::Takes)).await;
    assert_eq!(kind(&plugin.process_event(json!({ "n": 1_500 })).await), Kind::Stack);
}

#[tokio::test]
async fn the_least_limits_are_enough_to_work() {
    let source = "export const jobs = { a() {} }; export async function processEvent(event, { jobs, cache }) {
        if (event.deep) { const f = () => f() + 1; f() }
        if (event.large) { const a = []; while (true) a.push({}) }
        await jobs.a(event).runNow(); await cache.set('a', event); return { ...await cache.get('a'), text: JSON.stringify(event) }
    }";
    let limits = Limits { memory_bytes: 1024 * 1024, stack_bytes: 64 * 1024, ..Limits::default() };
    let plugin = start_with("least", source, limits, Kept::new(Manner::Takes)).await;
    for _ in 0..3 {
        assert_eq!(kind(&plugin.process_event(json!({ "deep": 1 })).await), Kind::Stack);
        assert_eq!(kind(&plugin.process_event(json!({ "large": 1 })).await), Kind::Memory);
        let event = plugin.process_event(json!({ "a": [1, { "b": 2 }] })).await;
        assert_eq!(event, Ok(Some(json!({ "a": [1, { "b": 2 }], "text": "{\"a\":[1,{\"b\":2}]}" }))));
    }
}

/// The engine must not look for garbage while it says that memory has run out: that would end this process.
#[tokio::test]
async fn memory_may_run_out_at_any_moment() {
    let source = "export function processEvent() { const a = {}; for (let i = 0; ; i++) a['k' + i] = i }";
    for step in 0..50 {
        let limits = Limits { memory_bytes: 2_100_000 + step * 2_003, ..Limits::default() };
        let plugin = start_with("any-moment", source, limits, Kept::new(Manner::Takes)).await;
        assert_eq!(kind(&plugin.process_event(json!({})).await), Kind::Memory);
    }
}

#[tokio::test]
async fn garbage_that_refers_to_itself_is_collected() {
    let source = "const litter = () => { for (let i = 0; i < 100; i++) { const a = { large: new Array(100).fill(i) }; a.a = a } }
        export function processEvent(event) { litter(); return event }
        export const jobs = { async litter() { for (let i = 0; i < 1000; i++) { await null; litter() } } }";
    let plugin = start("litter", source).await;
    for result in plugin.process_events(vec![json!({}); 1_000]).await {
        assert_eq!(result, Ok(Some(json!({}))));
    }
    plugin.run_job("litter", Value::Null).await.expect("room");
}
