//! A proxy on loopback that can cut the way to a service without closing it, as a lost network does.

use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxy; it serves as long as the test's runtime lives.
#[derive(Debug)]
pub(crate) struct TcpProxy {
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    is_cut: watch::Sender<bool>,
}

impl TcpProxy {
    /// Forwards to `target`, such as `127.0.0.1:7233`.
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("is bound").to_string();
        let (is_cut, cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target.clone(), cut.clone()));
            }
        });
        Self { address, is_cut }
    }

    /// Lets nothing pass any more; connections stay open.
    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Lets new connections pass again; those that were cut are closed.
    pub(crate) fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn forward(mut client: TcpStream, target: String, mut cut: watch::Receiver<bool>) {
    if !*cut.borrow() {
        let mut server = TcpStream::connect(&target).await.expect("the service is up");
        tokio::select! {
            // Whoever closes first ends the exchange.
            _ = copy_bidirectional(&mut client, &mut server) => return,
            _ = cut.wait_for(|is_cut| *is_cut) => {}
        }
    }
    // The proxy lives as long as the test.
    let _healed = cut.wait_for(|is_cut| !*is_cut).await.is_ok();
}
