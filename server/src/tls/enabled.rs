//! Encrypted connections, in builds with the feature `tls`.

use engraft::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What an encrypted connection is to the rest of the server.
pub type Encrypted = tokio_rustls::server::TlsStream<TcpStream>;

/// Turns connections into encrypted ones.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// With the certificates and the private key of two PEM files.
    ///
    /// # Errors
    /// `Format` for files that hold no such thing, or do not go together.
    pub fn new((certificates, key): &(PathBuf, PathBuf)) -> Result<Self> {
        let bad = |path: &PathBuf, what: String| Error::Format { file: path.display().to_string(), what };
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
            .map_err(|e| bad(certificates, format!("no certificates: {e}")))?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, format!("no private key: {e}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| bad(certificates, e.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|e| bad(certificates, format!("with the key of {}: {e}", key.display())))?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake.
    ///
    /// # Errors
    /// What the client does wrong.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<Encrypted> {
        self.0.accept(stream).await
    }
}
