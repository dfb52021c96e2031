//! What the pages show is true today.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use engine::config::connections::{Connections, Surroundings};
use engine::config::load;
use engine::config::output::Output;

use crate::cli::Folder;

const README: &str = include_str!("../../README.md");

/// The code blocks of a language, in order.
fn blocks(language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    README
        .split(&opening)
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block.to_owned())
        .collect()
}

fn variables() -> BTreeMap<String, String> {
    ["CLICKHOUSE_PASSWORD", "LAKE_KEY", "LAKE_SECRET", "CLICKHOUSE_USER", "CLICKHOUSE_URL", "AWS_ACCESS_KEY_ID"]
        .into_iter()
        .chain(["AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "CLICKHOUSE_DATABASE"])
        .map(|name| (name.to_owned(), if name.contains("URL") { "http://127.0.0.1:1" } else { "value" }.to_owned()))
        .collect()
}

fn root(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn connections(name: &str, text: &str) -> Connections {
    let variables = variables();
    let surroundings = Surroundings { variables: &variables, read_file: &|path: &Path| std::fs::read_to_string(path) };
    load::connections(name, text, surroundings).unwrap_or_else(|faults| panic!("{faults}"))
}

fn load_export(name: &str, text: &str, connections: &Connections) -> String {
    let variables = variables();
    let surroundings = Surroundings { variables: &variables, read_file: &|path: &Path| std::fs::read_to_string(path) };
    let export = load::export(name, text, connections, 2, surroundings).unwrap_or_else(|faults| panic!("{faults}"));
    export.config.id
}

#[test]
fn the_readmes_configuration_is_valid() {
    let yaml = blocks("yaml");
    let [export, named] = yaml.as_slice() else { panic!("{} blocks of YAML", yaml.len()) };
    let connections = connections("connections.yaml", named);
    assert_eq!(load_export("README.md", export, &connections), "product-events");
    for output in Output::ALL {
        let codec = output.codec_name().unwrap_or("none");
        assert!(export.contains(codec), "the README doesn't name {codec}");
    }
}

#[test]
fn the_examples_are_valid() {
    let text = |name: &str| std::fs::read_to_string(root(name)).expect("an example");
    let connections = connections("connections.yaml", &text("examples/connections.yaml"));
    let mut found = 0;
    for entry in std::fs::read_dir(root("examples")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        if name.ends_with(".yaml") && name != "connections.yaml" {
            load_export(&name, &text(&format!("examples/{name}")), &connections);
            found += 1;
        }
    }
    assert!(found >= 2, "{found} examples");
}

/// Every option and command that the README names exists.
#[test]
fn the_readmes_commands_exist() {
    let help = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_batch-export")).args(arguments).output().expect("starts");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    for command in ["run", "check", "worker"] {
        assert!(README.contains(&format!("batch-export {command}")), "the README doesn't show {command}");
        assert!(help(&["--help"]).contains(command));
    }
    assert!(help(&["worker", "--help"]).contains("--status-address"));
    assert!(help(&["run", "--help"]).contains("--error-on-empty"));
    let codes = help(&["--help"]);
    for code in ["0", "1", "2", "3", "5", "7", "9", "10", "78", "130"] {
        assert!(codes.lines().any(|line| line.trim_start().starts_with(&format!("{code} "))), "{code}");
        assert!(README.contains(&format!(" {code} ")), "the README doesn't name exit code {code}");
    }
}

#[test]
fn the_readmes_targets_exist() {
    let makefile = std::fs::read_to_string(root("Makefile")).expect("a Makefile");
    for target in ["demo", "demo-down", "test", "bench"] {
        assert!(README.contains(&format!("make {target}")));
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
    }
}

/// Fails unless the file at `path` is `page`; `BATCH_EXPORT_WRITE_DOCS=1` writes it anew.
pub(crate) fn assert_page(path: &str, page: &str) {
    if std::env::var_os("BATCH_EXPORT_WRITE_DOCS").is_some() {
        std::fs::write(root(path), page).expect("can be written");
    }
    assert_eq!(std::fs::read_to_string(root(path)).unwrap_or_default(), page, "{path} is not what the code says");
}

const JOBS: &str = include_str!("../../docs/jobs.md");

fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let opening = format!("```{language}\n");
    page.split_once(&opening).and_then(|(_, rest)| rest.split_once("```")).expect("a block").0
}

/// The file is read to its end: what fails then is the address that leads nowhere.
#[test]
fn the_configuration_of_jobs_is_valid() {
    let folder = Folder::new("docs-jobs");
    let yaml = block(JOBS, "yaml").replace("/var/lib/batch-export/", "");
    let connections = "version: 1\nclickhouse: {warehouse: {url: \"http://127.0.0.1:1\"}}\ns3: {lake: {region: x}}\n";
    let plugin = "export const processEvent = (event) => event";
    folder.file("jobs.yaml", &yaml).file("connections.yaml", connections).file("robots.js", plugin);
    let variables = [
        ("JOBS_DATABASE_URL", "postgres://u:p@127.0.0.1:1/d"),
        ("OPS_WEBHOOK_URL", "https://ops.example.com/hook"),
        ("OPS_WEBHOOK_SECRET", "a secret"),
    ];
    let run = folder.run_with(&["jobs", "list", "--provider", "files", "--jobs", "jobs.yaml"], &variables);
    assert_eq!((run.code, run.stdout.trim()), (Some(0), "no jobs wait"), "{run:?}");
}

#[test]
fn the_commands_for_jobs_work() {
    let folder = Folder::new("docs-commands");
    let mut id = String::new();
    let mut done = 0;
    for line in block(JOBS, "console").lines() {
        let line = line.strip_prefix("$ batch-export ").expect("a command").replace("JOB", &id);
        let words = shell_words(&line);
        let run = folder.run_with(&words.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        assert_eq!(run.code, Some(0), "{line}: {run:?}");
        // Ids ascend: the new one of a job that is tried again is the greatest.
        if words[1] == "enqueue" || words[1] == "retry" {
            let ids = run.stdout.split_whitespace().filter(|word| word.len() == 36);
            id = ids.max().expect("an id").to_owned();
        }
        done += 1;
    }
    assert!(done >= 7, "{done} commands");
}

/// Words of a line, as a shell sees single and double quotes.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for character in line.chars() {
        match (character, quote) {
            (' ', None) => words.push(String::new()),
            (_, Some(end)) if character == end => quote = None,
            ('\'' | '"', None) => quote = Some(character),
            _ => words.last_mut().expect("a word").push(character),
        }
    }
    words
}
