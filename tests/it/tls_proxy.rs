//! A proxy on loopback that speaks TLS with its client, under an authority of its own, and plain TCP with the service.

use std::net::Ipv4Addr;
use std::sync::Arc;

use engine::config::connection::ClickHouseConnection;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::exports::clickhouse;

const CA_FILE: &str = "ca.pem";

/// What the proxy's certificate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// It is for `localhost`, and valid.
    Proper,
    /// It is for another name.
    OfAnother,
    /// It is for `localhost`, and of another century.
    Expired,
}

/// The proxy; it serves as long as the test's runtime lives.
#[derive(Debug)]
pub(crate) struct TlsProxy {
    port: u16,
    /// Holds the authority's certificate.
    folder: TempDir,
}

impl TlsProxy {
    /// Forwards to `target`, such as `127.0.0.1:8123`.
    pub(crate) async fn start(target: String, certificate: Certificate) -> Self {
        let authority_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).expect("a certificate").pem();
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(CA_FILE), authority).expect("a file");
        let acceptor = acceptor(certificate, &Issuer::new(params, authority_key));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(acceptor.clone(), client, target.clone()));
            }
        });
        Self { port, folder }
    }

    /// The way to ClickHouse for a client that doesn't know the authority.
    pub(crate) fn untrusted(&self) -> ClickHouseConnection {
        let url = format!("https://localhost:{}", self.port).parse().expect("a URL");
        ClickHouseConnection { url, ..clickhouse() }
    }

    /// The way to ClickHouse for a client that does.
    pub(crate) fn trusted(&self) -> ClickHouseConnection {
        ClickHouseConnection { ca_file: Some(self.folder.path().join(CA_FILE)), ..self.untrusted() }
    }
}

fn acceptor(certificate: Certificate, issuer: &Issuer<'_, KeyPair>) -> TlsAcceptor {
    let name = if certificate == Certificate::OfAnother { "example.com" } else { "localhost" };
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    if certificate == Certificate::Expired {
        (params.not_before, params.not_after) = (date_time_ymd(1999, 1, 1), date_time_ymd(1999, 12, 31));
    }
    let key = KeyPair::generate().expect("a key");
    let chain = vec![params.signed_by(&key, issuer).expect("a certificate").der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    // Two libraries of the tree bring a provider each, so there is no default.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("fits");
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).expect("they match")))
}

/// A client that doesn't like the certificate hangs up, and that is its good right.
async fn forward(acceptor: TlsAcceptor, client: TcpStream, target: String) {
    if let Ok(mut client) = acceptor.accept(client).await {
        let mut server = TcpStream::connect(&target).await.expect("the service is up");
        drop(copy_bidirectional(&mut client, &mut server).await);
    }
}
