//! Jobs that nobody would take when the process ended, in a file until it starts again.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::batches::first_batch;
use crate::job::{Job, JobId};
use crate::provider::Durability;
use crate::queue::{Queue, QueueError};

/// The ending of files that hold jobs, one as JSON a line.
const ENDING: &str = "jsonl";

/// A folder of this machine, for jobs without a place.
#[derive(Debug, Clone)]
pub struct Spool {
    folder: PathBuf,
}

/// Why jobs could not be written to a file, or brought back from one.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file.
    #[error("{path}: {source}; {jobs} jobs are in memory only")]
    Write {
        /// Where it should have been.
        path: PathBuf,
        /// How many jobs there are.
        jobs: usize,
        /// Why not.
        source: io::Error,
    },
    /// A file that is there.
    #[error("{path} can't be read: {source}")]
    Read {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody takes its jobs yet. The file stays.
    #[error("{path} keeps its jobs: {source}")]
    Refused {
        /// Where they are.
        path: PathBuf,
        /// Why not.
        source: QueueError,
    },
}

impl Spool {
    /// A spool in `folder`, which need not exist.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Writes jobs to a new file that is on the disk when this returns.
    ///
    /// # Errors
    /// When it can't be written; nothing of it is left then.
    pub async fn write(&self, jobs: &[Job]) -> Result<(), SpoolError> {
        let (folder, num_jobs) = (self.folder.clone(), jobs.len());
        let path = folder.join(format!("{}.{ENDING}", JobId::new()));
        let failed = |source| SpoolError::Write { path: path.clone(), jobs: num_jobs, source };
        let text = lines(jobs).map_err(failed)?;
        let target = path.clone();
        tokio::task::spawn_blocking(move || write_synced(&folder, &target, &text))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(failed)?;
        tracing::warn!(path = %path.display(), jobs = num_jobs, "no provider takes the jobs in memory, so they are kept in this file");
        Ok(())
    }

    /// Brings the jobs of all files back into the queue, batch by batch; returns how many. Lines that are no jobs stay in a file
    /// beside.
    ///
    /// # Errors
    /// When a file can't be read or nobody takes its jobs. What was brought back before is gone from the files.
    pub async fn replay(&self, queue: &Queue) -> Result<usize, SpoolError> {
        let mut num_jobs = 0;
        for path in self.files()? {
            let jobs = self.read(&path).map_err(|source| SpoolError::Read { path: path.clone(), source })?;
            let mut rest = jobs.as_slice();
            while !rest.is_empty() {
                let batch = first_batch(rest);
                let taken = queue.enqueue(batch, Durability::Persistent).await;
                taken.map_err(|source| SpoolError::Refused { path: path.clone(), source })?;
                rest = &rest[batch.len()..];
                num_jobs += batch.len();
                // So that a process that ends now brings back once what it has brought back.
                self.leave(&path, rest).map_err(|source| SpoolError::Read { path: path.clone(), source })?;
            }
        }
        Ok(num_jobs)
    }

    /// The jobs of a file, which is gone when there are none.
    fn read(&self, path: &Path) -> io::Result<Vec<Job>> {
        let text = std::fs::read_to_string(path)?;
        let (mut jobs, mut broken) = (Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str::<Job>(line) {
                Ok(job) if job.check().is_ok() => jobs.push(job),
                _ => broken.push(line),
            }
        }
        if !broken.is_empty() {
            let beside = path.with_extension("corrupt");
            tracing::error!(path = %beside.display(), lines = broken.len(), "these lines are no jobs; they are kept there");
            write_synced(&self.folder, &beside, broken.join("\n").as_bytes())?;
        }
        if !broken.is_empty() || jobs.is_empty() {
            self.leave(path, &jobs)?;
        }
        Ok(jobs)
    }

    /// Leaves these jobs in a file, and no others.
    fn leave(&self, path: &Path, jobs: &[Job]) -> io::Result<()> {
        if jobs.is_empty() { std::fs::remove_file(path) } else { write_synced(&self.folder, path, &lines(jobs)?) }
    }

    fn files(&self) -> Result<Vec<PathBuf>, SpoolError> {
        let failed = |source| SpoolError::Read { path: self.folder.clone(), source };
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let paths =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut files = paths
            .into_iter()
            .filter(|path| path.extension().is_some_and(|ending| ending == ENDING))
            .collect::<Vec<_>>();
        files.sort_unstable();
        Ok(files)
    }
}

/// Jobs as JSON, one a line.
fn lines(jobs: &[Job]) -> io::Result<Vec<u8>> {
    let lines = jobs.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(lines.join("\n").into_bytes())
}

/// Writes a file that is whole under its name, or not there.
fn write_synced(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let unfinished = path.with_extension("part");
    let written = (|| {
        let mut file = std::fs::File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        // The name is on the disk only with its folder.
        std::fs::File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        // What went wrong before is what counts.
        drop(std::fs::remove_file(&unfinished));
    }
    written
}
