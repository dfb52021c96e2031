//! Plugins on exports: by the worker, by `run` and by `check`.

use serde_json::{Value, json};

use crate::bench::{Bench, until};
use crate::cli::{Folder, Run};
use crate::commands::environment;
use crate::exports::STORES;
use crate::job_queue::parsed;
use crate::services::Bucket;

const PLUGIN: &str = "
export const jobs = {
  async tell({ last }) { console.log('the last was', last) },
};

export async function processEvent(event, meta) {
  if (event.id % 2 === 1) return null;
  if (event.id === meta.config.last) await meta.jobs.tell({ last: event.id }).runNow();
  if (event.id === meta.config.bad) event.id = 'none';
  return { ...event, text: meta.config.prefix + event.id };
}
";

const PLUGINS: &str =
    "plugins:\n  - name: halver\n    file: halver.js\n    config: {prefix: \"${PREFIX}\", last: 998, bad: 500}\n";

fn lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn a_worker_sends_rows_through_a_plugin_and_does_its_jobs() {
    let mut bench = Bench::without_worker(vec![("PREFIX", "row ".to_owned())]).await;
    std::fs::write(bench.file("halver.js"), PLUGIN).expect("a file");
    bench.write_jobs(PLUGINS);
    bench.start_worker();
    bench.start(&bench.input(1_000, json!({"plugin": {"name": "halver", "on_error": "drop_row"}})));
    let (status, described) = bench.end();
    assert_eq!(status, "COMPLETED", "{described}");
    let key = bench.bucket.keys().await.remove(0);
    let rows = lines(&bench.bucket.bytes(&key).await);
    let kept = (0..1_000).filter(|id| id % 2 == 0 && *id != 500);
    let expected = kept.map(|id| json!({"id": id, "at": "2026-01-01T00:00:00.000000Z", "text": format!("row {id}")}));
    assert_eq!(rows, expected.collect::<Vec<_>>());
    let shown = bench.temporal(&["workflow", "result", "--workflow-id", &bench.name, "--output", "json"]);
    let result = &serde_json::from_str::<Value>(&shown).expect("JSON")["result"];
    assert_eq!(
        (&result["records_completed"], &result["rows_left_out"], &result["rows_failed"]),
        (&json!(499), &json!(501), &json!(1))
    );
    until("the plugin's job is done", || bench.log().contains("the last was 998").then_some(()));
    assert!(
        bench.log().contains("row 501: the column `id` (UInt64) must be a whole number, not text"),
        "{}",
        bench.log()
    );

    let unknown = format!("{}-unknown", bench.name);
    bench.start_as(&unknown, &bench.input(1_000, json!({"plugin": {"name": "doubler"}})));
    let (status, described) = bench.end_of(&unknown);
    assert_eq!(status, "FAILED", "{described}");
    assert!(
        bench.log().contains("the plugin `doubler`, which this process doesn't have; it has halver"),
        "{}",
        bench.log()
    );
    assert!(bench.end_worker("TERM").success(), "{}", bench.log());
}

struct Desk {
    folder: Folder,
    bucket: Bucket,
}

impl Desk {
    async fn new(test: &str, plugin: &str) -> Self {
        let (folder, bucket) = (Folder::new(test), Bucket::fresh(STORES[0]).await);
        folder
            .file("halver.js", PLUGIN)
            .file("jobs.yaml", &format!("version: 1\nproviders: [{{type: files}}]\n{PLUGINS}"));
        folder.file(
            "export.yaml",
            &format!(
                "version: 1\nname: {test}\ninterval: day\nsource:\n  query: \"SELECT number AS id, '' AS text FROM numbers(1000) \
                 WHERE now() > {{interval_end}} ORDER BY id\"\ndestination: {{bucket: {}}}\nplugin: {plugin}\n",
                bucket.name
            ),
        );
        Self { folder, bucket }
    }

    fn program(&self, arguments: &[&str]) -> Run {
        let environment = environment();
        let variables = environment.iter().map(|(name, value)| (*name, value.as_str())).chain([("PREFIX", "s3cret ")]);
        self.folder.run_with(arguments, &variables.collect::<Vec<_>>())
    }

    fn run(&self, more: &[&str]) -> Run {
        self.program(&[&["run", "export.yaml", "--interval-end", "2026-01-02", "-o", "json"], more].concat())
    }
}

#[tokio::test]
async fn a_row_that_a_plugin_spoils_fails_the_run_and_is_named() {
    let desk = Desk::new("spoils", "{name: halver}").await;
    let failed = desk.run(&["--jobs", "jobs.yaml"]);
    assert_eq!(failed.code, Some(7), "{failed:?}");
    let message = failed.error()["message"].as_str().expect("a sentence").to_owned();
    assert_eq!(message, "row 501: the column `id` (UInt64) must be a whole number, not text");
    assert_eq!(desk.bucket.keys().await, [""; 0]);
    assert_eq!(desk.bucket.uploads().await, [""; 0]);
}

#[tokio::test]
async fn a_run_by_hand_leaves_the_plugins_jobs_to_workers() {
    let desk = Desk::new("by-hand", "{name: halver, on_error: pass_row}").await;
    let done = parsed(&desk.run(&["--jobs", "jobs.yaml"]));
    let run = &done["run"];
    assert_eq!((&run["rows"], &run["rows_left_out"], &run["rows_failed"]), (&json!(500), &json!(500), &json!(1)));
    let rows = lines(&desk.bucket.bytes(&desk.bucket.keys().await[0]).await);
    assert_eq!((&rows[249]["text"], &rows[250]["text"]), (&json!("s3cret 498"), &json!("")), "as it was");
    let waiting = parsed(&desk.program(&["jobs", "list", "--jobs", "jobs.yaml", "-o", "json"]));
    assert_eq!(
        (&waiting["jobs"][0]["name"], &waiting["jobs"][0]["payload"]),
        (&json!("plugin:halver:tell"), &json!({"last": 998}))
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_plugin_is_said_before_a_row_is_read() {
    let desk = Desk::new("wrong", "{name: halver, on_error: fail_run}").await;
    let checked = desk.program(&["check", "export.yaml", "--jobs", "jobs.yaml"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains("ok       plugin: `halver` sees each row"), "{checked:?}");
    for command in [&["check", "export.yaml"][..], &["run", "export.yaml", "--interval-end", "2026-01-02"]] {
        let unknown = desk.program(command);
        assert_eq!(unknown.code, Some(78), "{unknown:?}");
        let all = format!("{}{}", unknown.stdout, unknown.stderr);
        assert!(all.contains("asks for the plugin `halver`, which this process doesn't have; it has none"), "{all}");
    }
    for (source, sentence) in [
        ("export const jobs = {}", "plugin `halver` exports no `processEvent`"),
        ("export function processEvent(", "plugin `halver`"),
        (
            "export function setupPlugin(meta) { throw new Error('no ' + Object.keys(meta.config)) }",
            "setupPlugin: no bad,last,prefix at setupPlugin (halver.js:1:",
        ),
    ] {
        desk.folder.file("halver.js", source);
        for command in [&["check", "export.yaml"][..], &["run", "export.yaml", "--interval-end", "2026-01-02"]] {
            let wrong = desk.program(&[command, &["--jobs", "jobs.yaml"]].concat());
            let all = format!("{}{}", wrong.stdout, wrong.stderr);
            assert!(wrong.code == Some(78) && all.contains(sentence), "{source}: {wrong:?}");
        }
    }
    desk.folder.file("jobs.yaml", "version: 1\nplugins:\n  - {file: none.js, time_limit: 0s}\n  - {name: \"a b\", file: halver.js, config: 7, memory_limit: 1kB}\n");
    let wrong = desk.program(&["check", "export.yaml", "--jobs", "jobs.yaml"]);
    for part in
        ["plugins[0].name", "can't read none.js", "plugins[0].time_limit", "plugins[1].config", "letters, digits"]
    {
        assert!(wrong.code == Some(78) && wrong.stderr.contains(part), "{part}: {wrong:?}");
    }
}
