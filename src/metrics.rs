//! What the worker counts, for Prometheus.
//!
//! Owns every name, unit and label of our own metrics; the SDK's are added by [`crate::status`]. Labels are the export's
//! id and closed sets of words, never a run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use activities::{AttemptEnd, RunEnd, RunObserver};
use engine::pipeline::progress::ProgressSnapshot;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use workflows::contract::RunStatus;

use crate::allocator::memory_in_ram;
use crate::job_queue::metrics::JobsMetrics;

/// A metric's name without the suffix of its type, and its help.
pub(crate) struct Description(pub(crate) &'static str, pub(crate) &'static str);

const RUNS: Description = Description("batch_export_runs", "Runs that ended, by outcome and kind of error");
const RUN_DURATION: Description =
    Description("batch_export_run_duration_seconds", "Time from the start of a run's workflow to its end");
const RUNS_IN_PROGRESS: Description =
    Description("batch_export_runs_in_progress", "Attempts of runs at work in this process");
const ATTEMPTS: Description = Description("batch_export_attempts", "Attempts that ended, by outcome");
const ATTEMPT_DURATION: Description =
    Description("batch_export_attempt_duration_seconds", "Time that an attempt of a run took");
const ROWS: Description = Description(
    "batch_export_rows",
    "Rows, read from the source, written to the destination, left out by a plugin, or failed in one",
);
const BYTES: Description =
    Description("batch_export_bytes", "Bytes, read from the source or written to the destination");
const PARTS: Description = Description("batch_export_parts", "Parts that the destination acknowledged");
const RETRIES: Description =
    Description("batch_export_s3_retries", "Requests to the destination that were tried again in place");
const MEMORY_LIMIT: Description =
    Description("batch_export_memory_limit_bytes", "The most that the pipelines at work may hold, together");
const QUEUE_BLOCKS: Description =
    Description("batch_export_queue_blocks", "Blocks that wait for a consumer, in the pipelines at work");
const BUFFER_BYTES: Description =
    Description("batch_export_buffer_bytes", "Bytes of the source that the pipelines at work hold");
const LAST_SUCCESS: Description = Description(
    "batch_export_last_success_interval_end_timestamp_seconds",
    "End of the latest interval that was exported: time of the data, not of the clock",
);
const HEARTBEATS: Description =
    Description("batch_export_heartbeats", "Heartbeats, by whether the server acknowledged");
const BUILD_INFO: Description = Description("batch_export_build_info", "The version of this program; always 1");
const RESIDENT_MEMORY: Description =
    Description("process_resident_memory_bytes", "Memory of this process that is in RAM");

/// Buckets of durations: from a second to a day. Unit: seconds.
const DURATION_BUCKETS: [f64; 12] =
    [1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0];

pub(crate) type Labels = Vec<(&'static str, String)>;
pub(crate) type Counters = Family<Labels, Counter<u64, AtomicU64>>;
pub(crate) type Gauges = Family<Labels, Gauge<i64, AtomicI64>>;
pub(crate) type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Our metrics. They are cheap to update from any thread.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    jobs: Arc<JobsMetrics>,
    runs: Counters,
    run_duration: Histograms,
    runs_in_progress: Gauges,
    attempts: Counters,
    attempt_duration: Histograms,
    rows: Counters,
    bytes: Counters,
    parts: Counters,
    retries: Counters,
    memory_limit: Gauges,
    queue_blocks: Gauges,
    buffer_bytes: Gauges,
    last_success: Gauges,
    heartbeats: Counters,
    resident_memory: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let build: Gauges = register(&mut registry, BUILD_INFO, Family::default());
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
        let histograms = || Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS)) as fn() -> Histogram);
        Self {
            runs: register(&mut registry, RUNS, Family::default()),
            run_duration: register(&mut registry, RUN_DURATION, histograms()),
            runs_in_progress: register(&mut registry, RUNS_IN_PROGRESS, Family::default()),
            attempts: register(&mut registry, ATTEMPTS, Family::default()),
            attempt_duration: register(&mut registry, ATTEMPT_DURATION, histograms()),
            rows: register(&mut registry, ROWS, Family::default()),
            bytes: register(&mut registry, BYTES, Family::default()),
            parts: register(&mut registry, PARTS, Family::default()),
            retries: register(&mut registry, RETRIES, Family::default()),
            memory_limit: register(&mut registry, MEMORY_LIMIT, Family::default()),
            queue_blocks: register(&mut registry, QUEUE_BLOCKS, Family::default()),
            buffer_bytes: register(&mut registry, BUFFER_BYTES, Family::default()),
            last_success: register(&mut registry, LAST_SUCCESS, Family::default()),
            heartbeats: register(&mut registry, HEARTBEATS, Family::default()),
            resident_memory: register(&mut registry, RESIDENT_MEMORY, Gauge::default()),
            jobs: Arc::new(JobsMetrics::new(&mut registry)),
            registry,
        }
    }

    /// Those of the job queue.
    pub(crate) const fn jobs(&self) -> &Arc<JobsMetrics> {
        &self.jobs
    }

    /// All metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        self.jobs.look();
        self.resident_memory.set(memory_in_ram("VmRSS").map_or(0, signed));
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            tracing::error!("the metrics could not be written as text");
        }
        to_classic(&text)
    }
}

impl RunObserver for Metrics {
    fn attempt_started(&self, export_id: &str, memory_bytes: u64) {
        self.runs_in_progress.get_or_create(&labels(export_id, &[])).inc();
        self.memory_limit.get_or_create(&labels(export_id, &[])).inc_by(signed(memory_bytes));
    }

    fn attempt_progressed(&self, export_id: &str, before: &ProgressSnapshot, now: &ProgressSnapshot) {
        let read = labels(export_id, &[("stage", "read")]);
        let written = labels(export_id, &[("stage", "written")]);
        let left_out = labels(export_id, &[("stage", "left_out")]);
        let failed = labels(export_id, &[("stage", "failed")]);
        let alone = labels(export_id, &[]);
        for (family, labels, before, now) in [
            (&self.rows, &read, before.rows_read, now.rows_read),
            (&self.rows, &written, before.rows_written, now.rows_written),
            (&self.rows, &left_out, before.rows_left_out, now.rows_left_out),
            (&self.rows, &failed, before.rows_failed, now.rows_failed),
            (&self.bytes, &read, before.source_bytes, now.source_bytes),
            (&self.bytes, &written, before.bytes_written, now.bytes_written),
            (&self.parts, &alone, before.parts_written, now.parts_written),
            (&self.retries, &alone, before.retries, now.retries),
        ] {
            family.get_or_create(labels).inc_by(now.saturating_sub(before));
        }
        for (family, before, now) in [
            (&self.queue_blocks, before.queued_blocks, now.queued_blocks),
            (&self.buffer_bytes, before.held_bytes, now.held_bytes),
        ] {
            family.get_or_create(&alone).inc_by(signed(now) - signed(before));
        }
    }

    fn attempt_ended(&self, export_id: &str, memory_bytes: u64, end: AttemptEnd, took: Duration) {
        self.runs_in_progress.get_or_create(&labels(export_id, &[])).dec();
        self.memory_limit.get_or_create(&labels(export_id, &[])).dec_by(signed(memory_bytes));
        let outcome = match end {
            AttemptEnd::Completed => "Completed",
            AttemptEnd::Failed(kind) => kind.as_str(),
        };
        let labels = labels(export_id, &[("outcome", outcome)]);
        self.attempts.get_or_create(&labels).inc();
        self.attempt_duration.get_or_create(&labels).observe(took.as_secs_f64());
    }

    fn run_ended(&self, end: &RunEnd<'_>) {
        let outcome = ("outcome", end.status.as_str());
        let class = ("error_class", end.error_kind.unwrap_or_default());
        self.runs.get_or_create(&labels(end.export_id, &[outcome, class])).inc();
        self.run_duration.get_or_create(&labels(end.export_id, &[outcome])).observe(end.took.as_secs_f64());
        if end.status == RunStatus::Completed {
            // A backfill of the past doesn't make the data older.
            let gauge = self.last_success.get_or_create(&labels(end.export_id, &[]));
            gauge.inner().fetch_max(end.interval_end.as_second(), std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn heartbeat(&self, acknowledged: bool) {
        self.heartbeats.get_or_create(&vec![("acknowledged", acknowledged.to_string())]).inc();
    }
}

pub(crate) fn register<M: Metric + Clone>(registry: &mut Registry, description: Description, metric: M) -> M {
    registry.register(description.0, description.1, metric.clone());
    metric
}

fn labels(export_id: &str, others: &[(&'static str, &str)]) -> Labels {
    let mut labels = vec![("export", export_id.to_owned())];
    labels.extend(others.iter().map(|(name, value)| (*name, (*value).to_owned())));
    labels
}

pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Makes Prometheus' classic text of OpenMetrics', so that the SDK's metrics, which have no other form, can follow it:
/// there a counter's family has the name of its samples, and there is no end mark.
fn to_classic(open_metrics: &str) -> String {
    let counters = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect::<BTreeSet<_>>();
    let mut text = String::with_capacity(open_metrics.len() + 64 * counters.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        // Writing to a string always succeeds.
        let _infallible = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), _, _) => Ok(()),
            (Some("#"), Some(keyword), Some(name), Some(rest)) if counters.contains(name) => {
                writeln!(text, "# {keyword} {name}_total {rest}")
            }
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use engine::error::ErrorKind;

    use super::*;

    #[test]
    fn an_attempt_and_its_run_are_counted() {
        let metrics = Metrics::new();
        metrics.attempt_started("orders", 256);
        let now = ProgressSnapshot {
            rows_read: 10,
            rows_left_out: 2,
            rows_failed: 1,
            rows_written: 7,
            retries: 1,
            ..ProgressSnapshot::default()
        };
        metrics.attempt_progressed("orders", &ProgressSnapshot::default(), &now);
        metrics.attempt_progressed("orders", &now, &now);
        assert!(metrics.text().contains("batch_export_memory_limit_bytes{export=\"orders\"} 256\n"));
        metrics.attempt_ended("orders", 256, AttemptEnd::Failed(ErrorKind::Data), Duration::from_secs(2));
        for (status, end) in
            [(RunStatus::Completed, "2026-01-02T00:00:00Z"), (RunStatus::Completed, "2026-01-01T00:00:00Z")]
        {
            let interval_end = end.parse().expect("an instant");
            let took = Duration::from_secs(70);
            metrics.run_ended(&RunEnd { export_id: "orders", status, error_kind: None, interval_end, took });
        }
        metrics.heartbeat(true);
        let text = metrics.text();
        for line in [
            "# TYPE batch_export_rows_total counter",
            "batch_export_rows_total{export=\"orders\",stage=\"read\"} 10",
            "batch_export_rows_total{export=\"orders\",stage=\"written\"} 7",
            "batch_export_rows_total{export=\"orders\",stage=\"left_out\"} 2",
            "batch_export_rows_total{export=\"orders\",stage=\"failed\"} 1",
            "batch_export_s3_retries_total{export=\"orders\"} 1",
            "batch_export_runs_in_progress{export=\"orders\"} 0",
            "batch_export_memory_limit_bytes{export=\"orders\"} 0",
            "batch_export_attempts_total{export=\"orders\",outcome=\"Data\"} 1",
            "batch_export_runs_total{export=\"orders\",outcome=\"Completed\",error_class=\"\"} 2",
            "batch_export_run_duration_seconds_bucket{le=\"180.0\",export=\"orders\",outcome=\"Completed\"} 2",
            "batch_export_last_success_interval_end_timestamp_seconds{export=\"orders\"} 1767312000",
            "batch_export_heartbeats_total{acknowledged=\"true\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("# EOF"));
    }

    /// Every metric of the dashboard is one of ours, and every one of ours is on it.
    #[test]
    fn the_dashboard_shows_our_metrics() {
        let sources = [include_str!("metrics.rs"), include_str!("job_queue/metrics.rs")];
        let ours = sources
            .iter()
            .filter_map(|source| source.split("#[cfg(test)]").next())
            .flat_map(|source| source.split("Description(").skip(1))
            .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
            .filter(|name| *name != "batch_export_build_info")
            .collect::<BTreeSet<_>>();
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../deploy/grafana/batch-export.json")).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let expressions = targets.filter_map(|target| target["expr"].as_str()).collect::<Vec<_>>();
        let words = expressions.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let shown = words
            .filter(|word| ["batch_export_", "jobqueue_", "process_"].iter().any(|ours| word.starts_with(ours)))
            .map(|word| ["_total", "_bucket"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word))
            .collect::<BTreeSet<_>>();
        assert!(ours.len() > 25, "{ours:?}");
        assert_eq!(shown, ours, "left: the dashboard's, right: ours");
    }

    #[test]
    fn what_runs_hold_is_summed_until_they_end() {
        let metrics = Metrics::new();
        let holds = |export_id, before: (u64, u64), now: (u64, u64)| {
            let [before, now] = [before, now].map(|(queued_blocks, held_bytes)| ProgressSnapshot {
                queued_blocks,
                held_bytes,
                ..ProgressSnapshot::default()
            });
            metrics.attempt_progressed(export_id, &before, &now);
        };
        let shows = |blocks: i64, bytes: i64| {
            let text = metrics.text();
            for line in [
                format!("batch_export_queue_blocks{{export=\"orders\"}} {blocks}"),
                format!("batch_export_buffer_bytes{{export=\"orders\"}} {bytes}"),
                "# TYPE batch_export_queue_blocks gauge".to_owned(),
            ] {
                assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
            }
        };
        holds("orders", (0, 0), (3, 300));
        holds("orders", (0, 0), (2, 50));
        holds("people", (0, 0), (9, 900));
        shows(5, 350);
        holds("orders", (3, 300), (1, 100));
        shows(3, 150);
        holds("orders", (1, 100), (0, 0));
        shows(2, 50);
        holds("orders", (2, 50), (0, 0));
        shows(0, 0);
    }
}
