//! How far a run is: a line that is redrawn on a terminal, a plain line every ten seconds elsewhere.
//!
//! What counts is what the destination has acknowledged, not what was read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::pipeline::progress::{Progress, ProgressSnapshot};
use indicatif::{HumanBytes, HumanCount, MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::Process;
use crate::output::Output;

/// How often the line on a terminal is redrawn.
const REDRAW: Duration = Duration::from_millis(250);

/// How often a plain line is written.
const LOG: Duration = Duration::from_secs(10);

/// Shows a run's progress until it is dropped.
#[derive(Debug)]
pub(crate) struct Display {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

/// A line of progress for machines.
#[derive(Serialize)]
struct ProgressDocument {
    progress: ProgressReport,
}

#[derive(Serialize)]
struct ProgressReport {
    elapsed_seconds: f64,
    written_bytes_per_second: u64,
    #[serde(flatten)]
    counters: ProgressSnapshot,
}

impl Display {
    /// Starts to show `progress`.
    pub(crate) fn start(progress: Arc<Progress>, process: &Process) -> Self {
        let output = process.output;
        if is_drawn(&process.bars) && output.is_text() {
            let bar = process.bars.add(ProgressBar::new_spinner().with_style(style()));
            let task = tokio::spawn(draw(progress, bar.clone()));
            return Self { task, bar: Some(bar) };
        }
        Self { task: tokio::spawn(log(progress, output)), bar: None }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whether stderr is a terminal that can be redrawn.
fn is_drawn(bars: &MultiProgress) -> bool {
    !bars.is_hidden()
}

fn style() -> ProgressStyle {
    // The template is checked by the test below.
    ProgressStyle::with_template("{spinner} {elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}

async fn draw(progress: Arc<Progress>, bar: ProgressBar) {
    let mut rate = Rate::new();
    let mut ticks = tokio::time::interval(REDRAW);
    loop {
        ticks.tick().await;
        let counters = progress.snapshot();
        bar.set_message(line(&counters, rate.update(counters.bytes_written)));
        bar.tick();
    }
}

async fn log(progress: Arc<Progress>, output: Output) {
    let started = Instant::now();
    let mut rate = Rate::new();
    let mut ticks = tokio::time::interval(LOG);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let counters = progress.snapshot();
        let bytes_per_second = rate.update(counters.bytes_written);
        tracing::info!(
            rows_written = counters.rows_written,
            bytes_written = counters.bytes_written,
            rows_read = counters.rows_read,
            retries = counters.retries,
            bytes_per_second,
            "{}",
            line(&counters, bytes_per_second)
        );
        if output.is_stream() {
            let elapsed_seconds = started.elapsed().as_secs_f64();
            let report = ProgressReport { elapsed_seconds, written_bytes_per_second: bytes_per_second, counters };
            // The result is written by the same way, and fails there.
            drop(output.document(&ProgressDocument { progress: report }, String::new));
        }
    }
}

/// How far a run is, in words.
fn line(counters: &ProgressSnapshot, bytes_per_second: u64) -> String {
    let mut text = format!(
        "written {} rows, {} ({}/s); read {} rows",
        HumanCount(counters.rows_written),
        HumanBytes(counters.bytes_written),
        HumanBytes(bytes_per_second),
        HumanCount(counters.rows_read)
    );
    if counters.retries > 0 {
        text.push_str(&format!("; {} retries", counters.retries));
    }
    text
}

/// Bytes per second, smoothed.
#[derive(Debug)]
struct Rate {
    last: Instant,
    bytes: u64,
    per_second: f64,
}

impl Rate {
    fn new() -> Self {
        Self { last: Instant::now(), bytes: 0, per_second: 0.0 }
    }

    fn update(&mut self, bytes: u64) -> u64 {
        let elapsed = self.last.elapsed().as_secs_f64().max(1e-3);
        self.last = Instant::now();
        self.step(bytes, elapsed)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    fn step(&mut self, bytes: u64, elapsed: f64) -> u64 {
        let now = bytes.saturating_sub(self.bytes) as f64 / elapsed;
        self.bytes = bytes;
        // Parts come in lumps: what counts is about the last five seconds.
        let weight = 1.0 - (-elapsed / 5.0).exp();
        self.per_second += (now - self.per_second) * weight;
        self.per_second as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        assert!(ProgressStyle::with_template("{spinner} {elapsed} {msg}").is_ok());
    }

    #[test]
    fn the_line_says_what_is_written_first() {
        let counters =
            ProgressSnapshot { rows_written: 1_500, bytes_written: 2_048, rows_read: 9_000, ..Default::default() };
        assert_eq!(line(&counters, 1_024), "written 1,500 rows, 2.00 KiB (1.00 KiB/s); read 9,000 rows");
        assert!(line(&ProgressSnapshot { retries: 3, ..counters }, 0).ends_with("; 3 retries"));
    }

    #[test]
    fn the_rate_settles_on_a_steady_flow() {
        let mut rate = Rate::new();
        let mut last = 0;
        for second in 1..=100 {
            last = rate.step(second * 1_000, 1.0);
        }
        assert!((990..=1_000).contains(&last), "{last}");
    }
}
