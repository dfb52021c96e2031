//! The example of docs/plugins.md, run.

use std::sync::Arc;

use plugins::definition::Definition;
use plugins::plugin::Plugin;
use serde_json::json;

use crate::log;
use crate::rig::{Kept, Manner, definition};

#[tokio::test]
async fn the_example_does_what_it_says() {
    let page = include_str!("../../../docs/plugins.md");
    let (_, rest) = page.split_once("```js\n").expect("an example");
    let (source, _) = rest.split_once("```").expect("its end");
    let definition = Definition { config: json!({ "robots": ["bot"] }), ..definition("page", source) };
    let outbox = Kept::new(Manner::Takes);
    let plugin = Plugin::start(definition, Arc::<Kept>::clone(&outbox)).await.expect("starts");
    assert_eq!(plugin.process_event(json!({ "user": "bot", "dollars": 1 })).await, Ok(None));
    for (dollars, cents, seen) in [(5_i64, 500_i64, 1), (90_071_992_547_409_930, 9_007_199_254_740_993_000, 2)] {
        let event = plugin.process_event(json!({ "user": "Ada", "dollars": dollars })).await;
        assert_eq!(event, Ok(Some(json!({ "user": "Ada", "dollars": dollars, "cents": cents, "seen": seen }))));
    }
    assert_eq!(outbox.jobs().len(), 1);
    for user in ["Ada", "Bob"] {
        plugin.run_job("sayGoodbye", json!({ "user": user })).await.expect("runs");
    }
    assert_eq!(outbox.jobs().len(), 2, "Ada is still there");
    assert!(log::has("page", "INFO", "goodbye Bob"));
}
