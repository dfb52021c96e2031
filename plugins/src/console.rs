//! What a plugin says, in the log.

use rquickjs::function::Rest;
use rquickjs::{Ctx, Function, Object, Value};
use std::rc::Rc;

use crate::json;
use crate::session::Session;

/// The longest line. Unit: characters.
const MAX_LINE_CHARS: usize = 2_000;

/// How many lines one call may write.
const MAX_LINES: u32 = 100;

/// How loud a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// The functions of `console`.
const FUNCTIONS: [(&str, Level); 5] = [
    ("log", Level::Info),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("warn", Level::Warn),
    ("error", Level::Error),
];

/// Gives a plugin its `console`.
pub(crate) fn install<'js>(ctx: &Ctx<'js>, session: &Rc<Session>) -> rquickjs::Result<()> {
    let console = Object::new(ctx.clone())?;
    for (name, level) in FUNCTIONS {
        let session = Rc::clone(session);
        let function = Function::new(ctx.clone(), move |values: Rest<Value<'js>>| {
            session.say(level, || line(&values.0));
        })?;
        console.set(name, function)?;
    }
    ctx.globals().set("console", console)
}

/// Writes a line of `plugin`, its `number`-th of this call.
pub(crate) fn write(plugin: &str, level: Level, number: u32, line: impl FnOnce() -> String) {
    if number > MAX_LINES {
        return;
    }
    let line = if number == MAX_LINES { "… more lines of this call are left out".to_owned() } else { line() };
    match level {
        Level::Debug => tracing::debug!(plugin, "{line}"),
        Level::Info => tracing::info!(plugin, "{line}"),
        Level::Warn => tracing::warn!(plugin, "{line}"),
        Level::Error => tracing::error!(plugin, "{line}"),
    }
}

fn line(values: &[Value<'_>]) -> String {
    let mut line = String::new();
    for value in values {
        if line.len() > MAX_LINE_CHARS {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&text(value));
    }
    one_line(&line, MAX_LINE_CHARS)
}

/// A value for human eyes.
pub(crate) fn text(value: &Value<'_>) -> String {
    if let Some(text) = value.as_string() {
        return json::text_of(text).unwrap_or_default();
    }
    if let Some(error) = value.as_exception() {
        return error_text(error.as_object());
    }
    match value.type_name() {
        name @ ("undefined" | "function" | "constructor" | "symbol") => name.to_owned(),
        _ => json::show(value, 4 * MAX_LINE_CHARS).to_string(),
    }
}

/// An error's name and message.
pub(crate) fn error_text(error: &Object<'_>) -> String {
    let part = |name: &str| {
        let part = error.get::<_, Value<'_>>(name).ok().and_then(|part| json::text_of(part.as_string()?).ok());
        // What a getter throws here is nobody's.
        error.ctx().catch();
        part.unwrap_or_default()
    };
    match (part("name"), part("message")) {
        (name, message) if name.is_empty() || (name == "Error" && !message.is_empty()) => message,
        (name, message) if message.is_empty() => name,
        (name, message) => format!("{name}: {message}"),
    }
}

/// Text in one line of at most so many characters.
pub(crate) fn one_line(text: &str, max_chars: usize) -> String {
    let mut line =
        text.chars().take(max_chars).map(|char| if char.is_control() { ' ' } else { char }).collect::<String>();
    if text.chars().nth(max_chars).is_some() {
        line.push('…');
    }
    line
}
