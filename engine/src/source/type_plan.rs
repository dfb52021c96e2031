//! Which types a run writes: fixed from the query's declared types, before the first byte.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::{Field, FieldRef, Fields, Schema, SchemaRef};

use super::clickhouse_type::{self, MapKeys, Mapped};
use super::control::DescribedColumn;
use super::names::quoted_name;
use crate::error::{Error, Result};

/// The key of the field's metadata that keeps ClickHouse's own name of the type.
pub const TYPE_METADATA_KEY: &str = "clickhouse.type";

/// What a run writes, column by column.
///
/// # Invariants
/// At least one column; names are unique.
#[derive(Debug, Clone)]
pub struct TypePlan {
    columns: Vec<ColumnPlan>,
    schema: SchemaRef,
}

/// What becomes of one column.
#[derive(Debug, Clone)]
pub struct ColumnPlan {
    /// The type that the query has.
    pub source_type: String,
    /// The ClickHouse type that is asked for.
    pub written_type: String,
    /// The column's name and the Arrow type that is written.
    ///
    /// Text is planned as `Utf8`; on the wire it is `Binary`, since a `String` may hold any bytes.
    pub field: FieldRef,
    /// Whether the text in it is JSON, which JSONLines writes as a nested value.
    pub holds_json: bool,
    is_cast: bool,
}

impl TypePlan {
    /// Plans the columns that ClickHouse described; `json_columns` hold JSON as text.
    ///
    /// # Errors
    /// `Config`: the column, its type and the cast to use, for every column that can't be written.
    pub(crate) fn new(described: &[DescribedColumn], json_columns: &[&str], keys: MapKeys) -> Result<Self> {
        if described.is_empty() {
            return Err(Error::config("the query has no columns"));
        }
        let mut seen = HashSet::new();
        let mut faults = Vec::new();
        let mut columns = Vec::with_capacity(described.len());
        for DescribedColumn { name, clickhouse_type } in described {
            if !seen.insert(name.as_str()) {
                faults.push(format!("the query has two columns named `{name}`; rename one with AS"));
                continue;
            }
            match clickhouse_type::map(clickhouse_type, keys) {
                Ok(mapped) => columns.push(ColumnPlan::new(name, clickhouse_type, mapped, json_columns)),
                Err(refusal) => faults.push(format!(
                    "column `{name}` has the type {}, which {}; {}",
                    one_line(&refusal.part),
                    refusal.reason,
                    refusal.way_out.replace("{}", &format!("`{name}`"))
                )),
            }
        }
        if !faults.is_empty() {
            return Err(Error::config(faults.join(". ")));
        }
        let fields = columns.iter().map(|column| Arc::clone(&column.field)).collect::<Fields>();
        Ok(Self { columns, schema: Arc::new(Schema::new(fields)) })
    }

    /// The columns, in the query's order.
    #[must_use]
    pub fn columns(&self) -> &[ColumnPlan] {
        &self.columns
    }

    /// The schema of everything that is written.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The `SELECT` list that asks for the planned types.
    pub(crate) fn select_list(&self) -> String {
        self.columns.iter().map(ColumnPlan::expression).collect::<Vec<_>>().join(",\n    ")
    }
}

impl ColumnPlan {
    fn new(name: &str, source_type: &str, mapped: Mapped, json_columns: &[&str]) -> Self {
        let metadata = HashMap::from([(TYPE_METADATA_KEY.to_owned(), one_line(source_type))]);
        let holds_json = mapped.holds_json || json_columns.contains(&name);
        Self {
            source_type: one_line(source_type),
            written_type: mapped.written,
            field: Arc::new(Field::new(name, mapped.arrow, mapped.is_nullable).with_metadata(metadata)),
            holds_json,
            is_cast: mapped.is_cast,
        }
    }

    /// The column's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.field.name()
    }

    fn expression(&self) -> String {
        let name = quoted_name(self.name());
        if self.is_cast { format!("CAST({name} AS {}) AS {name}", self.written_type) } else { name }
    }
}

/// A type's name without the line breaks that `DESCRIBE` puts into tuples.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for piece in text.split('\n') {
        let piece = if line.is_empty() { piece } else { piece.trim_start() };
        if !line.is_empty() && !line.ends_with(['(', ' ']) {
            line.push(' ');
        }
        line.push_str(piece);
    }
    line
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    fn described(columns: &[(&str, &str)]) -> Vec<DescribedColumn> {
        columns
            .iter()
            .map(|(name, clickhouse_type)| DescribedColumn {
                name: (*name).to_owned(),
                clickhouse_type: (*clickhouse_type).to_owned(),
            })
            .collect()
    }

    #[test]
    fn casts_only_where_the_type_changes() {
        let plan = TypePlan::new(
            &described(&[
                ("a", "UInt64"),
                ("b`c", "UUID"),
                ("t", "Tuple(\n    x UInt8,\n    y String)"),
                ("p", "String"),
            ]),
            &["p"],
            MapKeys::Any,
        )
        .expect("a plan");
        assert_eq!(plan.select_list(), "`a`,\n    CAST(`b\\`c` AS String) AS `b\\`c`,\n    `t`,\n    `p`");
        assert_eq!(
            plan.columns().iter().map(|column| column.holds_json).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        assert_eq!(plan.schema().field(1).data_type(), &DataType::Utf8);
        assert_eq!(plan.schema().field(2).metadata()[TYPE_METADATA_KEY], "Tuple(x UInt8, y String)");
    }

    #[test]
    fn every_fault_is_named_with_its_column_and_cast() {
        let error = TypePlan::new(
            &described(&[("s", "AggregateFunction(sum, UInt64)"), ("d", "IntervalDay"), ("x", "Int8"), ("x", "Int8")]),
            &[],
            MapKeys::Any,
        )
        .expect_err("three faults");
        assert_eq!(error.kind(), crate::error::ErrorKind::Config);
        assert_eq!(
            error.to_string(),
            "column `s` has the type AggregateFunction(sum, UInt64), which is an unfinished state of an aggregate, no \
             value; select finalizeAggregation(`s`) instead, or aggregate with the -Merge combinator. column `d` has \
             the type IntervalDay, which is a length of time that neither format has; select toInt64(`d`) instead, \
             and put the unit into its name. the query has two columns named `x`; rename one with AS"
        );
        assert!(TypePlan::new(&[], &[], MapKeys::Any).is_err());
    }
}
