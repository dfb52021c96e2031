//! Records the history of a workflow for `tests/replay.rs`.
//!
//! ```sh
//! cargo run -p batch-export-workflows --example record_history WORKFLOW_ID > workflows/tests/histories/NAME.json
//! ```
//!
//! The replayer reads the SDK's own JSON, which is not the JSON of `temporal workflow show`.

use std::io::Write as _;

use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::{Client, ClientOptions, WorkflowFetchHistoryOptions};
use temporalio_common::UntypedWorkflow;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workflow_id = std::env::args().nth(1).ok_or("name the workflow by its id")?;
    let (connection, options) = ClientOptions::load_from_config(LoadClientConfigProfileOptions::default())?;
    let client = Client::connect(connection, options).await?;
    let handle = client.get_workflow_handle::<UntypedWorkflow>(workflow_id);
    let history = handle.fetch_history(WorkflowFetchHistoryOptions::default()).to_json().await?;
    let history: serde_json::Value = serde_json::from_slice(&history)?;
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &history)?;
    writeln!(stdout)?;
    Ok(())
}
