//! The buffers between ops: allocated once, large enough for the largest step, reused by every step and
//! graph.

use super::expert_scratch::ExpertScratch;
use super::index_scratch::IndexScratch;
use super::latent_scratch::LatentScratch;
use super::layer_conv_scratch::ConvScratch;
use super::layer_scratch::LayerScratch;
use super::relative_scratch::RelativeScratch;
use super::shortcut::ShortcutScratch;
use super::stem_scratch::StemScratch;
use super::stream_scratch::{LaurelScratch, StreamScratch};
use crate::mem::{DeviceMem, Float, Mat, MatRef};
use crate::policy::{BlockSpec, Group, ModelSpec, Placement, Project};
use crate::{Error, Result};

/// Which buffer holds the last hidden state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenIn {
    /// `residual`.
    Residual,
    /// `normed`.
    Normed,
    /// `wide`, after a projection.
    Wide,
}

/// Rows of the largest step.
#[derive(Debug, Clone, Copy)]
pub struct StepRows {
    /// Rows of tokens.
    pub tokens: usize,
    /// Sequences that they are of.
    pub seqs: usize,
    /// Rows of logits, pooled rows or what else is wanted.
    pub wanted: usize,
    /// Columns of the workspace that something else than the blocks needs.
    pub columns: usize,
}

/// Named matrices of a step; rows are tokens unless said otherwise.
#[derive(Debug)]
pub struct Scratch<M> {
    /// The residual stream `[tokens, hidden]`.
    pub residual: Mat<M>,
    /// What follows a norm `[tokens, hidden]`.
    pub normed: Mat<M>,
    /// What a part adds to the residual stream `[tokens, hidden]`.
    pub partial: Mat<M>,
    /// Of a rank: what it adds to a sum that all share, then the sum `[tokens, hidden]`, f32; two side by
    /// side in models of parallel blocks.
    pub nodes: Option<Mat<M>>,
    /// Of a rank whose norms span the heads of all, or whose cutoff spans the gates of all: queries, keys or
    /// gates of all of them `[tokens, columns]`, f32: what is made of them is rounded where it is put back.
    pub all_heads: Option<Mat<M>>,
    /// What a part of a block reads again: q | k | v `[tokens, columns]`, then what is between the
    /// feed-forward matmuls `[tokens, inner]`; before the blocks rows of convolutions, behind an encoder's
    /// keys and values.
    pub workspace: Mat<M>,
    /// Gates of heads `[tokens, heads]` f32, where any block has one for a head.
    pub head_gates: Option<Mat<M>>,
    /// Attention output `[tokens, heads * v_dim]`.
    pub attn: Mat<M>,
    /// `[tokens, gate | up]`; one row where nothing is gated.
    pub gate_up: Mat<M>,
    /// Before or after a projection `[tokens, width]`.
    pub wide: Option<Mat<M>>,
    /// Of blocks with a filter: two inputs side by side, the earlier one first `[tokens, 2 * hidden]`; then
    /// what the filter gives.
    pub pair: Option<Mat<M>>,
    /// The same between its matmuls `[tokens, 2 * middle]`.
    pub middle_pair: Option<Mat<M>>,
    /// Of blocks whose heads read one row of a position.
    pub latent: Option<LatentScratch<M>>,
    /// Of blocks with an index of keys, of a decoder's [`State`](super::State).
    pub index: Option<IndexScratch<M>>,
    /// Of models whose queries grow with their position.
    pub growth: Option<GrowthScratch<M>>,
    /// Of models whose blocks have inputs of their own.
    pub layers: Option<LayerScratch<M>>,
    /// Of models with several residual streams.
    pub streams: Option<StreamScratch<M>>,
    /// Of blocks with a low-rank path next to attention.
    pub laurel: Option<LaurelScratch<M>>,
    /// Of models whose scores have terms by distance that depend on what is at it.
    pub relative: Option<RelativeScratch<M>>,
    /// Of models with a convolution next to a block.
    pub conv: Option<ConvScratch<M>>,
    /// Of models with experts.
    pub experts: Option<ExpertScratch<M>>,
    /// Of models with experts that join a block later.
    pub shortcut: Option<ShortcutScratch<M>>,
    /// Pixels as they are uploaded `[tokens, values of a patch]`, f32.
    pub pixels: Option<Mat<M>>,
    /// The same in the activations' type.
    pub image_patches: Option<Mat<M>>,
    /// Of models that read sound.
    pub stem: Option<StemScratch<M>>,
    /// What the head reads `[rows, width]`.
    pub head_in: Mat<M>,
    /// Columns of the last hidden state.
    pub head_width: usize,
    /// Between the layers of a head or pooler `[rows, width]`.
    pub head_other: Option<Mat<M>>,
    /// Pooled rows `[rows, columns]`.
    pub pooled: Option<Mat<M>>,
    /// `[rows, vocab]`, f32.
    pub logits: Option<Mat<M>>,
}

/// Buffers for factors of queries.
#[derive(Debug)]
pub struct GrowthScratch<M> {
    /// Of every token `[tokens, 1]`, f32.
    pub factors: Mat<M>,
    /// Queries times their factors `[tokens, heads * k_dim]`.
    pub queries: Mat<M>,
}

/// The embedding's sum passes through the norm's and the partial result's buffers.
fn sum_fits(spec: &ModelSpec) -> Result<()> {
    let sum = if spec.embed.project == Project::Sum { spec.embed.width } else { 0 };
    match sum > spec.hidden {
        true => {
            let allowed = format!("at most {}, the hidden size", spec.hidden);
            Err(Error::config("embedding_size", sum, allowed))
        }
        false => Ok(()),
    }
}

impl<M> GrowthScratch<M> {
    fn new(
        tokens: usize,
        cols: usize,
        dtype: Float,
        mat: &mut dyn FnMut(usize, usize, Float) -> Result<Mat<M>>,
    ) -> Result<Option<Self>> {
        if cols == 0 {
            return Ok(None);
        }
        Ok(Some(Self { factors: mat(tokens, 1, Float::F32)?, queries: mat(tokens, cols, dtype)? }))
    }
}

/// A buffer, unless it has no columns.
fn unless_empty<M>(
    mat: &mut dyn FnMut(usize, usize, Float) -> Result<Mat<M>>,
    (rows, cols): (usize, usize),
    dtype: Float,
) -> Result<Option<Mat<M>>> {
    if cols > 0 { mat(rows, cols, dtype).map(Some) } else { Ok(None) }
}

/// Columns of the gates of a block's heads or feed-forward part, beside what they are multiplied with.
fn gate_columns(b: &BlockSpec) -> usize {
    let heads = match b.attn_gate {
        None => 0,
        Some(gate) if gate.per_head => b.out_cols(),
        Some(_) => 2 * b.out_cols(),
    };
    let input = b.input.map_or(0, |input| 2 * input.width);
    heads.max(input).max(if b.mlp.gated { 2 * b.mlp.inner } else { 0 })
}

/// Columns of queries, keys and values, and between the matmuls of a block's feed-forward part or of its own
/// input.
fn workspace_columns(b: &BlockSpec) -> usize {
    b.heads.qkv_cols().max(b.mlp.inner).max(b.input.map_or(0, |input| input.width))
}

/// Columns of all ranks' heads or gates, where a rank needs them.
fn all_heads(spec: &ModelSpec) -> Option<usize> {
    spec.group.as_ref().and_then(Group::gathered_columns)
}

/// What rows become before the head, and, where it has a transform of its own, behind that.
fn before_head<M: DeviceMem>(
    spec: &ModelSpec,
    rows: usize,
    dtype: Float,
    mat: &mut impl FnMut(usize, usize, Float) -> Result<Mat<M>>,
) -> Result<(Mat<M>, Option<Mat<M>>)> {
    let cols = spec.head.transform().map_or(0, |t| t.width).max(spec.out_width());
    let other = spec.head.transform().is_some() || spec.pooler.is_some_and(|p| p.norm.is_some());
    Ok((mat(rows, cols, dtype)?, if other { Some(mat(rows, cols, dtype)?) } else { None }))
}

/// Buffers of parts that few models have, as they are in a [`Scratch`].
struct Parts<M> {
    experts: Option<ExpertScratch<M>>,
    latent: Option<LatentScratch<M>>,
    layers: Option<LayerScratch<M>>,
    streams: Option<StreamScratch<M>>,
    laurel: Option<LaurelScratch<M>>,
    relative: Option<RelativeScratch<M>>,
    conv: Option<ConvScratch<M>>,
    shortcut: Option<ShortcutScratch<M>>,
}

impl<M: DeviceMem> Parts<M> {
    fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        mut alloc: impl FnMut(usize) -> Result<M>,
    ) -> Result<Self> {
        Ok(Self {
            experts: ExpertScratch::new(spec, tokens, dtype, &mut alloc)?,
            latent: LatentScratch::new(spec, tokens, dtype, &mut alloc)?,
            layers: LayerScratch::new(spec, tokens, &mut alloc)?,
            streams: StreamScratch::new(spec, tokens, dtype, &mut alloc)?,
            laurel: LaurelScratch::new(spec, tokens, dtype, &mut alloc)?,
            relative: RelativeScratch::new(spec, tokens, dtype, &mut alloc)?,
            conv: ConvScratch::new(spec, tokens, dtype, &mut alloc)?,
            shortcut: ShortcutScratch::new(spec, tokens, dtype, &mut alloc)?,
        })
    }
}

impl<M: DeviceMem> Scratch<M> {
    /// Buffers for steps of up to so many rows; `alloc` takes bytes.
    pub fn new(
        spec: &ModelSpec,
        StepRows { tokens, seqs, wanted: rows, columns }: StepRows,
        dtype: Float,
        mut alloc: impl FnMut(usize) -> Result<M>,
    ) -> Result<Self> {
        let Parts { experts, latent, layers, streams, laurel, relative, conv, shortcut } =
            Parts::new(spec, tokens, dtype, &mut alloc)?;
        let stem = spec.embed.stem.as_ref();
        let stem = stem.map(|stem| StemScratch::new(stem, spec.hidden, [tokens, seqs], dtype, &mut alloc));
        let stem = stem.transpose()?;
        let convolved = stem.as_ref().map_or(0, |stem| stem.in_workspace.div_ceil(tokens.max(1)));
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            let (rows, cols) = (rows.max(1), cols.max(1));
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let most = |f: &dyn Fn(&BlockSpec) -> usize| spec.blocks.iter().map(f).max().unwrap_or(0);
        let gated = most(&gate_columns);
        let head_gates = most(&|b| b.attn_gate.filter(|gate| gate.per_head).map_or(0, |_| b.heads.heads));
        let grown = most(&|b| if b.query_growth.is_some() { b.heads.q_cols() } else { 0 });
        let wide = spec.embed.width.max(spec.out_width());
        let projects = spec.embed.projects(spec.hidden) || spec.project_out.is_some();
        sum_fits(spec)?;
        let (head_in, head_other) = before_head(spec, rows, dtype, &mut mat)?;
        let middle = most(&|b| b.filter.map_or(0, |f| f.middle));
        let nodes = if spec.placement == Placement::Parallel { 2 } else { 1 };
        let image_patch = spec.embed.patches.map(|p| p.values());
        Ok(Self {
            residual: mat(tokens, spec.hidden, dtype)?,
            normed: mat(tokens, spec.hidden, dtype)?,
            partial: mat(tokens, spec.hidden, dtype)?,
            nodes: spec.group.as_ref().map(|_| mat(tokens, nodes * spec.hidden, Float::F32)).transpose()?,
            all_heads: all_heads(spec).map(|columns| mat(tokens, columns, Float::F32)).transpose()?,
            head_gates: unless_empty(&mut mat, (tokens, head_gates), Float::F32)?,
            workspace: mat(tokens, most(&workspace_columns).max(columns).max(convolved), dtype)?,
            attn: mat(tokens, most(&|b| b.heads.out_cols()), dtype)?,
            gate_up: mat(if gated > 0 { tokens } else { 1 }, gated, dtype)?,
            wide: if projects { Some(mat(tokens, wide, dtype)?) } else { None },
            pair: if middle > 0 { Some(mat(tokens, 2 * spec.hidden, dtype)?) } else { None },
            middle_pair: if middle > 0 { Some(mat(tokens, 2 * middle, dtype)?) } else { None },
            latent,
            index: None,
            growth: GrowthScratch::new(tokens, grown, dtype, &mut mat)?,
            layers,
            streams,
            laurel,
            relative,
            conv,
            experts,
            shortcut,
            pixels: image_patch.map(|n| mat(tokens, n, Float::F32)).transpose()?,
            image_patches: image_patch.map(|n| mat(tokens, n, dtype)).transpose()?,
            stem,
            head_in,
            head_width: spec.out_width(),
            head_other,
            pooled: unless_empty(&mut mat, (rows, spec.pooled_cols()), dtype)?,
            logits: unless_empty(&mut mat, (rows, spec.logit_cols()), Float::F32)?,
        })
    }

    /// The residual stream, or all of them side by side.
    pub(super) fn state(&self, tokens: usize) -> Result<MatRef<'_, M>> {
        match &self.streams {
            Some(streams) => streams.all.view(tokens),
            None => self.residual.view(tokens),
        }
    }

    /// The last hidden state `[tokens, width]`.
    pub(super) fn hidden(&self, place: HiddenIn, tokens: usize, width: usize) -> Result<MatRef<'_, M>> {
        match (place, &self.wide) {
            (HiddenIn::Wide, Some(wide)) => wide.shaped(tokens, width),
            (HiddenIn::Residual, _) => self.residual.view(tokens),
            _ => self.normed.view(tokens),
        }
    }

    /// The last hidden state; the head's input to gather into, and the workspace.
    pub(super) fn hidden_of(
        &mut self,
        place: HiddenIn,
        tokens: usize,
        width: usize,
    ) -> Result<(MatRef<'_, M>, [&mut Mat<M>; 2])> {
        let Self { residual, normed, wide, head_in, workspace, .. } = self;
        let from = match (place, wide) {
            (HiddenIn::Wide, Some(wide)) => wide.shaped(tokens, width)?,
            (HiddenIn::Residual, _) => residual.view(tokens)?,
            _ => normed.view(tokens)?,
        };
        Ok((from, [head_in, workspace]))
    }
}
