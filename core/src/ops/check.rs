//! What checks of ops have in common: comparisons that name the op, the operand, what was found and what is
//! expected.

use crate::mem::{Device, Float, KvRef, MatLayout, Weight, WeightInfo, WeightUse};
use crate::params::Heads;
use crate::{Error, Result};

/// Comparisons in the name of an op.
pub(crate) struct Check(pub &'static str);

impl Check {
    pub fn same(&self, what: &'static str, got: usize, want: usize) -> Result<()> {
        if got == want { Ok(()) } else { Err(Error::Shape { op: self.0, what, got, want }) }
    }

    pub fn at_least(&self, what: &'static str, got: usize, want: usize) -> Result<()> {
        if got >= want { Ok(()) } else { Err(Error::Shape { op: self.0, what, got, want }) }
    }

    /// `got` is a product of `sizes`, which may be too large for a number.
    pub fn factors(&self, what: &'static str, got: usize, sizes: &[usize]) -> Result<()> {
        let want = sizes.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        self.same(what, got, want.unwrap_or(usize::MAX))
    }

    pub fn dtype(&self, what: &'static str, got: Float, want: Float) -> Result<()> {
        self.type_name(what, got == want, got.name(), want.name())
    }

    fn type_name(
        &self,
        what: &'static str,
        holds: bool,
        got: &'static str,
        want: &'static str,
    ) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::Type { op: self.0, what, got, want }) }
    }

    /// Something that this op does not have.
    pub fn absent(&self, what: &'static str, given: bool) -> Result<()> {
        self.type_name(what, !given, "given", "none")
    }

    /// Something that this op needs here.
    pub fn present(&self, what: &'static str, given: bool) -> Result<()> {
        self.type_name(what, given, "none", "given")
    }

    /// The same shape and element type.
    pub fn alike(&self, a: MatLayout, b: MatLayout) -> Result<()> {
        self.same("rows", b.rows, a.rows)?;
        self.same("columns", b.cols, a.cols)?;
        self.dtype("element type", b.dtype, a.dtype)
    }

    /// An output of a matmul has the input's type, or is f32.
    pub fn widens(&self, x: Float, out: Float) -> Result<()> {
        self.type_name("element type of the output", out == x || out == Float::F32, out.name(), x.name())
    }

    /// Heads that share keys and values evenly.
    pub fn heads(&self, heads: Heads) -> Result<()> {
        for (what, size) in
            [("heads", heads.heads), ("key/value heads", heads.kv_heads), ("key width", heads.k_dim)]
        {
            self.at_least(what, size, 1)?;
        }
        let Heads { heads, kv_heads, k_dim, v_dim } = heads;
        let width = k_dim.max(v_dim).max(1);
        let columns = kv_heads.checked_mul(2).and_then(|n| n.checked_add(heads)?.checked_mul(width));
        self.at_least("columns that are a number", columns.unwrap_or(0), 1)?;
        self.same("heads beyond whole groups", heads % kv_heads, 0)
    }

    /// A slab that holds its shape in the order of this device.
    pub fn slab<D: Device>(&self, kv: KvRef<'_, D::Mem>) -> Result<()> {
        kv.check::<D>(self.0)
    }

    /// A weight whose rows are looked up.
    pub fn table(&self, weight: &impl Weight) -> Result<()> {
        let looked_up =
            |info: &WeightInfo| matches!(info.used_for, WeightUse::Embedding | WeightUse::EmbeddingAndLinear);
        self.packed(weight, looked_up, "for look-ups")
    }

    /// A weight that is multiplied, and its bias.
    pub fn linear<W: Weight>(&self, weight: &W, bias: Option<&W>) -> Result<()> {
        let multiplied = |info: &WeightInfo| {
            let used_for = info.used_for;
            matches!(used_for, WeightUse::Linear { .. } | WeightUse::GatedLinear { .. })
                || matches!(used_for, WeightUse::EmbeddingAndLinear | WeightUse::LinearShare { .. })
        };
        self.packed(weight, multiplied, "for a matmul")?;
        let partial = matches!(weight.info().used_for, WeightUse::LinearShare { .. });
        self.absent("bias of a rank's part of a sum", partial && bias.is_some())?;
        self.bias(weight, bias)
    }

    /// As many values as the weight has rows.
    pub fn bias<W: Weight>(&self, weight: &W, bias: Option<&W>) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        self.vector("length of the bias", bias, weight.info().rows)
    }

    /// A vector of `len` values.
    pub fn vector(&self, what: &'static str, weight: &impl Weight, len: usize) -> Result<()> {
        self.packed(weight, |info| info.used_for == WeightUse::Vector, "as a vector")?;
        self.same(what, weight.info().cols, len)
    }

    /// A weight whose outputs are used in pairs.
    pub fn gated(&self, weight: &impl Weight) -> Result<()> {
        let pairs = |info: &WeightInfo| matches!(info.used_for, WeightUse::GatedLinear { .. });
        self.packed(weight, pairs, "as gate and up")
    }

    /// How many experts have their weights here.
    pub fn experts(&self, weight: &impl Weight) -> Result<usize> {
        match weight.info().used_for {
            WeightUse::Experts { count, .. } | WeightUse::ExpertsShare { count, .. } => Ok(count),
            _ => self.packed(weight, |_| false, "for experts").map(|()| 0),
        }
    }

    fn packed(&self, weight: &impl Weight, is: fn(&WeightInfo) -> bool, want: &'static str) -> Result<()> {
        let info = weight.info();
        let got = match info.used_for {
            WeightUse::Linear { .. } => "for a matmul",
            WeightUse::LinearShare { .. } => "for a rank's part of a matmul",
            WeightUse::GatedLinear { .. } => "as gate and up",
            WeightUse::Experts { .. } => "for experts",
            WeightUse::ExpertsShare { .. } => "for a rank's part of experts",
            WeightUse::Embedding => "for look-ups",
            WeightUse::EmbeddingAndLinear => "for look-ups and a matmul",
            WeightUse::Vector => "as a vector",
        };
        self.type_name("the packing of a weight", is(info), got, want)
    }
}
