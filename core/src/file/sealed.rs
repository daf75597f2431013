//! Files that a program keeps for its next start, and reads only if nothing has changed: compiled kernels,
//! what a driver made of shaders.
//!
//! A file is found by a key, the SHA-256 of everything that its content depends on. So nothing is ever out of
//! date: what changes is not found, and a file may be deleted at any time. In front of the content stands its
//! own SHA-256 (with the key's): a file that is truncated, damaged or another's is distinguished from a good
//! one before anybody takes it for good. Files are written under a name of their own and renamed, so that no
//! reader sees half of one.

use sha2::{Digest, Sha256};
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// What a content depends on, as a hash.
pub type Key = [u8; 32];

/// Bytes in front of the content: what sort of file it is, and the hash.
const HEAD: usize = 16 + 32;

/// The key of these parts, in their order.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A key as names of files have it.
pub fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A sort of such files.
#[derive(Debug, Clone, Copy)]
pub struct Sealed {
    /// What they begin with.
    pub magic: &'static [u8; 16],
    /// Bytes of a content at most.
    pub most: u64,
}

impl Sealed {
    /// The content of a file of this key, in an allocation of its own.
    ///
    /// # Errors
    /// `NotFound`; `InvalidData` for one that is no regular file, another user's, too long, or not as it was
    /// written.
    pub fn read(&self, path: &Path, key: &Key) -> io::Result<Vec<u8>> {
        let damaged = |what: String| Err(io::Error::new(ErrorKind::InvalidData, what));
        let most = self.most + HEAD as u64;
        // Opening what is no file may do anything: it is asked before, and of what was opened.
        let file = match fs::metadata(path)?.is_file() {
            true => super::open_at_once(path)?,
            false => return damaged("not a regular file".into()),
        };
        let about = file.metadata()?;
        if !about.is_file() || about.len() > most {
            return damaged(format!("not a file of at most {} bytes", self.most));
        }
        if let Some(why) = others_may_write(&about) {
            return damaged(why);
        }
        let mut head = Vec::with_capacity(about.len() as usize);
        // It may grow while it is read.
        file.take(most + 1).read_to_end(&mut head)?;
        if head.len() <= HEAD || head.len() as u64 > most {
            return damaged(format!("{} bytes; there must be more than {HEAD}, at most {most}", head.len()));
        }
        // The content then begins where memory for anything may begin.
        let bytes = head.split_off(HEAD);
        match head.starts_with(self.magic) && head[self.magic.len()..] == seal(key, &bytes) {
            true => Ok(bytes),
            false => damaged("its content is not what was written".into()),
        }
    }

    /// Writes a content, and the folders above it that are not there.
    ///
    /// # Errors
    /// `FileTooLarge`, and what the disk refuses; nothing is left behind then.
    pub fn write(&self, to: &Path, key: &Key, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.most {
            let what = format!("{} bytes; at most {} are kept", bytes.len(), self.most);
            return Err(io::Error::new(ErrorKind::FileTooLarge, what));
        }
        if let Some(folder) = to.parent() {
            let mut new = fs::DirBuilder::new();
            own(&mut new).recursive(true).create(folder)?;
        }
        // Random: other threads and other processes may write the same file.
        let number = RandomState::new().hash_one(to);
        let temporary = to.with_extension(format!("{number:016x}"));
        let mut new = fs::OpenOptions::new();
        let mut file = own_file(new.write(true).create_new(true)).open(&temporary)?;
        let parts = [&self.magic[..], &seal(key, bytes), bytes];
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        let renamed = written.and_then(|()| fs::rename(&temporary, to));
        if renamed.is_err() {
            // Why it is not written says more than why a part of it stays.
            let _ = fs::remove_file(&temporary);
        }
        renamed
    }
}

/// Why another user of the machine could have written a file: its content would run as this one's.
#[cfg(unix)]
fn others_may_write(about: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    unsafe extern "C" {
        /// The user that this process acts as. The standard library has no function for it.
        safe fn geteuid() -> u32;
    }
    not_own(about.mode(), about.uid(), geteuid())
}
#[cfg(not(unix))]
fn others_may_write(_: &fs::Metadata) -> Option<String> {
    None
}

/// Why a file of this mode and owner is not for `user` to take. The system's own may do anything anyway.
#[cfg(unix)]
fn not_own(mode: u32, owner: u32, user: u32) -> Option<String> {
    match (owner == user || owner == 0, mode & 0o022 == 0) {
        (true, true) => None,
        (true, false) => Some(format!("others may write it: its mode is {:o}", mode & 0o777)),
        (false, _) => Some(format!("it belongs to user {owner}, not to {user}")),
    }
}

/// A new folder is its user's alone, whatever new ones usually are.
#[cfg(unix)]
fn own(new: &mut fs::DirBuilder) -> &mut fs::DirBuilder {
    std::os::unix::fs::DirBuilderExt::mode(new, 0o700)
}
#[cfg(not(unix))]
fn own(new: &mut fs::DirBuilder) -> &mut fs::DirBuilder {
    new
}

/// So is a new file.
#[cfg(unix)]
fn own_file(new: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(new, 0o600)
}
#[cfg(not(unix))]
fn own_file(new: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    new
}

fn seal(key: &Key, bytes: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key).chain_update(bytes).finalize().into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::file::tests::folder;

    const SORT: Sealed = Sealed { magic: b"engraft-tests-1\n", most: 40 };

    #[test]
    #[cfg(unix)]
    fn a_file_that_others_may_write_is_not_taken() {
        use std::os::unix::fs::PermissionsExt;
        let path = folder("sealed-others").join(hex(&[7; 32]));
        SORT.write(&path, &[7; 32], b"some content").unwrap();
        for (mode, taken) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(SORT.read(&path, &[7; 32]).is_ok(), taken, "{mode:o}");
        }
        // Another user's, who lets it be read alone and lay it where this one looks.
        for (mode, owner, user, why) in [
            (0o644, 1000, 1000, None),
            (0o644, 0, 1000, None),
            (0o644, 1001, 1000, Some("belongs to user 1001, not to 1000")),
            (0o600, 1000, 0, Some("belongs to user 1000")),
            (0o100664, 1000, 1000, Some("its mode is 664")),
        ] {
            let found = not_own(mode, owner, user);
            assert_eq!(found.is_some(), why.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
        // Who may give files away has another's here.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            let refused = SORT.read(&path, &[7; 32]).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 12345"), "{refused}");
            fs::remove_file(&path).unwrap();
        }
        // A folder is refused without being opened.
        let folder = path.parent().unwrap();
        assert!(SORT.read(folder, &[7; 32]).unwrap_err().to_string().contains("not a regular file"));
        // Written again, it is its user's alone.
        SORT.write(&path, &[7; 32], b"some content").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_truncated_or_changed_or_another_s_is_not_taken() {
        let folder = folder("sealed");
        let path = folder.join("new").join(hex(&[7; 32]));
        SORT.write(&path, &[7; 32], b"some content").unwrap();
        assert_eq!(SORT.read(&path, &[7; 32]).unwrap(), b"some content");
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(SORT.read(&path, &[7; 32]).is_err(), "{end} bytes");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 4;
            fs::write(&path, &wrong).unwrap();
            assert!(SORT.read(&path, &[7; 32]).is_err(), "byte {at}");
        }
        // What is found damaged is replaced; another's is none.
        SORT.write(&path, &[7; 32], b"others").unwrap();
        assert_eq!(SORT.read(&path, &[7; 32]).unwrap(), b"others");
        assert!(SORT.read(&path, &[8; 32]).is_err());
        assert!(SORT.write(&path, &[7; 32], &[0; 41]).is_err(), "more than its sort has");
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(names, [path.file_name().unwrap()], "temporary files stay");
    }

    #[test]
    fn a_disk_that_refuses_leaves_nothing_behind() {
        let folder = folder("refused");
        let file = folder.join("file");
        fs::write(&file, b"not a folder").unwrap();
        assert!(SORT.write(&file.join("x"), &[0; 32], b"some").is_err());
        // A folder in the file's place: it is written, and cannot be renamed.
        let taken = folder.join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(SORT.write(&taken, &[0; 32], b"some").is_err());
        assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
    }

    #[test]
    fn a_key_is_of_parts_and_their_order() {
        let keys = [key(["ab", "c"]), key(["a", "bc"]), key(["c", "ab"]), key(["ab", "c", ""])];
        for (i, one) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != one), "{i}");
        }
    }
}
