//! One file's bytes, however they are reached: in memory, mapped, or read on demand.
//!
//! Every range is compared with the file's length (as it was when the file was opened) before anything is
//! allocated or touched.

use super::{Access, mapping::Mapping};
use crate::file::open_regular;
use crate::{Error, Result};
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

    /// Lets the pages of bytes that lie in its mapping leave memory.
    pub(super) fn release_bytes(&self, bytes: &[u8]) {
        let Kind::Mapped(mapping) = &self.kind else { return };
        let (all, some) = (mapping.bytes().as_ptr_range(), bytes.as_ptr_range());
        if all.start <= some.start && some.end <= all.end {
            let start = some.start.addr() - all.start.addr();
            mapping.release(start, start + bytes.len());
        }
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
