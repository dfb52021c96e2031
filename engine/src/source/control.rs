//! The small queries around an export: describe, kill, ping.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::exception::ServerException;
use super::transport::{Request, Transport};
use crate::error::{Error, Result};

/// How long killing a query may take: it is part of every bad exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A column as ClickHouse describes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DescribedColumn {
    /// The column's name.
    pub name: String,
    /// ClickHouse's name of its type.
    pub clickhouse_type: String,
}

#[derive(Deserialize)]
struct Described {
    data: Vec<Vec<serde_json::Value>>,
}

/// Asks for the columns of a statement without running it. `settings` are the user's own: some change the types.
///
/// # Errors
/// The server's exception: an unknown table or column shows here, before anything is read or written.
pub async fn describe(
    transport: &Transport,
    sql: &str,
    parameters: &BTreeMap<String, String>,
    settings: &BTreeMap<String, String>,
    query_id: &str,
) -> Result<Vec<DescribedColumn>> {
    let request = Request {
        sql: format!("DESCRIBE TABLE (\n{sql}\n) FORMAT JSONCompact"),
        query_id: query_id.to_owned(),
        parameters: parameters.clone(),
        settings: settings.clone(),
    };
    let text = transport.fetch_text(&request).await?;
    if let Some(exception) = ServerException::parse(&text).filter(|_| !text.starts_with('{')) {
        return Err(exception.into_error("describe the query"));
    }
    let described: Described = serde_json::from_str(&text).map_err(|error| {
        Error::data("describe the query: the answer is not what ClickHouse answers").with_source(error)
    })?;
    described
        .data
        .iter()
        .map(|row| match (row.first().and_then(|v| v.as_str()), row.get(1).and_then(|v| v.as_str())) {
            (Some(name), Some(clickhouse_type)) => {
                Ok(DescribedColumn { name: name.to_owned(), clickhouse_type: clickhouse_type.to_owned() })
            }
            _ => Err(Error::data("describe the query: a column came without name or type")),
        })
        .collect()
}

/// Kills a query of ours, inside a deadline of its own. A query that has ended already is no error.
///
/// # Errors
/// Whatever kept the order from reaching the server: the query may still run then.
pub async fn kill(transport: &Transport, query_id: &str) -> Result<()> {
    kill_where(transport, &format!("query_id = {}", literal(query_id)), query_id).await
}

/// Kills every query of ours whose id begins with `prefix`, as [`kill`] does.
///
/// # Errors
/// As [`kill`].
pub async fn kill_all(transport: &Transport, prefix: &str) -> Result<()> {
    kill_where(transport, &format!("startsWith(query_id, {})", literal(prefix)), prefix).await
}

async fn kill_where(transport: &Transport, condition: &str, id: &str) -> Result<()> {
    let request = Request {
        sql: format!("KILL QUERY WHERE {condition} ASYNC FORMAT TabSeparated"),
        query_id: format!("kill-{id}"),
        ..Request::default()
    };
    match tokio::time::timeout(KILL_TIMEOUT, transport.fetch_text(&request)).await {
        Ok(answer) => answer.map(drop).map_err(|error| error.context("kill the query")),
        Err(_elapsed) => Err(Error::internal("kill the query: no answer in time")),
    }
}

/// A string as ClickHouse reads it. Servers don't take parameters in KILL everywhere.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Asks for the server's version: proof that it is ClickHouse and lets us in.
///
/// # Errors
/// As [`Transport::send`].
pub async fn version(transport: &Transport, query_id: &str) -> Result<String> {
    let request = Request {
        sql: "SELECT version() FORMAT TabSeparatedRaw".to_owned(),
        query_id: query_id.to_owned(),
        ..Request::default()
    };
    Ok(transport.fetch_text(&request).await?.trim().to_owned())
}
