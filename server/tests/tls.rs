//! TLS of the server's own, in builds with the feature `tls`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Answer, Running, answer, config, start};
use engraft_server::{Address, Server, ServerConfig};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use serde_json::json;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("engraft-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A certificate for `localhost`, signed by its own key, and that key.
    fn certificate(&self) -> (PathBuf, PathBuf) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (self.file("cert.pem", &cert.pem()), self.file("key.pem", &signing_key.serialize_pem()))
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sends a request to a server whose certificate is trusted.
fn encrypted(server: &Running, trusted: &Path, request: &str) -> std::io::Result<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut stream = StreamOwned::new(connection, server.connect());
    stream.write_all(request.as_bytes())?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(answer(&all))
}

fn completion(stream: bool) -> String {
    let body = json!({"prompt": "This package", "max_tokens": 5, "temperature": 0, "stream": stream});
    common::request("/v1/completions", "Content-Type: application/json\r\n", &body.to_string())
}

#[test]
fn requests_are_answered_over_tls_alone() {
    let folder = Folder::new("answers");
    let (certificate, key) = folder.certificate();
    let tls = Some((certificate.clone(), key));
    let server = start(ServerConfig { tls, header_timeout: Duration::from_millis(500), ..config() });
    let want = start(config()).raw(completion(false).as_bytes()).json()["choices"][0]["text"].clone();
    let whole = encrypted(&server, &certificate, &completion(false)).unwrap();
    assert_eq!(whole.json()["choices"][0]["text"], want);
    let streamed = encrypted(&server, &certificate, &completion(true)).unwrap();
    assert_eq!(json!(common::text_of(&streamed.events(), 0)), want);
    // A client that does not know the certificate, one that speaks no TLS, and one that says nothing.
    let other = Folder::new("other");
    let error = encrypted(&server, &other.certificate().0, &completion(false)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    for bytes in ["GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", ""] {
        let (mut plain, mut all) = (server.connect(), Vec::new());
        plain.write_all(bytes.as_bytes()).unwrap();
        let _ = plain.read_to_end(&mut all);
        assert!(!all.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&all));
    }
    assert_eq!(encrypted(&server, &certificate, &completion(false)).unwrap().status, 200);
}

#[test]
fn the_address_says_https() {
    let folder = Folder::new("address");
    let server =
        Server::bind(ServerConfig { tls: Some(folder.certificate()), ..config() }, common::demo).unwrap();
    assert!(matches!(server.address(), Address::Tcp(_, true)));
    assert!(server.address().to_string().starts_with("https://127.0.0.1:"), "{}", server.address());
}

#[test]
fn what_is_wrong_with_certificate_or_key_is_named() {
    let folder = Folder::new("wrong");
    let (certificate, key) = folder.certificate();
    let other = folder.file("other.pem", &KeyPair::generate().unwrap().serialize_pem());
    let (missing, empty) = (folder.0.join("missing.pem"), folder.file("empty.pem", ""));
    let text = std::fs::read_to_string(&certificate).unwrap();
    let broken = folder.file("broken.pem", &text.replace('A', "!"));
    for (certificate, key, file, said) in [
        (&certificate, &other, "other.pem", "key"),
        (&certificate, &missing, "missing.pem", "private key"),
        (&certificate, &empty, "empty.pem", "private key"),
        (&certificate, &certificate, "cert.pem", "private key"),
        (&missing, &key, "missing.pem", "certificate"),
        (&empty, &key, "empty.pem", "certificate"),
        (&broken, &key, "broken.pem", "certificate"),
        (&key, &key, "key.pem", "certificate"),
    ] {
        let tls = Some((certificate.clone(), key.clone()));
        let bound = Server::bind(ServerConfig { tls, ..config() }, common::demo);
        let error = bound.map(|server| server.address().to_string()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(said), "{file}: {error}");
    }
}
