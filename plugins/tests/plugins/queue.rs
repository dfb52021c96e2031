//! Plugins and the real queue, over files: what a plugin enqueues comes back to it.

use std::sync::Arc;
use std::time::Duration;

use jobs::consumer::Consumer;
use jobs::dead_letter::{DeadLetters, StoredDeadLetters};
use jobs::flow::Flow;
use jobs::handler::{Dispatcher, Failure, Handler as _};
use jobs::job::Job;
use jobs::memory::{Memory, MemoryLimits};
use jobs::observer::NoObserver;
use jobs::provider::Provider;
use jobs::queue::Queue;
use jobs::store::{Store, StoreOptions};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use plugins::handler::PluginJobs;
use plugins::plugin::Plugin;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::log;
use crate::rig::{definition, start, until};

/// A queue at work, and the plugin whose jobs it runs.
struct Rig {
    plugin: Plugin,
    dead: Arc<StoredDeadLetters>,
    stop: CancellationToken,
    consuming: JoinHandle<()>,
    _folder: TempDir,
}

impl Rig {
    /// Files alone, or memory before them.
    async fn start(name: &str, source: &str, has_memory: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
        let options = StoreOptions { poll: Duration::from_millis(20), ..StoreOptions::local() };
        let mut providers: Vec<Arc<dyn Provider>> = vec![Arc::new(Store::new(Arc::new(files), options))];
        if has_memory {
            providers.insert(0, Arc::new(Memory::new(MemoryLimits::default())));
        }
        let queue = Queue::start(providers, Arc::new(NoObserver)).await.expect("starts");
        let plugin = Plugin::start(definition(name, source), Arc::new(queue.clone())).await.expect("starts");
        let dead = Arc::new(StoredDeadLetters::new(Arc::new(InMemory::new()), Path::from("dead")));
        let handler = Arc::new(PluginJobs::new(plugin.clone()));
        let dispatcher = Dispatcher::new(Arc::<StoredDeadLetters>::clone(&dead));
        let dispatcher = handler
            .names()
            .iter()
            .fold(dispatcher, |dispatcher, name| dispatcher.with_handler(name, Arc::<PluginJobs>::clone(&handler)));
        let stop = CancellationToken::new();
        let consumer =
            Consumer::new(Arc::new(dispatcher), Flow::new(1_000, 100 << 20), 4, stop.clone(), Duration::from_secs(5));
        let consuming = tokio::spawn(async move { queue.consume(&consumer).await });
        Self { plugin, dead, stop, consuming, _folder: folder }
    }

    async fn end(self) {
        self.stop.cancel();
        self.consuming.await.expect("no panic");
        self.plugin.close().await.expect("closes");
    }
}

const LATER: &str = "export const jobs = {
    greet: async ({ name, greeted = 0 }, { jobs, cache }) => {
        console.log(`hello ${name}, time ${greeted + 1}`)
        if ((await cache.incr(`greeted ${name}`)) < 2) await jobs.greet({ name, greeted: greeted + 1 }).runNow()
    },
}
export async function onRetry(type, payload, meta) {
    console.log('again', type, payload.n)
}
export async function processEvent(event, meta) {
    await meta.jobs.greet({ name: event.name }).runIn(200, 'milliseconds')
    meta.retry('processEvent', event, 1)
    return event
}";

#[tokio::test]
async fn jobs_come_back_to_the_plugin() {
    for (name, has_memory) in [("comes-back-files", false), ("comes-back-memory", true)] {
        let rig = Rig::start(name, LATER, has_memory).await;
        let event = json!({ "name": "Ada", "n": 9_007_199_254_740_993_i64 });
        assert_eq!(rig.plugin.process_event(event.clone()).await, Ok(Some(event)));
        until("the job has run", || log::has(name, "INFO", "hello Ada, time 1")).await;
        until("the job that it enqueued has run", || log::has(name, "INFO", "hello Ada, time 2")).await;
        until("the event is tried again", || log::has(name, "INFO", "again processEvent 9007199254740993")).await;
        rig.end().await;
        assert_eq!(log::lines(name).len(), 3, "each once: {:?}", log::lines(name));
    }
}

#[tokio::test]
async fn a_job_that_throws_is_tried_again() {
    let source = "export const jobs = {
        async flaky(payload, { cache }) { if ((await cache.incr('tries')) < 2) throw new Error('not yet'); console.log('done', payload) },
    }
    export const processEvent = async (event, { jobs }) => { await jobs.flaky('x').runNow(); return event }";
    let rig = Rig::start("flaky", source, false).await;
    rig.plugin.process_event(json!({})).await.expect("fine");
    until("it is done", || log::has("flaky", "INFO", "done x")).await;
    assert_eq!(rig.dead.list(10).await.expect("works"), []);
    rig.end().await;
}

#[tokio::test]
async fn failures_that_stay_are_fatal() {
    let plugin = start("fatal", "export const jobs = { a() { throw new Error('x') } }").await;
    let handler = PluginJobs::new(plugin);
    assert_eq!(handler.names(), ["plugin:fatal:a"]);
    let handle = async |name: &str, payload: Value| {
        let job = Job::new(name, payload).expect("a job");
        handler.handle(&job).await.expect_err("fails")
    };
    let again = handle("plugin:fatal:a", Value::Null).await;
    assert_eq!(
        again,
        Failure::new(
            "plugin `fatal` failed in job `a`: x at a (fatal.js:1:39); correct the plugin, or catch this there"
        )
    );
    let unknown = handle("plugin:fatal:b", Value::Null).await;
    assert_eq!(
        unknown,
        Failure::fatal("plugin `fatal` has no job `b`; it has a: export the job, or remove what asks for it")
    );
    let none = handle("plugin-retry:fatal", json!({ "type": "a", "payload": 1 })).await;
    assert_eq!(
        none,
        Failure::fatal("plugin `fatal` exports no `onRetry`; export it, or don't use the plugin for that")
    );
    let broken = handle("plugin-retry:fatal", json!(5)).await;
    assert_eq!(broken, Failure::fatal("the payload of `plugin-retry:fatal` names no type; remove the job"));
    let other = handle("plugin:other:a", Value::Null).await;
    assert_eq!(other, Failure::fatal("jobs named `plugin:other:a` are not those of plugin `fatal`"));
}
