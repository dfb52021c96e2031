//! Logs on stderr, above the lines that are redrawn there.

use std::io::{self, IsTerminal, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::Process;
use crate::cli::{GlobalArgs, LogFormat};
use crate::exit::{Exit, Failure};

/// What is logged of libraries unless somebody asks for more: this one logs the payloads of jobs.
const LIBRARIES: &str = "graphile_worker=error";

/// Starts logging.
pub(crate) fn init(arguments: &GlobalArgs, process: &Process) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(format!("{LIBRARIES},{}", arguments.log)).map_err(|error| {
        let message = format!("--log {}: {error}; write a level such as info or debug", arguments.log);
        Failure::new(Exit::Usage, "Usage", message)
    })?;
    let is_terminal = io::stderr().is_terminal();
    let is_json = match arguments.log_format {
        LogFormat::Auto => !is_terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let has_color = is_terminal && process.variables.get("NO_COLOR").is_none_or(String::is_empty);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_color)
        .with_writer(AboveBars { bars: process.bars.clone() });
    let started = if is_json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    started.map_err(|error| Failure::from(anyhow::anyhow!("start logging: {error}")))
}

/// Writes to stderr without breaking the bars.
#[derive(Debug, Clone)]
struct AboveBars {
    bars: MultiProgress,
}

impl<'a> MakeWriter<'a> for AboveBars {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bars.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
