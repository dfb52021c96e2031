//! Raw to validated: an export's fields and their sums, all faults at once.
//!
//! Does not own connections: see [`super::connections`].

use cadence::{Cadence, MIN_HEARTBEAT_TIMEOUT};
use jiff::tz::TimeZone;

use super::connections::Connections;
use super::export::{
    DestinationConfig, Encryption, ExportConfig, FewerRows, InvalidUtf8, KeyLayout, Model, SourceConfig,
};
use super::fault::Fault;
use super::limits::{LimitRequest, PipelineLimits};
use super::output::Output;
use super::raw::{RawActivity, RawDestination, RawDuration, RawExport, RawPipeline, RawPlugin, RawSize, RawSource};
use super::timing::ActivityTiming;
use crate::source::events::{DEFAULT_LOOKBACK_DAYS, DEFAULT_TABLE, EventsModel};
use crate::source::settings;
use crate::source::template::SqlTemplate;
use crate::transform::{OnError, TransformConfig};

/// The version of the shape of files.
pub(super) const VERSION: u32 = 1;

/// The longest name of an export: it is part of keys and of workflow ids. Unit: bytes.
const MAX_NAME_BYTES: usize = 128;

/// The longest look back: a hundred years. Unit: days.
const MAX_LOOKBACK_DAYS: u32 = 36_500;

/// An export with its schedule.
#[derive(Debug, Clone)]
pub struct Export {
    /// What is copied, and where to.
    pub config: ExportConfig,
    /// How often.
    pub cadence: Cadence,
    /// The zone whose days and weeks are meant.
    pub zone: TimeZone,
    /// The limits of the activity that does a run.
    pub timing: ActivityTiming,
}

impl RawExport {
    /// Checks everything that can be checked without a service. `source.query_file` must have been read into
    /// `source.query` before.
    ///
    /// # Errors
    /// Every fault, with the field's path.
    pub fn validate(self, connections: &Connections, cpus: u32) -> Result<Export, Vec<Fault>> {
        let mut check = Check::default();
        check.version(self.version);
        let id = check.name(self.name.as_deref());
        let cadence = check.cadence(self.interval.as_deref());
        let zone = check.zone(self.timezone.as_deref());
        let source = check.source(&self.source, connections);
        let destination = check.destination(&self.destination, connections);
        let output = check.output(&self.destination);
        let limits = check.limits(&self.pipeline, cpus);
        let timing = cadence.map(|cadence| check.timing(&self.activity, cadence));
        let transform = self.plugin.and_then(|plugin| check.plugin(&plugin));
        let (Some(source), Some(destination), Some(output), Some(limits), Some(cadence), Some(zone), Some(timing)) =
            (source, destination, output, limits, cadence, zone, timing)
        else {
            return Err(check.faults);
        };
        if !check.faults.is_empty() {
            return Err(check.faults);
        }
        let config = ExportConfig { id, source, destination, output, limits, transform };
        Ok(Export { config, cadence, zone, timing })
    }
}

/// The faults so far.
#[derive(Debug, Default)]
pub struct Check {
    /// Every one of them.
    pub faults: Vec<Fault>,
}

impl Check {
    /// Notes a fault of the field at `path`.
    pub fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    /// The value of a field that must be there, without blanks around it.
    pub fn required(&mut self, path: &str, value: Option<&str>, example: &str) -> Option<String> {
        let value = value.map(str::trim).filter(|value| !value.is_empty());
        if value.is_none() {
            self.fault(path, format!("is missing; {example}"));
        }
        value.map(str::to_owned)
    }

    /// A value, or a fault where there is an error.
    pub fn take<T>(&mut self, path: &str, value: Result<T, impl Into<String>>) -> Option<T> {
        value.map_err(|message| self.fault(path, message)).ok()
    }

    /// The version of the file's shape.
    pub fn version(&mut self, version: Option<u32>) {
        match version {
            Some(VERSION) => {}
            Some(_) => self.fault("version", format!("this program knows version {VERSION} only")),
            None => self.fault("version", format!("is missing; write version: {VERSION}")),
        }
    }

    fn name(&mut self, name: Option<&str>) -> String {
        let name = self.required("name", name, "give the export a name").unwrap_or_default();
        let fits = |character: char| character.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&character);
        if !name.chars().all(fits) || name.len() > MAX_NAME_BYTES || name.starts_with('.') {
            self.fault(
                "name",
                format!(
                    "may hold letters, digits, -, _ and . only, not start with . and be {MAX_NAME_BYTES} long at most"
                ),
            );
        }
        name
    }

    fn cadence(&mut self, interval: Option<&str>) -> Option<Cadence> {
        let text = self.required("interval", interval, "use hour, day, week or \"every N minutes\"")?;
        self.take("interval", text.parse::<Cadence>())
    }

    fn zone(&mut self, timezone: Option<&str>) -> Option<TimeZone> {
        let name = timezone.map_or("UTC", str::trim);
        let zone = TimeZone::get(name)
            .map_err(|_| format!("{name:?} isn't a time zone; use a name such as UTC or Europe/Berlin"));
        self.take("timezone", zone)
    }

    fn source(&mut self, raw: &RawSource, connections: &Connections) -> Option<SourceConfig> {
        let connection = self.take("source.connection", connections.clickhouse(raw.connection.as_deref()));
        let settings = raw.settings.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
        for name in raw.settings.keys() {
            if let Some(reason) = settings::refusal(name) {
                self.fault(&format!("source.settings.{name}"), reason);
            }
        }
        let invalid_utf8 = match raw.invalid_utf8.as_deref() {
            None | Some("replace") => InvalidUtf8::Replace,
            Some("fail") => InvalidUtf8::Fail,
            Some(_) => {
                self.fault("source.invalid_utf8", "must be replace or fail");
                InvalidUtf8::default()
            }
        };
        let fewer_rows = match raw.fewer_rows.as_deref() {
            None | Some("fail") => FewerRows::Fail,
            Some("allow") => FewerRows::Allow,
            Some(_) => {
                self.fault("source.fewer_rows", "must be fail or allow");
                FewerRows::default()
            }
        };
        let model = self.model(raw);
        Some(SourceConfig { connection: connection?, model: model?, settings, invalid_utf8, fewer_rows })
    }

    fn model(&mut self, raw: &RawSource) -> Option<Model> {
        let of_events = [
            ("team_id", raw.team_id.is_some()),
            ("table", raw.table.is_some()),
            ("include_events", raw.include_events.is_some()),
            ("exclude_events", raw.exclude_events.is_some()),
            ("lookback_days", raw.lookback_days.is_some()),
        ];
        let of_sql = [("query", raw.query.is_some()), ("query_file", raw.query_file.is_some())];
        let example = "use events for the reference system's events, or sql with a query of your own";
        // A query says it all.
        let own_query = raw.query.is_some() || raw.query_file.is_some();
        let named = raw.model.as_deref().or(own_query.then_some("sql"));
        match self.required("source.model", named, example)?.as_str() {
            "events" => {
                self.not_for("events", "sql", &of_sql);
                self.events(raw)
            }
            "sql" => {
                self.not_for("sql", "events", &of_events);
                self.sql(raw)
            }
            _ => {
                self.fault("source.model", format!("isn't a model; {example}"));
                None
            }
        }
    }

    fn not_for(&mut self, model: &str, other: &str, fields: &[(&str, bool)]) {
        for (name, _) in fields.iter().filter(|(_, is_set)| *is_set) {
            self.fault(
                &format!("source.{name}"),
                format!("is for the model {other} and has no effect on {model}; remove it"),
            );
        }
    }

    fn events(&mut self, raw: &RawSource) -> Option<Model> {
        if raw.team_id.is_none() {
            self.fault("source.team_id", "is missing; the model events exports the events of one team");
        }
        let lookback_days = raw.lookback_days.unwrap_or(DEFAULT_LOOKBACK_DAYS);
        if lookback_days > MAX_LOOKBACK_DAYS {
            self.fault("source.lookback_days", format!("must be {MAX_LOOKBACK_DAYS} at most"));
        }
        let model = EventsModel {
            team_id: raw.team_id?,
            include_events: raw.include_events.clone().unwrap_or_default(),
            exclude_events: raw.exclude_events.clone().unwrap_or_default(),
            table: raw.table.clone().unwrap_or_else(|| DEFAULT_TABLE.to_owned()),
            lookback_days,
        };
        self.take("source.table", model.check().map_err(|error| error.to_string()))?;
        Some(Model::Events(model))
    }

    fn sql(&mut self, raw: &RawSource) -> Option<Model> {
        let path = if raw.query_file.is_some() { "source.query_file" } else { "source.query" };
        let Some(query) = &raw.query else {
            self.fault(path, "is missing; write a SELECT with {interval_start} and {interval_end}");
            return None;
        };
        self.take(path, SqlTemplate::parse(query).map_err(|error| error.to_string())).map(Model::Sql)
    }

    fn destination(&mut self, raw: &RawDestination, connections: &Connections) -> Option<DestinationConfig> {
        let connection = self.take("destination.connection", connections.s3(raw.connection.as_deref()));
        let bucket = self.required("destination.bucket", raw.bucket.as_deref(), "name the bucket");
        if let Some(bucket) = &bucket {
            let is_aws = connection.as_ref().is_none_or(|connection| connection.endpoint_url.is_none());
            self.take("destination.bucket", check_bucket(bucket, is_aws));
        }
        let prefix = raw.prefix.clone().unwrap_or_default();
        self.take("destination.prefix", crate::sink::key::check_prefix(&prefix));
        let key_layout = match raw.key_layout.as_deref() {
            None | Some("default") => KeyLayout::Default,
            Some("reference") => KeyLayout::Reference,
            Some(_) => {
                self.fault("destination.key_layout", "must be default or reference");
                KeyLayout::default()
            }
        };
        let encryption = self.encryption(raw);
        Some(DestinationConfig {
            connection: connection?,
            bucket: bucket?,
            prefix,
            key_layout,
            encryption,
            write_empty: raw.write_empty.unwrap_or(false),
        })
    }

    fn encryption(&mut self, raw: &RawDestination) -> Option<Encryption> {
        let key_id = raw.kms_key_id.as_deref().map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned);
        if key_id.is_some() && raw.encryption.as_deref() != Some("aws:kms") {
            self.fault("destination.kms_key_id", "needs encryption: aws:kms");
        }
        match raw.encryption.as_deref() {
            None => None,
            Some("AES256") => Some(Encryption::Aes256),
            Some("aws:kms") => Some(Encryption::Kms { key_id }),
            Some(_) => {
                self.fault("destination.encryption", "must be AES256 or aws:kms");
                None
            }
        }
    }

    fn output(&mut self, raw: &RawDestination) -> Option<Output> {
        let format = raw.file_format.as_deref().unwrap_or("JSONLines");
        let is_known = Output::ALL.iter().any(|output| output.format_name() == format);
        let path = if is_known { "destination.compression" } else { "destination.file_format" };
        self.take(path, Output::from_names(format, raw.compression.as_deref()))
    }

    fn limits(&mut self, raw: &RawPipeline, cpus: u32) -> Option<PipelineLimits> {
        let bytes = |size: Option<RawSize>| size.map(|size| size.0);
        let request = LimitRequest {
            memory_bytes: bytes(raw.memory_limit),
            consumers: raw.consumers,
            block_rows: raw.block_rows,
            block_bytes: bytes(raw.block_size),
            buffer_bytes: bytes(raw.buffer_size),
            part_bytes: bytes(raw.part_size),
            uploads_in_flight: raw.uploads_in_flight,
        };
        match PipelineLimits::derive(&request, cpus) {
            Ok(limits) => Some(limits),
            Err(faults) => {
                for (path, message) in faults {
                    self.fault(path, message);
                }
                None
            }
        }
    }

    fn plugin(&mut self, raw: &RawPlugin) -> Option<TransformConfig> {
        let name = self.required("plugin.name", raw.name.as_deref(), "name a plugin of the file of jobs");
        let on_error = match raw.on_error.as_deref() {
            None => Some(OnError::default()),
            Some(given) => OnError::ALL.into_iter().find(|policy| policy.as_str() == given),
        };
        if on_error.is_none() {
            self.fault("plugin.on_error", format!("must be {}", OnError::ALL.map(OnError::as_str).join(", ")));
        }
        Some(TransformConfig { name: name?, on_error: on_error? })
    }

    fn timing(&mut self, raw: &RawActivity, cadence: Cadence) -> ActivityTiming {
        let mut timing = ActivityTiming::for_cadence(cadence);
        let retry = &mut timing.retry;
        let durations = [
            ("activity.start_to_close", raw.start_to_close, &mut timing.start_to_close),
            ("activity.heartbeat_timeout", raw.heartbeat_timeout, &mut timing.heartbeat_timeout),
            ("activity.retry.initial_interval", raw.retry.initial_interval, &mut retry.initial_interval),
            ("activity.retry.maximum_interval", raw.retry.maximum_interval, &mut retry.maximum_interval),
        ];
        for (path, given, field) in durations {
            if let Some(RawDuration(duration)) = given {
                *field = duration;
                if duration.is_zero() {
                    self.fault(path, "must be longer than zero");
                }
            }
        }
        retry.maximum_attempts = raw.retry.maximum_attempts;
        if retry.maximum_attempts == Some(0) {
            let way_out = "must be at least 1; leave it out for no end, zero never means unlimited";
            self.fault("activity.retry.maximum_attempts", way_out);
        }
        if let Some(coefficient) = raw.retry.backoff_coefficient {
            retry.backoff_coefficient = coefficient;
            if !(1.0..=100.0).contains(&coefficient) {
                self.fault("activity.retry.backoff_coefficient", "must be from 1 to 100");
            }
        }
        if retry.initial_interval > retry.maximum_interval {
            let (initial, maximum) = (retry.initial_interval, retry.maximum_interval);
            self.fault(
                "activity.retry.initial_interval",
                format!(
                    "{} is longer than maximum_interval, {}",
                    humantime::format_duration(initial),
                    humantime::format_duration(maximum)
                ),
            );
        }
        let heartbeat = timing.heartbeat_timeout;
        if heartbeat < MIN_HEARTBEAT_TIMEOUT && !heartbeat.is_zero() {
            let least = humantime::format_duration(MIN_HEARTBEAT_TIMEOUT);
            self.fault("activity.heartbeat_timeout", format!("must be at least {least}"));
        } else if heartbeat > timing.start_to_close && !timing.start_to_close.is_zero() {
            self.fault("activity.heartbeat_timeout", "is longer than start_to_close, so it would never be reached");
        }
        timing
    }
}

/// Checks a bucket's name by S3's rules, or by what any store needs.
///
/// # Source
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html>
fn check_bucket(bucket: &str, is_aws: bool) -> Result<(), String> {
    if bucket.contains("://") || bucket.contains('/') {
        return Err("is the bucket's name alone; put the folder into destination.prefix".to_owned());
    }
    if bucket.len() > 255 || bucket.contains(|character: char| character.is_whitespace() || character.is_control()) {
        return Err("isn't a bucket's name: it holds blanks or is too long".to_owned());
    }
    let fits = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || ['-', '.'].contains(&character)
    };
    let is_edge = |character: Option<char>| {
        character.is_some_and(|character| character.is_ascii_lowercase() || character.is_ascii_digit())
    };
    let is_good = (3..=63).contains(&bucket.len())
        && bucket.chars().all(fits)
        && is_edge(bucket.chars().next())
        && is_edge(bucket.chars().next_back())
        && !bucket.contains("..")
        && bucket.parse::<std::net::Ipv4Addr>().is_err();
    if is_aws && !is_good {
        return Err(
            "isn't a name that S3 allows: 3 to 63 lower-case letters, digits, - and ., not an address".to_owned()
        );
    }
    Ok(())
}
