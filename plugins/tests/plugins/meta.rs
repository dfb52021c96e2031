//! What plugins get as `meta` and `console`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use plugins::definition::{Definition, Limits};
use plugins::plugin::{Offer, Plugin};
use serde_json::{Value, json};

use crate::log;
use crate::rig::{Kept, Manner, definition, short_limits, start, start_with, until};

/// Runs the body of an async function, and returns what it returns.
async fn run(name: &str, body: &str) -> Value {
    run_with(name, body, Limits::default(), Kept::new(Manner::Takes)).await
}

async fn run_with(name: &str, body: &str, limits: Limits, outbox: Arc<Kept>) -> Value {
    let source = format!(
        "export const jobs = {{ send(payload) {{ console.log('sent', payload) }}, other() {{}} }}
        export function onRetry() {{}}
        const message = (promise) => promise.then(() => 'fine', (error) => `${{error}}`)
        export async function processEvent(event, meta) {{ const {{ cache, jobs, tasks, retry }} = meta; return {{ is: await (async () => {{ {body} }})() }} }}"
    );
    let plugin = start_with(name, &source, limits, outbox).await;
    let event = plugin.process_event(json!({})).await.expect("no error").expect("an event");
    plugin.close().await.expect("closes");
    event["is"].clone()
}

#[tokio::test]
async fn jobs_take_every_unit_and_every_kind_of_time() {
    let outbox = Kept::new(Manner::Takes);
    let body = "for (const unit of ['millisecond', 'seconds', 'minute', 'minutes', 'hour', 'days', 'week', 'months', 'quarter', 'years'])
            await jobs.send({ unit }).runIn(1, unit)
        await jobs.send().runAt(new Date('2030-01-31T12:00:00.5Z'))
        await jobs.send({ unit: 'text' }).runAt('2030-01-31T13:00:00+01:00')
        await tasks.runAt(new Date(0)).send(1)
        await tasks.runNow().send(2)
        await retry('kind', { a: 1 }, 1.5)
        await retry('kind', undefined, 86400)
        return await retry('kind')";
    let before = Timestamp::now();
    assert_eq!(run_with("units", body, Limits::default(), Arc::clone(&outbox)).await, Value::Null);
    let jobs = outbox.jobs();
    let after = |index: usize| before.duration_until(jobs[index].run_at).as_millis();
    for (index, milliseconds) in
        [(0, 1), (1, 1_000), (2, 60_000), (3, 60_000), (4, 3_600_000), (5, 86_400_000), (6, 604_800_000)]
    {
        assert!((milliseconds - 1..milliseconds + 1_000).contains(&after(index)), "{index}: {}", after(index));
    }
    assert!(after(7) >= 28 * 86_400_000 && after(8) >= 89 * 86_400_000 && after(9) >= 365 * 86_400_000);
    assert_eq!((jobs[10].run_at.to_string().as_str(), &jobs[10].payload), ("2030-01-31T12:00:00.5Z", &Value::Null));
    assert_eq!(jobs[11].run_at.to_string(), "2030-01-31T12:00:00Z");
    assert_eq!((jobs[12].run_at, &jobs[12].payload), (Timestamp::UNIX_EPOCH, &json!(1)));
    assert!(after(13) < 2_000 && (1_500..3_000).contains(&after(14)) && (86_400_000..86_402_000).contains(&after(15)));
    assert!((30_000..32_000).contains(&after(16)));
    assert_eq!(jobs[14].payload, json!({ "type": "kind", "payload": { "a": 1 } }));
    assert_eq!(jobs[15].payload, json!({ "type": "kind", "payload": null }));
}

#[tokio::test]
async fn what_is_no_time_is_an_error_that_can_be_caught() {
    for (index, (expression, message)) in [
        ("jobs.send(1).runIn(3, 'fortnight')", "RangeError: unknown time unit `fortnight`; use milliseconds, seconds, minutes, hours, days, weeks, months, quarters or years"),
        ("jobs.send(1).runIn(3)", "RangeError: unknown time unit `undefined`; use milliseconds, seconds, minutes, hours, days, weeks, months, quarters or years"),
        ("jobs.send(1).runIn(-3, 'days')", "RangeError: 3 days ago is no time for a job; use a number of at least 0"),
        ("jobs.send(1).runIn(9e15, 'years')", "RangeError: 9000000000000000 years from now is after all time; use a smaller number"),
        ("jobs.send(1).runIn(0.5, 'days')", "RangeError: runIn takes a whole number of units, not 0.5"),
        ("jobs.send(1).runIn('3', 'days')", "RangeError: runIn takes a whole number of units, not 3"),
        ("jobs.send(1).runIn(Symbol('a'), 'days')", "RangeError: runIn takes a whole number of units, not Symbol(a)"),
        ("jobs.send(1).runAt(new Date('no'))", "RangeError: runAt got a Date that is no time; check what it was made from"),
        ("jobs.send(1).runAt('tomorrow')", "RangeError: runAt: `tomorrow` is no time; write it like 2026-01-31T12:00:00Z"),
        ("jobs.send(1).runAt(5)", "TypeError: runAt takes a Date or its text, not 5"),
        ("jobs.send(1).runAt(new Date(8e15))", "RangeError: runAt got a Date after all time; use an earlier one"),
        ("tasks.runIn(1, 'eon').send(1)", "RangeError: unknown time unit `eon`; use milliseconds, seconds, minutes, hours, days, weeks, months, quarters or years"),
        ("retry('a', 1, 0.5)", "RangeError: retry takes 1 to 86400 seconds, not 0.5"),
        ("retry('a', 1, 86401)", "RangeError: retry takes 1 to 86400 seconds, not 86401"),
        ("retry('a', 1, NaN)", "RangeError: retry takes 1 to 86400 seconds, not NaN"),
        ("retry('a', 1, '5')", "RangeError: retry takes 1 to 86400 seconds, not 5"),
        ("retry(5, 1)", "TypeError: retry takes the name of what is tried again, not 5"),
        ("retry('a', { b: NaN })", "TypeError: what is tried again has NaN at `b`, which JSON can't hold; use null or text instead"),
        ("jobs.send({ a: 1 / 0 }).runNow()", "TypeError: the payload of job `send` has inf at `a`, which JSON can't hold; use null or text instead"),
        ("jobs.send('x'.repeat(1 << 20)).runNow()", "RangeError: the payload of job `plugin:times-19:send` has 1048578 bytes as JSON, more than 1048576; keep large data elsewhere and name it here"),
        ("jobs.send('x'.repeat(17 << 20)).runNow()", "RangeError: the payload of job `send` is too large; keep large data elsewhere and name it here"),
        ("(async () => jobs.nope(1).runNow())()", "TypeError: the plugin has no job `nope`; it has other, send"),
        ("(async () => tasks.runNow().nope(1))()", "TypeError: the plugin has no job `nope`; it has other, send"),
        ("(async () => jobs.toString().runNow())()", "TypeError: the plugin has no job `toString`; it has other, send"),
        ("cache.set('a', 1, -1)", "RangeError: cache.set takes a number of seconds, not -1"),
        ("cache.expire('a', 'b')", "RangeError: cache.expire takes a number of seconds, not b"),
        ("cache.set('a', { b: NaN })", "TypeError: a value of the cache has NaN at `b`, which JSON can't hold; use null or text instead"),
        ("cache.set('a', 'b').then(() => cache.incr('a'))", "TypeError: cache.incr: `a` holds no whole number of 64 bits; use another key"),
        ("(async () => await meta.jobs)()", "fine"),
    ].into_iter().enumerate() {
        assert_eq!(run(&format!("times-{index}"), &format!("return message({expression})")).await, message, "{expression}");
    }
}

#[tokio::test]
async fn a_job_that_nobody_takes_is_heard_of_or_logged() {
    let refusing = || Kept::new(Manner::Refuses);
    let caught = run_with("refused", "return message(jobs.send(1).runNow())", Limits::default(), refusing()).await;
    assert_eq!(caught, "Error: no provider takes the job now");
    let body = "jobs.send(1).runNow(); jobs.send(1).runIn(1, 'eon'); retry('a', 1, 0); Promise.reject(5); return 1";
    assert_eq!(run_with("unheard", body, Limits::default(), refusing()).await, 1);
    until("the late failure is logged", || log::has("unheard", "WARN", "no provider takes the job now")).await;
    for text in ["unknown time unit `eon`", "retry takes 1 to 86400 seconds, not 0", "a promise that failed: 5"] {
        assert!(log::has("unheard", "WARN", text), "{text}");
    }
    let late = "jobs.send(1).runNow().catch((error) => console.error('late', error)); return 1";
    assert_eq!(run_with("late", late, Limits::default(), refusing()).await, 1);
    assert!(log::lines("late").iter().all(|(level, _)| level != "WARN"), "who catches has heard");
    let heard_later =
        "const failed = Promise.reject(new Error('x')); await null; await null; await failed.catch(() => {}); return 1";
    assert_eq!(run("heard-later", heard_later).await, 1);
    assert_eq!(log::lines("heard-later"), []);
}

#[tokio::test]
async fn what_is_on_its_way_is_bounded() {
    let body = "const all = []; for (let i = 0; i < 1500; i++) all.push(jobs.send(i).runNow()); const ends = await Promise.allSettled(all);
        return [ends.filter((end) => end.status === 'fulfilled').length, `${ends[1499].reason}`]";
    let outbox = Kept::new(Manner::Takes);
    let ends = run_with("many", body, Limits::default(), Arc::clone(&outbox)).await;
    assert_eq!(
        ends,
        json!([800, "Error: too many jobs are on their way into the queue; await some before you enqueue more"])
    );
    assert_eq!(outbox.jobs().len(), 800);
    let body = "for (let i = 0; i < 1500; i++) await jobs.send(i).runNow(); return 1";
    assert_eq!(run("many-awaited", body).await, 1);
}

#[tokio::test]
async fn a_queue_that_never_answers_costs_a_call_its_time() {
    let source = "export const jobs = { send() {} }
        export const processEvent = async (e, { jobs, global }) => {
            const sent = jobs.send(e).runNow(); if (e.wait) await sent; global.n = (global.n ?? 0) + 1; return { n: global.n }
        }";
    let plugin = start_with("hanging", source, short_limits(), Kept::new(Manner::Hangs)).await;
    for n in 1..3 {
        assert_eq!(plugin.process_event(json!({})).await, Ok(Some(json!({ "n": n }))), "who doesn't wait goes on");
    }
    assert!(plugin.process_event(json!({ "wait": true })).await.is_err());
    assert_eq!(plugin.process_event(json!({})).await, Ok(Some(json!({ "n": 1 }))), "the runtime is a new one");
    plugin.close().await.expect("closes in time");
}

#[tokio::test]
async fn the_cache_remembers() {
    let body = "const all = []
        all.push(await cache.get('a'), await cache.get('a', 5), await cache.set('a', { b: [1n << 60n] }), typeof (await cache.get('a')).b[0])
        all.push(await cache.incr('n'), await cache.incr('n'), await cache.get('n'), await cache.expire('n', 100), await cache.expire('none', 1))
        await cache.set('u', undefined); all.push(await cache.get('u', 5))
        await cache.set('gone', 1, 0); all.push(await cache.get('gone', 'gone'))
        await cache.set(7, 'seven'); all.push(await cache.get('7'))
        await cache.set('n', 2 ** 53 - 1); all.push(`${await cache.incr('n')}`)
        const kept = await cache.get('a'); kept.b = 0; all.push(typeof (await cache.get('a')).b)
        return all";
    let expected =
        json!([null, 5, null, "bigint", 1, 2, 2, true, false, null, "gone", "seven", "9007199254740992", "object"]);
    assert_eq!(run("cache", body).await, expected);
}

#[tokio::test]
async fn the_cache_forgets_in_time_and_for_want_of_room_but_not_with_the_runtime() {
    let source = "export async function processEvent(e, { cache, global }) {
        if (e.set) await cache.set(e.set, e.value ?? 1, e.ttl)
        if (e.loop) while (true) {}
        global.n = (global.n ?? 0) + 1
        return { n: global.n, is: await cache.get(e.get ?? '', null) }
    }";
    let limits = Limits { cache_entries: 3, cache_bytes: 4_000, ..short_limits() };
    let plugin = start_with("forgets", source, limits, Kept::new(Manner::Takes)).await;
    let ask = async |event: Value| plugin.process_event(event).await.map(|event| event.expect("kept")["is"].clone());
    assert_eq!(ask(json!({ "set": "a", "ttl": 0.05, "get": "a" })).await, Ok(json!(1)));
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(ask(json!({ "get": "a" })).await, Ok(Value::Null));
    for key in ["b", "c", "d", "e"] {
        ask(json!({ "set": key })).await.expect("room");
    }
    assert_eq!(ask(json!({ "get": "b" })).await, Ok(Value::Null), "three entries are all");
    assert!(plugin.process_event(json!({ "loop": true })).await.is_err());
    let event = plugin.process_event(json!({ "get": "e" })).await;
    assert_eq!(event, Ok(Some(json!({ "n": 1, "is": 1 }))), "the runtime is new, the cache is not");
    ask(json!({ "set": "f", "value": "x".repeat(3_800) })).await.expect("room");
    assert_eq!(ask(json!({ "get": "e" })).await, Ok(Value::Null), "a large value leaves no room");
    let error = ask(json!({ "set": "g", "value": "x".repeat(5_000) })).await.expect_err("no room").to_string();
    assert!(error.contains("RangeError: a value of the cache is too large"), "{error}");
}

#[tokio::test]
async fn plugins_do_not_see_each_other() {
    let source = "export async function processEvent(e, { cache, global, config }) {
        globalThis.seen = (globalThis.seen ?? 0) + 1
        global.seen = (global.seen ?? 0) + 1
        Array.prototype.mine = config.who
        return { who: config.who, mine: [].mine, of: [globalThis.seen, global.seen, await cache.incr('seen')] }
    }";
    let named = |who: &str| Definition { config: json!({ "who": who }), ..definition(who, source) };
    let a = Plugin::start(named("apart-a"), Kept::new(Manner::Takes)).await.expect("starts");
    let b = Plugin::start(named("apart-b"), Kept::new(Manner::Takes)).await.expect("starts");
    for n in 1..4 {
        let (first, second) = tokio::join!(a.process_event(json!({})), b.process_event(json!({})));
        assert_eq!(first, Ok(Some(json!({ "who": "apart-a", "mine": "apart-a", "of": [n, n, n] }))));
        assert_eq!(second, Ok(Some(json!({ "who": "apart-b", "mine": "apart-b", "of": [n, n, n] }))));
    }
}

#[tokio::test]
async fn there_is_nothing_else_to_reach() {
    let body = "return ['fetch', 'process', 'require', 'setTimeout', 'setInterval', 'XMLHttpRequest', 'std', 'os', 'Deno', 'module', 'print', 'load', 'gc']
        .filter((name) => typeof globalThis[name] !== 'undefined')";
    assert_eq!(run("nothing", body).await, json!([]));
    assert_eq!(
        run("members", "return Object.keys(meta).sort()").await,
        json!(["cache", "config", "global", "jobs", "retry", "tasks"])
    );
}

#[tokio::test]
async fn a_plugin_says_what_it_does() {
    let plugin = start(
        "offer",
        "export const jobs = { b() {}, a() {} }; export const tasks = { c() {} }; export function onRetry() {}",
    )
    .await;
    let jobs = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(plugin.offer(), &Offer { process_event: false, on_retry: true, jobs });
    let odd = start("odd", "export const jobs = { ['\\ud800x']() {}, ['a\\0b']() {}, [Symbol('s')]() {} }").await;
    assert_eq!(odd.offer().jobs, ["a\0b", "\u{fffd}x"]);
    assert_eq!(start("nothing-offered", "").await.offer(), &Offer::default());
}

#[tokio::test]
async fn the_console_writes_lines_of_a_bounded_length_and_number() {
    let body = "const cyclic = { a: 1 }; cyclic.self = cyclic
        console.debug('a', 1, null, undefined, true, 5n, { b: [1, NaN] }, new Error('bad'), () => 1, new Date(0))
        console.info('two\\nlines'); console.warn(cyclic); console.error('x'.repeat(1e6)); console.log({ long: new Array(1e5).fill(7) })
        console.info('\\ud800', { get a() { throw new Error('no') } })
        console.log(); for (let i = 0; i < 1000; i++) console.log(`line ${i}`)
        return 1";
    assert_eq!(run("console", body).await, 1);
    let lines = log::lines("console");
    assert!(
        log::has(
            "console",
            "DEBUG",
            "a 1 null undefined true 5 {\\\"b\\\":[1,\\\"NaN\\\"]} bad function \\\"1970-01-01T00:00:00.000Z\\\""
        ),
        "{:?}",
        lines[0]
    );
    assert!(
        log::has("console", "INFO", "two lines")
            && log::has("console", "WARN", "{\\\"a\\\":1,\\\"self\\\":{\\\"a\\\":1")
    );
    assert!(
        log::has("console", "ERROR", "xxx…")
            && log::has("console", "INFO", "7,7,7")
            && log::has("console", "INFO", "\u{fffd} \\\"…\\\"")
    );
    assert!(lines.iter().all(|(_, line)| line.chars().count() < 2_500), "lines are bounded");
    assert_eq!(lines.len(), 100, "and so is their number");
    assert!(
        lines[99].1.contains("more lines of this call are left out") && lines[98].1.contains("line 91"),
        "{:?}",
        lines[98]
    );
}

#[tokio::test]
async fn every_call_has_its_lines_and_what_failed_unheard_is_never_hidden() {
    let source = "export function processEvent(e) { for (let i = 0; i < 200; i++) console.log(i); Promise.reject(`failed ${e.n}`); return e }";
    let plugin = start("lines", source).await;
    for n in 0..2 {
        plugin.process_event(json!({ "n": n })).await.expect("fine");
        assert_eq!(log::lines("lines").len(), 101 * (n + 1));
        assert!(log::has("lines", "WARN", &format!("failed {n}")));
    }
}

#[tokio::test]
async fn the_end_is_told_when_nobody_is_left() {
    let source = "export const teardownPlugin = (meta) => { console.log('the end', meta.global.n) }; export const setupPlugin = ({ global }) => { global.n = 5 }";
    for (name, closes) in [("end-closed", true), ("end-dropped", false)] {
        let plugin = start(name, source).await;
        drop(plugin.clone());
        assert_eq!(log::lines(name), []);
        if closes {
            plugin.close().await.expect("closes");
        }
        drop(plugin);
        until("it has ended", || log::has(name, "INFO", "the end 5")).await;
        assert_eq!(log::lines(name).len(), 1, "once");
    }
}
