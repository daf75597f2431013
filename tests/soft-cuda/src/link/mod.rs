//! The linker interface, so that a program's cache of compiled modules has something to cache.
//!
//! `cuLinkComplete` gives a container of this driver's own: a magic, a size, a hash and the PTX texts, the
//! same bytes for the same inputs. `cuModuleLoadData` takes it back; no real driver does. One that is
//! truncated or changed is an invalid image, as machine code with a broken head or broken sections is.
//! Several texts become one ([`texts`]).

mod container;
pub mod texts;

pub use container::{begins, is_one, open, seal, size};

use crate::code::{Code, Result};
use crate::state::{Driver, Id};
use texts::{Kind, Texts};

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
    /// Its `CU_JIT_MAX_REGISTERS`.
    registers: Option<u32>,
    inputs: Texts,
    /// The container, once complete: the program reads it until it destroys the state.
    pub output: Option<Box<[u8]>>,
    /// The program's log buffers.
    pub logs: Logs,
}

/// A new state.
pub fn create(d: &mut Driver, logs: Logs, target: Option<u32>, registers: Option<u32>) -> Result<Id> {
    d.here()?;
    let id = d.id();
    d.links.insert(id, Link { logs, target, registers, ..Link::default() });
    Ok(id)
}

/// Adds an input of a `CUjitInputType`, with the name that messages give it.
pub fn add(d: &mut Driver, id: Id, kind: u32, name: &str, bytes: &[u8], log: &mut String) -> Result {
    let kind = match kind {
        0 => Kind::Machine,
        1 => Kind::Ptx,
        2 => Kind::Fat,
        3 | 4 => Kind::Library,
        _ => return Err(Code::INVALID_VALUE),
    };
    let linker = d.settings.linker;
    let link = d.links.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
    if link.output.is_some() {
        return Err(Code::INVALID_HANDLE);
    }
    let new = texts::read(kind, name, bytes, log)?;
    if new.iter().any(|(_, text)| !linker.takes(text, link.target)) {
        log.push_str("the linker does not compile this target\n");
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    link.inputs.extend(new);
    Ok(())
}

/// Makes the container: its address and size in bytes.
pub fn complete(d: &mut Driver, id: Id, log: &mut String) -> Result<(*const u8, usize)> {
    let link = d.links.get_mut(&id).ok_or(Code::INVALID_HANDLE)?;
    if link.output.is_none() {
        link.output = Some(seal(&texts::join(&link.inputs, link.registers, log)?));
    }
    let bytes = link.output.as_deref().unwrap_or_default();
    Ok((bytes.as_ptr(), bytes.len()))
}
