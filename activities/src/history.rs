//! What earlier attempts of a run have read: from the record of runs, and from the heartbeat that the server kept.

use std::time::Duration;

use engine::config::export::SourceConfig;
use engine::history::History;
use futures::future::BoxFuture;
use runs::RunStore;
use temporalio_sdk::activities::ActivityContext;
use workflows::contract::RunProgress;

/// How long the record may take to answer, or to be written when an attempt failed. The run goes on without it.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the last heartbeat of an earlier attempt says, where it survived.
pub(crate) fn last_heartbeat(context: &ActivityContext) -> RunProgress {
    // Details of another shape are of another program, or of another version of this one.
    context.heartbeat_details().deserialize().ok().flatten().unwrap_or_default()
}

/// The memory of one run, in the record of runs.
#[derive(Debug, Clone)]
pub struct RecordedHistory {
    store: RunStore,
    run_id: String,
    selection: String,
    heartbeat_rows: u64,
}

impl RecordedHistory {
    /// What is remembered of attempts that selected the same: by the record, which may be another host's, and by
    /// heartbeats, which say that earlier attempts have read `heartbeat_rows`.
    #[must_use]
    pub fn new(store: &RunStore, run_id: &str, source: &SourceConfig, heartbeat_rows: u64) -> Self {
        Self { store: store.clone(), run_id: run_id.to_owned(), selection: source.selection(), heartbeat_rows }
    }

    /// Remembers what an attempt has read that failed. It takes no longer than a few seconds, and doesn't fail.
    pub async fn saw(&self, rows: u64) {
        let rows = rows.max(self.heartbeat_rows);
        if rows > 0 {
            self.noted(in_time(self.store.saw(&self.run_id, &self.selection, rows)).await);
        }
    }

    /// Remembers what was published, as [`saw`](Self::saw) does.
    pub async fn published(&self, rows: u64) {
        self.noted(in_time(self.store.published(&self.run_id, &self.selection, rows)).await);
    }

    fn noted(&self, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            tracing::warn!(run = self.run_id, why, "the rows of an attempt were not noted");
        }
    }
}

impl History for RecordedHistory {
    fn most_rows(&self) -> BoxFuture<'_, u64> {
        Box::pin(async {
            let recorded = in_time(self.store.rows_seen(&self.run_id, &self.selection)).await.unwrap_or_else(|why| {
                tracing::warn!(run = self.run_id, why, "the record of earlier attempts can't be read");
                0
            });
            recorded.max(self.heartbeat_rows)
        })
    }
}

async fn in_time<T>(asking: impl Future<Output = Result<T, runs::StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {PATIENCE:?}")),
    }
}
