//! One file's bytes, however they are reached: in memory, mapped, or read on demand.
//!
//! Every range is compared with the file's length (as it was when the file was opened) before anything is
//! allocated or touched.

use super::{Access, mapping::Mapping};
use crate::{Error, Result};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::{
    borrow::Cow,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// One opened file.
pub(super) struct Storage {
    name: String,
    len: u64,
    kind: Kind,
}

enum Kind {
    Memory(Cow<'static, [u8]>),
    Mapped(Mapping),
    // A seek and a read must not be torn apart by another thread; there is no portable pread.
    OnDemand(Mutex<File>),
}

/// `O_NONBLOCK`, which the standard library has no name for.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NONBLOCK: i32 = 0o4000;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const NONBLOCK: i32 = 4;

/// Opens a regular file and returns its length. What it is is asked before it is opened, as opening a device
/// may do anything, and again of what was opened, as another file may have taken its place.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64)> {
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

/// Small files, which are read whole.
impl Access {
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
    /// As [`Access::whole`]; `Format` for one that is not UTF-8.
    pub fn text(path: &Path, most: u64) -> Result<String> {
        let bytes = Self::whole(path, most)?;
        String::from_utf8(bytes).map_err(|_| Error::format(path.display().to_string(), "is not UTF-8"))
    }
}

impl Storage {
    /// Opens a file.
    pub(super) fn open(path: &Path, access: Access) -> Result<Self> {
        let name = path.display().to_string();
        let (file, len) = open_regular(path)?;
        let kind = match access {
            // An empty file cannot be mapped on every system.
            _ if len == 0 => Kind::Memory(Cow::Borrowed(&[])),
            Access::Map => {
                let mapping = Mapping::new(&file).map_err(|e| Error::io(path, e))?;
                Kind::Mapped(mapping)
            }
            Access::Read => Kind::OnDemand(Mutex::new(file)),
        };
        let len = if let Kind::Mapped(m) = &kind { m.bytes().len() as u64 } else { len };
        Ok(Self { name, len, kind })
    }

    /// Bytes that are in memory already.
    pub(super) fn memory(name: &str, bytes: Cow<'static, [u8]>) -> Self {
        Self { name: name.to_owned(), len: bytes.len() as u64, kind: Kind::Memory(bytes) }
    }

    /// The file, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes `start..end`.
    pub(super) fn range(&self, start: u64, end: u64) -> Result<Cow<'_, [u8]>> {
        if start > end || end > self.len {
            let what = format!("bytes {start}..{end} are wanted, the file has {}", self.len);
            return Err(Error::format(&self.name, what));
        }
        let whole = match &self.kind {
            Kind::Memory(bytes) => bytes.as_ref(),
            Kind::Mapped(mapping) => mapping.bytes(),
            Kind::OnDemand(file) => return self.read(file, start, end - start).map(Cow::Owned),
        };
        // In bounds of a slice, so both fit a usize.
        Ok(Cow::Borrowed(&whole[start as usize..end as usize]))
    }

    /// Lets mapped pages leave memory.
    pub(super) fn release(&self, start: u64, end: u64) {
        if let Kind::Mapped(mapping) = &self.kind {
            mapping.release(start as usize, end as usize);
        }
    }

    fn read(&self, file: &Mutex<File>, start: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        usize::try_from(len).ok().and_then(|n| bytes.try_reserve_exact(n).ok()).ok_or_else(|| {
            Error::OutOfMemory { what: format!("{len} bytes of {}", self.name), wanted: len, free: 0 }
        })?;
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start)).map_err(|e| Error::io(&self.name, e))?;
        Read::by_ref(&mut *file).take(len).read_to_end(&mut bytes).map_err(|e| Error::io(&self.name, e))?;
        if bytes.len() as u64 != len {
            let what =
                format!("bytes {start}..{} are wanted, reading stopped after {}", start + len, bytes.len());
            return Err(Error::format(&self.name, what));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("engraft-storage-{name}-{}", std::process::id()));
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
            let text = Access::whole(special, 10).unwrap_err().to_string();
            assert!(text.contains("is not a regular file"), "{text}");
        }
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_small_file_has_a_limit() {
        let place = folder("small");
        let file = place.join("small");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(Access::text(&file, 10).unwrap(), "0123456789");
        let text = Access::text(&file, 9).unwrap_err().to_string();
        assert!(text.contains("is 10 bytes long; at most 9 are allowed"), "{text}");
        fs::write(&file, [0xff]).unwrap();
        let text = Access::text(&file, 9).unwrap_err().to_string();
        assert!(text.contains("is not UTF-8"), "{text}");
        fs::remove_dir_all(&place).unwrap();
    }
}
