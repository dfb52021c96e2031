use serde_json::json;

use super::*;

/// The input as the reference system sends it: every field, nulls included.
fn reference() -> Value {
    json!({
        "batch_export_id": "018e5b2e-6f7a-0000-8c5c-b3f8b7f5a1d2", "team_id": 2, "interval": "hour", "timezone": "UTC",
        "data_interval_end": null, "exclude_events": null, "include_events": null, "is_backfill": false,
        "is_earliest_backfill": false, "backfill_details": null,
        "batch_export_model": {"name": "events", "schema": null, "filters": null}, "batch_export_schema": null,
        "bucket_name": "lake", "region": "us-east-1", "prefix": "events/", "aws_access_key_id": "AKIAEXAMPLE",
        "aws_secret_access_key": "hunter2", "compression": "gzip", "encryption": null, "kms_key_id": null,
        "endpoint_url": null, "file_format": "JSONLines", "max_file_size_mb": null,
        "use_virtual_style_addressing": false, "integration_id": null
    })
}

fn with(changes: Value) -> Value {
    let mut input = reference();
    let Value::Object(changes) = changes else { panic!("changes are an object") };
    for (name, value) in changes {
        input[name.as_str()] = value;
    }
    input
}

fn faults(changes: Value) -> Vec<String> {
    S3ExportInput::from_json(&with(changes)).expect_err("faults")
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

#[test]
fn takes_the_reference_systems_input() {
    let input = S3ExportInput::from_json(&reference()).expect("no faults");
    assert_eq!(input.selection, Selection::Events { exclude: Vec::new(), include: Vec::new() });
    assert_eq!(input.destination.bucket, "lake");
    assert_eq!(input.destination.use_virtual_style_addressing, Some(false));
    assert_eq!(input.compression.as_deref(), Some("gzip"));
    assert_eq!(input.pipeline, PipelineInput::default());
    assert!(!format!("{input:?}").contains("hunter2"));
    assert!(!format!("{input:?}").contains("AKIAEXAMPLE"));
}

#[test]
fn a_short_input_has_the_reference_systems_defaults() {
    let input = json!({"batch_export_id": "orders", "bucket_name": "lake", "query": "SELECT 1"});
    let input = S3ExportInput::from_json(&input).expect("no faults");
    assert_eq!(input.cadence, Cadence::Hour);
    assert_eq!(input.file_format, "JSONLines");
    assert_eq!(input.selection, Selection::Query("SELECT 1".to_owned()));
    assert_eq!(input.destination.prefix, "");
}

#[test]
fn takes_our_additions() {
    let input = json!({
        "batch_export_id": "orders", "bucket_name": "lake", "query": "SELECT 1", "interval": "every 15 minutes",
        "clickhouse_connection": "main", "s3_connection": "lake", "source_settings": {"max_threads": 4, "final": true},
        "invalid_utf8": "fail", "fewer_rows": "allow", "key_layout": "reference", "write_empty": true, "file_format": "Parquet",
        "pipeline": {"memory_limit": "512MiB", "consumers": 2, "part_size": 8388608},
        "activity_options": {"heartbeat_timeout": "30s"}, "plugin": {"name": "robots", "on_error": "drop_row"}
    });
    let input = S3ExportInput::from_json(&input).expect("no faults");
    let settings = [("final", "1"), ("max_threads", "4")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(input.source_settings, settings);
    assert_eq!(input.pipeline.part_size.as_deref(), Some("8388608"));
    assert_eq!(input.options.heartbeat_timeout.as_secs(), 30);
    assert_eq!(input.fewer_rows.as_deref(), Some("allow"));
    assert_eq!(
        input.plugin.map(|plugin| (plugin.name, plugin.on_error)),
        Some(("robots".into(), Some("drop_row".into())))
    );
    assert_eq!(input.destination.connection.as_deref(), Some("lake"));
}

#[test]
fn refuses_what_is_not_implemented_by_name_and_with_the_way_out() {
    for (changes, field, way_out) in [
        (json!({"is_backfill": true}), "`is_backfill`", "`temporal schedule backfill`"),
        (json!({"is_earliest_backfill": true}), "`is_earliest_backfill`", "`temporal schedule backfill`"),
        (json!({"backfill_details": {}}), "`backfill_details`", "`temporal schedule backfill`"),
        (json!({"batch_export_schema": {"fields": []}}), "`batch_export_schema`", "`query`"),
        (json!({"max_file_size_mb": 100}), "`max_file_size_mb`", "leave it out"),
        (json!({"integration_id": 7}), "`integration_id`", "`s3_connection`"),
        (json!({"batch_export_model": {"name": "persons"}}), "`batch_export_model.name`", "`query`"),
        (json!({"batch_export_model": {"name": "sessions"}}), "`batch_export_model.name`", "`query`"),
        (json!({"batch_export_model": {"name": "events", "schema": {}}}), "`batch_export_model.schema`", "`query`"),
        (json!({"batch_export_model": {"name": "events", "filters": [{}]}}), "`batch_export_model.filters`", "`query`"),
    ] {
        let faults = faults(changes);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with(field) && faults[0].contains(way_out), "{faults:?}");
    }
}

#[test]
fn collects_all_faults_and_never_quotes_a_value() {
    let faults = faults(json!({
        "batch_export_id": "", "team_id": null, "interval": "hunter2", "timezone": "hunter2",
        "data_interval_end": "2026-01-01T00:00:00", "bucket_name": null, "aws_access_key_id": null,
        "aws_secret_access_key": "hunter2", "invalid_utf8": "hunter2", "fewer_rows": "hunter2", "pipeline": {"consumers": 0, "speed": "hunter2"},
        "plugin": {"on_error": "hunter2", "file": "hunter2"}, "secret": "hunter2"
    }));
    assert_eq!(
        faults.iter().map(|fault| fault.split('`').nth(1).expect("a field")).collect::<Vec<_>>(),
        [
            "interval",
            "batch_export_id",
            "timezone",
            "data_interval_end",
            "invalid_utf8",
            "fewer_rows",
            "bucket_name",
            "aws_access_key_id",
            "pipeline.consumers",
            "pipeline.speed",
            "plugin.name",
            "plugin.on_error",
            "plugin.file",
            "team_id",
            "secret",
        ]
    );
    assert!(!faults.concat().contains("hunter2"));
    assert_eq!(
        S3ExportInput::from_json(&json!("hunter2")).expect_err("no object"),
        ["the input must be one JSON object"]
    );
}

#[test]
fn a_query_excludes_the_events_model_and_its_fields() {
    let faults = faults(json!({"query": "SELECT 1", "include_events": ["a"]}));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.ends_with("does not go together with `query`; leave one of them out")));
}

#[test]
fn the_interval_ends_at_the_inputs_instant_or_else_at_the_scheduled_one() {
    let scheduled = Some(at("2026-01-01T05:00:00Z"));
    let read = |changes| S3ExportInput::from_json(&with(changes)).expect("no faults");

    let input = read(json!({"data_interval_end": "2026-01-01T03:00:00+01:00"}));
    let bounds = input.bounds(scheduled).expect("bounds");
    assert_eq!((bounds.start, bounds.end), (at("2026-01-01T01:00:00Z"), at("2026-01-01T02:00:00Z")));

    let bounds = read(json!({"interval": "every 5 minutes"})).bounds(scheduled).expect("bounds");
    assert_eq!((bounds.start, bounds.end), (at("2026-01-01T04:55:00Z"), at("2026-01-01T05:00:00Z")));

    assert!(read(json!({})).bounds(None).expect_err("no end").contains("`data_interval_end` is required"));
}
