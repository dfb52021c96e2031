//! One suite for every provider of jobs, against real services where they need some.
//!
//! They need `make services` and the variables it writes; a service that is missing fails its tests, never skips them.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod clickhouse;
mod conformance;
mod failover;
mod full;
mod order;
mod places;
mod relay;
mod repeating;
mod rig;
mod rows;
mod serial;
mod tiers;

conformance::suite!(memory, crate::places::Memories, keeps_jobs: false);
conformance::suite!(files, crate::places::Files, keeps_jobs: true);
conformance::suite!(s3, crate::places::S3, keeps_jobs: true);
conformance::suite!(postgres, crate::places::Database, keeps_jobs: true);
conformance::suite!(clickhouse_table, crate::places::ClickHouseTable, keeps_jobs: true);
