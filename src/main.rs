//! `batch-export`: ClickHouse windows to S3, by Temporal or by hand.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use indicatif::MultiProgress;

mod allocator;
mod cli;
mod commands;
mod configuration;
mod exit;
mod job_queue;
mod logging;
mod metrics;
mod output;
mod progress;
mod status;
mod temporal;
mod worker;

use cli::{Cli, Command, RunsCommand};
use exit::{Exit, Failure};
use output::Output;

/// What a command gets from the process.
#[derive(Debug)]
struct Process {
    /// The environment's variables; nothing else reads the environment.
    variables: BTreeMap<String, String>,
    /// Where data goes.
    output: Output,
    /// The lines that are redrawn on a terminal.
    bars: MultiProgress,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_usage(&error),
    };
    let output = Output::new(cli.global.output);
    let bars = MultiProgress::new();
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let process = Process { variables, output, bars };
    let outcome = logging::init(&cli.global, &process).and_then(|()| dispatch(cli.command, &process));
    match outcome {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}

fn dispatch(command: Command, process: &Process) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(anyhow::Error::from)?;
    runtime.block_on(async {
        match command {
            Command::Run(arguments) => commands::run::run(&arguments, process).await,
            Command::Check(arguments) => commands::check::run(&arguments, process).await,
            Command::Runs(RunsCommand::List(arguments)) => commands::runs::list(&arguments, process).await,
            Command::Runs(RunsCommand::Start(arguments)) => commands::start::run(&arguments, process).await,
            Command::Jobs(arguments) => commands::jobs::run(&arguments, process).await,
            Command::Worker(arguments) => commands::worker::run(arguments, process).await,
        }
    })
}

/// Help and versions are data; everything else that clap says is a usage error.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return if error.print().is_ok() { Exit::Ok.into() } else { Exit::Other.into() };
    }
    let output = Output::new(output::format_of(std::env::args_os()));
    if output.is_text() {
        // There is nowhere left to say that stderr is closed.
        drop(error.print());
    } else {
        let message = error.render().to_string();
        let message = message.trim().trim_start_matches("error: ").to_owned();
        output.failure(&Failure::new(Exit::Usage, "Usage", message));
    }
    Exit::Usage.into()
}
