//! Builds without the feature `tls` refuse certificates by name.

use engraft::{Error, Result};
use std::path::PathBuf;
use tokio::net::TcpStream;

/// What an encrypted connection would be.
pub type Encrypted = TcpStream;

/// Cannot be made.
#[derive(Clone)]
pub enum Tls {}

impl Tls {
    /// # Errors
    /// `Unsupported`.
    pub fn new(_: &(PathBuf, PathBuf)) -> Result<Self> {
        Err(Error::Unsupported {
            op: "ssl-certfile".into(),
            backend: "HTTP".into(),
            reason: "this build has no TLS (cargo feature `tls`); a proxy in front can end it".into(),
        })
    }

    /// Never called.
    pub async fn accept(&self, _: TcpStream) -> std::io::Result<Encrypted> {
        match *self {}
    }
}
