use std::collections::BTreeMap;

use engine::config::export::Model;
use serde_json::{Value, json};

use super::*;

fn resolver() -> ExportResolver {
    let variables = BTreeMap::from([("CLICKHOUSE_URL".to_owned(), "http://localhost:8123".to_owned())]);
    ExportResolver::new(Connections::from_environment(&variables).expect("a connection"), 2)
}

fn resolve(changes: Value) -> Result<ExportConfig, Vec<String>> {
    let mut input = json!({
        "batch_export_id": "orders", "team_id": 2, "bucket_name": "lake", "prefix": "events", "region": "eu-central-1",
        "aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "hunter2"
    });
    for (name, value) in changes.as_object().expect("an object") {
        input[name.as_str()] = value.clone();
    }
    resolver().resolve(&S3ExportInput::from_json(&input).expect("a readable input"))
}

#[test]
fn the_reference_systems_input_becomes_an_export() {
    let config = resolve(json!({
        "include_events": ["sign up"], "file_format": "Parquet", "compression": "zstd",
        "endpoint_url": "http://localhost:9000", "use_virtual_style_addressing": false,
        "pipeline": {"memory_limit": "512MiB", "part_size": "8MiB"}
    }))
    .expect("an export");
    assert_eq!(config.id, "orders");
    assert!(matches!(config.source.model, Model::Events(ref events) if events.team_id == 2));
    assert_eq!(config.limits.part_bytes, 8 << 20);
    assert_eq!(config.output.to_string(), "Parquet+zstd");
    let connection = config.destination.connection;
    assert_eq!(connection.region.as_deref(), Some("eu-central-1"));
    assert_eq!(connection.use_virtual_style_addressing, Some(false));
    assert_eq!(connection.credentials.expect("keys").secret_access_key.expose(), "hunter2");
}

#[test]
fn faults_carry_the_inputs_own_field_names_and_no_values() {
    let faults = resolve(json!({
        "batch_export_id": "a/b", "clickhouse_connection": "gone", "s3_connection": "gone", "compression": "snappy",
        "endpoint_url": "http://me:hunter2@localhost", "pipeline": {"part_size": "1MiB", "memory_limit": "8 parsecs"}
    }))
    .expect_err("faults");
    for field in [
        "batch_export_id",
        "clickhouse_connection",
        "s3_connection",
        "compression",
        "endpoint_url",
        "pipeline.memory_limit",
    ] {
        assert!(faults.iter().any(|fault| fault.starts_with(&format!("`{field}`"))), "{field}: {faults:?}");
    }
    assert!(!faults.concat().contains("hunter2"), "{faults:?}");
}
