//! The SQLite file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};

use crate::instant;
use crate::record::{RunRecord, RunStatus};

/// The schema, embedded in the program.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// How long a writer waits for another process's write. Bounds every call together with [`ACQUIRE_TIMEOUT`].
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for a connection of the pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most connections of one process. SQLite has one writer at a time anyway.
const MAX_CONNECTIONS: u32 = 4;

/// How often opening is tried: SQLite's migrations take no lock, so two processes that create the file at once collide.
const OPEN_ATTEMPTS: u32 = 8;

/// What a list shows when nobody says how much.
const DEFAULT_LIMIT: u32 = 50;

/// An insert that replaces the row of the same run under a condition.
macro_rules! upsert {
    ($condition:literal) => {
        concat!(
            "INSERT INTO runs (run_id, export_id, workflow_id, interval_start, interval_end, status, attempt, rows, ",
            "bytes, files, error_kind, error, started_at, finished_at) ",
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ",
            "ON CONFLICT (run_id) DO UPDATE SET export_id = excluded.export_id, workflow_id = excluded.workflow_id, ",
            "interval_start = excluded.interval_start, interval_end = excluded.interval_end, ",
            "status = excluded.status, attempt = excluded.attempt, rows = excluded.rows, bytes = excluded.bytes, ",
            "files = excluded.files, error_kind = excluded.error_kind, error = excluded.error, ",
            "started_at = excluded.started_at, finished_at = excluded.finished_at WHERE ",
            $condition
        )
    };
}

/// A start never overwrites what it can't know: the end of the same execution, or anything of a later one.
const START: &str = upsert!(
    "runs.started_at < excluded.started_at OR (runs.started_at = excluded.started_at AND runs.finished_at IS NULL \
     AND runs.attempt <= excluded.attempt)"
);

/// An end overwrites everything but a later execution of the same run.
const FINISH: &str = upsert!("runs.started_at <= excluded.started_at");

/// What a failed attempt has read, if no other of the same selection has read more.
const SAW: &str = "INSERT INTO rows_seen (run_id, selection, rows) VALUES (?1, ?2, ?3) \
     ON CONFLICT (run_id) DO UPDATE SET selection = excluded.selection, \
     rows = CASE WHEN selection = excluded.selection THEN max(rows, excluded.rows) ELSE excluded.rows END";

/// What was published is what counts from then on.
const PUBLISHED: &str = "INSERT INTO rows_seen (run_id, selection, rows) VALUES (?1, ?2, ?3) \
     ON CONFLICT (run_id) DO UPDATE SET selection = excluded.selection, rows = excluded.rows";

const ROWS_SEEN: &str = "SELECT rows FROM rows_seen WHERE run_id = ?1 AND selection = ?2";

const LIST: &str = "SELECT * FROM runs WHERE (?1 IS NULL OR export_id = ?1) AND (?2 IS NULL OR status = ?2) \
     AND (?3 IS NULL OR started_at >= ?3) ORDER BY started_at DESC, interval_end DESC, run_id LIMIT ?4";

/// Why the record of runs couldn't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file can't be opened or brought to the current schema.
    #[error("open the run database {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A statement failed.
    #[error("{doing} in the run database")]
    Statement {
        /// What was being done.
        doing: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// A row holds something that this program never writes.
    #[error("read run {run_id} from the run database: its {column} is not valid")]
    Row {
        /// The row.
        run_id: String,
        /// The column.
        column: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only this export's.
    pub export_id: Option<String>,
    /// Only with this status.
    pub status: Option<RunStatus>,
    /// Only those that started at or after this instant.
    pub since: Option<Timestamp>,
    /// At most so many; `None` for 50.
    pub limit: Option<u32>,
}

/// The record of runs. Clones share one pool.
#[derive(Debug, Clone)]
pub struct RunStore {
    pool: SqlitePool,
}

impl RunStore {
    /// Opens the file, creating it and bringing it to the current schema.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the folder doesn't exist, the file isn't a database of ours, or another process holds
    /// it for too long.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let mut attempt = 1;
        loop {
            match Self::open_once(path).await {
                Ok(store) => return Ok(store),
                Err(source) if attempt >= OPEN_ATTEMPTS || !is_collision(&source) => {
                    return Err(StoreError::Open { path: path.to_owned(), source: Box::new(source) });
                }
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(25) * attempt).await;
                    attempt += 1;
                }
            }
        }
    }

    async fn open_once(path: &Path) -> Result<Self, MigrateError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_with(options)
            .await?;
        MIGRATIONS.run(&pool).await?;
        Ok(Self { pool })
    }

    /// Notes that a run begins or that one of its attempts is at work.
    ///
    /// A late or repeated call does no harm: the end of the same execution, a later attempt of it and everything of a
    /// later execution are kept.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the file can't be written.
    pub async fn start(&self, record: &RunRecord) -> Result<(), StoreError> {
        self.write(START, "note the start of a run", record).await
    }

    /// Notes the end of a run: the whole record, since the start may have been lost or be in another host's file.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the file can't be written.
    pub async fn finish(&self, record: &RunRecord) -> Result<(), StoreError> {
        self.write(FINISH, "note the end of a run", record).await
    }

    /// Remembers how many rows a failed attempt of a run has read, if no other of the same selection has read more.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the file can't be written.
    pub async fn saw(&self, run_id: &str, selection: &str, rows: u64) -> Result<(), StoreError> {
        self.remember(SAW, run_id, selection, rows).await
    }

    /// Remembers how many rows a run has published, whatever attempts before it have read.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the file can't be written.
    pub async fn published(&self, run_id: &str, selection: &str, rows: u64) -> Result<(), StoreError> {
        self.remember(PUBLISHED, run_id, selection, rows).await
    }

    /// The most rows that an attempt of a run has read with the same selection; 0 when none is known.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the file can't be read.
    pub async fn rows_seen(&self, run_id: &str, selection: &str) -> Result<u64, StoreError> {
        let rows = sqlx::query_scalar::<_, i64>(ROWS_SEEN)
            .bind(run_id)
            .bind(selection)
            .fetch_optional(&self.pool)
            .await
            .map_err(|source| StoreError::Statement { doing: "look up earlier attempts", source })?;
        // Only counts are written.
        Ok(rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0))
    }

    /// The latest runs first.
    ///
    /// # Errors
    /// [`StoreError`] when the file can't be read, or holds what this program never writes.
    pub async fn list(&self, filter: &RunFilter) -> Result<Vec<RunRecord>, StoreError> {
        let rows = sqlx::query(LIST)
            .bind(filter.export_id.as_deref())
            .bind(filter.status.map(RunStatus::as_str))
            .bind(filter.since.map(instant::to_text))
            .bind(filter.limit.unwrap_or(DEFAULT_LIMIT))
            .fetch_all(&self.pool)
            .await
            .map_err(|source| StoreError::Statement { doing: "list runs", source })?;
        rows.iter().map(record_of).collect()
    }

    /// Closes the file; the last process to do so folds the write-ahead log into it.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn remember(
        &self,
        statement: &'static str,
        run_id: &str,
        selection: &str,
        rows: u64,
    ) -> Result<(), StoreError> {
        sqlx::query(statement)
            .bind(run_id)
            .bind(selection)
            .bind(to_column(rows))
            .execute(&self.pool)
            .await
            .map_err(|source| StoreError::Statement { doing: "note the rows of an attempt", source })?;
        Ok(())
    }

    async fn write(&self, statement: &'static str, doing: &'static str, record: &RunRecord) -> Result<(), StoreError> {
        let files = serde_json::to_string(&record.files).unwrap_or_else(|_| "[]".to_owned());
        sqlx::query(statement)
            .bind(&record.run_id)
            .bind(&record.export_id)
            .bind(&record.workflow_id)
            .bind(instant::to_text(record.interval_start))
            .bind(instant::to_text(record.interval_end))
            .bind(record.status.as_str())
            .bind(record.attempt)
            .bind(to_column(record.rows))
            .bind(to_column(record.bytes))
            .bind(files)
            .bind(&record.error_kind)
            .bind(record.error.as_deref().map(without_nul))
            .bind(instant::to_text(record.started_at))
            .bind(record.finished_at.map(instant::to_text))
            .execute(&self.pool)
            .await
            .map_err(|source| StoreError::Statement { doing, source })?;
        Ok(())
    }
}

/// Whether another process was just creating or migrating the same file.
fn is_collision(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    let Some(error) = error.as_database_error() else { return false };
    error.is_unique_violation()
        || ["locked", "busy", "already exists", "duplicate column"].iter().any(|sign| error.message().contains(sign))
}

/// SQLite's integers end at `i64::MAX`; a count beyond it is not possible in one run.
fn to_column(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A text that every reader takes: some end it at the first NUL.
fn without_nul(text: &str) -> String {
    text.replace('\0', "")
}

fn record_of(row: &SqliteRow) -> Result<RunRecord, StoreError> {
    let run_id = row
        .try_get::<String, _>("run_id")
        .map_err(|source| StoreError::Statement { doing: "read the id of a run", source })?;
    let cells = Cells { row, run_id: &run_id };
    Ok(RunRecord {
        export_id: cells.get("export_id")?,
        workflow_id: cells.get("workflow_id")?,
        interval_start: cells.parsed("interval_start", instant::from_text)?,
        interval_end: cells.parsed("interval_end", instant::from_text)?,
        status: cells.parsed("status", str::parse)?,
        attempt: cells.get("attempt")?,
        rows: cells.count("rows")?,
        bytes: cells.count("bytes")?,
        files: cells.parsed("files", |text| serde_json::from_str(text))?,
        error_kind: cells.get("error_kind")?,
        error: cells.get("error")?,
        started_at: cells.parsed("started_at", instant::from_text)?,
        finished_at: match cells.get::<Option<String>>("finished_at")? {
            Some(_) => Some(cells.parsed("finished_at", instant::from_text)?),
            None => None,
        },
        run_id: run_id.clone(),
    })
}

/// The columns of one row, with the row's name for errors.
struct Cells<'a> {
    row: &'a SqliteRow,
    run_id: &'a str,
}

impl Cells<'_> {
    fn get<'r, T>(&'r self, column: &'static str) -> Result<T, StoreError>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        self.row.try_get(column).map_err(|source| self.fault(column, source))
    }

    fn parsed<T, E>(&self, column: &'static str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, StoreError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        parse(self.get::<&str>(column)?).map_err(|source| self.fault(column, source))
    }

    fn count(&self, column: &'static str) -> Result<u64, StoreError> {
        u64::try_from(self.get::<i64>(column)?).map_err(|source| self.fault(column, source))
    }

    fn fault(&self, column: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Row { run_id: self.run_id.to_owned(), column, source: Box::new(source) }
    }
}

#[cfg(test)]
mod tests;
