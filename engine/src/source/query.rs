//! The statement that a run sends, with its parameters and settings.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::events;
use super::settings;
use super::template::{INTERVAL_END, INTERVAL_START};
use super::type_plan::TypePlan;
use crate::config::export::Model;
use crate::error::{Error, Result};
use crate::interval::Interval;

/// The first and the last year of ClickHouse's `DateTime64`.
///
/// Source: <https://clickhouse.com/docs/sql-reference/data-types/datetime64>.
const DATETIME64_YEARS: std::ops::RangeInclusive<i16> = 1900..=2299;

/// A model's own statement for one window: what `DESCRIBE` asks about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelQuery {
    /// The statement, without a format.
    pub sql: String,
    /// Its parameters, by name.
    pub parameters: BTreeMap<String, String>,
    /// The columns that hold JSON as text.
    pub json_columns: &'static [&'static str],
}

impl ModelQuery {
    /// The statement of a model for a window.
    ///
    /// # Errors
    /// `Config` when the window lies outside of what ClickHouse can compare with.
    pub fn new(model: &Model, interval: &Interval) -> Result<Self> {
        let (sql, mut parameters, json_columns) = match model {
            Model::Events(events) => (events.sql(), events.parameters(), events::JSON_COLUMNS),
            Model::Sql(template) => (template.sql().to_owned(), BTreeMap::new(), [].as_slice()),
        };
        parameters.insert(INTERVAL_START.to_owned(), bound("start", interval.start())?);
        parameters.insert(INTERVAL_END.to_owned(), bound("end", interval.end())?);
        Ok(Self { sql, parameters, json_columns })
    }
}

/// A bound as a `DateTime64(6, 'UTC')` parameter's text.
fn bound(name: &str, instant: Timestamp) -> Result<String> {
    let civil = TimeZone::UTC.to_datetime(instant);
    if !DATETIME64_YEARS.contains(&civil.year()) {
        return Err(Error::config(format!(
            "the interval's {name} {instant} is outside of ClickHouse's years {} to {}",
            DATETIME64_YEARS.start(),
            DATETIME64_YEARS.end()
        )));
    }
    Ok(civil.strftime("%Y-%m-%d %H:%M:%S.%6f").to_string())
}

/// The statement of a run, with everything that is sent beside it.
///
/// # Shape
/// The model's columns in the model's order, in the types of the plan. The wrapping keeps the order of the model's
/// rows: there is nothing in it that reorders, and the optimization that drops a subquery's order is switched off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportQuery {
    /// The statement, with its format.
    pub sql: String,
    /// The parameters, by name.
    pub parameters: BTreeMap<String, String>,
    /// Every setting that is sent, by name.
    pub settings: BTreeMap<String, String>,
}

impl ExportQuery {
    /// Wraps a model's statement.
    ///
    /// # Errors
    /// `Config` when one of the user's settings is one that the export depends on.
    pub fn new(model: ModelQuery, plan: &TypePlan, user_settings: &BTreeMap<String, String>) -> Result<Self> {
        let sql = format!("SELECT\n    {}\nFROM\n(\n{}\n)\nFORMAT ArrowStream", plan.select_list(), model.sql);
        Ok(Self { sql, parameters: model.parameters, settings: settings::for_export(user_settings)? })
    }

    /// Gives up a setting that the server doesn't know. It returns whether the export can do without it.
    ///
    /// An unknown setting is ClickHouse's error 115, which names it; the query may be sent again then.
    pub fn drop_setting(&mut self, name: &str) -> bool {
        settings::is_droppable(name) && self.settings.remove(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::clickhouse_type::MapKeys;
    use crate::source::control::DescribedColumn;
    use crate::source::events::EventsModel;
    use crate::source::template::SqlTemplate;

    fn interval(start: &str, end: &str) -> Interval {
        Interval::new(start.parse().expect("a start"), end.parse().expect("an end")).expect("a window")
    }

    fn plan() -> TypePlan {
        let column = DescribedColumn { name: "id".to_owned(), clickhouse_type: "UUID".to_owned() };
        TypePlan::new(&[column], &[], MapKeys::Any).expect("a plan")
    }

    #[test]
    fn wraps_the_users_query_with_its_last_comment() {
        let template = SqlTemplate::parse("SELECT id FROM t WHERE at >= {interval_start} ORDER BY at -- newest last")
            .expect("a template");
        let window = interval("2026-01-01T00:00:00Z", "2026-01-01T01:00:00.000001Z");
        let model = ModelQuery::new(&Model::Sql(template), &window).expect("a query");
        let query = ExportQuery::new(model, &plan(), &BTreeMap::new()).expect("a query");
        assert_eq!(
            query.sql,
            "SELECT\n    CAST(`id` AS String) AS `id`\nFROM\n(\nSELECT id FROM t WHERE at >= \
             {interval_start:DateTime64(6, 'UTC')} ORDER BY at -- newest last\n)\nFORMAT ArrowStream"
        );
        assert_eq!(query.parameters["interval_start"], "2026-01-01 00:00:00.000000");
        assert_eq!(query.parameters["interval_end"], "2026-01-01 01:00:00.000001");
        assert_eq!(query.settings["query_plan_remove_redundant_sorting"], "0");
    }

    #[test]
    fn events_bring_their_parameters_and_json_columns() {
        let window = interval("1969-12-31T23:59:59.5Z", "2026-01-01T00:00:00Z");
        let model = ModelQuery::new(&Model::Events(EventsModel::new(7)), &window).expect("a query");
        assert_eq!(model.json_columns, ["properties", "person_properties"]);
        assert_eq!(model.parameters["team_id"], "7");
        assert_eq!(model.parameters["interval_start"], "1969-12-31 23:59:59.500000");
    }

    #[test]
    fn windows_outside_of_clickhouses_years_are_refused() {
        let template = SqlTemplate::parse("SELECT {interval_end}").expect("a template");
        let window = interval("1899-12-31T00:00:00Z", "2026-01-01T00:00:00Z");
        let error = ModelQuery::new(&Model::Sql(template), &window).expect_err("too early");
        assert!(error.to_string().contains("1900 to 2299"), "{error}");
    }

    #[test]
    fn only_droppable_settings_are_dropped() {
        let template = SqlTemplate::parse("SELECT {interval_end}").expect("a template");
        let window = interval("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let model = ModelQuery::new(&Model::Sql(template), &window).expect("a query");
        let user = BTreeMap::from([("max_threads".to_owned(), "2".to_owned())]);
        let mut query = ExportQuery::new(model, &plan(), &user).expect("a query");
        assert!(query.drop_setting("output_format_arrow_date_as_uint16"));
        assert!(!query.drop_setting("output_format_arrow_date_as_uint16"), "it is gone already");
        assert!(!query.drop_setting("output_format_arrow_string_as_string"));
        assert!(!query.drop_setting("max_threads"), "the user's own settings are never dropped");
    }
}
