//! A database and an S3 service of one test's own, which it may stop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::services::required;

/// Services that end with the value.
pub(crate) struct OwnServices {
    name: String,
    variables: BTreeMap<String, String>,
}

impl OwnServices {
    /// Starts these services, as `dev/services.py` calls them.
    pub(crate) fn start(services: &[&str]) -> Self {
        end_orphans();
        let name = format!("{PREFIX}{}-{}", std::process::id(), uuid::Uuid::new_v4().simple());
        let mut own = Self { name, variables: BTreeMap::new() };
        own.run("up", services);
        let file = instances().join(&own.name).join("env");
        let env = std::fs::read_to_string(file).expect("services have variables");
        let variables = env.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
        own.variables = variables.map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned())).collect();
        own
    }

    pub(crate) fn stop_one(&self, service: &str) {
        self.run("down", &[service]);
    }

    pub(crate) fn start_one(&self, service: &str) {
        self.run("up", &[service]);
    }

    pub(crate) fn variable(&self, name: &str) -> &str {
        self.variables.get(name).unwrap_or_else(|| panic!("services have no {name}"))
    }

    fn run(&self, action: &str, services: &[&str]) {
        let mut command = program(action, &self.name);
        command.args(services.iter().flat_map(|service| ["--only", service]));
        // Those that the environment knows are shared, and never stopped.
        for name in ["BATCH_EXPORT_TEST_POSTGRES_URL", "AWS_ENDPOINT_URL_S3"] {
            command.env_remove(name);
        }
        let output = command.output().expect("Python starts");
        assert!(output.status.success(), "{action} {services:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What our instances' names begin with; the id of the process that started them comes next.
const PREFIX: &str = "it-";

/// Where instances are.
fn instances() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".dev/run")
}

fn program(action: &str, instance: &str) -> Command {
    let mut command = Command::new(required("BATCH_EXPORT_PYTHON"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("dev/services.py")).args([action, "--name", instance]);
    command
}

fn end(instance: &str) {
    // Nothing more can be done about what doesn't end.
    drop(program("down", instance).arg("--delete").output());
}

/// Ends what tests left behind that were killed.
fn end_orphans() {
    let Ok(folders) = std::fs::read_dir(instances()) else { return };
    for name in folders.filter_map(|folder| folder.ok()?.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(process, _)| process);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            end(&name);
        }
    }
}

impl Drop for OwnServices {
    fn drop(&mut self) {
        end(&self.name);
    }
}
