//! The engine's failures, as the errors that they are.

use rquickjs::{Ctx, Error, Object, Value};

use crate::console;
use crate::error::PluginError;
use crate::json::JsonFault;
use crate::session::Host;

/// The longest text of an error that is repeated. Unit: characters.
const MAX_TEXT_CHARS: usize = 500;

/// How the engine says that a module isn't there.
const NO_MODULE: &str = "could not load module '";

/// What a failure of the engine in `function` is.
pub(crate) fn blame(ctx: &Ctx<'_>, host: &Host, function: &str, error: Error) -> PluginError {
    let (plugin, function) = (host.definition.name.clone(), function.to_owned());
    let limits = &host.definition.limits;
    let time_limit =
        || PluginError::TimeLimit { plugin: plugin.clone(), function: function.clone(), limit: limits.time };
    // Nothing of an exception is looked at after an interruption: looking may run code of the plugin.
    let thrown = ctx.has_exception().then(|| ctx.catch());
    if host.clock.was_interrupted() {
        return time_limit();
    }
    let Some(thrown) = thrown else {
        return match error {
            Error::Allocation => PluginError::MemoryLimit { plugin, function, limit: limits.memory_bytes },
            other => PluginError::Exception { plugin, function, message: short(&other.to_string()), place: None },
        };
    };
    let Some(exception) = thrown.as_exception().map(|exception| exception.as_object()) else {
        // Without memory for an error the engine throws null. A plugin that throws it looks the same.
        if thrown.is_null() {
            return PluginError::MemoryLimit { plugin, function, limit: limits.memory_bytes };
        }
        return PluginError::Exception { plugin, function, message: short(&console::text(&thrown)), place: None };
    };
    let message = console::error_text(exception);
    let place = place(exception, &host.definition.file);
    if host.clock.was_interrupted() {
        return time_limit();
    }
    if let Some(module) = message.split_once(NO_MODULE).and_then(|(_, rest)| rest.strip_suffix('\'')) {
        return PluginError::Import { plugin, module: short(module) };
    }
    match message.as_str() {
        "InternalError: out of memory" => PluginError::MemoryLimit { plugin, function, limit: limits.memory_bytes },
        "RangeError: Maximum call stack size exceeded" => PluginError::StackOverflow { plugin, function, place },
        _ => PluginError::Exception { plugin, function, message: short(&message), place },
    }
}

/// What a failure to read the file is.
pub(crate) fn blame_source(ctx: &Ctx<'_>, host: &Host, function: &str, error: Error) -> PluginError {
    match blame(ctx, host, function, error) {
        PluginError::Exception { plugin, message, place, .. } if message.starts_with("SyntaxError: ") => {
            let place = place.unwrap_or_else(|| host.definition.file.clone());
            PluginError::Syntax { plugin, place, message: message["SyntaxError: ".len()..].to_owned() }
        }
        other => other,
    }
}

/// What a value that doesn't go over is.
pub(crate) fn blame_value(ctx: &Ctx<'_>, host: &Host, function: &str, fault: JsonFault, limit: usize) -> PluginError {
    let plugin = host.definition.name.clone();
    match fault {
        JsonFault::Engine(error) => blame(ctx, host, function, error),
        JsonFault::TooLarge => PluginError::TooLarge { plugin, function: function.to_owned(), limit },
        JsonFault::NotJson { path, what } => {
            PluginError::NotJson { plugin, function: function.to_owned(), path: short(&path), what }
        }
    }
}

/// The innermost line of the plugin that an error comes from.
fn place(exception: &Object<'_>, file: &str) -> Option<String> {
    let stack = exception.get::<_, Value<'_>>("stack").ok()?;
    let stack = stack.as_string()?.to_string().ok()?;
    let line = stack.lines().map(str::trim).find(|line| line.contains(file))?;
    Some(short(line.strip_prefix("at ").unwrap_or(line)))
}

/// Text in one line that an error can repeat.
pub(crate) fn short(text: &str) -> String {
    console::one_line(text, MAX_TEXT_CHARS)
}
