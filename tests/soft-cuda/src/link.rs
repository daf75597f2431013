//! The linker interface, so that a program's cache of compiled modules has something to cache.
//!
//! `cuLinkComplete` gives a container of this driver's own: a magic, a size, a hash and the PTX texts, the
//! same bytes for the same inputs. `cuModuleLoadData` takes it back; no real driver does. One that is
//! truncated or changed is an invalid image, as machine code with a broken head or broken sections is. Texts
//! are not linked *together*: each must stand alone, and a symbol that another text defines is not found.

use crate::code::{Code, Result};
use crate::module::{self, Image};
use crate::state::{Driver, Id};

const MAGIC: &[u8; 16] = b"engraft-softlink";

/// Where a caller wants logs: the options of `cuModuleLoadDataEx` and `cuLinkCreate`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logs {
    /// Buffer for errors and its size in bytes.
    pub error: (usize, usize),
    /// Buffer for information and its size in bytes.
    pub info: (usize, usize),
    /// Where the number of bytes written to each goes (addresses of the option values).
    pub written: [usize; 2],
}

/// Which texts the linker compiles: real ones differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linker {
    /// All.
    All,
    /// Those for one device's own features (`sm_90a`) only where the caller names that target.
    OwnTargetNamed,
    /// None.
    Nothing,
}

impl Linker {
    /// By number, from 0.
    pub fn from_number(number: u32) -> Option<Linker> {
        [Linker::All, Linker::OwnTargetNamed, Linker::Nothing].get(number as usize).copied()
    }

    fn takes(self, text: &str, target: Option<u32>) -> bool {
        /// `CU_TARGET_COMPUTE_90A`.
        const OWN: u32 = 0x1_0000 + 90;
        let own = || text.lines().any(|line| line.trim() == ".target sm_90a");
        match self {
            Linker::All => true,
            Linker::OwnTargetNamed => !own() || target == Some(OWN),
            Linker::Nothing => false,
        }
    }
}

/// A linker state.
#[derive(Debug, Default)]
pub struct Link {
    /// The `CU_JIT_TARGET` of the program.
    target: Option<u32>,
    inputs: Vec<String>,
    /// The container, once complete: the program reads it until it destroys the state.
    pub output: Option<Box<[u8]>>,
    /// The program's log buffers.
    pub logs: Logs,
}

/// A new state.
pub fn create(d: &mut Driver, logs: Logs, target: Option<u32>) -> Result<Id> {
    d.here()?;
    let id = d.id();
    d.links.insert(id, Link { logs, target, ..Link::default() });
    Ok(id)
}

/// Adds an input of a `CUjitInputType`.
pub fn add(d: &mut Driver, id: Id, kind: u32, bytes: &[u8], log: &mut String) -> Result {
    const CUBIN: u32 = 0;
    const PTX: u32 = 1;
    let image = module::classify(bytes);
    module::parse(&image, log)?;
    let linker = d.settings.linker;
    let link = d.links.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
    if link.output.is_some() {
        return Err(Code::INVALID_HANDLE);
    }
    if let Image::Ptx(text) = &image
        && !linker.takes(text, link.target)
    {
        log.push_str("the linker does not compile this target\n");
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    match (kind, image) {
        (PTX, Image::Ptx(text)) => link.inputs.push(text),
        (CUBIN, Image::Linked(texts)) => link.inputs.extend(texts),
        _ => return Err(Code::INVALID_IMAGE),
    }
    Ok(())
}

/// Makes the container: its address and size in bytes.
pub fn complete(d: &mut Driver, id: Id) -> Result<(*const u8, usize)> {
    let link = d.links.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
    let bytes = link.output.get_or_insert_with(|| seal(&link.inputs));
    Ok((bytes.as_ptr(), bytes.len()))
}

fn seal(texts: &[String]) -> Box<[u8]> {
    let mut body = Vec::new();
    for text in texts {
        body.extend((text.len() as u64).to_le_bytes());
        body.extend(text.as_bytes());
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(hash(&body).to_le_bytes());
    bytes.extend(body);
    bytes.into()
}

/// FNV-1a: tells damage, not malice.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// The size in bytes of a container that begins with these bytes, if they are the beginning of one.
pub fn size(head: &[u8]) -> Option<usize> {
    let rest = head.strip_prefix(MAGIC)?;
    let total = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    usize::try_from(total).ok()?.checked_add(HEAD)
}

/// These bytes may be the beginning of a container whose size is not known yet.
pub fn begins(bytes: &[u8]) -> bool {
    bytes.len() < HEAD && bytes.starts_with(MAGIC)
}

/// Bytes to read before [`size`] can answer.
const HEAD: usize = MAGIC.len() + 16;

/// Whether these bytes are a container, or were one.
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The texts of a container, or nothing when it is none or damaged.
pub fn open(bytes: &[u8]) -> Option<Vec<String>> {
    let (kept, mut rest) = bytes.get(MAGIC.len() + 8..size(bytes)?)?.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*kept) != hash(rest) {
        return None;
    }
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<8>()?;
        let (text, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        texts.push(String::from_utf8(text.to_vec()).ok()?);
        rest = tail;
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_opens_to_its_texts_and_a_truncated_or_changed_one_does_not() {
        let texts = vec!["one".to_owned(), String::new(), "three".to_owned()];
        let sealed = seal(&texts);
        assert_eq!(open(&sealed), Some(texts));
        for len in 0..sealed.len() {
            assert_eq!(open(&sealed[..len]), None, "{len} bytes");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&changed), None, "byte {at}");
        }
    }
}
