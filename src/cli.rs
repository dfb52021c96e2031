//! What a person can type.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jobs::job::JobId;
use jobs::time_unit::TimeUnit;

use crate::commands::worker::WorkerArgs;
use crate::output::Format;

/// Export ClickHouse windows to S3 as Parquet or JSONLines.
#[derive(Debug, Parser)]
#[command(name = "batch-export", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0    done
  1    another failure
  2    wrong usage
  3    a file or record that was named doesn't exist
  5    a temporary failure; a retry may help
  7    a permanent failure: credentials, bucket, table, data
  9    nothing exported (only with --error-on-empty)
  10   the time limit was reached
  78   the configuration or the query is wrong
  130  interrupted

Data goes to stdout and nothing else does; logs and progress go to stderr. With -o json and jsonl a failure is data too:
{\"error\": …} on stdout.";

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// How data is written to stdout.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// How logs are written to stderr; auto is text on a terminal and JSON elsewhere.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", env = "BATCH_EXPORT_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
    /// What is logged, such as info, debug or engine=debug,warn.
    #[arg(long, global = true, value_name = "FILTER", env = "BATCH_EXPORT_LOG", default_value = "info")]
    pub(crate) log: String,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one interval of an export here and now, without Temporal.
    Run(RunArgs),
    /// Connect to source and destination as a run would, and say plainly what is wrong.
    Check(CheckArgs),
    /// Look at the record of runs, and start one.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Look at deferred work, and at what became of it.
    Jobs(JobsCommandArgs),
    /// Run exports for Temporal until told to stop.
    Worker(WorkerArgs),
}

/// Looks at the record of runs, and starts one.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, the latest first.
    List(RunsListArgs),
    /// Start a run on Temporal, by the JSON input of the workflow s3-export.
    Start(RunsStartArgs),
}

/// Where an export is configured.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The export's YAML file.
    #[arg(value_name = "EXPORT.yaml")]
    pub(crate) export: PathBuf,
    #[command(flatten)]
    pub(crate) connections: ConnectionsArgs,
}

/// Where connections are configured.
#[derive(Debug, Args)]
pub(crate) struct ConnectionsArgs {
    /// The YAML file of connections; without it, connections.yaml beside the export, where there is one.
    #[arg(long, global = true, value_name = "FILE", env = "BATCH_EXPORT_CONNECTIONS")]
    pub(crate) connections: Option<PathBuf>,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) config: ExportArgs,
    /// The first instant after the window: RFC 3339, or a date or time in the export's zone.
    #[arg(long, value_name = "TIME")]
    pub(crate) interval_end: String,
    /// The first instant of the window; without it, one interval of the export before its end.
    #[arg(long, value_name = "TIME")]
    pub(crate) interval_start: Option<String>,
    /// Also write the result, success or failure, as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) summary_file: Option<PathBuf>,
    /// Exit with 9 when the window has no rows.
    #[arg(long)]
    pub(crate) error_on_empty: bool,
    /// Stop after this long, such as 30m, and exit with 10.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) time_limit: Option<std::time::Duration>,
    /// Note the run in this database of runs.
    #[arg(long, value_name = "FILE", env = "BATCH_EXPORT_RUNS")]
    pub(crate) runs: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) config: ExportArgs,
    /// Also find out what the store honors, by small objects under the prefix; needs the permission to delete them.
    #[arg(long)]
    pub(crate) probe: bool,
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
}

/// `runs list`.
#[derive(Debug, Args)]
pub(crate) struct RunsListArgs {
    /// The database of runs.
    #[arg(long, value_name = "FILE", env = "BATCH_EXPORT_RUNS", default_value = "batch-export-runs.db")]
    pub(crate) runs: PathBuf,
    /// Only runs of this export.
    #[arg(long, value_name = "NAME")]
    pub(crate) export: Option<String>,
    /// Only runs with this status, such as Completed or Failed.
    #[arg(long)]
    pub(crate) status: Option<runs::RunStatus>,
    /// Only runs that started at or after this time: RFC 3339, or so long ago, such as 30d.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub(crate) since: Option<jiff::Timestamp>,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// `runs start`.
#[derive(Debug, Args)]
pub(crate) struct RunsStartArgs {
    /// The workflow's input, a JSON file; - reads it from stdin.
    #[arg(value_name = "INPUT.json")]
    pub(crate) input: PathBuf,
    /// The first instant after the interval: RFC 3339; without it, the input's data_interval_end.
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub(crate) interval_end: Option<jiff::Timestamp>,
    /// The workflow's id; without it, the export's and the interval's end.
    #[arg(long, value_name = "ID")]
    pub(crate) workflow_id: Option<String>,
    /// The task queue whose workers run it.
    #[arg(long, value_name = "NAME", env = "BATCH_EXPORT_TASK_QUEUE", default_value = workflows::contract::TASK_QUEUE)]
    pub(crate) task_queue: String,
    /// While Temporal is away, keep the request as a job; a worker starts the run as soon as it can.
    #[arg(long)]
    pub(crate) defer: bool,
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
    #[command(flatten)]
    pub(crate) connections: ConnectionsArgs,
}

/// Where jobs are kept, and which plugins there are.
#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    /// The YAML file that says where jobs are kept, and which plugins there are; without it, jobs are in the folder
    /// batch-export-jobs.
    #[arg(long, global = true, value_name = "FILE", env = "BATCH_EXPORT_JOBS")]
    pub(crate) jobs: Option<PathBuf>,
}

/// `jobs`.
#[derive(Debug, Args)]
pub(crate) struct JobsCommandArgs {
    #[command(flatten)]
    pub(crate) jobs: JobsArgs,
    #[command(flatten)]
    pub(crate) connections: ConnectionsArgs,
    #[command(subcommand)]
    pub(crate) command: JobsCommand,
}

/// Looks at deferred work. Jobs in a worker's memory are seen by that worker alone.
#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Tell how every provider stands.
    Status,
    /// List jobs that wait, those first that are due first.
    List(JobsListArgs),
    /// Show one job, waiting or dead.
    Show(JobArgs),
    /// Put a job into the queue.
    Enqueue(EnqueueArgs),
    /// Try jobs again at once: dead ones as new jobs, waiting ones before their time.
    Retry(JobIdsArgs),
    /// Remove jobs that wait, or dead letters.
    Cancel(JobIdsArgs),
    /// Move all waiting jobs of a provider to the others, such as before it is taken out of service.
    Drain(DrainArgs),
    /// List dead letters: jobs that nobody could do.
    Dead(DeadArgs),
}

/// `jobs list`.
#[derive(Debug, Args)]
pub(crate) struct JobsListArgs {
    /// Only jobs of this provider.
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// At most so many of each provider.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// `jobs show`.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The job's id.
    #[arg(value_parser = parse_job_id)]
    pub(crate) id: JobId,
}

/// `jobs retry` and `jobs cancel`.
#[derive(Debug, Args)]
pub(crate) struct JobIdsArgs {
    /// The jobs' ids.
    #[arg(required = true, value_parser = parse_job_id)]
    pub(crate) ids: Vec<JobId>,
}

/// `jobs enqueue`.
#[derive(Debug, Args)]
pub(crate) struct EnqueueArgs {
    /// The job's name, which says who handles it.
    pub(crate) name: String,
    /// Its payload as JSON; - reads it from stdin.
    #[arg(default_value = "null")]
    pub(crate) payload: String,
    /// Run it after so much time, such as "3 minutes" or 90s.
    #[arg(long = "in", value_name = "TIME", conflicts_with = "at", value_parser = parse_later)]
    pub(crate) run_in: Option<jiff::Timestamp>,
    /// Run it at this time: RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub(crate) at: Option<jiff::Timestamp>,
    /// Run it again and again: minute, hour, day, month and day of the week, such as "0 3 * * MON", or @daily.
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["run_in", "at", "key"])]
    pub(crate) cron: Option<String>,
    /// The zone whose clock the pattern means.
    #[arg(long, value_name = "ZONE", default_value = "UTC", requires = "cron")]
    pub(crate) timezone: String,
    /// The same work as other jobs with this key: it takes the place of one that waits.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// What happens to a job with the key that waits already.
    #[arg(long, value_enum, default_value_t, requires = "key")]
    pub(crate) key_mode: KeyModeArg,
    /// One at a time with the other jobs of this queue.
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Before jobs with a larger number.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i16,
    /// Try it so often at most.
    #[arg(long, default_value_t = jobs::job::DEFAULT_MAX_ATTEMPTS)]
    pub(crate) max_attempts: u16,
}

/// See [`jobs::job::KeyMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum KeyModeArg {
    /// The new one takes its place.
    #[default]
    Replace,
    /// The new one takes its place, but for the time at which it runs.
    KeepRunTime,
    /// The new one is dropped.
    Skip,
}

/// `jobs drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The provider to empty.
    #[arg(value_name = "PROVIDER")]
    pub(crate) provider: String,
}

/// `jobs dead`.
#[derive(Debug, Args)]
pub(crate) struct DeadArgs {
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

fn parse_job_id(text: &str) -> Result<JobId, String> {
    JobId::parse(text).ok_or_else(|| "is no id of a job; jobs list and jobs dead show them".to_owned())
}

fn parse_instant(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse().map_err(|_| "is no time; write it as 2026-01-01T00:00:00Z".to_owned())
}

/// `3 minutes`, as plugins say it, or `90s`.
fn parse_later(text: &str) -> Result<jiff::Timestamp, String> {
    let now = jiff::Timestamp::now();
    if let Some((number, unit)) = text.trim().split_once(' ')
        && let Ok(number) = number.parse::<i64>()
    {
        let unit = unit.trim().parse::<TimeUnit>().map_err(|error| error.to_string())?;
        return unit.after(now, number).map_err(|error| error.to_string());
    }
    now.checked_add(parse_duration(text)?).map_err(|_| "is after the end of time".to_owned())
}

fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    let duration = text.parse::<jiff::SignedDuration>().ok().and_then(|duration| duration.try_into().ok());
    duration
        .filter(|duration: &std::time::Duration| !duration.is_zero())
        .ok_or_else(|| "write a duration with its unit, such as 90s, 30m or 2h".to_owned())
}

fn parse_since(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(instant);
    }
    let way_out = || "write a time such as 2026-01-01T00:00:00Z, or a duration such as 36h or 30d".to_owned();
    let span = text.parse::<jiff::Span>().map_err(|_| way_out())?;
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    now.checked_sub(span).map(|since| since.timestamp()).map_err(|_| way_out())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("90s").map(|duration| duration.as_secs()), Ok(90));
        for text in ["90", "0s", "-5m", "soon"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_since("30d").is_ok());
        assert!(parse_since("2026-01-01T00:00:00Z").is_ok());
        assert!(parse_since("yesterday").is_err());
    }
}
