//! What may be chosen for an op: a kernel with its key, or the composition. `ops` chooses.

use crate::simd::Isa;
use engraft_core::Error;
use engraft_core::backend::Coverage;
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::ops::{OpKind, Signature};
use std::fmt;

/// A kernel of this backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuKernel {
    op: OpKind,
    reads: Reads,
    isa: Isa,
}

/// What a kernel is chosen by, besides the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reads {
    /// The format of its weight.
    Weight(WeightFormat),
    /// The type of its activations.
    Values(Float),
}

impl fmt::Display for CpuKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let isa = self.isa.name();
        match self.reads {
            Reads::Weight(format) => write!(f, "{}_{}_{isa}", self.op, format.name().to_lowercase()),
            Reads::Values(dtype) => write!(f, "{}_{dtype}_{isa}", self.op),
        }
    }
}

/// How an op runs; unlike [`Coverage`] it takes no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// By this kernel.
    Kernel(CpuKernel),
    /// By its composition, for this reason.
    Composed(&'static str),
    /// Not at all, for this reason.
    Missing(&'static str),
}

impl From<Choice> for Coverage<CpuKernel> {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Kernel(kernel) => Coverage::Native(kernel),
            Choice::Composed(reason) => Coverage::Composed(reason.into()),
            Choice::Missing(reason) => Coverage::Missing(reason.into()),
        }
    }
}

impl Choice {
    /// A kernel of eight lanes: AVX-512 adds nothing to it (see `simd::wide`).
    pub fn eight(signature: &Signature, isa: Isa) -> Self {
        Self::sixteen(signature, if isa == Isa::Avx512 { Isa::Avx2 } else { isa })
    }

    /// A kernel that is compiled for AVX-512, too.
    pub fn sixteen(signature: &Signature, isa: Isa) -> Self {
        let reads = signature.weight.map_or(Reads::Values(signature.x), Reads::Weight);
        Choice::Kernel(CpuKernel { op: signature.op, reads, isa })
    }
}

/// That an op, or a part of one, has no kernel here.
pub(crate) fn unsupported(op: impl Into<String>, reason: &str) -> Error {
    Error::Unsupported { op: op.into(), backend: "cpu".into(), reason: reason.into() }
}
