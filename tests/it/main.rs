//! Integration tests against real services, in one binary.
//!
//! They need `make services` and the variables it writes; a service that is missing fails its tests, never skips them.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod bench;
mod chaos;
mod check;
mod cli;
mod clickhouse_proxy;
mod clock;
mod commands;
mod docs;
mod errors;
mod exports;
mod failures;
mod golden;
mod http_proxy;
mod job_chaos;
mod job_ends;
mod job_faults;
mod job_outages;
mod job_queue;
mod job_readers;
mod kill_points;
mod matrix;
mod memory;
mod own_services;
mod plugins;
mod random;
#[path = "../../jobs/tests/providers/relay.rs"]
mod relay;
mod report;
mod s3;
mod s3_proxy;
mod services;
mod sink_faults;
mod source_faults;
mod source_table;
mod stores;
mod tcp_proxy;
mod temporal;
mod temporal_server;
mod tls_proxy;
