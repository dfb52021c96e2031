//! The program as a person or a script meets it; none of these tests needs a service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of files that a test makes.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> &Self {
        fs::write(self.0.join(name), text).expect("a file");
        self
    }

    /// Runs the program here, with these variables and no others.
    pub(crate) fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_batch-export"))
            .args(arguments)
            .current_dir(&self.0)
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .expect("the program starts");
        Run::new(&output)
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.run_with(arguments, &[("CLICKHOUSE_URL", "http://127.0.0.1:1")])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    pub(crate) fn error(&self) -> Value {
        let document: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(document["schema_version"], 1);
        document["error"].clone()
    }
}

const GOOD: &str = "
version: 1
name: numbers
interval: hour
source: {model: sql, query: \"SELECT number FROM numbers(3) WHERE now() > {interval_start}\"}
destination: {bucket: exports}
";

const AT: [&str; 2] = ["--interval-end", "2026-01-01"];

#[test]
fn help_and_version_are_data() {
    let folder = Folder::new("help");
    for arguments in [["--help"], ["--version"]] {
        let run = folder.run(&arguments);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{run:?}");
    }
    assert!(folder.run(&["--help"]).stdout.contains("78   the configuration or the query is wrong"));
    for command in ["run", "check", "runs", "worker"] {
        assert_eq!(folder.run(&[command, "--help"]).code, Some(0), "{command}");
    }
}

#[test]
fn wrong_usage_is_2() {
    let folder = Folder::new("usage");
    folder.file("good.yaml", GOOD);
    for arguments in [
        vec![],
        vec!["run"],
        vec!["run", "good.yaml", "--interval-end", "yesterday"],
        vec!["run", "good.yaml", "--interval-end", "2026-01-01", "--interval-start", "2026-01-01"],
        vec!["run", "good.yaml", "--interval-end", "2026-01-01", "--time-limit", "5"],
        vec!["run", "good.yaml", "--interval-end", "2026-01-01", "--log", "a=b=c"],
        vec!["runs", "list", "--status", "Done"],
        vec!["-o", "xml", "check", "good.yaml"],
    ] {
        let run = folder.run(&arguments);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}: {run:?}");
        assert!(!run.stderr.is_empty(), "{arguments:?}");
    }
    let run = folder.run(&["run", "--nope", "-o", "json"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(2), ""), "{run:?}");
    assert_eq!(run.error()["kind"], "Usage");
}

#[test]
fn what_is_named_and_missing_is_3() {
    let folder = Folder::new("missing");
    folder.file("good.yaml", GOOD);
    let cases = [
        (vec!["run", "none.yaml", AT[0], AT[1]], "none.yaml"),
        (vec!["check", "none.yaml"], "none.yaml"),
        (vec!["check", "good.yaml", "--connections", "none.yaml"], "none.yaml"),
        (vec!["runs", "list", "--runs", "none.db"], "none.db"),
    ];
    for (arguments, name) in cases {
        let run = folder.run(&arguments);
        assert_eq!((run.code, run.stdout.as_str()), (Some(3), ""), "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(name), "{run:?}");
    }
    let run = folder.run(&["-o", "jsonl", "check", "none.yaml"]);
    assert_eq!(run.stdout.lines().count(), 1, "{run:?}");
    assert_eq!(run.error()["exit_code"], 3);
}

#[test]
fn a_bad_configuration_is_78_with_every_fault_under_a_caret() {
    let folder = Folder::new("config");
    folder.file("bad.yaml", &GOOD.replace("hour", "hourly").replace("bucket: exports", "buckets: exports"));
    let run = folder.run(&["run", "bad.yaml", AT[0], AT[1]]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(78), ""), "{run:?}");
    for part in ["--> bad.yaml:4:11", "          ^^^^^^", "did you mean bucket?", "destination.bucket: is missing"] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    let run = folder.run(&["-o", "json", "run", "bad.yaml", AT[0], AT[1]]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(78), ""), "{run:?}");
    let error = run.error();
    assert_eq!((&error["kind"], &error["retryable"]), (&"Config".into(), &false.into()));
    let paths = error["faults"].as_array().expect("faults").iter().map(|fault| fault["path"].clone());
    assert!(paths.collect::<Vec<_>>().contains(&"interval".into()), "{error}");
}

#[test]
fn secrets_of_a_configuration_are_never_shown() {
    let folder = Folder::new("secrets");
    folder.file("good.yaml", GOOD);
    folder.file(
        "connections.yaml",
        "version: 1\nclickhouse:\n  a: {url: 'https://u:hunter2@h'}\n  b: {url: 'https://h', password: hunter2}\n",
    );
    for format in ["text", "json"] {
        let run = folder.run(&["-o", format, "check", "good.yaml"]);
        assert_eq!(run.code, Some(78), "{run:?}");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
        assert!(format!("{run:?}").contains("password_file"), "{run:?}");
    }
}

#[test]
fn a_source_that_can_not_be_reached_is_5_and_the_summary_says_so() {
    let folder = Folder::new("unreachable");
    folder.file("good.yaml", GOOD);
    let run =
        folder.run(&["-o", "json", "run", "good.yaml", AT[0], AT[1], "--summary-file", "s.json", "--runs", "r.db"]);
    assert_eq!(run.code, Some(5), "{run:?}");
    let error = run.error();
    assert_eq!((&error["kind"], &error["retryable"]), (&"SourceUnavailable".into(), &true.into()));
    let summary = fs::read_to_string(folder.0.join("s.json")).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!(summary["run"]["status"], "FailedRetryable");
    assert_eq!(summary["run"]["interval"]["start"], "2025-12-31T23:00:00Z");
    assert_eq!(summary["error"], error);

    let run = folder.run(&["runs", "list", "--runs", "r.db"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("FailedRetryable") && run.stdout.contains("SourceUnavailable: "), "{run:?}");
    let run = folder.run(&["-o", "json", "runs", "list", "--runs", "r.db", "--status", "completed"]);
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(document["runs"], Value::Array(Vec::new()));
}
