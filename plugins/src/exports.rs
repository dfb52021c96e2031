//! What a plugin's file offers.

use std::collections::BTreeMap;

use rquickjs::{Function, Object, Value};

use crate::error::PluginError;
use crate::json;

/// Under which name a file without exports exports what it declares.
const DECLARED: &str = "$$declared";

/// What is looked for.
const NAMES: [&str; 6] = ["processEvent", "onRetry", "setupPlugin", "teardownPlugin", "jobs", "tasks"];

/// The functions of a plugin.
#[derive(Debug)]
pub(crate) struct Exports<'js> {
    pub(crate) process_event: Option<Function<'js>>,
    pub(crate) on_retry: Option<Function<'js>>,
    pub(crate) setup: Option<Function<'js>>,
    pub(crate) teardown: Option<Function<'js>>,
    /// With the objects that they are functions of.
    pub(crate) jobs: BTreeMap<String, (Object<'js>, Function<'js>)>,
}

/// The source, with an end that exports what it declares. It stands on lines of its own, so that places stay what they are.
pub(crate) fn with_declared(source: &str) -> String {
    let members = NAMES.map(|name| format!("{name}: typeof {name} === \"undefined\" ? undefined : {name}")).join(", ");
    format!("{source}\nexport const {DECLARED} = {{ {members} }};\n")
}

/// A failure of the plugin, or of the engine while looking.
pub(crate) enum ExportFault {
    Plugin(PluginError),
    Engine(rquickjs::Error),
}

impl From<rquickjs::Error> for ExportFault {
    fn from(error: rquickjs::Error) -> Self {
        Self::Engine(error)
    }
}

impl<'js> Exports<'js> {
    /// Looks through a module made of [`with_declared`]. Without a single export of its own, it is a script of the older
    /// kind: what it declares is what it offers.
    pub(crate) fn read(plugin: &str, module: &Object<'js>) -> Result<Self, ExportFault> {
        let names = json::members(module).map(|named| named.map(|(name, _)| name));
        let is_script = names.collect::<rquickjs::Result<Vec<_>>>()?.iter().all(|name| name == DECLARED);
        let offers = if is_script { module.get(DECLARED)? } else { module.clone() };
        let function = |name: &str| function(plugin, name, offers.get(name)?);
        let mut jobs = BTreeMap::new();
        for export in ["tasks", "jobs"] {
            let value = offers.get::<_, Value<'js>>(export)?;
            if value.is_undefined() {
                continue;
            }
            let wrong = || wrong(plugin, export, &value, "an object of functions");
            let object = value.as_object().filter(|_| !value.is_function() && !value.is_array()).ok_or_else(wrong)?;
            for named in json::members(object) {
                let (name, key) = named?;
                let job = function_of(plugin, &format!("{export}.{name}"), &object.get(key)?)?;
                jobs.insert(name, (object.clone(), job));
            }
        }
        Ok(Self {
            process_event: function("processEvent")?,
            on_retry: function("onRetry")?,
            setup: function("setupPlugin")?,
            teardown: function("teardownPlugin")?,
            jobs,
        })
    }
}

fn function<'js>(plugin: &str, name: &str, value: Value<'js>) -> Result<Option<Function<'js>>, ExportFault> {
    if value.is_undefined() { Ok(None) } else { function_of(plugin, name, &value).map(Some) }
}

fn function_of<'js>(plugin: &str, name: &str, value: &Value<'js>) -> Result<Function<'js>, ExportFault> {
    value.as_function().cloned().ok_or_else(|| wrong(plugin, name, value, "a function"))
}

fn wrong(plugin: &str, export: &str, value: &Value<'_>, expected: &'static str) -> ExportFault {
    let (plugin, export) = (plugin.to_owned(), export.to_owned());
    ExportFault::Plugin(PluginError::Export { plugin, export, got: kind(value), expected })
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value<'_>) -> &'static str {
    match value.type_name() {
        "int" | "float" => "a number",
        "bool" => "true or false",
        "string" => "text",
        "symbol" => "a symbol",
        "big_int" => "a BigInt",
        "null" => "null",
        "undefined" | "uninitialized" => "nothing",
        "array" => "an array",
        "function" | "constructor" => "a function",
        "promise" => "a promise",
        _ => "an object",
    }
}
