//! The WGSL of the wgpu backend: templates, and the closed set of their variants.
//!
//! A [`Kernel`] names one variant of one template `wgsl/<stem>.wgsl`; [`source`] renders it (minijinja puts
//! in element types, weight decoders and tile sizes). The template is the one place that says what a dispatch
//! has to bring: [`Source`] reads bindings and parameters out of the text. Numbers that only change from call
//! to call are parameters, not variants. Of `rows.wgsl` every macro is a kernel.
//!
//! Parameters are one struct of at most 16 words, whose first is always zero (the guard, see
//! `wgsl/prelude.wgsl`). They travel as immediates, or, where an implementation has none, in a uniform arena:
//! [`Carrier`]. What holds for all kernels of a device is its [`Dialect`].
//!
//! The feature `folder` reads templates from the folder that `ENGRAFT_WGSL` names, where it is set: for work
//! on shaders without a build, and for `.ci/mutants`.
//!
//! [`uncontracted`] marks what naga makes of a variant for Vulkan: no compiler may contract or reassociate
//! it.
//!
//! Not here: devices, buffers, choice of kernels (`engraft-wgpu`). Every variant is parsed and validated by
//! naga in the tests; what a kernel computes is tested by the conformance suite.

mod all;
mod exact;
mod kernel;
mod render;

pub use exact::{Strictness, uncontracted};
pub use kernel::{Attention, Elementwise, Index, Kernel, Kv, Limit, Moe, Norm, Picture, Reduce, Rescale};
pub use render::{Access, Move, RenderError, Source, moves, source};

/// Element type of activations as shaders see it, and of keys and values that are no codes; 16-bit elements
/// lie in pairs in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Elem {
    /// One word.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Elem {
    /// All of them.
    pub const ALL: [Elem; 3] = [Elem::F32, Elem::F16, Elem::Bf16];

    /// Name in templates and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
        }
    }
}

/// What pages keep of keys and values: elements, or bytes with a scale for every head of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvElem {
    /// Elements.
    Plain(Elem),
    /// Signed integers.
    Int8,
    /// e4m3.
    Fp8,
}

impl KvElem {
    /// Those with scales.
    pub const CODES: [KvElem; 2] = [KvElem::Int8, KvElem::Fp8];

    /// Name in templates and labels.
    pub const fn name(self) -> &'static str {
        match self {
            KvElem::Plain(elem) => elem.name(),
            KvElem::Int8 => "int8",
            KvElem::Fp8 => "fp8",
        }
    }

    /// The element type of pages without scales.
    pub const fn plain(self) -> Option<Elem> {
        match self {
            KvElem::Plain(elem) => Some(elem),
            KvElem::Int8 | KvElem::Fp8 => None,
        }
    }

    /// Words of a head's row at a position, where rows are of whole words: four codes in one, the last
    /// perhaps in part, and the scale (`codes.wgsl`). A row without columns has none.
    pub const fn coded_words(width: usize) -> usize {
        if width == 0 { 0 } else { width.div_ceil(4) + 1 }
    }
}

impl From<Elem> for KvElem {
    fn from(elem: Elem) -> Self {
        KvElem::Plain(elem)
    }
}

/// How a packed weight's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the names are those of the formats.
pub enum Packing {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    /// `d q + m` with bytes: int8 in asymmetric groups.
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    /// Bytes of e4m3; scales in f32, as in those that follow.
    E4m3,
    /// Bytes of e5m2.
    E5m2,
    /// Codes of e3m2, in bytes.
    E3m2,
    /// Nibbles of e2m1.
    E2m1,
    /// Nibbles, places in NF4's table.
    Nf4,
    /// Nibbles, places in the table of GGUF's IQ4.
    Iq4,
    /// Stored as `Q8_0`, multiplied as bytes with rows that [`Kernel::Quantize`] made.
    W8A8,
}

impl Packing {
    /// All of them.
    pub const ALL: [Packing; 21] = [
        Packing::F32,
        Packing::F16,
        Packing::Bf16,
        Packing::Q4_0,
        Packing::Q4_1,
        Packing::Q5_0,
        Packing::Q5_1,
        Packing::Q8_0,
        Packing::Q8_1,
        Packing::Q2K,
        Packing::Q3K,
        Packing::Q4K,
        Packing::Q5K,
        Packing::Q6K,
        Packing::E4m3,
        Packing::E5m2,
        Packing::E3m2,
        Packing::E2m1,
        Packing::Nf4,
        Packing::Iq4,
        Packing::W8A8,
    ];

    /// Name in templates and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Packing::F32 => "f32",
            Packing::F16 => "f16",
            Packing::Bf16 => "bf16",
            Packing::Q4_0 => "q4_0",
            Packing::Q4_1 => "q4_1",
            Packing::Q5_0 => "q5_0",
            Packing::Q5_1 => "q5_1",
            Packing::Q8_0 => "q8_0",
            Packing::Q8_1 => "q8_1",
            Packing::Q2K => "q2_k",
            Packing::Q3K => "q3_k",
            Packing::Q4K => "q4_k",
            Packing::Q5K => "q5_k",
            Packing::Q6K => "q6_k",
            Packing::E4m3 => "e4m3",
            Packing::E5m2 => "e5m2",
            Packing::E3m2 => "e3m2",
            Packing::E2m1 => "e2m1",
            Packing::Nf4 => "nf4",
            Packing::Iq4 => "iq4",
            Packing::W8A8 => "w8a8",
        }
    }

    /// Values of one output that lie together in the codes' plane.
    pub const fn unit(self) -> usize {
        match self {
            Packing::F32 | Packing::F16 | Packing::Bf16 | Packing::Q8_0 | Packing::Q8_1 | Packing::W8A8 => 4,
            Packing::E4m3 | Packing::E5m2 | Packing::E3m2 => 4,
            _ => 8,
        }
    }

    /// Words of a unit.
    pub const fn unit_words(self) -> usize {
        match self {
            Packing::F32 => 4,
            Packing::F16 | Packing::Bf16 => 2,
            _ => 1,
        }
    }

    /// Words that a block shares in the scales' plane; 0 where there is no such plane.
    pub const fn scale_words(self) -> usize {
        match self {
            Packing::F32 | Packing::F16 | Packing::Bf16 => 0,
            Packing::Q4_0 | Packing::Q4_1 | Packing::Q8_0 | Packing::Q8_1 | Packing::W8A8 => 1,
            Packing::E4m3 | Packing::E5m2 | Packing::E3m2 | Packing::E2m1 | Packing::Nf4 | Packing::Iq4 => 1,
            Packing::Q5_0 | Packing::Q5_1 => 2,
            Packing::Q2K | Packing::Q3K | Packing::Q4K => 5,
            Packing::Q5K => 13,
            Packing::Q6K => 21,
        }
    }
}

/// Words of a block of 32 quantized activations: codes, then the scale.
pub const BLOCK_WORDS: usize = 9;

/// Queries that share keys in a workgroup of [`Kernel::AttentionTile`].
pub const ATTENTION_SLOTS: usize = 4;

/// Outputs of one panel of a packed weight.
pub const PANEL: usize = 32;

/// Most words of a kernel's parameters.
pub const PARAM_WORDS: usize = 16;

/// How parameters reach a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// `var<immediate>`.
    Immediate,
    /// `var<uniform>` at group 1, binding 0, with a dynamic offset.
    Uniform,
}

impl Carrier {
    /// Name in templates.
    pub const fn name(self) -> &'static str {
        match self {
            Carrier::Immediate => "immediate",
            Carrier::Uniform => "uniform",
        }
    }
}

/// How shaders are written for a device: the same for all of its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// How parameters reach a kernel.
    pub carrier: Carrier,
    /// The device's shaders know the type f16; otherwise halves are unpacked from words by hand. The bits are
    /// the same.
    pub f16: bool,
    /// Products of four bytes by one instruction (`dot4I8Packed`); otherwise byte by byte. The integers are
    /// the same.
    pub dot: bool,
    /// An order of sums is promised: every sum of a chain is opaque to compilers that reassociate. The bits
    /// are the same on drivers that do not.
    pub strict: bool,
}

#[cfg(test)]
mod tests;
