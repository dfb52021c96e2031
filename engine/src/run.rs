//! One run of one export: from a query to a visible object, or to nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::config::export::{ExportConfig, KeyLayout};
use crate::encode::FileLayout;
use crate::error::{Error, Result};
use crate::history::History;
use crate::interval::Interval;
use crate::pipeline::Pipeline;
use crate::pipeline::budget::ByteBudget;
use crate::pipeline::cpu::CpuPool;
use crate::pipeline::progress::Progress;
use crate::sink::client::S3Client;
use crate::sink::existing::{Existing, find_existing};
use crate::sink::key::object_key;
use crate::sink::metadata::Ownership;
use crate::sink::orphans::{Orphans, abort_orphans};
use crate::sink::s3_object::{Aborted, ObjectSpec, S3Object};
use crate::source::control;
use crate::source::stream::PlannedQuery;
use crate::source::transport::Transport;
use crate::stop::Stop;
use crate::transform::{RowTransform, Transforms};

/// Which run this is, and which try of it.
#[derive(Debug, Clone)]
pub struct RunIdentity {
    /// The run's id, the same for every execution of an export's interval; part of query ids and of the object's metadata.
    pub run_id: String,
    /// The execution's id, unique: the same interval may be executed again, and even at the same time by hand.
    pub execution_id: String,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// The window.
    pub interval: Interval,
}

/// The right to publish, asked for once more right before an object becomes visible.
pub trait Fence: Send + Sync + fmt::Debug {
    /// Answers whether this attempt may still publish.
    ///
    /// # Errors
    /// Any error means that it may not.
    fn confirm(&self) -> BoxFuture<'_, Result<()>>;
}

/// The fence of a run that has no rival: one without Temporal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unfenced;

impl Fence for Unfenced {
    fn confirm(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What surrounds a run.
#[derive(Debug, Clone)]
pub struct RunContext {
    /// The order to stop.
    pub stop: Stop,
    /// The run's counters.
    pub progress: Arc<Progress>,
    /// The right to publish.
    pub fence: Arc<dyn Fence>,
    /// What is remembered of earlier attempts.
    pub history: Arc<dyn History>,
}

/// What a run has published.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunReport {
    /// Rows written: as many as were read, but for those that a plugin left out, or the run would have failed.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The objects that are visible now; none for a run without rows, unless empty objects were asked for.
    pub files: Vec<FileReport>,
    /// Values whose text wasn't UTF-8 and was repaired.
    pub repaired_values: u64,
    /// Rows that a plugin left out, those among them that it failed on too.
    pub rows_left_out: u64,
    /// Rows that a plugin failed on, left out or written as they were.
    pub rows_failed: u64,
}

/// One visible object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileReport {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// Rows in it.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// Parts it was uploaded in; 0 for a single request.
    pub parts: u32,
    /// The store's name for its content.
    pub etag: Option<String>,
}

/// The engine: what runs of one process share.
#[derive(Debug, Clone)]
pub struct Engine {
    cpu: CpuPool,
    memory_limit: Arc<AtomicU64>,
    transforms: Transforms,
}

/// A run's part of [`Engine::memory_limit`].
struct LimitAtWork<'a> {
    memory_limit: &'a AtomicU64,
    bytes: u64,
}

impl Drop for LimitAtWork<'_> {
    fn drop(&mut self) {
        self.memory_limit.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Engine {
    /// An engine that encodes on as many threads as there are CPUs.
    ///
    /// # Errors
    /// `Internal` when the threads can't be started.
    pub fn new() -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { cpu: CpuPool::new(threads)?, memory_limit: Arc::default(), transforms: Transforms::default() })
    }

    /// The same engine, whose exports may ask for these transforms.
    #[must_use]
    pub fn with_transforms(self, transforms: Transforms) -> Self {
        Self { transforms, ..self }
    }

    /// The memory limits of all runs at work, together. Unit: bytes.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.load(Ordering::Relaxed)
    }

    fn put_to_work(&self, bytes: u64) -> LimitAtWork<'_> {
        self.memory_limit.fetch_add(bytes, Ordering::Relaxed);
        LimitAtWork { memory_limit: &self.memory_limit, bytes }
    }

    /// Runs one attempt to its end.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the query running and the upload open; stop the run through its context instead.
    ///
    /// # Errors
    /// Whatever ended the attempt; nothing of it is visible then and, as far as the services answer, nothing is left.
    #[tracing::instrument(name = "export.run", skip_all, fields(export = export.id, run_id = identity.run_id, attempt = identity.attempt))]
    pub async fn run(&self, export: &ExportConfig, identity: &RunIdentity, context: &RunContext) -> Result<RunReport> {
        let _limit = self.put_to_work(export.limits.memory_bytes);
        // Before anything is asked of anybody.
        let transform = export.transform.as_ref().map(|config| self.transforms.find(config)).transpose()?;
        let transport = Transport::new(&export.source.connection)?;
        let preparing = Box::pin(prepare(&transport, export, identity, context));
        let prepared = unless_stopped(&context.stop, preparing).await?;
        let query_id = query_id(identity);
        let result = self.copy(&transport, export, prepared, transform, &query_id, context).await;
        if result.is_err()
            && let Err(error) = control::kill(&transport, &query_id).await
        {
            tracing::warn!(error = ?error, query_id, "the query could not be killed; it may still run");
        }
        result
    }

    async fn copy(
        &self,
        transport: &Transport,
        export: &ExportConfig,
        prepared: Prepared,
        transform: Option<Arc<dyn RowTransform>>,
        query_id: &str,
        context: &RunContext,
    ) -> Result<RunReport> {
        let Prepared { mut query, object, spec, replaces } = prepared;
        let reader = unless_stopped(&context.stop, query.open(transport, query_id)).await?;
        let pipeline = Pipeline {
            layout: FileLayout {
                output: export.output,
                schema: Arc::clone(query.plan.schema()),
                json_columns: query.json_columns(),
            },
            invalid_utf8: export.source.invalid_utf8,
            limits: export.limits,
            fewer_rows: export.source.fewer_rows,
            write_empty: export.destination.write_empty,
            sink: Arc::new(object),
            cpu: self.cpu.clone(),
            budget: ByteBudget::new(export.limits.buffer_bytes),
            transform: transform.zip(export.transform.clone()),
            context: context.clone(),
        };
        let report = pipeline.run(reader).await?;
        if report.object.is_none() && replaces {
            return Err(Error::data(format!(
                "the window has no rows to write now, but {} has rows of an earlier run; if they are gone for good, delete the object or \
                 set write_empty",
                spec.uri()
            )));
        }
        let file = report.object.map(|object| FileReport {
            bucket: spec.bucket.clone(),
            key: spec.key.clone(),
            rows: report.num_rows,
            bytes: object.num_bytes,
            parts: object.num_parts,
            etag: object.stored.etag,
        });
        Ok(RunReport {
            rows: report.num_rows,
            bytes: file.as_ref().map_or(0, |file| file.bytes),
            files: file.into_iter().collect(),
            repaired_values: report.read.repaired_values,
            rows_left_out: report.read.rows_left_out,
            rows_failed: report.read.rows_failed,
        })
    }
}

/// What is known before the first row is read.
struct Prepared {
    query: PlannedQuery,
    object: S3Object,
    spec: ObjectSpec,
    /// Whether an object lies under the key already.
    replaces: bool,
}

/// Plans the query and the object. Nothing is written yet.
async fn prepare(
    transport: &Transport,
    export: &ExportConfig,
    identity: &RunIdentity,
    context: &RunContext,
) -> Result<Prepared> {
    abort_leftovers(export, identity, context).await?;
    if identity.attempt > 1 {
        let earlier = query_id_prefix(identity);
        if let Err(error) = control::kill_all(transport, &earlier).await {
            tracing::warn!(error = ?error, query_ids = earlier, "the earlier attempts' queries could not be killed");
        }
    }
    let query_id = query_id(identity);
    let query = PlannedQuery::prepare(transport, export, &identity.interval, &query_id).await?;
    let (client, mut spec) = destination(export, identity).await?;
    let found = find_existing(&client, &spec.bucket, &spec.key, &context.stop, &context.progress).await?;
    if export.destination.key_layout == KeyLayout::Reference {
        found.require_replaceable(&spec.owner, &spec.uri())?;
    }
    // What lies there now may only change by us: an attempt that a successor has overtaken is refused by the store.
    spec.precondition = found.precondition();
    let object = S3Object::new(client, spec.clone(), context.stop.clone(), Arc::clone(&context.progress));
    Ok(Prepared { query, object, spec, replaces: matches!(found, Existing::Object(_)) })
}

/// The store and the object that a run makes there, without a precondition.
async fn destination(export: &ExportConfig, identity: &RunIdentity) -> Result<(S3Client, ObjectSpec)> {
    let destination = &export.destination;
    let client = S3Client::connect(&destination.connection).await?;
    let table = export.source.model.table_name();
    let key =
        object_key(&destination.prefix, destination.key_layout, &export.id, table, &identity.interval, export.output)?;
    let spec = ObjectSpec::new(destination, key, export.output, Ownership::new(&export.id, identity));
    Ok((client, spec))
}

/// Aborts what earlier attempts left open, before anything else. If one still lives, unheard, it can't publish any more.
/// What can't be aborted stays on the list, and the run goes on.
async fn abort_leftovers(export: &ExportConfig, identity: &RunIdentity, context: &RunContext) -> Result<()> {
    let leftovers = context.progress.open_uploads().borrow().clone();
    if leftovers.is_empty() {
        return Ok(());
    }
    let (client, spec) = destination(export, identity).await?;
    let uri = spec.uri();
    for upload_id in leftovers {
        let (stop, progress) = (context.stop.clone(), Arc::clone(&context.progress));
        let object = S3Object::new(client.clone(), spec.clone(), stop, progress).with_upload(&upload_id);
        match object.abort_upload().await {
            Ok(Aborted::Nothing | Aborted::Done) => tracing::info!(uri, "an earlier attempt's upload is aborted"),
            Ok(Aborted::Denied(upload_id)) => {
                tracing::warn!(uri, upload_id, "the credentials may not abort an earlier attempt's upload");
            }
            Err(error) => tracing::warn!(uri, ?error, "an earlier attempt's upload could not be aborted yet"),
        }
    }
    Ok(())
}

/// Aborts what is still open of a run that is over: uploads to its key that were opened while it ran.
///
/// # Errors
/// Those of [`orphans::abort_orphans`](crate::sink::orphans::abort_orphans), and of the connection.
pub async fn clean_up(export: &ExportConfig, identity: &RunIdentity, ran: &Range<Timestamp>) -> Result<Orphans> {
    let (client, spec) = destination(export, identity).await?;
    abort_orphans(&client, &spec.bucket, &spec.key, ran).await
}

/// The id by which ClickHouse knows an attempt's query: a successor can kill it without having heard of it.
fn query_id(identity: &RunIdentity) -> String {
    format!("{}{}", query_id_prefix(identity), identity.attempt)
}

/// What the queries of all attempts of one execution begin with.
fn query_id_prefix(identity: &RunIdentity) -> String {
    format!("batch-export-{}-{}-", identity.run_id, identity.execution_id)
}

async fn unless_stopped<T>(stop: &Stop, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        error = stop.stopped() => Err(error),
        result = work => result,
    }
}
