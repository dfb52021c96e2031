//! An input of `s3-export` becomes an export: the reference system's fields, and this worker's connections.

use engine::config::connection::{S3Connection, S3Credentials};
use engine::config::connections::Connections;
use engine::config::export::ExportConfig;
use engine::config::fault::Fault;
use engine::config::raw::{RawDestination, RawExport, RawPipeline, RawPlugin, RawSetting, RawSize, RawSource};
use engine::config::secret::Secret;
use url::Url;
use workflows::payload::{Destination, PipelineInput, PluginInput, S3ExportInput, Selection};

use crate::exporter::Resolver;

/// The version of the raw form that is built here.
const VERSION: u32 = 1;

/// Resolves inputs with the connections that this worker was started with.
#[derive(Debug)]
pub struct ExportResolver {
    connections: Connections,
    cpus: u32,
}

impl ExportResolver {
    /// A resolver for a worker with these connections and so many CPUs.
    #[must_use]
    pub fn new(connections: Connections, cpus: u32) -> Self {
        Self { connections, cpus }
    }
}

impl Resolver for ExportResolver {
    fn resolve(&self, input: &S3ExportInput) -> Result<ExportConfig, Vec<String>> {
        let mut faults = Vec::new();
        let pipeline = pipeline(&input.pipeline, &mut faults);
        let endpoint = input
            .destination
            .endpoint_url
            .as_deref()
            .and_then(|text| endpoint(text).map_err(|fault| faults.push(fault)).ok());
        let raw = RawExport {
            version: Some(VERSION),
            name: Some(input.export_id.clone()),
            interval: Some(input.cadence.to_string()),
            source: source(input),
            destination: destination(input),
            pipeline,
            plugin: input.plugin.as_ref().map(plugin),
            ..RawExport::default()
        };
        match raw.validate(&self.connections, self.cpus) {
            Ok(export) if faults.is_empty() => {
                let mut config = export.config;
                override_connection(&mut config.destination.connection, &input.destination, endpoint);
                Ok(config)
            }
            Ok(_) => Err(faults),
            Err(others) => {
                faults.extend(others.iter().map(sentence));
                Err(faults)
            }
        }
    }
}

fn source(input: &S3ExportInput) -> RawSource {
    let settings =
        input.source_settings.iter().map(|(name, value)| (name.clone(), RawSetting(value.clone()))).collect();
    let raw = RawSource {
        connection: input.clickhouse_connection.clone(),
        settings,
        invalid_utf8: input.invalid_utf8.clone(),
        fewer_rows: input.fewer_rows.clone(),
        ..RawSource::default()
    };
    match &input.selection {
        Selection::Query(query) => RawSource { model: Some("sql".to_owned()), query: Some(query.clone()), ..raw },
        Selection::Events { exclude, include } => RawSource {
            model: Some("events".to_owned()),
            team_id: input.team_id,
            exclude_events: Some(exclude.clone()).filter(|names| !names.is_empty()),
            include_events: Some(include.clone()).filter(|names| !names.is_empty()),
            ..raw
        },
    }
}

fn destination(input: &S3ExportInput) -> RawDestination {
    let given = &input.destination;
    RawDestination {
        connection: given.connection.clone(),
        bucket: Some(given.bucket.clone()),
        prefix: Some(given.prefix.clone()),
        file_format: Some(input.file_format.clone()),
        compression: input.compression.clone(),
        key_layout: given.key_layout.clone(),
        encryption: given.encryption.clone(),
        kms_key_id: given.kms_key_id.clone(),
        write_empty: given.write_empty,
    }
}

fn plugin(input: &PluginInput) -> RawPlugin {
    RawPlugin { name: Some(input.name.clone()), on_error: input.on_error.clone() }
}

fn pipeline(input: &PipelineInput, faults: &mut Vec<String>) -> RawPipeline {
    let mut size = |field: &str, text: &Option<String>| {
        let size = text.as_deref()?.parse::<bytesize::ByteSize>();
        if size.is_err() {
            faults.push(format!("`pipeline.{field}` must be a size, such as \"256MiB\" or a number of bytes"));
        }
        size.ok().map(|size| RawSize(size.as_u64()))
    };
    RawPipeline {
        memory_limit: size("memory_limit", &input.memory_limit),
        consumers: input.consumers,
        block_rows: input.block_rows,
        block_size: size("block_size", &input.block_size),
        buffer_size: size("buffer_size", &input.buffer_size),
        part_size: size("part_size", &input.part_size),
        uploads_in_flight: input.uploads_in_flight,
    }
}

/// An endpoint. What it holds is never part of the message: it may be a password.
fn endpoint(text: &str) -> Result<Url, String> {
    let fault = |what: &str| Err(format!("`endpoint_url` {what}"));
    match Url::parse(text.trim()) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            fault("must not hold a user or password; give keys, or a connection")
        }
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.host_str().is_some() && url.query().is_none() => {
            Ok(url)
        }
        _ => fault("must be a web address, such as https://host:9000"),
    }
}

/// What the input says itself goes before what its connection says.
fn override_connection(connection: &mut S3Connection, given: &Destination, endpoint: Option<Url>) {
    if let Some(region) = given.region.as_deref().map(str::trim).filter(|region| !region.is_empty()) {
        connection.region = Some(region.to_owned());
    }
    if endpoint.is_some() {
        connection.endpoint_url = endpoint;
    }
    if let (Some(id), Some(key)) = (&given.access_key_id, &given.secret_access_key) {
        connection.credentials = Some(S3Credentials {
            access_key_id: id.expose().to_owned(),
            secret_access_key: Secret::new(key.expose()),
            session_token: None,
        });
    }
    if given.use_virtual_style_addressing.is_some() {
        connection.use_virtual_style_addressing = given.use_virtual_style_addressing;
    }
}

/// A fault with the field's name as the input has it.
fn sentence(fault: &Fault) -> String {
    let path = match fault.path.as_str() {
        "name" => "batch_export_id".to_owned(),
        "source.connection" => "clickhouse_connection".to_owned(),
        "source.model" => "batch_export_model".to_owned(),
        "destination.connection" => "s3_connection".to_owned(),
        "destination.bucket" => "bucket_name".to_owned(),
        path => match path.strip_prefix("source.settings") {
            Some(rest) => format!("source_settings{rest}"),
            None => path.trim_start_matches("source.").trim_start_matches("destination.").to_owned(),
        },
    };
    format!("`{path}` {}", fault.message)
}

#[cfg(test)]
mod tests;
