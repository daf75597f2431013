//! Weights on their way to a backend, and what is known of them afterwards.

use super::{Groups, WeightFormat};
use crate::numerics::{LEAVES, Share};
use crate::{Error, Result};
use std::borrow::Cow;

/// What a weight is used for; decides how a backend packs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// Multiplied: `y = x w^T`; the sum over `cols` has leaves of whole `grain`s, which come in groups.
    Linear {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
        /// See [`crate::numerics::leaf_bounds_of_groups`].
        group: usize,
    },
    /// What one rank has of a matmul whose sums several share: `cols` are those of its leaves. Its outputs
    /// are partial sums, for f32 outputs without a bias.
    LinearShare {
        /// Its leaves.
        share: Share,
    },
    /// Multiplied: gate and up `[2 inner, cols]`, whose outputs are used in pairs; as a plain matmul it gives
    /// `[gate | up]`.
    GatedLinear {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Multiplied, `[rows / count, cols]` for each of `count` experts, one after the other.
    Experts {
        /// Experts.
        count: usize,
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// What one rank has of the experts' matmuls whose sums several share: as [`WeightUse::LinearShare`], for
    /// each of `count` experts.
    ExpertsShare {
        /// Experts.
        count: usize,
        /// The leaves of every expert's sums.
        share: Share,
    },
    /// Rows are looked up.
    Embedding,
    /// Both (tied embeddings); must not take the memory of two.
    EmbeddingAndLinear,
    /// A vector `[1, cols]` (norm weight, bias), used as f32.
    Vector,
}

/// Name, shape, format and use of a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightInfo {
    /// For messages and plans: the role, e.g. `layer 3 qkv.weight`.
    pub name: String,
    /// Rows (outputs); of experts those of all.
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Format it is multiplied from.
    pub format: WeightFormat,
    /// Use.
    pub used_for: WeightUse,
}

impl WeightUse {
    /// A matmul whose sums have leaves of any length.
    pub const MATMUL: WeightUse = WeightUse::Linear { grain: 1, group: 1 };

    /// A rank's part of sums, where it is that.
    pub fn share(self) -> Option<Share> {
        match self {
            WeightUse::LinearShare { share } | WeightUse::ExpertsShare { share, .. } => Some(share),
            _ => None,
        }
    }
}

impl WeightInfo {
    /// Bytes in the format.
    pub fn bytes(&self) -> usize {
        self.format.bytes(self.rows, self.cols)
    }
}

/// Bytes of a weight that are read, checked or packed at once, and then let go.
pub const AT_ONCE: usize = 4 << 20;

/// What is called with the bytes of a weight that are packed already: pages of a mapped file may leave memory
/// (they come back by themselves if they are read again). By default nothing.
#[derive(Clone, Copy)]
pub struct Release<'a>(&'a dyn Fn(&[u8]));

impl<'a> Release<'a> {
    /// Calls this.
    pub fn by(release: &'a dyn Fn(&[u8])) -> Self {
        Self(release)
    }

    /// Calls it with these bytes.
    pub fn bytes(&self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

impl Default for Release<'_> {
    fn default() -> Self {
        Self(&|_| {})
    }
}

impl std::fmt::Debug for Release<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Release")
    }
}

/// A weight in host memory, row-major `[rows, cols]` in its format's file layout.
#[derive(Debug)]
pub struct HostWeight<'a> {
    info: WeightInfo,
    parts: Vec<Cow<'a, [u8]>>,
    release: Release<'a>,
}

impl<'a> HostWeight<'a> {
    /// `parts` are row ranges one after the other: each holds whole rows, all of them together the whole
    /// weight.
    ///
    /// # Errors
    /// `Tensor` naming the weight where rows or bytes do not add up, or experts do not share the rows evenly.
    pub fn new(info: WeightInfo, parts: Vec<Cow<'a, [u8]>>) -> Result<Self> {
        let no = |what: String| Err(Error::tensor(&info.name, what));
        let WeightInfo { rows, cols, format, .. } = info;
        // More than memory can hold, also in the widest format.
        if rows.max(1).checked_mul(cols).and_then(|n| n.checked_mul(8)).is_none() {
            return no(format!("{rows} x {cols} values are more than memory can hold"));
        }
        if let Some(block) = format.block().filter(|block| !cols.is_multiple_of(block.values())) {
            return no(format!("{cols} columns in {format}; blocks of {} are expected", block.values()));
        }
        if let WeightFormat::Group(groups) = format
            && !groups.is_allowed()
        {
            let Groups { size, .. } = groups;
            return no(format!("groups of {size} in {}; multiples of 32 are expected", groups.name()));
        }
        let row = format.bytes(1, cols);
        if let Some(part) = parts.iter().find(|p| row == 0 || p.len() % row != 0) {
            return no(format!("a part of {} bytes; rows of {row} bytes are expected", part.len()));
        }
        let (got, want) = (parts.iter().map(|p| p.len()).sum::<usize>(), rows * row);
        if got != want {
            return no(format!("{got} bytes; [{rows}, {cols}] in {format} has {want}"));
        }
        match info.used_for {
            WeightUse::Experts { count, .. } | WeightUse::ExpertsShare { count, .. }
                if count == 0 || !rows.is_multiple_of(count) =>
            {
                no(format!("{rows} rows for {count} experts; every expert has as many"))
            }
            WeightUse::GatedLinear { .. } if !rows.is_multiple_of(2) => {
                no(format!("{rows} rows; gate and up have as many each"))
            }
            WeightUse::LinearShare { share } | WeightUse::ExpertsShare { share, .. }
                if share.bounds()[LEAVES] != cols =>
            {
                no(format!("{cols} columns for leaves of {}", share.bounds()[LEAVES]))
            }
            WeightUse::Vector if rows != 1 => no(format!("a vector of {rows} rows")),
            _ => Ok(Self { info, parts, release: Release::default() }),
        }
    }

    /// The same, which releases what is packed.
    pub fn releasing(self, release: Release<'a>) -> Self {
        Self { release, ..self }
    }

    /// What to call with bytes that are packed.
    pub fn release(&self) -> Release<'a> {
        self.release
    }

    /// What it is.
    pub fn info(&self) -> &WeightInfo {
        &self.info
    }

    /// Its row ranges.
    pub fn parts(&self) -> &[Cow<'a, [u8]>] {
        &self.parts
    }

    /// Both.
    pub fn into_parts(self) -> (WeightInfo, Vec<Cow<'a, [u8]>>) {
        (self.info, self.parts)
    }
}
