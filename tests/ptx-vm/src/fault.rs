//! What can be wrong with a running kernel, and where it happened.

use std::fmt;
use std::sync::Arc;

/// The kinds of fault the machine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch itself is impossible (block too large, parameters of the wrong size, shared memory above
    /// the limit).
    Launch,
    /// An access outside every allocation, or outside the block's shared, local, constant or parameter
    /// memory.
    OutOfBounds,
    /// An address that is not a multiple of the access width.
    Misaligned,
    /// An access to an allocation that has been freed.
    UseAfterFree,
    /// A write to memory that cannot be written (constants, parameters).
    ReadOnly,
    /// An access to another device's memory without peer access.
    PeerAccess,
    /// A read of bytes that nothing has written.
    Uninitialised,
    /// Two accesses to the same shared memory without order, at least one of them a write.
    SharedRace,
    /// Two accesses to the same global memory without order, at least one of them a write.
    GlobalRace,
    /// An access to memory that an asynchronous copy or matmul still reads or writes: a wait is missing.
    MissingWait,
    /// An asynchronous read of shared memory that plain stores wrote, with no `fence.proxy.async` between:
    /// the asynchronous proxy may see what was there before. Or a matmul of registers that were written
    /// after the last `wgmma.fence`.
    MissingFence,
    /// Lanes of a warp wait for each other at different collectives, or a lane calls a collective whose mask
    /// leaves it out.
    Divergence,
    /// Nothing can go on: barriers or mbarriers that no warp completes.
    Deadlock,
    /// An mbarrier used wrongly: not initialised, overflow of its counts, transaction bytes that do not add
    /// up.
    Barrier,
    /// Memory of an unfinished earlier grid touched before `griddepcontrol.wait`.
    GridDependency,
    /// A malformed descriptor, tensor map, or operand value that the instruction does not allow.
    Operand,
    /// An indirect call of an address that is no function, or of one with another prototype.
    Call,
    /// A `free` of a pointer that `malloc` did not give, or that was freed already.
    Heap,
    /// `trap`, or a failed device-side assertion.
    Trap,
    /// The instruction budget is used up (an endless loop, or a spin on something that never comes).
    Budget,
}

/// An instruction of the module's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Instruction {
    /// The line in the module's PTX text, from 1.
    pub line: u32,
    /// The instruction as written.
    pub text: Arc<str>,
    /// `file:line` of the source, where the compiler noted it (`.loc`).
    pub source: Option<Arc<str>>,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} `{}`", self.line, self.text)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

/// A name as the source has it, for one that a C++ compiler has mangled; any other name as it is.
///
/// ```
/// assert_eq!(ptx_vm::fault::demangled("_Z5scalePfj"), "scale(float*, unsigned int)");
/// assert_eq!(ptx_vm::fault::demangled("scale"), "scale");
/// ```
pub fn demangled(name: &str) -> String {
    let symbol = name.starts_with("_Z").then(|| cpp_demangle::Symbol::new(name).ok()).flatten();
    symbol.and_then(|s| s.demangle().ok()).map_or_else(|| name.into(), |text| without_tags(&text))
}

/// A name without what numba writes into tags of it: a number of its own, and a hundred characters of how it
/// has compiled the function. `f[abi:v1][abi:cw51cXTLSUwv1sDUaKthqaNgoKmjgMVuW...](int)` is `f(int)`.
fn without_tags(name: &str) -> String {
    const LONG: usize = 24;
    let (mut out, mut rest) = (String::new(), name);
    while let Some((before, tag)) = rest.split_once("[abi:") {
        let Some((content, behind)) = tag.split_once(']') else { break };
        out.push_str(before);
        let number = |tag: &str| tag.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok());
        let next = behind.strip_prefix("[abi:").and_then(|next| next.find(']'));
        if content.len() < LONG && !(number(content) && next.is_some_and(|end| end >= LONG)) {
            out.push_str(&rest[before.len()..rest.len() - behind.len()]);
        }
        rest = behind;
    }
    out + rest
}

/// A fault: what, where in the text, and which thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// The kernel's name as launches give it; [`demangled`] where it is shown.
    pub kernel: String,
    /// The line in the module's PTX text, from 1 (0 when no instruction is to blame).
    pub line: u32,
    /// The instruction as written.
    pub text: String,
    /// The block, `[x, y, z]`.
    pub block: [u32; 3],
    /// The thread in its block, `[x, y, z]`.
    pub thread: [u32; 3],
    /// Addresses, sizes, the other party of a race.
    pub detail: Box<str>,
    /// `file:line` of the source, where the compiler noted it (`.loc`).
    pub source: Option<Arc<str>>,
    /// The earlier instruction of a race, where it is known.
    pub other: Option<Box<Instruction>>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(f, "{:?} in kernel `{}`", self.kind, demangled(&self.kernel))?;
        if self.line > 0 {
            write!(f, ", line {} `{}`", self.line, self.text)?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        write!(f, ", block ({bx},{by},{bz}), thread ({tx},{ty},{tz}): {}", self.detail)?;
        match &self.other {
            Some(other) => write!(f, "; the other access is {other}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}
