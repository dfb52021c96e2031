//! The connection to Temporal, by its own variables and `temporal.toml`.

use std::time::Duration;

use anyhow::anyhow;
use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::errors::ClientConnectError;
use temporalio_client::{Client, ClientOptions};

/// How long the connection to Temporal is waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that is connected.
///
/// # Errors
/// One sentence about what is wrong with the configuration, or that nobody answers.
pub(crate) async fn connect() -> anyhow::Result<Client> {
    // The error is not `Sync`, so it can't be a cause; its text is all there is to it anyway.
    let (mut connection, client) = ClientOptions::load_from_config(LoadClientConfigProfileOptions::default())
        .map_err(|error| anyhow!("Temporal's configuration can't be read: {error}"))?;
    connection.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    let target = connection.target.to_string();
    let namespace = client.namespace.clone();
    let client = Client::connect(connection, client).await.map_err(|error| unreachable_server(&target, error))?;
    tracing::info!(address = target, namespace, "connected to Temporal");
    Ok(client)
}

/// Says in one sentence what to do about a server that doesn't answer.
fn unreachable_server(target: &str, error: ClientConnectError) -> anyhow::Error {
    let way_out = match &error {
        ClientConnectError::SystemInfoCallError(_) => {
            "something answers there, but not as Temporal does: check TEMPORAL_ADDRESS, TLS and the API key"
        }
        ClientConnectError::InvalidUri(_)
        | ClientConnectError::InvalidHeaders(_)
        | ClientConnectError::InvalidConfig(_) => "check TEMPORAL_ADDRESS and the profile in temporal.toml",
        _ => "start it, or set TEMPORAL_ADDRESS or a profile in temporal.toml",
    };
    tracing::debug!(%error, "no connection to Temporal");
    anyhow!("can't reach Temporal at {target}: {way_out}")
}
