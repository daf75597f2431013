//! Buffers of routing and of the experts' matmuls.

use super::identities::IdentityScratch;
use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat, MatMut};
use crate::policy::{BlockSpec, ModelSpec, MoeSpec};

/// Buffers of routing: a slot is a pair of token and chosen expert.
#[derive(Debug)]
pub struct ExpertScratch<M> {
    pub(super) logits: Mat<M>,
    pub(super) weights: Mat<M>,
    pub(super) experts: Buf<M, u32>,
    pub(super) groups: Buf<M, u32>,
    /// `[slots, gate | up]`.
    pub(super) up: Mat<M>,
    /// `[slots, inner]`.
    pub(super) inner: Mat<M>,
    /// `[slots, hidden]`.
    pub(super) out: Mat<M>,
    /// Of a rank that has a part of each expert: what it adds, then the sum `[slots, hidden]`, f32.
    pub(super) nodes: Option<Mat<M>>,
    /// -0 in every element, where ranks have parts of unlike experts, or of experts next to those without
    /// weights: `[slots, hidden]`, f32.
    pub(super) zeros: Option<Mat<M>>,
    /// Biases of the slots' experts, where they are added to those sums: `[slots, hidden]`, f32.
    pub(super) bias_rows: Option<Mat<M>>,
    /// The experts' sum, where the dense part waits in `partial`: `[tokens, hidden]`.
    pub(super) sum: Mat<M>,
    pub(super) join_weights: Mat<M>,
    /// Where weights multiply what experts read: that `[slots, hidden]`, and ones `[tokens, top_k]`, f32, in
    /// the place of the weights.
    pub(super) weighted: Option<(Mat<M>, Mat<M>)>,
    /// Where experts have factors: those of the slots' experts `[slots, 1]`, f32, and the weights times them.
    pub(super) multiplied: Option<(Mat<M>, Mat<M>)>,
    /// Where experts have no weights.
    pub(super) identities: Option<IdentityScratch<M>>,
}

impl<M: DeviceMem> ExpertScratch<M> {
    /// What must be -0 in every element before the first step, if there is any.
    pub(crate) fn zeros(&mut self) -> Option<MatMut<'_, M>> {
        let rows = self.zeros.as_ref()?.rows();
        self.zeros.as_mut()?.view_mut(rows).ok()
    }

    /// What must be 1 in every element before the first step, if there is any.
    pub(crate) fn ones(&mut self) -> Option<MatMut<'_, M>> {
        let (_, ones) = self.weighted.as_mut()?;
        let rows = ones.rows();
        ones.view_mut(rows).ok()
    }

    /// What must lie where before the first step, of experts without weights.
    pub(crate) fn marks(&mut self) -> Option<(Vec<f32>, MatMut<'_, M>)> {
        self.identities.as_mut()?.marks().ok()
    }

    /// Buffers for steps of up to `tokens` rows; none for models without experts.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let most = |f: &dyn Fn(&BlockSpec, &MoeSpec) -> usize| {
            spec.blocks.iter().filter_map(|b| b.moe.as_ref().map(|m| f(b, m))).max().unwrap_or(0)
        };
        let top_k = most(&|_, m| m.router.top_k);
        if top_k == 0 {
            return Ok(None);
        }
        let (experts, slots) = (most(&|_, m| m.router.experts).max(2), tokens * top_k.max(2));
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows.max(1) * cols.max(1) * dtype.bytes())?, rows.max(1), cols.max(1), dtype)
        };
        let up = most(&|b, m| m.inner * (1 + usize::from(b.mlp.gated)));
        let rows = tokens * top_k;
        let logits = mat(tokens, experts, Float::F32)?;
        let weights = mat(tokens, top_k, Float::F32)?;
        let (up, inner) = (mat(rows, up, dtype)?, mat(rows, most(&|_, m| m.inner), dtype)?);
        let (out, sum) = (mat(rows, spec.hidden, dtype)?, mat(tokens, spec.hidden, dtype)?);
        let blocks = || spec.group.iter().flat_map(|group| &group.blocks).filter(|b| b.expert_parts);
        let nodes = blocks().next().map(|_| mat(rows, spec.hidden, Float::F32)).transpose()?;
        let identities = IdentityScratch::new(spec, [tokens, rows], &mut mat)?;
        let unlike = identities.is_some() || blocks().any(|b| b.experts.is_some_and(|share| share.is_part()));
        let zeros = (unlike && nodes.is_some()).then(|| mat(rows, spec.hidden, Float::F32)).transpose()?;
        let biased = nodes.is_some() && spec.blocks.iter().any(|b| b.moe.is_some_and(|moe| moe.bias));
        let bias_rows = biased.then(|| mat(rows, spec.hidden, Float::F32)).transpose()?;
        let join_weights = mat(tokens, 2, Float::F32)?;
        let weighted = match most(&|_, m| usize::from(m.input_weighted)) {
            0 => None,
            _ => Some((mat(rows, spec.hidden, dtype)?, mat(tokens, top_k, Float::F32)?)),
        };
        let multiplied = match most(&|_, m| usize::from(m.factors)) {
            0 => None,
            _ => Some((mat(rows, 1, Float::F32)?, mat(rows, 1, Float::F32)?)),
        };
        let words = |n: usize, alloc: &mut dyn FnMut(usize) -> Result<M>| Buf::new(alloc(4 * n)?, n);
        Ok(Some(Self {
            logits,
            weights,
            experts: words(slots.max(1), alloc)?,
            groups: words(experts + 1 + slots, alloc)?,
            up,
            inner,
            out,
            nodes,
            zeros,
            bias_rows,
            sum,
            join_weights,
            weighted,
            multiplied,
            identities,
        }))
    }
}
