//! The plugins of a process: their files, the rows that go through them, and the jobs that they do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::config::connections::Surroundings;
use engine::config::raw::{RawDuration, RawJson, RawSize};
use engine::config::validate::Check;
use engine::error::{Error, ErrorKind};
use engine::transform::{RowTransform, TransformBatch, TransformedRow, Transforms};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use jobs::handler::{Dispatcher, Handler};
use plugins::definition::{Definition, Limits};
use plugins::error::PluginError;
use plugins::handler::PluginJobs;
use plugins::outbox::Outbox;
use plugins::plugin::{Plugin, Row};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

/// A plugin as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPlugin {
    name: Option<String>,
    file: Option<String>,
    config: Option<RawJson>,
    memory_limit: Option<RawSize>,
    time_limit: Option<RawDuration>,
    cache_size: Option<RawSize>,
    cache_entries: Option<u32>,
}

impl RawPlugin {
    /// Reads the plugin's file, and checks what can be checked without running it.
    pub(super) fn validate(
        self,
        check: &mut Check,
        index: usize,
        surroundings: Surroundings<'_>,
    ) -> Option<Definition> {
        let field = |name: &str| format!("plugins[{index}].{name}");
        let name = check.required(&field("name"), self.name.as_deref(), "give the plugin a name");
        let file = check.required(&field("file"), self.file.as_deref(), "name the JavaScript file");
        let source = file.as_ref().and_then(|file| {
            let text = (surroundings.read_file)(Path::new(file));
            check.take(&field("file"), text.map_err(|error| format!("can't read {file}: {error}")))
        });
        let config = self.config.map_or_else(|| Value::Object(serde_json::Map::new()), |RawJson(config)| config);
        if !config.is_object() {
            check.fault(&field("config"), "must be a mapping of names to values");
        }
        let limits = limits(check, &field, self.memory_limit, self.time_limit, self.cache_size, self.cache_entries);
        let definition = Definition { config, limits, ..Definition::new(name?, file?, source?) };
        check.take(&format!("plugins[{index}]"), definition.check().map_err(|error| error.to_string()))?;
        Some(definition)
    }
}

fn limits(
    check: &mut Check,
    field: &dyn Fn(&str) -> String,
    memory: Option<RawSize>,
    time: Option<RawDuration>,
    cache: Option<RawSize>,
    entries: Option<u32>,
) -> Limits {
    let defaults = Limits::default();
    let bytes = |size: Option<RawSize>, default| {
        size.map_or(default, |RawSize(size)| usize::try_from(size).unwrap_or(usize::MAX))
    };
    let is_zero = [
        ("time_limit", time.is_some_and(|RawDuration(time)| time.is_zero())),
        ("memory_limit", memory == Some(RawSize(0))),
    ];
    for (name, _) in is_zero.into_iter().filter(|(_, is_zero)| *is_zero) {
        check.fault(&field(name), "must be more than zero; zero never means unlimited");
    }
    Limits {
        memory_bytes: bytes(memory, defaults.memory_bytes),
        time: time.map_or(defaults.time, |RawDuration(time)| time),
        cache_bytes: bytes(cache, defaults.cache_bytes),
        cache_entries: entries.map_or(defaults.cache_entries, |entries| usize::try_from(entries).unwrap_or(usize::MAX)),
        ..defaults
    }
}

/// Plugins at work.
#[derive(Debug, Default)]
pub(crate) struct PluginHost(Vec<Plugin>);

impl PluginHost {
    /// Starts plugins, whose jobs go to `outbox`.
    ///
    /// # Errors
    /// The first that can't be set up.
    pub(crate) async fn start(definitions: &[Definition], outbox: Arc<dyn Outbox>) -> Result<Self, PluginError> {
        let mut plugins = Vec::with_capacity(definitions.len());
        for definition in definitions {
            plugins.push(Plugin::start(definition.clone(), Arc::clone(&outbox)).await?);
        }
        Ok(Self(plugins))
    }

    /// The plugins as exports ask for them.
    pub(crate) fn transforms(&self) -> Transforms {
        let transform = |plugin: &Plugin| {
            let rows: Arc<dyn RowTransform> = Arc::new(PluginRows(plugin.clone()));
            (plugin.name().to_owned(), rows)
        };
        Transforms::new(self.0.iter().map(transform).collect::<BTreeMap<_, _>>())
    }

    /// A dispatcher that also does the plugins' jobs.
    pub(crate) fn with_jobs(&self, dispatcher: Dispatcher) -> Dispatcher {
        self.0.iter().fold(dispatcher, |dispatcher, plugin| {
            let jobs = Arc::new(PluginJobs::new(plugin.clone()));
            jobs.names().into_iter().fold(dispatcher, |dispatcher, name| {
                let handler: Arc<dyn Handler> = Arc::<PluginJobs>::clone(&jobs);
                dispatcher.with_handler(&name, handler)
            })
        })
    }

    /// Ends all plugins: what they still put into the queue is in it then, as far as they end until `deadline`.
    pub(crate) async fn close(&self, deadline: Instant) {
        join_all(self.0.iter().map(|plugin| async move {
            match timeout_at(deadline, plugin.close()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a plugin failed at its end"),
                Err(_late) => tracing::warn!(plugin = plugin.name(), "a plugin did not end in time"),
            }
        }))
        .await;
    }
}

/// The rows that go through a plugin.
#[derive(Debug)]
struct PluginRows(Plugin);

impl RowTransform for PluginRows {
    fn check(&self) -> Result<(), Error> {
        if self.0.offer().process_event {
            return Ok(());
        }
        Err(run_error(&PluginError::Missing { plugin: self.0.name().to_owned(), function: "processEvent" }))
    }

    fn apply(&self, batch: TransformBatch) -> BoxFuture<'_, Result<Vec<TransformedRow>, Error>> {
        async move {
            let TransformBatch { rows, room, stops_at_failure } = batch;
            let rows = self.0.process_batch(rows, room, stops_at_failure).await;
            rows.map_err(|error| run_error(&error))?.into_iter().map(transformed).collect()
        }
        .boxed()
    }
}

fn transformed(row: Row) -> Result<TransformedRow, Error> {
    match row.outcome {
        Err(error) if !row.was_seen => Err(run_error(&error)),
        outcome => Ok(TransformedRow { before: row.event, after: outcome.map_err(|error| error.to_string()) }),
    }
}

/// What keeps a plugin from seeing rows: a function that isn't there stays away, all else may pass.
fn run_error(error: &PluginError) -> Error {
    let kind = match error {
        PluginError::Missing { .. } => ErrorKind::Config,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string())
}
