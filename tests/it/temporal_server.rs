//! A Temporal server of a test's own, to be stopped and started.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::bench::{free_address, temporal_program, until};

/// The server; what it knows survives a stop.
pub(crate) struct TemporalServer {
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    folder: TempDir,
    process: Option<Child>,
}

impl TemporalServer {
    /// Not started yet.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { address: free_address().to_string(), folder, process: None }
    }

    /// Starts it and waits until it answers.
    pub(crate) fn start(&mut self) {
        let (host, port) = self.address.split_once(':').expect("host and port");
        let database = self.folder.path().join("temporal.db");
        let mut command = Command::new(temporal_program());
        command.args(["server", "start-dev", "--headless", "--log-level", "never", "--ip", host, "--port", port]);
        command.arg("--db-filename").arg(database).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("a server"));
        until("the server listens", || TcpStream::connect(&self.address).ok());
        let health = ["operator", "cluster", "health", "--address", &self.address];
        until("the server serves", || {
            let output = Command::new(temporal_program()).args(health).output().expect("the temporal command line");
            output.status.success().then_some(())
        });
    }

    /// Ends it at once.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("is ours");
            process.wait().expect("an end");
        }
    }
}

impl Drop for TemporalServer {
    fn drop(&mut self) {
        self.stop();
    }
}
