//! The key of a kernel as plans know it: the op, the types it was chosen for, the variant that this device
//! runs.

use engraft_core::mem::{Float, KvFormat, WeightFormat};
use engraft_core::ops::OpKind;
use engraft_core::params::Heads;
use engraft_shaders::Reduce;
use std::fmt;

/// Invocations of a workgroup of attention: value columns are carried in units of this, positions taken in
/// chunks of it.
pub(crate) const WIDTH: usize = 64;

/// Units of value columns that an invocation carries; the choice of the variant has seen that they fit.
pub(crate) fn columns_of(heads: &Heads) -> u32 {
    heads.v_dim.div_ceil(WIDTH).max(1) as u32
}

/// How an op runs on a device: what `coverage` answers, and what the op's body runs by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WgpuKernel {
    pub(crate) op: OpKind,
    pub(crate) weight: Option<WeightFormat>,
    pub(crate) x: Float,
    pub(crate) out: Float,
    pub(crate) kv: Option<KvFormat>,
    /// Inner size.
    pub(crate) inner: usize,
    /// Units of value columns of attention.
    pub(crate) columns: u32,
    pub(crate) variant: Variant,
    /// Why it is not a variant that would be better here.
    pub(crate) reasons: Vec<String>,
}

/// Which of an op's variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    /// The only one.
    Plain,
    /// How sums are reduced.
    Sums(Reduce),
    /// The same for norms that an op has only where its model does.
    OfNorms(Reduce),
    /// Whether the largest score is found within subgroups.
    Largest {
        /// No bit depends on it.
        subgroups: bool,
    },
    /// Sums of products of bytes, which keep the contract's order.
    Bytes {
        /// Four at a time.
        dot: bool,
    },
}

impl Variant {
    /// How sums are reduced.
    pub fn sums(self) -> Reduce {
        match self {
            Variant::Sums(reduce) | Variant::OfNorms(reduce) => reduce,
            Variant::Plain | Variant::Largest { .. } | Variant::Bytes { .. } => Reduce::Leaves,
        }
    }

    /// Whether the largest score is found within subgroups.
    pub fn largest_in_subgroups(self) -> bool {
        self == Variant::Largest { subgroups: true }
    }

    /// Whether subgroups would serve it.
    pub fn lacks_subgroups(self) -> bool {
        matches!(self, Variant::Sums(Reduce::Shared) | Variant::Largest { subgroups: false })
    }

    fn suffix(self) -> &'static str {
        match self {
            Variant::Plain | Variant::OfNorms(_) => "",
            Variant::Sums(Reduce::Leaves) | Variant::Largest { subgroups: false } => "",
            Variant::Sums(Reduce::Shared) => "_shared",
            Variant::Sums(Reduce::Subgroups) | Variant::Largest { subgroups: true } => "_subgroups",
            Variant::Bytes { dot: true } => "_dot4",
            Variant::Bytes { dot: false } => "_by_bytes",
        }
    }
}

impl fmt::Display for WgpuKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        if let Some(format) = self.weight {
            write!(f, "_{}", format.name().to_lowercase())?;
        }
        write!(f, "_{}_wgsl{}", self.x.name(), self.variant.suffix())?;
        match self.reasons.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.reasons.join("; ")),
        }
    }
}
