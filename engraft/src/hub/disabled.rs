//! A build without the hub.

use engraft_core::{Error, Result};
use std::path::PathBuf;

/// Always an error that says what to do.
pub fn fetch(id: &str) -> Result<PathBuf> {
    Err(Error::Unsupported {
        op: format!("fetching \"{id}\" from the hub"),
        backend: "this build, not".into(),
        reason: "no such file or folder here, and hub ids need the cargo feature `hub`".into(),
    })
}
