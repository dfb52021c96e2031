//! A proxy on loopback that loses what a test says, between the engine and a real service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that forwards requests, and closes instead of forwarding the reply to some of them.
#[derive(Debug)]
pub(crate) struct LossyProxy {
    /// `http://127.0.0.1:port`.
    pub(crate) url: String,
    lost: Arc<AtomicU32>,
}

impl LossyProxy {
    /// Loses the replies to the first `times` requests whose head contains every one of `marks`.
    pub(crate) async fn losing(target: &str, marks: &'static [&'static str], times: u32) -> Self {
        let target = target.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("is bound"));
        let lost = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&lost);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, count) = (target.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let server = TcpStream::connect(&target).await.expect("the service is up");
                    forward(client, server, marks, times, &count).await;
                });
            }
        });
        Self { url, lost }
    }

    /// How many replies were lost so far.
    pub(crate) fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, marks: &[&str], times: u32, lost: &AtomicU32) {
    let (mut from_client, mut from_server) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut losing = false;
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(count @ 1..) = read else { return };
                let text = String::from_utf8_lossy(&from_client[..count]);
                losing |= marks.iter().all(|mark| text.contains(mark)) && lost.load(Ordering::Relaxed) < times;
                if server.write_all(&from_client[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(count @ 1..) = read else { return };
                if losing {
                    lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                if client.write_all(&from_server[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
