//! What a plugin's functions get as `meta`: the part of it that needs the host. The other part is `meta.js`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use jobs::job::Job;
use jobs::time_unit::{TimeUnit, parse_time};
use rquickjs::context::EvalOptions;
use rquickjs::{Ctx, Exception, Function, Object, Promise, Value};
use serde_json::{Value as Json, json};

use crate::json::{self, Budget, JsonFault};
use crate::session::Session;
use crate::{fault, name};

/// What a job's payload may take in memory; the queue has a limit of its own for its JSON. Unit: bytes.
const MAX_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;

/// The JavaScript part, as a function that makes `meta`.
pub(crate) fn factory<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Function<'js>> {
    let mut options = EvalOptions::default();
    options.filename = Some("meta.js".to_owned());
    ctx.eval_with_options(include_str!("meta.js"), options)
}

/// What `meta.js` calls.
pub(crate) fn native<'js>(ctx: &Ctx<'js>, session: &Rc<Session>) -> rquickjs::Result<Object<'js>> {
    let native = Object::new(ctx.clone())?;
    let add = |name: &str, function: rquickjs::Result<Function<'js>>| native.set(name, function?);
    add("after", Function::new(ctx.clone(), after))?;
    add("parse", Function::new(ctx.clone(), parse))?;
    let host = Rc::clone(session);
    let enqueue = move |ctx: Ctx<'js>, job: String, payload: Value<'js>, run_at: Option<f64>| {
        let name = name::job(&host.host.definition.name, &job);
        let payload = read(&payload, &format!("the payload of job `{job}`"))?;
        start(&ctx, &host, name, payload, run_at.map_or(Ok(Timestamp::now()), |run_at| timestamp(&ctx, run_at))?)
    };
    add("enqueue", Function::new(ctx.clone(), enqueue))?;
    let host = Rc::clone(session);
    let retry = move |ctx: Ctx<'js>, kind: String, payload: Value<'js>, seconds: f64| {
        let name = name::retry(&host.host.definition.name);
        let payload = json!({ "type": kind, "payload": read(&payload, "what is tried again")? });
        let run_at = Timestamp::now().saturating_add(SignedDuration::from_secs_f64(seconds)).unwrap_or(Timestamp::MAX);
        start(&ctx, &host, name, payload, run_at)
    };
    add("retry", Function::new(ctx.clone(), retry))?;
    add_cache(ctx, session, &native)?;
    Ok(native)
}

fn add_cache<'js>(ctx: &Ctx<'js>, session: &Rc<Session>, native: &Object<'js>) -> rquickjs::Result<()> {
    let add = |name: &str, function: rquickjs::Result<Function<'js>>| native.set(name, function?);
    let host = Rc::clone(&session.host);
    let get = move |ctx: Ctx<'js>, key: String| match host.cache.borrow_mut().get(&key, Instant::now()) {
        Some(value) => {
            json::to_js(&ctx, value, &mut Budget::new(usize::MAX)).map_err(|fault| throw(&ctx, fault, "the value"))
        }
        None => Ok(Value::new_undefined(ctx)),
    };
    add("cacheGet", Function::new(ctx.clone(), get))?;
    let host = Rc::clone(&session.host);
    let set = move |ctx: Ctx<'js>, key: String, value: Value<'js>, seconds: Option<f64>| {
        let limit = host.definition.limits.cache_bytes;
        let mut budget = Budget::new(limit);
        let value = json::from_js(&value, &mut budget).map_err(|fault| throw(&ctx, fault, "a value of the cache"))?;
        let (value, num_bytes) = (value.unwrap_or(Json::Null), limit - budget.left());
        let set = host.cache.borrow_mut().set(key, value, num_bytes, seconds.map(duration), Instant::now());
        set.map_err(|error| Exception::throw_range(&ctx, &error.to_string()))
    };
    add("cacheSet", Function::new(ctx.clone(), set))?;
    let host = Rc::clone(&session.host);
    let incr = move |ctx: Ctx<'js>, key: String| {
        let count = host.cache.borrow_mut().incr(&key, Instant::now());
        let count = count.map_err(|error| Exception::throw_type(&ctx, &error.to_string()))?;
        json::to_js(&ctx, &Json::from(count), &mut Budget::new(usize::MAX))
            .map_err(|fault| throw(&ctx, fault, "the count"))
    };
    add("cacheIncr", Function::new(ctx.clone(), incr))?;
    let host = Rc::clone(&session.host);
    let expire =
        move |key: String, seconds: f64| host.cache.borrow_mut().expire(&key, duration(seconds), Instant::now());
    add("cacheExpire", Function::new(ctx.clone(), expire))
}

/// Puts a job on its way.
fn start<'js>(
    ctx: &Ctx<'js>,
    session: &Session,
    name: String,
    payload: Json,
    run_at: Timestamp,
) -> rquickjs::Result<Promise<'js>> {
    let job = Job::new(name, payload).map_err(|error| Exception::throw_range(ctx, &error.to_string()))?;
    session.enqueue(ctx, job.run_at(run_at))
}

fn read(value: &Value<'_>, what: &str) -> rquickjs::Result<Json> {
    let json = json::from_js(value, &mut Budget::new(MAX_PAYLOAD_BYTES));
    json.map(|json| json.unwrap_or(Json::Null)).map_err(|fault| throw(value.ctx(), fault, what))
}

/// A value that doesn't go over, as an exception.
fn throw(ctx: &Ctx<'_>, fault: JsonFault, whole: &str) -> rquickjs::Error {
    match fault {
        JsonFault::Engine(error) => error,
        JsonFault::TooLarge => {
            Exception::throw_range(ctx, &format!("{whole} is too large; keep large data elsewhere and name it here"))
        }
        JsonFault::NotJson { path, what } => {
            let place = if path.is_empty() { String::new() } else { format!(" at `{}`", fault::short(&path)) };
            Exception::throw_type(
                ctx,
                &format!("{whole} has {what}{place}, which JSON can't hold; use null or text instead"),
            )
        }
    }
}

/// The instant so many units from now. Unit: milliseconds since 1970.
fn after(ctx: Ctx<'_>, number: f64, unit: String) -> rquickjs::Result<f64> {
    let unit = unit.parse::<TimeUnit>();
    let then = unit.and_then(|unit| unit.after(Timestamp::now(), number as i64));
    then.map(milliseconds).map_err(|error| Exception::throw_range(&ctx, &error.to_string()))
}

/// The instant that a text names. Unit: milliseconds since 1970.
fn parse(ctx: Ctx<'_>, text: String) -> rquickjs::Result<f64> {
    let then = parse_time(&text);
    then.map(milliseconds).map_err(|error| Exception::throw_range(&ctx, &format!("runAt: {error}")))
}

fn milliseconds(timestamp: Timestamp) -> f64 {
    timestamp.as_millisecond() as f64
}

fn timestamp(ctx: &Ctx<'_>, milliseconds: f64) -> rquickjs::Result<Timestamp> {
    let timestamp = Timestamp::from_millisecond(milliseconds as i64);
    timestamp.map_err(|_error| Exception::throw_range(ctx, "runAt got a Date after all time; use an earlier one"))
}

/// A number of seconds that is not negative; what is beyond all time never ends.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
