use super::*;
use crate::record::RunFile;

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

fn record(run_id: &str, status: RunStatus) -> RunRecord {
    RunRecord {
        run_id: run_id.to_owned(),
        export_id: "orders".to_owned(),
        workflow_id: Some("orders-2026-01-01T01:00:00Z".to_owned()),
        interval_start: at("2026-01-01T00:00:00Z"),
        interval_end: at("2026-01-01T01:00:00Z"),
        status,
        attempt: 0,
        rows: 0,
        bytes: 0,
        files: Vec::new(),
        error_kind: None,
        error: None,
        started_at: at("2026-01-01T01:00:01Z"),
        finished_at: None,
    }
}

fn finished(run_id: &str) -> RunRecord {
    RunRecord {
        attempt: 2,
        rows: 1_000,
        bytes: 4_096,
        files: vec![RunFile {
            bucket: "lake".to_owned(),
            key: "orders/a.parquet".to_owned(),
            rows: 1_000,
            bytes: 4_096,
        }],
        finished_at: Some(at("2026-01-01T01:02:03.5Z")),
        ..record(run_id, RunStatus::Completed)
    }
}

async fn temporary() -> (tempfile::TempDir, RunStore) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = RunStore::open(folder.path().join("runs.db")).await.expect("a store");
    (folder, store)
}

async fn all(store: &RunStore) -> Vec<RunRecord> {
    store.list(&RunFilter { limit: Some(1_000), ..RunFilter::default() }).await.expect("a list")
}

#[tokio::test]
async fn a_finish_without_a_start_is_the_whole_record() {
    let (_folder, store) = temporary().await;
    store.finish(&finished("a")).await.expect("a write");
    assert_eq!(all(&store).await, [finished("a")]);
}

#[tokio::test]
async fn an_end_replaces_its_start_and_a_late_start_does_not_replace_its_end() {
    let (_folder, store) = temporary().await;
    store.start(&record("a", RunStatus::Starting)).await.expect("a write");
    store.start(&RunRecord { attempt: 1, ..record("a", RunStatus::Running) }).await.expect("a write");
    assert_eq!(all(&store).await[0].status, RunStatus::Running);
    store.start(&record("a", RunStatus::Starting)).await.expect("a late write");
    assert_eq!(all(&store).await[0].status, RunStatus::Running);

    store.finish(&finished("a")).await.expect("a write");
    store.start(&RunRecord { attempt: 3, ..record("a", RunStatus::Running) }).await.expect("a zombie's write");
    assert_eq!(all(&store).await, [finished("a")]);
}

#[tokio::test]
async fn a_later_execution_of_the_same_run_replaces_an_earlier_one_and_never_the_other_way() {
    let (_folder, store) = temporary().await;
    let again = RunRecord { started_at: at("2026-01-02T00:00:00Z"), ..record("a", RunStatus::Starting) };
    store.finish(&finished("a")).await.expect("a write");
    store.start(&again).await.expect("a write");
    assert_eq!(all(&store).await, std::slice::from_ref(&again));
    store.finish(&finished("a")).await.expect("the earlier execution's late end");
    assert_eq!(all(&store).await, [again]);
}

#[tokio::test]
async fn lists_the_latest_first_and_filters() {
    let (_folder, store) = temporary().await;
    for hour in 0..5_u32 {
        let mut run = finished(&format!("run-{hour}"));
        run.started_at = at(&format!("2026-01-01T0{hour}:00:00Z"));
        if hour % 2 == 1 {
            run.export_id = "users".to_owned();
            run.status = RunStatus::Failed;
            run.error_kind = Some("Config".to_owned());
            run.error = Some("no such\0 column".to_owned());
        }
        store.finish(&run).await.expect("a write");
    }
    let ids = async |filter: RunFilter| -> Vec<String> {
        store.list(&filter).await.expect("a list").into_iter().map(|run| run.run_id).collect()
    };
    assert_eq!(ids(RunFilter { limit: Some(2), ..RunFilter::default() }).await, ["run-4", "run-3"]);
    assert_eq!(
        ids(RunFilter { export_id: Some("users".to_owned()), ..RunFilter::default() }).await,
        ["run-3", "run-1"]
    );
    assert_eq!(ids(RunFilter { status: Some(RunStatus::Failed), ..RunFilter::default() }).await, ["run-3", "run-1"]);
    let since = Some(at("2026-01-01T03:00:00Z"));
    assert_eq!(ids(RunFilter { since, ..RunFilter::default() }).await, ["run-4", "run-3"]);
    assert_eq!(all(&store).await[1].error.as_deref(), Some("no such column"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_create_and_write_one_file_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("runs.db");
    let writers = (0..4).map(|writer| {
        let path = path.clone();
        tokio::spawn(async move {
            let store = RunStore::open(&path).await.expect("a store of its own");
            for run in 0..25 {
                let id = format!("{writer}-{run}");
                store.start(&record(&id, RunStatus::Starting)).await.expect("a write");
                store.finish(&finished(&id)).await.expect("a write");
            }
            store.close().await;
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let store = RunStore::open(&path).await.expect("a reader");
    let runs = all(&store).await;
    assert_eq!(runs.len(), 100);
    assert!(runs.iter().all(|run| run.status == RunStatus::Completed));
}

#[tokio::test]
async fn says_which_file_cannot_be_opened() {
    let error = RunStore::open("/no/such/folder/runs.db").await.expect_err("no folder");
    assert_eq!(error.to_string(), "open the run database /no/such/folder/runs.db");
}

#[tokio::test]
async fn the_most_rows_that_an_attempt_saw_are_kept_until_something_is_published() {
    let (_folder, store) = temporary().await;
    let seen = async |selection| store.rows_seen("a", selection).await.expect("a read");
    assert_eq!(seen("one").await, 0);
    store.saw("a", "one", 1_500).await.expect("a write");
    store.saw("a", "one", 700).await.expect("a write");
    assert_eq!((seen("one").await, seen("other").await), (1_500, 0));
    store.published("a", "one", 900).await.expect("a write");
    assert_eq!(seen("one").await, 900);
    store.saw("a", "other", 20).await.expect("a write");
    assert_eq!((seen("one").await, seen("other").await), (0, 20));
    store.start(&record("a", RunStatus::Running)).await.expect("a write");
    store.finish(&finished("a")).await.expect("a write");
    assert_eq!(seen("other").await, 20);
}
