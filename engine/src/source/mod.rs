//! The source: ClickHouse queries and the Arrow stream they answer with.

pub mod events;
pub mod query;
pub mod settings;
pub mod template;
pub mod type_plan;

mod clickhouse_type;
mod lexer;
mod names;
pub(crate) mod type_name;

mod body;
pub mod conform;
pub mod control;
pub mod error_code;
pub mod exception;
pub mod failure;
pub(crate) mod oversized;
pub mod reader;
pub mod stream;
pub mod transport;
