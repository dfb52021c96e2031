//! One attempt of the insert, from the first heartbeat to the engine's last word.

use std::sync::Arc;
use std::time::Duration;

use engine::config::export::ExportConfig;
use engine::error::{Error, ErrorKind, Result};
use engine::pipeline::progress::{Progress, ProgressSnapshot};
use engine::run::{RunContext, RunIdentity, RunReport};
use engine::stop::Stop;
use temporalio_sdk::activities::ActivityContext;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::exporter::Exporter;
use crate::heartbeat::Lease;
use crate::history::RecordedHistory;
use crate::observer::RunObserver;
use crate::task::Answer;

/// How often progress is reported for metrics.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long a stopped run may take to clean up before it is abandoned. The engine's own deadlines are shorter.
const STOP_GRACE: Duration = Duration::from_secs(60);

/// How much earlier than the server's own timer an attempt ends itself, at most: it still has to clean up and say why.
const DEADLINE_MARGIN: Duration = Duration::from_secs(10);

/// What surrounds one attempt.
pub(crate) struct Attempt<'a> {
    /// The activity's context: tells when the SDK wants the attempt to end.
    pub(crate) context: &'a ActivityContext,
    /// The worker is going down.
    pub(crate) shutdown: &'a CancellationToken,
    /// The lease, kept by somebody else.
    pub(crate) lease: &'a Arc<Lease>,
    /// The order to stop.
    pub(crate) stop: &'a Stop,
    /// The counters.
    pub(crate) progress: &'a Arc<Progress>,
    /// Hears of progress.
    pub(crate) observer: &'a Arc<dyn RunObserver>,
    /// The longest that the attempt may take, as the server counts it.
    pub(crate) start_to_close: Duration,
}

impl Attempt<'_> {
    /// Runs the engine in a task of its own and stops it when there is a reason to.
    ///
    /// # Errors
    /// The engine's, or `Internal` when the run panicked or didn't obey the stop.
    pub(crate) async fn run(
        &self,
        exporter: Arc<dyn Exporter>,
        export: ExportConfig,
        identity: RunIdentity,
        history: RecordedHistory,
    ) -> Result<RunReport> {
        let mut reporter = Reporter::new(&export.id, self.progress, self.observer);
        let context = RunContext {
            stop: self.stop.clone(),
            progress: Arc::clone(self.progress),
            fence: Arc::<Lease>::clone(self.lease),
            history: Arc::new(history),
        };
        let run = async move { exporter.run(&export, &identity, &context).await };
        // Whatever ends this future early stops the run, which otherwise would go on unseen.
        let _stopper = StopOnDrop(self.stop);
        let mut task = tokio::spawn(run.in_current_span());
        let result = match self.until_stopped(&mut task, &mut reporter).await {
            Some(result) => result,
            None => self.wind_up(task).await,
        };
        result.unwrap_or_else(|error| Err(of_join_error(error)))
    }

    /// Waits for the run's end; `None` when it was stopped first.
    async fn until_stopped(
        &self,
        task: &mut JoinHandle<Result<RunReport>>,
        reporter: &mut Reporter,
    ) -> Option<Result<Result<RunReport>, JoinError>> {
        let margin = (self.start_to_close / 10).min(DEADLINE_MARGIN);
        let deadline = Instant::now() + self.start_to_close.saturating_sub(margin);
        let mut report = tokio::time::interval(REPORT_EVERY);
        loop {
            tokio::select! {
                biased;
                result = &mut *task => return Some(result),
                _ = self.stop.stopped() => return None,
                () = self.shutdown.cancelled() => self.stop.shut_down(),
                () = self.context.cancelled() => self.stop_as_asked().await,
                () = tokio::time::sleep_until(deadline) => self.stop.stop(
                    ErrorKind::Internal,
                    &format!(
                        "the attempt did not end within {:?}; raise activity_options.start_to_close",
                        self.start_to_close
                    ),
                ),
                _ = report.tick() => reporter.report(),
            }
        }
    }

    /// The SDK wants the attempt to end and doesn't say why: the server does.
    async fn stop_as_asked(&self) {
        match self.lease.beat().await {
            // The server knows of no reason, or can't be asked: it is the worker that goes down.
            Answer::Acknowledged | Answer::Unreachable(_) => self.stop.shut_down(),
            // The lease has given the stop with its reason.
            Answer::CancelRequested | Answer::Paused | Answer::Lost => {}
        }
    }

    /// Lets a stopped run clean up, and abandons it when that takes too long.
    async fn wind_up(&self, mut task: JoinHandle<Result<RunReport>>) -> Result<Result<RunReport>, JoinError> {
        if let Ok(result) = tokio::time::timeout(STOP_GRACE, &mut task).await {
            return result;
        }
        task.abort();
        tracing::error!(grace = ?STOP_GRACE, "the run did not obey the order to stop and is abandoned");
        Ok(Err(self.stop.error().context("abandoned after it did not obey the order to stop")))
    }
}

/// Tells the observer how far the counters have got; when it is dropped, for the last time.
struct Reporter {
    export_id: String,
    progress: Arc<Progress>,
    observer: Arc<dyn RunObserver>,
    reported: ProgressSnapshot,
}

impl Reporter {
    fn new(export_id: &str, progress: &Arc<Progress>, observer: &Arc<dyn RunObserver>) -> Self {
        Self {
            export_id: export_id.to_owned(),
            progress: Arc::clone(progress),
            observer: Arc::clone(observer),
            reported: ProgressSnapshot::default(),
        }
    }

    fn report(&mut self) {
        let now = self.progress.snapshot();
        self.advance(now);
    }

    fn advance(&mut self, now: ProgressSnapshot) {
        self.observer.attempt_progressed(&self.export_id, &self.reported, &now);
        self.reported = now;
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // A run that was stopped leaves blocks in its queue, which nobody counts off again.
        let last = ProgressSnapshot { queued_blocks: 0, held_bytes: 0, ..self.progress.snapshot() };
        self.advance(last);
    }
}

fn of_join_error(error: JoinError) -> Error {
    if error.is_panic() {
        Error::internal("the run panicked; the worker's log has the place").with_source(error)
    } else {
        Error::internal("the run was abandoned").with_source(error)
    }
}

/// Gives the order to stop when it is dropped; harmless after the end.
struct StopOnDrop<'a>(&'a Stop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::observer::{AttemptEnd, RunEnd};

    /// The gauges before and after each report.
    #[derive(Debug, Default)]
    struct Gauges(Mutex<Vec<[(u64, u64); 2]>>);

    impl RunObserver for Gauges {
        fn attempt_started(&self, _: &str, _: u64) {}
        fn attempt_progressed(&self, _: &str, before: &ProgressSnapshot, now: &ProgressSnapshot) {
            let gauges = [before, now].map(|snapshot| (snapshot.queued_blocks, snapshot.held_bytes));
            self.0.lock().expect("no panic").push(gauges);
        }
        fn attempt_ended(&self, _: &str, _: u64, _: AttemptEnd, _: Duration) {}
        fn run_ended(&self, _: &RunEnd<'_>) {}
        fn heartbeat(&self, _: bool) {}
    }

    #[test]
    fn an_attempt_that_ended_holds_nothing_whatever_it_left() {
        let gauges = Arc::new(Gauges::default());
        let observer: Arc<dyn RunObserver> = Arc::<Gauges>::clone(&gauges);
        let mut reporter = Reporter::new("orders", &Arc::new(Progress::new()), &observer);
        reporter.advance(ProgressSnapshot { queued_blocks: 3, held_bytes: 300, ..ProgressSnapshot::default() });
        drop(reporter);
        assert_eq!(*gauges.0.lock().expect("no panic"), [[(0, 0), (3, 300)], [(3, 300), (0, 0)]]);
    }
}
