//! From the inputs of a link to one text.

use ptx_vm::link::{Input, limit_registers, link, undefined};

use crate::code::{Code, Result};
use crate::device::capability;
use crate::fatbin;
use crate::module::{self, Image};

/// Texts with the names that messages give them.
pub type Texts = Vec<(String, String)>;

/// What an input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Machine code: a container of this driver's, since nothing else can be executed.
    Machine,
    /// PTX.
    Ptx,
    /// A fat binary.
    Fat,
    /// An object of the host's compiler, or an archive of some: fat binaries are somewhere in it.
    Library,
    /// Any of these.
    Any,
}

/// The part of CUDA's device runtime by which a grid waits for all its blocks.
const RUNTIME: &str = include_str!("runtime.ptx");
/// What it defines.
const RUNTIME_NAMES: [&str; 2] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"];
/// The archive that holds NVIDIA's own, as machine code.
const RUNTIME_ARCHIVE: &str = "cudadevrt";

/// Reads an input. A text that needs nothing of others is looked over at once, as a compiler would.
pub fn read(kind: Kind, name: &str, bytes: &[u8], log: &mut String) -> Result<Texts> {
    if kind == Kind::Library || kind == Kind::Any && is_library(bytes) {
        return library(name, bytes, log);
    }
    let image = module::classify(bytes);
    let texts = match (kind, image) {
        (Kind::Ptx | Kind::Fat | Kind::Any, Image::Ptx(text)) => vec![text],
        (Kind::Machine | Kind::Any, Image::Linked(texts)) => texts,
        (_, image @ (Image::Machine | Image::Damaged)) => {
            module::parse(&image, log)?;
            return Err(Code::INVALID_IMAGE);
        }
        (kind, _) => {
            log.push_str(&format!("`{name}` is no input of the kind {kind:?}\n"));
            return Err(Code::INVALID_IMAGE);
        }
    };
    for text in &texts {
        check(text, log)?;
    }
    Ok(texts.into_iter().map(|text| (name.to_owned(), text)).collect())
}

/// Refuses a text that is wrong by itself.
fn check(text: &str, log: &mut String) -> Result {
    let open = undefined(text).is_ok_and(|names| !names.is_empty());
    if open { Ok(()) } else { module::parse(&Image::Ptx(text.into()), log).map(|_| ()) }
}

fn is_library(bytes: &[u8]) -> bool {
    const ARCHIVE: &[u8] = b"!<arch>\n";
    const RELOCATABLE: u16 = 1;
    let kind = bytes.get(16..18).map(|b| u16::from_le_bytes([b[0], b[1]]));
    bytes.starts_with(ARCHIVE)
        || bytes.starts_with(b"\x7fELF") && kind == Some(RELOCATABLE) && texts_in(bytes).next().is_some()
}

/// The PTX of all fat binaries in an object or an archive.
fn texts_in(bytes: &[u8]) -> impl Iterator<Item = String> + '_ {
    let at = |at: &usize| fatbin::begins(&bytes[*at..]);
    (0..bytes.len()).step_by(2).filter(at).filter_map(|at| fatbin::text(&bytes[at..], capability()))
}

fn library(name: &str, bytes: &[u8], log: &mut String) -> Result<Texts> {
    if name.contains(RUNTIME_ARCHIVE) {
        // Its place is taken by what is built in.
        return Ok(Texts::new());
    }
    let texts: Texts = texts_in(bytes).map(|text| (name.to_owned(), text)).collect();
    if texts.is_empty() {
        log.push_str(&format!("`{name}` holds no PTX for a device of compute capability {}\n", capability()));
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    Ok(texts)
}

/// Makes one text of all; none of none. Its kernels use `registers` registers at most, if that is said.
pub fn join(inputs: &Texts, registers: Option<u32>, log: &mut String) -> Result<Vec<String>> {
    let mut all: Vec<Input<'_>> = inputs.iter().map(|(name, text)| Input { name, text }).collect();
    let needs = |text: &str| undefined(text).is_ok_and(|n| n.iter().any(|n| RUNTIME_NAMES.contains(&&n[..])));
    if all.is_empty() {
        return Ok(Vec::new());
    }
    if all.iter().any(|input| needs(input.text)) {
        all.push(Input { name: "the device runtime", text: RUNTIME });
    }
    let linked = link(&all).and_then(|text| match registers {
        Some(most) => limit_registers(&text, most),
        None => Ok(text),
    });
    let text = linked.map_err(|e| {
        log.push_str(&format!("{e}\n"));
        Code::INVALID_PTX
    })?;
    module::parse(&Image::Ptx(text.clone()), log)?;
    Ok(vec![text])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FAT: &[u8] = include_bytes!("../../tests/common/kernels.zstd.fatbin");

    #[test]
    fn fat_binaries_are_found_in_objects_and_archives() {
        let mut archive = b"!<arch>\nmember  ".to_vec();
        archive.extend(FAT);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(FAT);
        let mut log = String::new();
        for kind in [Kind::Library, Kind::Any] {
            let texts = read(kind, "lib.a", &archive, &mut log).unwrap();
            assert_eq!(texts.len(), 2, "{log}");
            assert!(texts.iter().all(|(name, text)| name == "lib.a" && text.contains(".version")));
        }
        assert_eq!(read(Kind::Library, "libempty.a", b"!<arch>\n", &mut log), Err(Code::NO_BINARY_FOR_GPU));
        assert!(log.contains("libempty.a"), "{log}");
        assert_eq!(read(Kind::Library, "libcudadevrt.a", b"!<arch>\n", &mut log), Ok(Texts::new()));
    }
}
