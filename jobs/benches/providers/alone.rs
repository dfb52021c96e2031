//! `graphile_worker` without us, as its own documentation says to run it fast.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerRecoveryConfig, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use crate::{CONCURRENCY, Seen, Subject};

/// The library, in a schema of its own.
#[derive(Clone)]
pub(crate) struct Alone {
    pool: PgPool,
    schema: String,
}

impl Alone {
    pub(crate) async fn new(url: String) -> Self {
        let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.expect("a database");
        let schema = format!("alone_{}", uuid::Uuid::new_v4().simple());
        let alone = Self { pool, schema };
        alone.utils().migrate().await.expect("tables");
        alone
    }

    fn utils(&self) -> WorkerUtils {
        WorkerUtils::new(&self.pool, self.schema.as_str())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Work {
    number: usize,
}

/// What a task finds in its context.
#[derive(Debug, Clone)]
struct Counter(Arc<Seen>);

impl TaskHandler for Work {
    const IDENTIFIER: &'static str = "work";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(Counter(seen)) = context.get_ext::<Counter>() {
            seen.note();
        }
    }
}

impl Subject for Alone {
    fn enqueue(&self, count: usize) -> BoxFuture<'_, ()> {
        async move {
            if count == 1 {
                let added = self.utils().add_raw_job(Work::IDENTIFIER, json!({ "number": 0 }), JobSpec::new()).await;
                added.expect("taken");
                return;
            }
            let rows = (0..count).map(|number| RawJobSpec {
                identifier: Work::IDENTIFIER.to_owned(),
                payload: json!({ "number": number }),
                spec: JobSpec::new(),
            });
            self.utils().add_raw_jobs(&rows.collect::<Vec<_>>()).await.expect("taken");
        }
        .boxed()
    }

    fn consume(&self, seen: Arc<Seen>, stop: CancellationToken) -> BoxFuture<'_, ()> {
        async move {
            let worker = WorkerOptions::default()
                .pg_pool(self.pool.clone())
                .schema(self.schema.as_str())
                .concurrency(CONCURRENCY)
                .poll_interval(Duration::from_millis(200))
                .local_queue(LocalQueueConfig::default())
                .complete_job_batch_delay(Duration::from_millis(2))
                .worker_recovery(WorkerRecoveryConfig::default().enabled(true))
                .listen_os_shutdown_signals(false)
                .add_extension(Counter(seen))
                .define_jobs([Work::definition()])
                .init()
                .await
                .expect("a worker");
            let running = worker.run();
            tokio::pin!(running);
            tokio::select! {
                outcome = &mut running => outcome.expect("goes on"),
                () = stop.cancelled() => {
                    worker.request_shutdown();
                    running.await.expect("ends well");
                }
            }
        }
        .boxed()
    }
}
