//! CUDA kernels: their sources, what they were compiled to, and how each is called. No engine types, no
//! driver.
//!
//! `cuda/<stem>.cu` are the sources over one own header, without vendor headers. `cargo xtask kernels`
//! compiles them by a pinned NVRTC to `ptx/<stem>.<arch>.ptx.gz` (`compute_80` for every device from Ampere
//! on; `compute_90a` for Hopper; a source named `<stem>.90a.cu` only for that) with `ptx/<stem>.json` next to
//! them: one manifest per stem, with the hashes of the sources and of the texts, the compiler, and registers,
//! spills and shared memory of every entry. All of it is checked in; nothing is compiled when this crate is
//! built or used. `zcat` shows a text, [`Module::ptx`] decompresses it once.
//!
//! **How a kernel is called.** An entry is `<stem>_<name>_<variant>(const __grid_constant__ Params p)`: one
//! parameter, a struct by value. [`params`] has the same struct for the host in `<stem>.rs`, and next to it a
//! function that gives the entry's name and its [`Launch`] shape. Addresses are 64-bit device addresses. What
//! changes from step to step (positions, lengths, slots) lies in device memory, never in the struct, so that
//! a launch can be captured once.
//!
//! **Arithmetic is compiled as written**: `--fmad=false`, no approximations; a fused multiply-add stands in
//! the source as `fmaf`.

pub mod bytes;
pub mod columns;
pub mod file_rows;
pub mod pack;
pub mod params;

use std::io::{Error, ErrorKind, Read, Result};
use std::sync::OnceLock;

/// One compiled source.
#[derive(Debug)]
pub struct Module {
    /// Name of the source, without ending.
    pub stem: &'static str,
    /// Virtual architecture: `compute_80` or `compute_90a`.
    pub arch: &'static str,
    packed: &'static [u8],
    text: OnceLock<std::result::Result<String, String>>,
}

impl Module {
    const fn new(stem: &'static str, arch: &'static str, packed: &'static [u8]) -> Self {
        Self { stem, arch, packed, text: OnceLock::new() }
    }

    /// The text that the driver compiles: the first call decompresses it, later calls share it.
    ///
    /// # Errors
    /// `InvalidData` when the embedded bytes are not what gzip wrote.
    pub fn ptx(&self) -> Result<&str> {
        let text = self.text.get_or_init(|| unpack(self.packed).map_err(|e| e.to_string()));
        text.as_deref().map_err(|why| {
            Error::new(ErrorKind::InvalidData, format!("PTX of {} for {}: {why}", self.stem, self.arch))
        })
    }
}

/// The text in a `.ptx.gz` file.
///
/// # Errors
/// Bytes that gzip did not write, a checksum that does not fit, or text that is not UTF-8.
pub fn unpack(packed: &[u8]) -> Result<String> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text)?;
    Ok(text)
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Every compiled source, by stem and architecture.
pub static MODULES: &[Module] = &TABLE;

/// How an entry is launched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Name of the entry; the stem is what stands before its first underscore.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// The source that the entry is in.
    pub fn stem(&self) -> &str {
        stem_of(&self.entry)
    }

    /// Whether there is no block to run: such a launch is left out.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0) || self.block.contains(&0)
    }
}

/// The source that an entry is in: what stands before its first underscore.
pub fn stem_of(entry: &str) -> &str {
    entry.split('_').next().unwrap_or(entry)
}

/// The text of `stem` that a device of this compute capability runs best; none where there is no such source,
/// or none for so old a device.
pub fn module(stem: &str, capability: (i32, i32)) -> Option<&'static Module> {
    let best = if capability == (9, 0) { "compute_90a" } else { "compute_80" };
    let find = |arch: &str| MODULES.iter().find(|m| m.stem == stem && m.arch == arch);
    match capability >= (8, 0) {
        true => find(best).or_else(|| find("compute_80")),
        false => None,
    }
}

/// Names of the entries in a PTX text, in its order.
pub fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix(".visible .entry ")?;
        Some(rest.split('(').next().unwrap_or(rest).trim())
    })
}

/// Bytes of the parameter struct of an entry, as compiled; none where the text has no such entry.
pub fn param_bytes(ptx: &str, entry: &str) -> Option<usize> {
    let head = ptx.find(&format!(".entry {entry}("))?;
    // `.param .align 8 .b8 name_param_0[56]`
    let list = ptx[head..].split(')').next()?;
    list.rsplit('[').next()?.split(']').next()?.parse().ok()
}

/// The text with one entry alone, and everything that entries share: what a driver has to compile to run it.
/// None where there is no such entry.
pub fn single(ptx: &str, entry: &str) -> Option<String> {
    let mut text = String::new();
    let (mut inside, mut found) = (None, false);
    for line in ptx.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            let wanted = rest.split('(').next().is_some_and(|name| name.trim() == entry);
            inside = Some(wanted);
            found |= wanted;
        }
        if inside.unwrap_or(true) {
            text.push_str(line);
        }
        if line.trim_end() == "}" {
            inside = None;
        }
    }
    found.then_some(text)
}

/// Whether the entry of a text from [`single`] may be launched before the launches before it have ended: it
/// waits for them by itself (`griddepcontrol.wait`) before it touches what they write.
pub fn waits_for_others(single: &str) -> bool {
    single.contains("griddepcontrol.wait")
}
