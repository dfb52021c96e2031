//! The worker's one HTTP port: health and metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::metrics::Metrics;

/// The text format of Prometheus, which the SDK's metrics have.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long the SDK's own metrics are waited for.
const SDK_TIMEOUT: Duration = Duration::from_secs(2);

/// The most that is read of the SDK's own metrics. Unit: bytes.
const MAX_SDK_BYTES: u64 = 16 * 1_024 * 1_024;

/// Where the worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It connects to Temporal.
    Starting,
    /// It polls for work.
    Ready,
    /// It takes no more work and ends what it has.
    Stopping,
}

/// The phase, shared between the worker and its port.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<AtomicU8>);

impl Health {
    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Release);
    }

    fn phase(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Stopping,
        }
    }
}

/// What the port shows.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    /// Where the worker stands.
    pub(crate) health: Health,
    /// Our metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// The private port of the SDK's own metrics.
    pub(crate) sdk_metrics: Option<SocketAddr>,
}

impl Status {
    /// Opens the port. It answers once [`Server::run`] is polled.
    pub(crate) async fn bind(self, address: SocketAddr) -> anyhow::Result<Server> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("can't listen on the status address {address}; choose another one with --status-address")
        })?;
        Ok(Server { listener, status: self })
    }
}

/// The open port.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    status: Status,
}

impl Server {
    /// The address that was opened, with the port that the system chose for port 0.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        self.listener.local_addr().context("the status port has no address")
    }

    /// Answers until the future is dropped.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let router = Router::new()
            .route("/healthz", get(ready))
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .route("/jobs", get(jobs))
            .with_state(self.status);
        axum::serve(self.listener, router).await.context("the status port failed")
    }
}

async fn ready(State(status): State<Status>) -> Response {
    match status.health.phase() {
        Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n").into_response(),
        Phase::Ready => "ok\n".into_response(),
        Phase::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
    }
}

async fn metrics(State(status): State<Status>) -> Response {
    let mut text = status.metrics.text();
    if let Some(address) = status.sdk_metrics {
        match tokio::time::timeout(SDK_TIMEOUT, fetch(address)).await {
            Ok(Ok(sdk)) => text.push_str(&sdk),
            Ok(Err(error)) => tracing::warn!(%error, "the SDK's metrics can't be read"),
            Err(_) => tracing::warn!("the SDK's metrics did not come in time"),
        }
    }
    ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

/// How the job queue stood at the last look, a few seconds ago at most.
async fn jobs(State(status): State<Status>) -> Response {
    let Some(jobs) = status.metrics.jobs().status() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "starting\n").into_response();
    };
    match serde_json::to_string(&jobs) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The text of the SDK's metrics from its private port: one request, one connection.
async fn fetch(address: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_SDK_BYTES).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "an answer other than 200");
    anyhow::ensure!(!head.to_ascii_lowercase().contains("transfer-encoding"), "an answer in chunks");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    #[tokio::test]
    async fn one_port_tells_health_and_both_kinds_of_metrics() {
        let sdk = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let sdk_metrics = Some(sdk.local_addr().expect("an address"));
        tokio::spawn(async move {
            let (mut stream, _) = sdk.accept().await.expect("a client");
            let mut request = [0; 256];
            let read = stream.read(&mut request).await.expect("a request");
            assert!(request[..read].starts_with(b"GET /metrics "));
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ntemporal_worker_start 1\n").await.expect("an answer");
        });
        let status = Status { health: Health::default(), metrics: Arc::new(Metrics::new()), sdk_metrics };
        let health = status.health.clone();
        let server = status.bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
        let address = server.address().expect("an address");
        tokio::spawn(server.run());

        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200"));
        health.enter(Phase::Ready);
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        health.enter(Phase::Stopping);
        assert!(get(address, "/readyz").await.ends_with("stopping\n"));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("batch_export_build_info"), "{metrics}");
        assert!(metrics.ends_with("temporal_worker_start 1\n"), "{metrics}");
    }
}
