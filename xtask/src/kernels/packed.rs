//! Compressed texts: what `ptx/*.ptx.gz` holds. `zcat` shows one.

use super::Outcome;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// A text as gzip with neither a name nor a time in it, so that equal texts give equal files.
pub fn pack(text: &str) -> Outcome<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).map_err(|e| e.to_string())
}

/// The text of a compressed file.
pub fn read(path: &Path) -> Outcome<String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut text = String::new();
    GzDecoder::new(File::open(path).map_err(fail)?).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}
