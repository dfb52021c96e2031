//! The input of `s3-export`: the reference system's JSON and our optional additions.

use cadence::Cadence;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::bounds::Bounds;
use crate::fields::{Faults, Fields};
use crate::options::InsertOptions;
use crate::secret::Secret;

/// What a run of `s3-export` is asked to do, read and checked as far as that is possible without the worker's
/// configuration.
///
/// # Invariants
/// `export_id` and `bucket` are not empty; keys come in pairs; what isn't implemented is not here, since it was refused.
#[derive(Debug, Clone)]
pub struct S3ExportInput {
    /// `batch_export_id`.
    pub export_id: String,
    /// `team_id`: whose events; `None` with an own query.
    pub team_id: Option<i64>,
    /// `interval`.
    pub cadence: Cadence,
    /// `timezone`: the zone in which days and weeks are counted.
    pub zone: TimeZone,
    /// `data_interval_end`.
    pub interval_end: Option<Timestamp>,
    /// What is selected.
    pub selection: Selection,
    /// `source_settings`: ClickHouse settings by their own names.
    pub source_settings: Vec<(String, String)>,
    /// `invalid_utf8`: `replace` or `fail`.
    pub invalid_utf8: Option<String>,
    /// `fewer_rows`: `fail` or `allow`.
    pub fewer_rows: Option<String>,
    /// `clickhouse_connection`: a connection of the worker's configuration.
    pub clickhouse_connection: Option<String>,
    /// Where the object goes.
    pub destination: Destination,
    /// `file_format`: `Parquet` or `JSONLines`.
    pub file_format: String,
    /// `compression`.
    pub compression: Option<String>,
    /// `pipeline`: what a run may hold at once.
    pub pipeline: PipelineInput,
    /// `plugin`: who changes rows before they are written.
    pub plugin: Option<PluginInput>,
    /// `activity_options`: how long and how often the insert is tried.
    pub options: InsertOptions,
}

/// What is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The reference system's events.
    Events {
        /// `exclude_events`: names that are left out.
        exclude: Vec<String>,
        /// `include_events`: the only names, unless empty.
        include: Vec<String>,
    },
    /// `query`: the user's own SQL.
    Query(String),
}

/// Where the object goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// `s3_connection`: a connection of the worker's configuration.
    pub connection: Option<String>,
    /// `bucket_name`.
    pub bucket: String,
    /// `region`.
    pub region: Option<String>,
    /// `prefix`.
    pub prefix: String,
    /// `aws_access_key_id`.
    pub access_key_id: Option<Secret>,
    /// `aws_secret_access_key`.
    pub secret_access_key: Option<Secret>,
    /// `endpoint_url`.
    pub endpoint_url: Option<String>,
    /// `encryption`: `AES256` or `aws:kms`.
    pub encryption: Option<String>,
    /// `kms_key_id`.
    pub kms_key_id: Option<String>,
    /// `use_virtual_style_addressing`.
    pub use_virtual_style_addressing: Option<bool>,
    /// `key_layout`: `default` or `reference`.
    pub key_layout: Option<String>,
    /// `write_empty`: whether a run without rows writes an empty object.
    pub write_empty: Option<bool>,
}

/// What a run may hold at once; everything is optional. Sizes are texts such as `256MiB`, or numbers of bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineInput {
    /// `memory_limit`: the most that the whole pipeline may hold.
    pub memory_limit: Option<String>,
    /// `consumers`: how many encode and upload at once.
    pub consumers: Option<u32>,
    /// `block_rows`: the most rows of one block.
    pub block_rows: Option<u32>,
    /// `block_size`: the size at which a block closes.
    pub block_size: Option<String>,
    /// `buffer_size`: the most bytes held at once of the source and of what is being written of it.
    pub buffer_size: Option<String>,
    /// `part_size`: the size of a part.
    pub part_size: Option<String>,
    /// `uploads_in_flight`: how many parts are uploaded at once.
    pub uploads_in_flight: Option<u32>,
}

/// Who changes rows before they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginInput {
    /// `name`: a plugin of the worker's file of jobs.
    pub name: String,
    /// `on_error`: `fail_run`, `drop_row` or `pass_row`.
    pub on_error: Option<String>,
}

impl S3ExportInput {
    /// Reads an input.
    ///
    /// # Errors
    /// Every fault as one sentence that names the field and never quotes its value.
    pub fn from_json(input: &Value) -> Result<Self, Vec<String>> {
        let Value::Object(object) = input else {
            return Err(vec!["the input must be one JSON object".to_owned()]);
        };
        let faults = Faults::default();
        let mut fields = Fields::new(object.clone(), &faults);
        refuse_unsupported(&mut fields);
        let cadence = read_cadence(&mut fields);
        let input = Self {
            export_id: fields.required_text("batch_export_id"),
            cadence,
            zone: read_zone(&mut fields),
            interval_end: read_instant(&mut fields, "data_interval_end"),
            team_id: fields.integer("team_id"),
            selection: read_selection(&mut fields),
            source_settings: fields.map("source_settings").unwrap_or_default(),
            invalid_utf8: fields.choice("invalid_utf8", &["replace", "fail"]),
            fewer_rows: fields.choice("fewer_rows", &["fail", "allow"]),
            clickhouse_connection: fields.text("clickhouse_connection"),
            destination: read_destination(&mut fields),
            file_format: fields.text("file_format").unwrap_or_else(|| "JSONLines".to_owned()),
            compression: fields.text("compression"),
            pipeline: read_pipeline(&mut fields),
            plugin: read_plugin(&mut fields),
            options: InsertOptions::read(&mut fields, cadence),
        };
        if input.team_id.is_none() && matches!(input.selection, Selection::Events { .. }) {
            fields.fault("team_id", "is required for the model events");
        }
        fields.finish();
        let sentences = faults.into_sentences();
        if sentences.is_empty() { Ok(input) } else { Err(sentences) }
    }

    /// The interval of a run: the one that ends at `data_interval_end`, or else at the scheduled time.
    ///
    /// # Errors
    /// A sentence when neither is known, or the interval would begin before time does.
    pub fn bounds(&self, scheduled: Option<Timestamp>) -> Result<Bounds, String> {
        let Some(end) = self.interval_end.or(scheduled) else {
            return Err("`data_interval_end` is required when no schedule starts the workflow".to_owned());
        };
        Bounds::ending(self.cadence, end, &self.zone)
            .map_err(|_| format!("`data_interval_end` is too early for the interval {}", self.cadence))
    }
}

/// Refuses what the reference system knows and this one doesn't do.
fn refuse_unsupported(fields: &mut Fields<'_>) {
    const BACKFILL: &str = "use `temporal schedule backfill`, which runs every interval on its own";
    fields.refuse_unless_empty("is_backfill", BACKFILL);
    fields.refuse("backfill_details", BACKFILL);
    fields.refuse_unless_empty("is_earliest_backfill", BACKFILL);
    fields.refuse("batch_export_schema", "select and name the columns in `query`");
    fields.refuse("max_file_size_mb", "leave it out: a run writes one file");
    fields.refuse("integration_id", "name a connection of the worker in `s3_connection`, or give keys");
}

fn read_cadence(fields: &mut Fields<'_>) -> Cadence {
    let Some(name) = fields.text("interval") else { return Cadence::Hour };
    name.parse().unwrap_or_else(|_| {
        fields.fault("interval", "must be hour, day, week, or every N minutes, N from 1 to 1440");
        Cadence::Hour
    })
}

fn read_zone(fields: &mut Fields<'_>) -> TimeZone {
    let Some(name) = fields.text("timezone") else { return TimeZone::UTC };
    TimeZone::get(&name).unwrap_or_else(|_| {
        fields.fault("timezone", "must be the name of a time zone, such as Europe/Berlin");
        TimeZone::UTC
    })
}

fn read_instant(fields: &mut Fields<'_>, field: &'static str) -> Option<Timestamp> {
    let text = fields.text(field)?;
    let instant = text.parse().ok();
    if instant.is_none() {
        fields.fault(field, "must be an instant with an offset, such as 2026-01-01T00:00:00Z");
    }
    instant
}

fn read_selection(fields: &mut Fields<'_>) -> Selection {
    let exclude = fields.texts("exclude_events").unwrap_or_default();
    let include = fields.texts("include_events").unwrap_or_default();
    let has_model = fields.has("batch_export_model");
    if let Some(mut model) = fields.object("batch_export_model") {
        read_model(&mut model);
        model.finish();
    }
    let Some(query) = fields.text("query") else { return Selection::Events { exclude, include } };
    if query.trim().is_empty() {
        fields.fault("query", "must not be empty");
    }
    for (field, given) in [
        ("batch_export_model", has_model),
        ("exclude_events", !exclude.is_empty()),
        ("include_events", !include.is_empty()),
    ] {
        if given {
            fields.fault(field, "does not go together with `query`; leave one of them out");
        }
    }
    Selection::Query(query)
}

fn read_model(model: &mut Fields<'_>) {
    match model.required_text("name").as_str() {
        "" | "events" => {}
        "persons" | "sessions" => {
            model.fault("name", "names a model that is not supported yet; use events, or select it in `query`");
        }
        _ => model.fault("name", "must be events; or write your own SQL in `query`"),
    }
    model.refuse("schema", "select and name the columns in `query`");
    model.refuse_unless_empty("filters", "filter in `query`");
}

fn read_destination(fields: &mut Fields<'_>) -> Destination {
    let destination = Destination {
        connection: fields.text("s3_connection"),
        bucket: fields.required_text("bucket_name"),
        region: fields.text("region"),
        prefix: fields.text("prefix").unwrap_or_default(),
        access_key_id: fields.text("aws_access_key_id").map(Secret::new),
        secret_access_key: fields.text("aws_secret_access_key").map(Secret::new),
        endpoint_url: fields.text("endpoint_url"),
        encryption: fields.text("encryption"),
        kms_key_id: fields.text("kms_key_id"),
        use_virtual_style_addressing: fields.flag("use_virtual_style_addressing"),
        key_layout: fields.choice("key_layout", &["default", "reference"]),
        write_empty: fields.flag("write_empty"),
    };
    match (&destination.access_key_id, &destination.secret_access_key) {
        (Some(_), None) => fields.fault("aws_secret_access_key", "is required with `aws_access_key_id`"),
        (None, Some(_)) => fields.fault("aws_access_key_id", "is required with `aws_secret_access_key`"),
        _ => {}
    }
    destination
}

fn read_pipeline(fields: &mut Fields<'_>) -> PipelineInput {
    let Some(mut pipeline) = fields.object("pipeline") else { return PipelineInput::default() };
    let input = PipelineInput {
        memory_limit: pipeline.size("memory_limit"),
        consumers: pipeline.positive("consumers"),
        block_rows: pipeline.positive("block_rows"),
        block_size: pipeline.size("block_size"),
        buffer_size: pipeline.size("buffer_size"),
        part_size: pipeline.size("part_size"),
        uploads_in_flight: pipeline.positive("uploads_in_flight"),
    };
    pipeline.finish();
    input
}

fn read_plugin(fields: &mut Fields<'_>) -> Option<PluginInput> {
    let mut plugin = fields.object("plugin")?;
    let name = plugin.required_text("name");
    let on_error = plugin.choice("on_error", &["fail_run", "drop_row", "pass_row"]);
    plugin.finish();
    Some(PluginInput { name, on_error })
}

#[cfg(test)]
mod tests;
