//! Dead jobs as rows of a kind that nobody handles.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use graphile_worker::JobSpec;
use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use super::Postgres;
use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::error::ProviderError;
use crate::job::{Job, JobId};

/// The kind of the rows.
const KIND: &str = "dead";

fn key(id: JobId) -> String {
    format!("{KIND}:{id}")
}

impl Postgres {
    async fn keep_dead(&self, job: &Job) -> Result<(), ProviderError> {
        self.migrate().await?;
        let letter = DeadLetter { job: job.clone(), died_at: Timestamp::now() };
        let spec = JobSpec { job_key: Some(key(job.id)), ..JobSpec::new() };
        let added = self.utils().add_raw_job(KIND, letter, spec).await;
        added.map(drop).map_err(|error| self.error("can't keep a dead job", error))
    }

    /// The letters whose rows `which` chooses, the oldest job first.
    async fn dead(&self, which: &str, keys: Vec<String>, limit: usize) -> Result<Vec<DeadLetter>, ProviderError> {
        self.migrate().await?;
        let sql = format!(
            "select payload::text from {} where task_id = (select id from {} where identifier = '{KIND}')
                and ({which} or key = any($1)) order by key limit $2",
            self.table("jobs"),
            self.table("tasks")
        );
        let query = sqlx::query_scalar::<_, String>(AssertSqlSafe(sql)).bind(keys);
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let texts = query.fetch_all(&self.shared.pool).await;
        let texts = texts.map_err(|error| self.error("can't list dead jobs", error))?;
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }
}

impl DeadLetters for Postgres {
    fn bury<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.keep_dead(job).boxed()
    }

    fn list(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, ProviderError>> {
        self.dead("true", Vec::new(), limit).boxed()
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<DeadLetter>, ProviderError>> {
        async move { Ok(self.dead("false", vec![key(id)], 1).await?.pop()) }.boxed()
    }

    fn remove(&self, id: JobId) -> BoxFuture<'_, Result<(), ProviderError>> {
        async move {
            self.migrate().await?;
            let removed = self.utils().remove_job(&key(id)).await;
            removed.map_err(|error| self.error("can't forget a dead job", error))
        }
        .boxed()
    }
}
