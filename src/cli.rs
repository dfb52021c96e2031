//! What a person can type.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    /// Look at the record of runs.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Run exports for Temporal until told to stop.
    Worker(WorkerArgs),
}

/// Looks at the record of runs.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, the latest first.
    List(RunsListArgs),
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
    #[arg(long, value_name = "FILE", env = "BATCH_EXPORT_CONNECTIONS")]
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
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) config: ExportArgs,
    /// Also find out what the store honors, by small objects under the prefix; needs the permission to delete them.
    #[arg(long)]
    pub(crate) probe: bool,
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
