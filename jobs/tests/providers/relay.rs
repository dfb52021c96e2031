//! A relay in front of a service, which can be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// It works.
    Up,
    /// Connections are closed at once, those that exist too.
    Refuses,
    /// Nothing comes through, and nobody says so.
    Hangs,
    /// Requests come through, and answers don't.
    Mute,
    /// Everything comes through, late.
    Slow,
}

/// How late everything comes on a slow network.
const DELAY: Duration = Duration::from_millis(150);

/// Relays connections to a service.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    network: Arc<watch::Sender<Network>>,
}

impl Relay {
    /// A relay to `target`, which is up.
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let network = Arc::new(watch::Sender::new(Network::Up));
        let relayed = Arc::clone(&network);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target.clone(), relayed.subscribe()));
            }
        });
        Self { address, network }
    }

    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

async fn relay(mut client: TcpStream, target: String, mut network: watch::Receiver<Network>) {
    let mut states = network.clone();
    let pass = async {
        let Ok(mut server) = TcpStream::connect(target).await else { return };
        loop {
            let passes = |network: &Network| matches!(network, Network::Up | Network::Mute | Network::Slow);
            let Ok(state) = network.wait_for(passes).await.map(|network| *network) else { return };
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            let delay = if state == Network::Slow { DELAY } else { Duration::ZERO };
            let asking = copy(&mut from_client, &mut to_server, delay);
            let answering = async {
                match state {
                    Network::Mute => copy(&mut from_server, &mut tokio::io::sink(), delay).await,
                    _ => copy(&mut from_server, &mut to_client, delay).await,
                }
            };
            tokio::select! {
                // A connection that ends is as good as one that was served.
                _ended = asking => return,
                _ended = answering => return,
                () = states_change(&mut network) => {}
            }
        }
    };
    tokio::select! {
        () = pass => {}
        _ = states.wait_for(|network| *network == Network::Refuses) => {}
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    delay: Duration,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let num_bytes = from.read(&mut bytes).await?;
        if num_bytes == 0 {
            return Ok(());
        }
        tokio::time::sleep(delay).await;
        to.write_all(&bytes[..num_bytes]).await?;
    }
}

async fn states_change(network: &mut watch::Receiver<Network>) {
    // The sender lives as long as the relay; without it nothing changes any more.
    if network.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
