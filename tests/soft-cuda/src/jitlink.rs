//! A double of NVIDIA's nvJitLink: the same linker behind another interface, without a driver or a context.
//! What it gives for machine code is the container that this driver loads.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use parking_lot::{Mutex, MutexGuard};

use crate::code::Code;
use crate::link::texts::{Kind, Texts, join, read};
use crate::link::{open, seal};

/// An `nvJitLinkResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Outcome(pub u32);

// The interface's names and numbers.
impl Outcome {
    pub const SUCCESS: Outcome = Outcome(0);
    pub const UNRECOGNIZED_OPTION: Outcome = Outcome(1);
    pub const MISSING_ARCH: Outcome = Outcome(2);
    pub const INVALID_INPUT: Outcome = Outcome(3);
    pub const PTX_COMPILE: Outcome = Outcome(4);
    pub const INTERNAL: Outcome = Outcome(6);
    pub const UNRECOGNIZED_INPUT: Outcome = Outcome(8);
    pub const FINALIZE: Outcome = Outcome(9);
    pub const NULL_INPUT: Outcome = Outcome(10);
}

/// What a call gives.
pub type Result<T = ()> = std::result::Result<T, Outcome>;

/// The version that it says it is, as this driver's.
pub const VERSION: (u32, u32) = (13, 0);

/// Options without a value, and those with one behind `=`, which change nothing here but the bound of
/// registers.
const FLAGS: [&str; 13] = [
    "-lto",
    "-ptx",
    "-g",
    "-lineinfo",
    "-time",
    "-verbose",
    "-no-cache",
    "-dlcm",
    "-optimize-unused-variables",
    "-ltodebug",
    "-O0",
    "-O3",
    "-device-stack-protector",
];
const VALUES: [&str; 12] = [
    "-ftz",
    "-prec-div",
    "-prec-sqrt",
    "-fma",
    "-kernels-used",
    "-variables-used",
    "-Xptxas",
    "-Xnvvm",
    "-split-compile",
    "-split-compile-extended",
    "-jump-table-density",
    "-device-stack-protector",
];

/// A link in progress, or done.
#[derive(Debug, Default)]
pub struct JitLink {
    inputs: Texts,
    /// Registers per thread at most.
    registers: Option<u32>,
    /// What went wrong, and what is worth knowing.
    pub errors: String,
    /// See there.
    pub infos: String,
    output: Option<Box<[u8]>>,
}

impl JitLink {
    fn new(options: &[String]) -> Result<Self> {
        let (mut arch, mut registers) = (false, None);
        for option in options {
            let (name, value) = option.split_once('=').map_or((&option[..], None), |(n, v)| (n, Some(v)));
            match (name, value) {
                ("-arch", Some(value)) => {
                    let number = value.strip_prefix("sm_").or(value.strip_prefix("compute_"));
                    let digits = number.map(|n| n.trim_end_matches(['a', 'f']));
                    let known =
                        digits.is_some_and(|d| d.parse::<u32>().is_ok_and(|n| (50..200).contains(&n)));
                    if !known {
                        return Err(Outcome::UNRECOGNIZED_OPTION);
                    }
                    arch = true;
                }
                ("-maxrregcount", Some(value)) => {
                    registers = Some(value.parse().map_err(|_| Outcome::UNRECOGNIZED_OPTION)?);
                }
                (name, None) if FLAGS.contains(&name) => {}
                (name, Some(_)) if VALUES.contains(&name) => {}
                _ => return Err(Outcome::UNRECOGNIZED_OPTION),
            }
        }
        if arch { Ok(JitLink { registers, ..JitLink::default() }) } else { Err(Outcome::MISSING_ARCH) }
    }

    /// Adds an input of an `nvJitLinkInputType`.
    pub fn add(&mut self, kind: u32, name: &str, bytes: &[u8]) -> Result {
        let kind = match kind {
            1 => Kind::Machine,
            2 => Kind::Ptx,
            3 => {
                self.errors.push_str(&format!("`{name}`: LTO-IR is no input of this linker; give PTX\n"));
                return Err(Outcome::INVALID_INPUT);
            }
            4 => Kind::Fat,
            5 | 6 => Kind::Library,
            10 => Kind::Any,
            _ => return Err(Outcome::UNRECOGNIZED_INPUT),
        };
        let mut log = String::new();
        let new = read(kind, name, bytes, &mut log);
        self.note(new.is_ok(), &log);
        self.inputs.extend(new.map_err(|code| match code {
            Code::INVALID_PTX => Outcome::PTX_COMPILE,
            _ => Outcome::INVALID_INPUT,
        })?);
        self.output = None;
        Ok(())
    }

    /// Links what was added.
    pub fn complete(&mut self) -> Result {
        let mut log = String::new();
        let texts = join(&self.inputs, self.registers, &mut log);
        self.note(texts.is_ok(), &log);
        self.output = Some(seal(&texts.map_err(|_| Outcome::FINALIZE)?));
        Ok(())
    }

    fn note(&mut self, well: bool, log: &str) {
        if well { &mut self.infos } else { &mut self.errors }.push_str(log);
    }

    /// The container.
    pub fn cubin(&self) -> Result<&[u8]> {
        self.output.as_deref().ok_or(Outcome::FINALIZE)
    }

    /// The linked text with its NUL.
    pub fn ptx(&self) -> Result<Vec<u8>> {
        let mut text = open(self.cubin()?).unwrap_or_default().concat().into_bytes();
        text.push(0);
        Ok(text)
    }
}

/// All links of the process, by handle; a handle is never given twice.
#[derive(Debug, Default)]
pub struct Links {
    links: BTreeMap<usize, JitLink>,
    last: usize,
}

impl Links {
    /// A new link.
    pub fn create(&mut self, options: &[String]) -> Result<usize> {
        let link = JitLink::new(options)?;
        self.last += 16;
        self.links.insert(self.last, link);
        Ok(self.last)
    }

    /// The link of a handle.
    pub fn get(&mut self, handle: usize) -> Result<&mut JitLink> {
        self.links.get_mut(&handle).ok_or(Outcome::INVALID_INPUT)
    }

    /// Ends a link.
    pub fn destroy(&mut self, handle: usize) -> Result {
        self.links.remove(&handle).map(|_| ()).ok_or(Outcome::INVALID_INPUT)
    }
}

/// The links.
pub fn links() -> MutexGuard<'static, Links> {
    static LINKS: LazyLock<Mutex<Links>> = LazyLock::new(Mutex::default);
    LINKS.lock()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    fn create(options: &[&str]) -> Result<usize> {
        links().create(&options.iter().map(|&o| o.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_known_or_refused() {
        assert_eq!(create(&[]), Err(Outcome::MISSING_ARCH));
        for bad in ["-arch=sm_XX", "-arch", "-fast", "-lto=1", "-ftz", "-maxrregcount=few"] {
            assert_eq!(create(&["-arch=sm_90", bad]), Err(Outcome::UNRECOGNIZED_OPTION), "{bad}");
        }
        let handle = create(&["-arch=sm_90a", "-lto", "-ftz=true", "-O3", "-Xptxas=-v"]).unwrap();
        assert_eq!(links().destroy(handle), Ok(()));
        assert_eq!(links().destroy(handle), Err(Outcome::INVALID_INPUT));
    }

    #[test]
    fn texts_are_linked_or_refused_with_a_log() {
        let handle = create(&["-arch=sm_90"]).unwrap();
        let mut links = links();
        let link = links.get(handle).unwrap();
        assert_eq!(link.cubin(), Err(Outcome::FINALIZE));
        let main = format!("{HEAD}.extern .func f();\n.visible .entry k() {{ call f; ret; }}");
        link.add(2, "main", main.as_bytes()).unwrap();
        assert_eq!(link.complete(), Err(Outcome::FINALIZE));
        assert!(link.errors.contains("`f`") && link.errors.contains("`main`"), "{}", link.errors);
        assert_eq!(link.add(2, "bad", b".version 8.0 nonsense"), Err(Outcome::PTX_COMPILE));
        assert_eq!(link.add(3, "ir", b"BC"), Err(Outcome::INVALID_INPUT));
        assert_eq!(link.add(1, "sass", b"\x7fELF"), Err(Outcome::INVALID_INPUT));
        assert_eq!(link.add(77, "what", b""), Err(Outcome::UNRECOGNIZED_INPUT));
        link.add(10, "other", format!("{HEAD}.visible .func f() {{ ret; }}").as_bytes()).unwrap();
        link.complete().unwrap();
        let text = String::from_utf8(link.ptx().unwrap()).unwrap();
        assert!(text.contains(".entry k") && text.ends_with('\0'));
        // The container is an input again.
        let container = link.cubin().unwrap().to_vec();
        let bounded = links.create(&["-arch=sm_90".into(), "-maxrregcount=38".into()]).unwrap();
        let link = links.get(bounded).unwrap();
        link.add(2, "k", format!("{HEAD}.visible .entry k() {{ ret; }}").as_bytes()).unwrap();
        link.complete().unwrap();
        assert!(String::from_utf8(link.ptx().unwrap()).unwrap().contains("k() .maxnreg 38 {"));
        let again = links.create(&["-arch=sm_90".into()]).unwrap();
        let link = links.get(again).unwrap();
        link.add(1, "linked", &container).unwrap();
        link.complete().unwrap();
        assert_eq!(link.cubin().unwrap(), container);
    }
}
