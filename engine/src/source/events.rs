//! The reference system's events.

use std::collections::BTreeMap;

use super::names::{quoted_name, text_list};
use super::template::{BOUND_TYPE, INTERVAL_END, INTERVAL_START, parameter};
use crate::error::{Error, Result};

/// The table that events come from unless another one is named.
pub const DEFAULT_TABLE: &str = "events";

/// How many days an event's own time may lie before the window. Unit: days.
///
/// Source: the reference system. Bounds how many partitions of the table a run reads.
pub const DEFAULT_LOOKBACK_DAYS: u32 = 7;

/// The columns that hold JSON as text; JSONLines writes them as nested values.
pub const JSON_COLUMNS: &[&str] = &["properties", "person_properties"];

/// What of the events is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsModel {
    /// Whose events.
    pub team_id: i64,
    /// Only events of these names; all of them when it is empty.
    pub include_events: Vec<String>,
    /// No events of these names.
    pub exclude_events: Vec<String>,
    /// The table, `table` or `database.table`, unquoted.
    pub table: String,
    /// See [`DEFAULT_LOOKBACK_DAYS`].
    pub lookback_days: u32,
}

impl EventsModel {
    /// All events of a team, from the default table.
    #[must_use]
    pub fn new(team_id: i64) -> Self {
        Self {
            team_id,
            include_events: Vec::new(),
            exclude_events: Vec::new(),
            table: DEFAULT_TABLE.to_owned(),
            lookback_days: DEFAULT_LOOKBACK_DAYS,
        }
    }

    /// Checks the table's name.
    ///
    /// # Errors
    /// `Config` when it isn't `table` or `database.table`.
    pub fn check(&self) -> Result<()> {
        let parts = self.table.split('.').collect::<Vec<_>>();
        if parts.len() > 2 || parts.iter().any(|part| part.trim().is_empty() || part.contains('\0')) {
            return Err(Error::config(format!("the table's name {:?} is not `table` or `database.table`", self.table)));
        }
        Ok(())
    }

    /// The query: the reference's default fields in its order, one row per event.
    ///
    /// # Shape
    /// The order is total, so two attempts see the same rows in the same order, duplicates included: of several rows
    /// with one key the first in that order stays. Rows that agree in all columns that are written are equal.
    #[must_use]
    pub fn sql(&self) -> String {
        let table = self.table.split('.').map(quoted_name).collect::<Vec<_>>().join(".");
        let start = parameter(INTERVAL_START, BOUND_TYPE);
        let end = parameter(INTERVAL_END, BOUND_TYPE);
        let [team_id, include, exclude, lookback] = [
            ("team_id", "Int64"),
            ("include_events", "Array(String)"),
            ("exclude_events", "Array(String)"),
            ("lookback_days", "UInt32"),
        ]
        .map(|(name, clickhouse_type)| parameter(name, clickhouse_type));
        format!(
            "SELECT
    uuid,
    timestamp,
    _inserted_at,
    created_at,
    event,
    nullIf(raw_properties, '') AS properties,
    distinct_id,
    elements_chain,
    nullIf(raw_person_properties, '') AS person_properties,
    person_id
FROM
(
    SELECT
        team_id,
        uuid,
        timestamp,
        COALESCE(inserted_at, _timestamp) AS _inserted_at,
        created_at,
        event,
        properties AS raw_properties,
        distinct_id,
        elements_chain,
        person_properties AS raw_person_properties,
        person_id
    FROM {table}
    PREWHERE COALESCE(inserted_at, _timestamp) >= {start}
        AND COALESCE(inserted_at, _timestamp) < {end}
    WHERE team_id = {team_id}
        AND timestamp >= {start} - toIntervalDay({lookback})
        AND timestamp < {end} + toIntervalDay(1)
        AND (length({include}) = 0 OR event IN {include})
        AND (length({exclude}) = 0 OR event NOT IN {exclude})
    ORDER BY
        _inserted_at,
        event,
        cityHash64(distinct_id),
        cityHash64(uuid),
        distinct_id,
        uuid,
        timestamp,
        created_at,
        person_id,
        elements_chain,
        raw_properties,
        raw_person_properties
    LIMIT 1 BY team_id, event, cityHash64(distinct_id), cityHash64(uuid)
)"
        )
    }

    /// The values of the query's own parameters, the window's apart.
    #[must_use]
    pub fn parameters(&self) -> BTreeMap<String, String> {
        [
            ("team_id", self.team_id.to_string()),
            ("include_events", text_list(&self.include_events)),
            ("exclude_events", text_list(&self.exclude_events)),
            ("lookback_days", self.lookback_days.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_the_references_default_fields_in_its_order() {
        let sql = EventsModel::new(1).sql();
        let outer = sql.split("FROM").next().expect("a select list");
        let columns = outer
            .trim_start_matches("SELECT")
            .split(",\n")
            .map(|column| column.trim().rsplit(' ').next().expect("a name"))
            .collect::<Vec<_>>();
        assert_eq!(
            columns,
            [
                "uuid",
                "timestamp",
                "_inserted_at",
                "created_at",
                "event",
                "properties",
                "distinct_id",
                "elements_chain",
                "person_properties",
                "person_id"
            ]
        );
        assert!(JSON_COLUMNS.iter().all(|column| columns.contains(column)));
    }

    #[test]
    fn values_are_parameters_and_never_text_of_the_query() {
        let model = EventsModel {
            team_id: 4_242,
            include_events: vec!["it's".to_owned()],
            exclude_events: vec!["$autocapture".to_owned()],
            lookback_days: 31,
            table: "db.ev`ents".to_owned(),
        };
        let sql = model.sql();
        for value in ["4242", "it's", "autocapture", "31"] {
            assert!(!sql.contains(value), "{value} in {sql}");
        }
        assert!(sql.contains("FROM `db`.`ev\\`ents`"));
        let parameters = model.parameters();
        assert_eq!(parameters["team_id"], "4242");
        assert_eq!(parameters["include_events"], r"['it\'s']");
        assert_eq!(parameters["exclude_events"], "['$autocapture']");
        for name in parameters.keys() {
            assert!(sql.contains(&format!("{{{name}:")), "{name} is used");
        }
    }

    #[test]
    fn duplicates_are_dropped_after_the_total_order() {
        let sql = EventsModel::new(1).sql();
        let order = sql.find("ORDER BY").expect("an order");
        let limit = sql.find("LIMIT 1 BY team_id, event, cityHash64(distinct_id), cityHash64(uuid)").expect("a limit");
        assert!(order < limit);
    }

    #[test]
    fn odd_table_names_are_refused() {
        for table in ["", " ", "a.b.c", ".a", "a."] {
            let model = EventsModel { table: table.to_owned(), ..EventsModel::new(1) };
            assert!(model.check().is_err(), "{table:?}");
        }
        EventsModel::new(1).check().expect("the default is fine");
    }
}
