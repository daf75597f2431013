//! Regular files, opened without waiting for anything and read whole within a limit: what a user names may be
//! a pipe without a writer, or a device without an end.

pub mod sealed;

use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `O_NONBLOCK`, which the standard library has no name for.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub const NONBLOCK: i32 = 0o4000;
/// `O_NONBLOCK`, which the standard library has no name for.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub const NONBLOCK: i32 = 4;

/// Opens a regular file and returns its length. What it is is asked before it is opened, as opening a device
/// may do anything, and again of what was opened, as another file may have taken its place.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    let regular = |meta: &std::fs::Metadata| match meta.is_file() {
        true => Ok(meta.len()),
        false => Err(Error::format(path.display().to_string(), "is not a regular file")),
    };
    regular(&std::fs::metadata(path).map_err(|e| Error::io(path, e))?)?;
    let file = open_at_once(path).map_err(|e| Error::io(path, e))?;
    let len = regular(&file.metadata().map_err(|e| Error::io(path, e))?)?;
    Ok((file, len))
}

/// Opens a file to be read; a pipe is opened without waiting for a writer.
fn open_at_once(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    #[cfg(unix)]
    options.custom_flags(NONBLOCK);
    options.read(true).open(path)
}

/// The bytes of a regular file of at most `most` bytes. A pipe or a device is refused, without waiting
/// for it.
///
/// # Errors
/// `Io`; `Format` for a file that is not regular or is longer.
pub fn whole(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, len) = open_regular(path)?;
    let long = |len: u64| {
        let what = format!("is {len} bytes long; at most {most} are allowed");
        Err(Error::format(path.display().to_string(), what))
    };
    if len > most {
        return long(len);
    }
    let mut bytes = Vec::new();
    // It may have grown since.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() as u64 > most { long(bytes.len() as u64) } else { Ok(bytes) }
}

/// The same of a text.
///
/// # Errors
/// As [`whole`]; `Format` for one that is not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String> {
    let bytes = whole(path, most)?;
    String::from_utf8(bytes).map_err(|_| Error::format(path.display().to_string(), "is not UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    pub fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("engraft-file-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A pipe that takes a file's place after it was looked at does not stop the program.
    #[cfg(unix)]
    #[test]
    fn a_pipe_is_opened_without_a_writer_and_refused() {
        use std::{process::Command, sync::mpsc, thread, time::Duration};
        let place = folder("pipe");
        let pipe = place.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, receiver) = mpsc::channel();
        let of_thread = pipe.clone();
        thread::spawn(move || sender.send(open_at_once(&of_thread).is_ok()));
        let opened = receiver.recv_timeout(Duration::from_secs(30));
        assert_eq!(opened, Ok(true), "it waits for a writer");
        for special in [pipe.as_path(), Path::new("/dev/zero")] {
            let text = whole(special, 10).unwrap_err().to_string();
            assert!(text.contains("is not a regular file"), "{text}");
        }
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_small_file_has_a_limit() {
        let place = folder("small");
        let file = place.join("small");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(super::text(&file, 10).unwrap(), "0123456789");
        let text = super::text(&file, 9).unwrap_err().to_string();
        assert!(text.contains("is 10 bytes long; at most 9 are allowed"), "{text}");
        fs::write(&file, [0xff]).unwrap();
        let text = super::text(&file, 9).unwrap_err().to_string();
        assert!(text.contains("is not UTF-8"), "{text}");
        fs::remove_dir_all(&place).unwrap();
    }
}
