//! The key of a kernel: what a plan shows, and which entries a launch of it may take.

use engraft_kernels::pack::Encoding;
use engraft_kernels::params::gemm::Hopper;
use engraft_kernels::params::linear::Linear;
use engraft_kernels::params::moe::ExpertLinear;
use engraft_kernels::params::{Elem, Format, attention, flash, gemm, grouped, int8};
use std::fmt;

/// What cuBLASLt's matmuls are counted as.
pub(crate) const BLASLT: &str = "cublasLtMatmul";

/// A kernel of this backend. Several entries serve most of them: which one a launch takes depends on rows and
/// alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// One entry, whatever the sizes.
    Entry(&'static str),
    /// Several entries under one name.
    Several {
        /// As plans show it.
        name: &'static str,
        /// The entries.
        entries: &'static [&'static str],
    },
    /// A matmul in the contract's order, weights in this format as stored.
    Strict(Format),
    /// The same, f32 weights with the outputs of a warp side by side.
    Columns,
    /// Matmuls of quantized activations (`w8a8`).
    Integers,
    /// Experts' matmuls in the contract's order, weights in this format as stored.
    Experts(Format),
    /// Experts' matmuls on tensor cores.
    Grouped {
        /// How weights are packed.
        encoding: Encoding,
        /// Element type of activations.
        elem: Elem,
    },
    /// A matmul on tensor cores.
    Tensor {
        /// How weights are packed.
        encoding: Encoding,
        /// Element type of activations.
        elem: Elem,
        /// Which of Hopper's own more than a few rows take.
        hopper: Hopper,
        /// Whether many rows are offered to cuBLASLt first.
        blaslt: bool,
    },
    /// Attention in the contract's order, over pages.
    StrictPaged {
        /// Element type of keys and values.
        kv: Elem,
        /// Width of a value head.
        v_dim: u32,
    },
    /// Attention in the contract's order, without pages.
    StrictDense {
        /// Element type of all.
        elem: Elem,
        /// Width of a value head.
        v_dim: u32,
    },
    /// Attention on tensor cores.
    Flash {
        /// Element type of all.
        elem: Elem,
        /// Width of a head.
        width: u32,
        /// Whether over pages.
        paged: bool,
        /// Whether many queries take Hopper's own.
        hopper: bool,
    },
}

impl Kernel {
    /// Every own entry that it may launch on the device that chose it.
    pub fn entries(&self) -> Vec<String> {
        let all = |entries: &[&str]| entries.iter().map(|entry| entry.to_string()).collect();
        match *self {
            Self::Entry(entry) => all(&[entry]),
            Self::Several { entries, .. } => all(entries),
            Self::Strict(format) => Linear::entries(format).map(String::from).collect(),
            Self::Columns => all(&Linear::COLUMNS),
            Self::Integers => all(&int8::ENTRIES),
            Self::Experts(format) => ExpertLinear::entries(format).map(String::from).collect(),
            Self::Grouped { encoding, elem } => grouped::entries(encoding, elem).collect(),
            Self::Tensor { encoding, elem, hopper, .. } => {
                gemm::entries(encoding, elem).chain(gemm::boxed_entries(encoding, elem, hopper)).collect()
            }
            Self::StrictPaged { kv, v_dim } => all(&attention::Paged::entries(kv, v_dim)),
            Self::StrictDense { elem, v_dim } => all(&[attention::Dense::entry(elem, v_dim)]),
            Self::Flash { elem, width, paged, hopper } => flash::entries(elem, width, paged, hopper),
        }
    }

    /// Whether a launch of `entry`, as [`crate::Cuda::launches`] counts it, may be its own.
    pub fn covers(&self, entry: &str) -> bool {
        let library = matches!(self, Self::Tensor { blaslt: true, .. }) && entry == BLASLT;
        library || self.entries().iter().any(|own| own == entry)
    }
}

/// For people: `*` stands for what a launch chooses.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Entry(entry) => f.write_str(entry),
            Self::Several { name, .. } => f.write_str(name),
            Self::Strict(format) => write!(f, "linear_strict*_{}", format.name()),
            Self::Columns => f.write_str("linear_columns*_f32"),
            Self::Integers => f.write_str("int8_*"),
            Self::Experts(format) => write!(f, "moe_linear*_{}", format.name()),
            Self::Grouped { encoding, elem } => f.write_str(&grouped::name(encoding, elem)),
            Self::Tensor { encoding, elem, hopper, blaslt } => {
                f.write_str(&gemm::name(encoding, elem))?;
                if hopper != Hopper::None {
                    write!(f, " | {}", gemm::boxed_name(encoding, elem))?;
                }
                if blaslt { write!(f, " | {BLASLT}") } else { Ok(()) }
            }
            Self::StrictPaged { .. } => f.write_str("attention_paged_*"),
            Self::StrictDense { elem, .. } => write!(f, "attention_dense_whole_{}_*", elem.name()),
            Self::Flash { elem, width, hopper, .. } => {
                write!(f, "flash_*_{}_{width}", elem.name())?;
                if hopper { write!(f, " | flashw_*_{}_{width}", elem.name()) } else { Ok(()) }
            }
        }
    }
}
