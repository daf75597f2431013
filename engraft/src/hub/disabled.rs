//! A build without the hub.

use engraft_core::{Error, Result};
use std::path::PathBuf;

/// Always an error that says what to do.
pub fn fetch(id: &str, _: impl FnMut(u64, u64) + Send + 'static) -> Result<PathBuf> {
    let allowed = "a folder or .gguf file that exists; for hub ids build with the cargo feature `hub`";
    Err(Error::config("model", format!("\"{id}\""), allowed))
}
