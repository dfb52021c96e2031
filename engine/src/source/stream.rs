//! The export's stream: planned, sent and opened.

use super::clickhouse_type::MapKeys;
use super::control;
use super::exception::ServerException;
use super::query::{ExportQuery, ModelQuery};
use super::reader::ArrowStreamReader;
use super::transport::{Request, Transport};
use super::type_plan::TypePlan;
use crate::config::export::ExportConfig;
use crate::error::Result;
use crate::interval::Interval;

/// A query whose columns and types are known, ready to be sent.
#[derive(Debug)]
pub struct PlannedQuery {
    /// The columns as read and as written.
    pub plan: TypePlan,
    query: ExportQuery,
}

impl PlannedQuery {
    /// Asks the server for the columns of the model in this window, and plans their types.
    ///
    /// # Errors
    /// The server's exception for an unknown table or column; `Config` or `Data` for a type that can't be written.
    pub async fn prepare(
        transport: &Transport,
        export: &ExportConfig,
        interval: &Interval,
        query_id: &str,
    ) -> Result<Self> {
        let source = &export.source;
        let model = ModelQuery::new(&source.model, interval)?;
        let describe_id = format!("{query_id}-describe");
        let columns =
            control::describe(transport, &model.sql, &model.parameters, &source.settings, &describe_id).await?;
        let plan = TypePlan::new(&columns, model.json_columns, MapKeys::of(export))?;
        let query = ExportQuery::new(model, &plan, &source.settings)?;
        Ok(Self { plan, query })
    }

    /// Sends the query and reads the stream's schema. Settings that an older server doesn't know, and that the plan makes
    /// unnecessary, are left out.
    ///
    /// # Errors
    /// As [`Transport::send`] and [`ArrowStreamReader::open`].
    pub async fn open(&mut self, transport: &Transport, query_id: &str) -> Result<ArrowStreamReader> {
        loop {
            let request = Request {
                sql: self.query.sql.clone(),
                query_id: query_id.to_owned(),
                parameters: self.query.parameters.clone(),
                settings: self.query.settings.clone(),
            };
            match transport.send(&request).await {
                Ok(body) => return ArrowStreamReader::open(body).await,
                Err(error) => {
                    let unknown = ServerException::behind(&error).and_then(ServerException::unknown_setting);
                    // Each turn drops one setting, so the loop ends.
                    let Some(name) = unknown.map(str::to_owned).filter(|name| self.query.drop_setting(name)) else {
                        return Err(error);
                    };
                    tracing::debug!(setting = name, "the server doesn't know a setting; it is left out");
                }
            }
        }
    }

    /// The columns that hold JSON as text: the model's own, and those whose type is JSON.
    #[must_use]
    pub fn json_columns(&self) -> Vec<String> {
        let json = self.plan.columns().iter().filter(|column| column.holds_json);
        json.map(|column| column.name().to_owned()).collect()
    }
}
