//! The buffers between ops: allocated once, large enough for the largest step, reused by every step and graph.

use super::head::HiddenIn;
use crate::Result;
use crate::mem::{DeviceMem, Float, Mat, MatRef};
use crate::policy::{HeadSpec, ModelSpec};

/// Named matrices of a step; rows are tokens unless said otherwise.
#[derive(Debug)]
pub struct Scratch<M> {
    /// The residual stream `[tokens, hidden]`.
    pub residual: Mat<M>,
    /// What follows a norm `[tokens, hidden]`.
    pub normed: Mat<M>,
    /// What a part adds to the residual stream `[tokens, hidden]`.
    pub partial: Mat<M>,
    /// `[tokens, q | k | v]`.
    pub qkv: Mat<M>,
    /// Attention output `[tokens, heads * v_dim]`.
    pub attn: Mat<M>,
    /// `[tokens, gate | up]`; one row where nothing is gated.
    pub gate_up: Mat<M>,
    /// Between the feed-forward products `[tokens, inner]`.
    pub inner: Mat<M>,
    /// Before or after a projection `[tokens, width]`.
    pub wide: Option<Mat<M>>,
    /// What the head reads `[rows, width]`.
    pub head_in: Mat<M>,
    /// Between a masked head's layers `[rows, hidden]`.
    pub head_other: Option<Mat<M>>,
    /// Pooled rows `[rows, hidden]`.
    pub pooled: Option<Mat<M>>,
    /// `[rows, vocab]`, f32.
    pub logits: Option<Mat<M>>,
}

impl<M: DeviceMem> Scratch<M> {
    /// Buffers for steps of up to `tokens` token rows and `rows` wanted rows; `alloc` takes bytes.
    pub fn new(
        spec: &ModelSpec,
        tokens: usize,
        rows: usize,
        dtype: Float,
        mut alloc: impl FnMut(usize) -> Result<M>,
    ) -> Result<Self> {
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            let (rows, cols) = (rows.max(1), cols.max(1));
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let most =
            |f: &dyn Fn(&crate::policy::BlockSpec) -> usize| spec.blocks.iter().map(f).max().unwrap_or(0);
        let gated = most(&|b| if b.mlp.gated { 2 * b.mlp.inner } else { 0 });
        let wide = spec.embed.width.max(spec.out_width());
        let projects = spec.embed.width != spec.hidden || spec.project_out.is_some();
        let transform = matches!(spec.head, HeadSpec::Tokens { transform: Some(_), .. });
        Ok(Self {
            residual: mat(tokens, spec.hidden, dtype)?,
            normed: mat(tokens, spec.hidden, dtype)?,
            partial: mat(tokens, spec.hidden, dtype)?,
            qkv: mat(tokens, most(&|b| b.heads.qkv_cols()), dtype)?,
            attn: mat(tokens, most(&|b| b.heads.out_cols()), dtype)?,
            gate_up: mat(if gated > 0 { tokens } else { 1 }, gated, dtype)?,
            inner: mat(tokens, most(&|b| b.mlp.inner), dtype)?,
            wide: if projects { Some(mat(tokens, wide, dtype)?) } else { None },
            head_in: mat(rows, spec.out_width(), dtype)?,
            head_other: if transform { Some(mat(rows, spec.hidden, dtype)?) } else { None },
            pooled: if spec.pooler { Some(mat(rows, spec.hidden, dtype)?) } else { None },
            logits: match spec.logit_cols() {
                0 => None,
                cols => Some(mat(rows, cols, Float::F32)?),
            },
        })
    }

    /// The last hidden state `[tokens, width]`.
    pub(super) fn hidden(&self, place: HiddenIn, tokens: usize, width: usize) -> MatRef<'_, M> {
        match (place, &self.wide) {
            (HiddenIn::Wide, Some(wide)) => {
                let all = wide.view(0);
                MatRef { rows: tokens, cols: width, pitch: width, ..all }
            }
            (HiddenIn::Residual, _) => self.residual.view(tokens),
            _ => self.normed.view(tokens),
        }
    }

    /// The last hidden state, and the head's input to gather into.
    pub(super) fn hidden_of(
        &mut self,
        place: HiddenIn,
        tokens: usize,
        width: usize,
    ) -> (MatRef<'_, M>, &mut Mat<M>) {
        let Self { residual, normed, wide, head_in, .. } = self;
        let from = match (place, wide) {
            (HiddenIn::Wide, Some(wide)) => {
                let all = wide.view(0);
                MatRef { rows: tokens, cols: width, pitch: width, ..all }
            }
            (HiddenIn::Residual, _) => residual.view(tokens),
            _ => normed.view(tokens),
        };
        (from, head_in)
    }
}
