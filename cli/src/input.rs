//! What a command reads from a file or a pipe: a prompt, lines, a sound, keys.
//!
//! A user may hand over a pipe here (`--prompt-file <(command)`), so what is read has a limit instead.
//! Configurations, policies, templates and pictures are regular files: `engraft_core::file` reads those.

use super::failure::Failure;
use engraft::Error;
use std::fs::File;
use std::io::{BufRead, Read, stdin};
use std::path::Path;

/// Bytes at most of a prompt, and of a line.
pub(super) const MOST_TEXT: u64 = 64 << 20;

/// All of a file or a pipe of at most `most` bytes; `-` is standard input.
pub(super) fn whole(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    if path == Path::new("-") {
        return at_most(Path::new("standard input"), stdin().lock(), most);
    }
    at_most(path, File::open(path).map_err(|e| Error::io(path, e))?, most)
}

fn at_most(name: &Path, source: impl Read, most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(name, e))?;
    if bytes.len() as u64 > most { Err(too_long(&name.display().to_string(), most)) } else { Ok(bytes) }
}

/// The same of a text.
pub(super) fn text(path: &Path, most: u64) -> Result<String, Failure> {
    let name = if path == Path::new("-") { Path::new("standard input") } else { path };
    let text = String::from_utf8(whole(path, most)?);
    Ok(text.map_err(|_| Error::format(name.display().to_string(), "is not UTF-8"))?)
}

/// The next line with its end, of at most [`MOST_TEXT`] bytes; empty at the end of `source`. `place` names
/// it.
pub(super) fn line(source: &mut dyn BufRead, place: &dyn Fn() -> String) -> Result<Vec<u8>, Failure> {
    let mut line = Vec::new();
    let read = source.take(MOST_TEXT + 1).read_until(b'\n', &mut line);
    read.map_err(|e| Error::io(place(), e))?;
    if line.len() as u64 > MOST_TEXT { Err(too_long(&place(), MOST_TEXT)) } else { Ok(line) }
}

fn too_long(place: &str, most: u64) -> Failure {
    Error::format(place, format!("has more than {most} bytes, the most that are allowed")).into()
}
