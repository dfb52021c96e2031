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

/// The memory of one run, in the record of runs.
#[derive(Debug, Clone)]
pub struct RecordedHistory {
    store: RunStore,
    run_id: String,
    /// What is selected; empty until the export is known.
    selection: String,
    /// What the last heartbeat of an earlier attempt says, where it survived.
    heartbeat: RunProgress,
}

impl RecordedHistory {
    /// What the record alone remembers.
    #[must_use]
    pub fn new(store: &RunStore, run_id: &str) -> Self {
        Self {
            store: store.clone(),
            run_id: run_id.to_owned(),
            selection: String::new(),
            heartbeat: RunProgress::default(),
        }
    }

    /// What the record remembers, which may be another host's, and the last heartbeat of an earlier attempt.
    pub(crate) fn with_heartbeats(store: &RunStore, run_id: &str, context: &ActivityContext) -> Self {
        let details = context.heartbeat_details().deserialize::<RunProgress>();
        // Details of another shape are of another program, or of another version of this one.
        Self { heartbeat: details.ok().flatten().unwrap_or_default(), ..Self::new(store, run_id) }
    }

    /// The same, for attempts that select the same.
    #[must_use]
    pub fn of(self, source: &SourceConfig) -> Self {
        Self { selection: source.selection(), ..self }
    }

    /// The most rows that earlier attempts of this execution have read, as far as heartbeats tell.
    pub(crate) const fn heartbeat_rows(&self) -> u64 {
        if self.heartbeat.rows_read > self.heartbeat.rows_seen {
            self.heartbeat.rows_read
        } else {
            self.heartbeat.rows_seen
        }
    }

    /// The upload that the earlier attempt had open when it was last heard of.
    pub(crate) fn leftover_upload(&self) -> Option<&str> {
        self.heartbeat.open_upload.as_deref()
    }

    /// Remembers what an attempt has read that failed. It takes no longer than a few seconds, and doesn't fail.
    pub async fn saw(&self, rows: u64) {
        let rows = rows.max(self.heartbeat_rows());
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
            recorded.max(self.heartbeat_rows())
        })
    }
}

async fn in_time<T>(asking: impl Future<Output = Result<T, runs::StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {PATIENCE:?}")),
    }
}
