//! One block: attention and the feed-forward part, and how each joins the residual stream and its norms.

use super::index::read_by;
use super::input::Input;
use super::parts::of_rank;
use super::{
    Altup, ConvOfLayer, Cross, Exec, Experts, Filter, Fused, Index, InputOfLayer, Latent, Laurel, Norm,
    Projection, RowParallel, Scratch, StepInputs,
};
use crate::mem::{Device, Mat, MatMut, MatRef, copied};
use crate::ops::{
    self, Add, AddNorm, AttendDense, Combine, Convert, Gate, HeadNorm, Limit, Linear, QkvRopeAppend, Rope,
    RopeView, Scale, Xielu,
};
use crate::policy::{BlockSpec, HeadGate, Placement, QkSpan};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A block with its operands.
pub struct Block<D: Device> {
    /// Its description.
    pub spec: BlockSpec,
    /// What it does with several residual streams, of which it computes one.
    pub altup: Option<Altup<D>>,
    /// Norm of the attention part.
    pub attn_norm: Option<Norm<D>>,
    /// What joins the residual stream together with attention.
    pub laurel: Option<Laurel<D>>,
    /// What queries and keys read, where that is not what values read.
    pub filter: Option<Filter<D>>,
    /// Queries, keys and values of one row for all heads; there is no `qkv`, then.
    pub latent: Option<Latent<D>>,
    /// What chooses the keys that queries read.
    pub index: Option<Index<D>>,
    /// Fused q | k | v; behind a filter q | k.
    pub qkv: Fused<D>,
    /// Norms of queries and keys.
    pub qk_norm: Option<(HeadNorms<D>, HeadNorms<D>)>,
    /// Norm of the heads' values.
    pub value_norm: Option<Norm<D>>,
    /// Biases of scores by distance `[heads, distances]`, which several blocks may share.
    pub bias: Option<Arc<D::Weight>>,
    /// Scores without a key or a value `[heads]`.
    pub sinks: Option<D::Weight>,
    /// What the heads' values are multiplied with, through an activation.
    pub attn_gate: Option<Projection<D>>,
    /// Attention output.
    pub attn_out: RowParallel<D>,
    /// Norm of what attention gives.
    pub attn_post: Option<Norm<D>>,
    /// Attention over what an encoder gives.
    pub cross: Option<Cross<D>>,
    /// Norm of the feed-forward part.
    pub mlp_norm: Option<Norm<D>>,
    /// Dense feed-forward part.
    pub mlp: Option<Mlp<D>>,
    /// Experts.
    pub experts: Option<Experts<D>>,
    /// Norm of what the feed-forward part gives.
    pub mlp_post: Option<Norm<D>>,
    /// What it makes of an input of its own.
    pub input: Option<InputOfLayer<D>>,
    /// Factor of the residual stream at its end.
    pub end_factor: Option<f32>,
    /// A convolution next to it.
    pub conv: Option<ConvOfLayer<D>>,
    /// Which rank it is.
    pub rank: usize,
    /// Of a rank's parallel block: attention and the feed-forward part are added in one exchange.
    pub one_exchange: bool,
    /// Of a rank's block whose norms span the heads of all ranks: columns of q and of k by rank.
    pub whole_norms: Option<[Vec<Range<usize>>; 2]>,
    /// Of a rank's block whose cutoff spans the gates of all ranks: those of each.
    pub whole_gates: Option<Vec<Range<usize>>>,
}

/// Norms of the heads of queries or keys: one for all of them, or one for every head.
pub type HeadNorms<D> = Vec<Norm<D>>;

/// A dense feed-forward part.
pub struct Mlp<D: Device> {
    /// Up, or gate | up.
    pub up: Fused<D>,
    /// Of an activation that has some.
    pub constants: Option<D::Weight>,
    /// Down.
    pub down: RowParallel<D>,
}

/// Where a block stands in a step.
#[derive(Debug)]
pub(super) struct At<'a, M> {
    /// The layer.
    pub layer: usize,
    /// Where norms stand.
    pub placement: Placement,
    /// The rotary tables of this layer and of its index.
    pub ropes: [Option<RopeView<'a, M>>; 2],
}

copied!([M] At<'_, M>);

impl<D: Device> Block<D> {
    /// Runs the block: reads `residual` (before it `normed`, where the block begins with a norm and is not
    /// post-norm), updates `residual`, and leaves `next` of it in `normed`.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        at: At<'_, D::Mem>,
        next: Option<&Norm<D>>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, placement) = (step.view.shape.tokens, at.placement);
        let input = |norm: &Option<Norm<D>>| match (placement, norm) {
            (Placement::Post, _) | (_, None) => Input::Residual,
            _ => Input::Normed,
        };
        if let Some(altup) = &self.altup {
            altup.predict(x, tokens, self.attn_norm.as_ref(), s)?;
        }
        replace_residual(x, tokens, placement, s)?;
        if let Some(laurel) = &self.laurel {
            laurel.forward(x, tokens, input(&self.attn_norm), s)?;
        }
        self.conv.as_ref().map_or(Ok(()), |conv| conv.forward(x, tokens, s))?;
        self.attention(x, step, at, input(&self.attn_norm), s)?;
        match (placement, &self.experts) {
            (Placement::Parallel, None) => return self.parallel_mlp(x, tokens, next, s),
            (Placement::Parallel, Some(_)) => return self.parallel_experts(x, tokens, next, s),
            _ => {}
        }
        let cross_norm = self.cross.as_ref().and_then(|cross| cross.norm.as_ref());
        let (first, middle, last) = match (placement, &self.cross) {
            (Placement::Post, _) => (self.attn_norm.as_ref(), cross_norm, self.mlp_norm.as_ref()),
            (_, Some(_)) => (cross_norm, self.mlp_norm.as_ref(), next),
            (_, None) => (self.mlp_norm.as_ref(), None, next),
        };
        let (joined, late) = if self.laurel.is_some() { (None, first) } else { (first, None) };
        self.add_to_residual(x, tokens, placement, (self.attn_post.as_ref(), joined), s)?;
        if self.laurel.is_some() {
            Laurel::join(x, tokens, late, s)?;
        }
        if let Some(cross) = &self.cross {
            let reads = if placement == Placement::Post { Input::Residual } else { Input::Normed };
            cross.forward(x, step, (at.layer, self.spec.heads), reads, s)?;
            self.add_to_residual(x, tokens, placement, (None, middle), s)?;
        }
        replace_residual(x, tokens, placement, s)?;
        self.feed_forward(x, tokens, input(&self.mlp_norm), s)?;
        if self.ends_plainly(at.layer, s) {
            self.add_to_residual(x, tokens, placement, (self.mlp_post.as_ref(), last), s)?;
            return self.conv.as_ref().map_or(Ok(()), |conv| conv.join(x, tokens, s));
        }
        self.add_to_residual(x, tokens, placement, (self.mlp_post.as_ref(), None), s)?;
        self.end(x, tokens, (at.layer, next), s)
    }

    /// Experts parallel to attention, whose result is in `partial`: it joins the residual stream first, which
    /// experts do not read.
    fn parallel_experts(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        next: Option<&Norm<D>>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        if let Some(norm) = &self.mlp_norm {
            let (residual, normed) = (s.residual.view(tokens)?, s.normed.view_mut(tokens)?);
            x.run(ops::Norm { x: residual, norm: norm.weights(), out: normed })?;
        }
        self.add_to_residual(x, tokens, Placement::Parallel, (None, None), s)?;
        self.feed_forward(x, tokens, Input::Normed, s)?;
        self.add_to_residual(x, tokens, Placement::Parallel, (None, next), s)
    }

    /// The feed-forward part parallel to attention, whose result is in `partial`, or its node in the first
    /// columns of `nodes` where one exchange takes both.
    fn parallel_mlp(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        next: Option<&Norm<D>>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Some(mlp) = &self.mlp else {
            return Err(Error::internal("a parallel block without a dense part"));
        };
        if let Some(norm) = &self.mlp_norm {
            let (residual, normed) = (s.residual.view(tokens)?, s.normed.view_mut(tokens)?);
            x.run(ops::Norm { x: residual, norm: norm.weights(), out: normed })?;
        }
        self.inner(x, mlp, tokens, Input::Normed, s)?;
        let Scratch { workspace, normed, partial, nodes, .. } = s;
        let (inner, hidden) = (self.columns_of(workspace, tokens)?, normed.cols());
        // The norm's rows have been read: they hold the matmul's result before it is added.
        match (&mlp.down, nodes, inner) {
            (RowParallel { weight: Some(weight), bias }, None, Some(inner)) => {
                let down = Linear::new(inner, weight, bias.as_ref(), partial.view_mut(tokens)?);
                x.run(down.add_to(normed.view_mut(tokens)?))?;
            }
            (down, Some(nodes), inner) if self.one_exchange => {
                let of = |part: usize| part * hidden..(part + 1) * hidden;
                let mut both = nodes.shaped_mut(tokens, 2 * hidden)?;
                down.node(x, inner, both.reborrow().columns(of(1))?)?;
                x.all_reduce(both.reborrow(), true)?;
                let both = both.as_ref();
                self.attn_out.finish(x, both.columns(of(0))?, partial.view_mut(tokens)?)?;
                down.finish(x, both.columns(of(1))?, normed.view_mut(tokens)?)?;
                x.run(Add { acc: partial.view_mut(tokens)?, x: normed.view(tokens)? })?;
            }
            (down, nodes, inner) => {
                let nodes = of_rank(nodes, tokens, hidden)?;
                down.run(x, inner, nodes, normed.view_mut(tokens)?)?;
                x.run(Add { acc: partial.view_mut(tokens)?, x: normed.view(tokens)? })?;
            }
        }
        self.add_to_residual(x, tokens, Placement::Parallel, (None, next), s)
    }

    fn attention(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        at: At<'_, D::Mem>,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, heads) = (step.view.shape.tokens, self.spec.heads);
        if heads.heads == 0 {
            // None of the heads is this rank's: it adds nothing, and takes the others' sum.
            self.separate_norms(x, tokens, s)?;
            let Scratch { partial, nodes, .. } = s;
            let nodes = of_rank(nodes, tokens, partial.cols())?;
            return self.attn_out.run(x, None, nodes, partial.view_mut(tokens)?);
        }
        match (&self.filter, &self.latent) {
            (_, Some(latent)) => {
                latent.forward(x, tokens, heads, input, s)?;
                if let Some(index) = &self.index {
                    index.forward(x, step, (at.layer, at.ropes[1]), input, s)?;
                }
            }
            (Some(filter), _) => filter.forward(x, step, at.layer, heads, (input, &self.qkv), s)?,
            (None, None) => {
                let input = input.read(&s.residual, &s.normed, tokens)?;
                let out =
                    s.workspace.shaped_mut(tokens, heads.qkv_cols())?.columns(0..self.spec.qkv_cols())?;
                self.qkv.run(x, input, out)?;
                self.values(x, tokens, s)?;
            }
        }
        let normed = self.separate_norms(x, tokens, s)?;
        if let Some(limit) = self.spec.qkv_limit {
            x.run(Limit { x: s.workspace.shaped_mut(tokens, heads.qkv_cols())?, limit })?;
        }
        if step.kv.is_empty() {
            self.attend_dense(x, step, at, normed, s)?;
        } else {
            self.attend(x, step, at, normed, s)?;
        }
        self.gate_heads(x, tokens, input, s)?;
        let Scratch { attn, partial, nodes, latent, .. } = s;
        let attn = match &self.latent {
            Some(own) => Some(own.values(x, tokens, heads, (attn, latent))?),
            None => Some(attn.shaped(tokens, heads.out_cols())?),
        };
        let hidden = partial.cols();
        if let (true, Some(nodes)) = (self.one_exchange, nodes.as_mut()) {
            let node = nodes.shaped_mut(tokens, 2 * hidden)?.columns(0..hidden)?;
            return self.attn_out.node(x, attn, node).map(|_| ());
        }
        let nodes = of_rank(nodes, tokens, hidden)?;
        self.attn_out.run(x, attn, nodes, partial.view_mut(tokens)?)
    }

    /// Without pages: encoders.
    fn attend_dense(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        at: At<'_, D::Mem>,
        normed: bool,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (shape, heads) = (step.view.shape, self.spec.heads);
        self.turn(x, step, at.ropes[0], !normed, s)?;
        if let Some(terms) = self.spec.disentangled {
            return self.attend_disentangled(x, step, terms, s);
        }
        let qkv = s.workspace.shaped(shape.tokens, heads.qkv_cols())?;
        let out = self.values_of_heads(shape.tokens, &mut s.attn, &mut s.gate_up)?;
        let rows = (step.view.bounds, shape.max_query);
        let scores = (&self.spec.scores, self.sinks.as_ref(), self.bias.as_deref());
        x.run(AttendDense::fused(qkv, rows, heads, scores, out)?)
    }

    /// Over pages: appends this step's keys and values, then attends.
    fn attend(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        At { layer, ropes: [rope, _], .. }: At<'_, D::Mem>,
        normed: bool,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, heads, view) = (step.view.shape.tokens, self.spec.heads, step.view);
        let missing = || Error::internal(format!("no KV slab for layer {layer}"));
        let after = self.spec.qk_norm.is_some_and(|norm| norm.after_rope);
        let apart = self.spec.kv_from.is_some() || (!normed && after);
        if apart {
            self.turn(x, step, rope, !normed, s)?;
        }
        let (norms, rope) = (self.qk_norm.as_ref().filter(|_| !normed && !apart), rope.filter(|_| !apart));
        if self.spec.kv_from.is_none() {
            x.run(QkvRopeAppend {
                qkv: s.workspace.shaped_mut(tokens, heads.qkv_cols())?,
                heads,
                q_norm: norms.and_then(|n| n.0.first()).map(Norm::weights),
                k_norm: norms.and_then(|n| n.1.first()).map(Norm::weights),
                rope,
                positions: view.positions,
                slots: view.slots,
                kv: step.kv.layer_mut(layer).ok_or_else(missing)?,
            })?;
        }
        let Scratch { workspace, attn, growth, gate_up, index, .. } = s;
        let q = workspace.shaped(tokens, heads.qkv_cols())?.columns(0..heads.q_cols())?;
        let q = match growth.as_mut().filter(|_| self.spec.query_growth.is_some()) {
            Some(growth) => {
                let (factors, out) = (growth.factors.shaped(tokens, 1)?, &mut growth.queries);
                x.run(Combine::chain(q, factors, false, out.shaped_mut(tokens, heads.q_cols())?))?;
                growth.queries.shaped(tokens, heads.q_cols())?
            }
            None => q,
        };
        let (seqs, table) = read_by(self.spec.index.as_ref(), step, index.as_ref())?;
        x.run(ops::Attend {
            plan: step.plan,
            q,
            kv: step.kv.layer(self.spec.kv_from.unwrap_or(layer)).ok_or_else(missing)?,
            heads,
            scores: &self.spec.scores,
            sinks: self.sinks.as_ref(),
            bias: self.bias.as_deref(),
            seqs,
            table,
            out: self.values_of_heads(tokens, attn, gate_up)?,
        })
    }

    /// Where attention leaves what the heads give: beside their gates, where every value has one.
    fn values_of_heads<'a>(
        &self,
        tokens: usize,
        attn: &'a mut Mat<D::Mem>,
        gate_up: &'a mut Mat<D::Mem>,
    ) -> Result<MatMut<'a, D::Mem>> {
        let cols = self.spec.heads.out_cols();
        match self.spec.attn_gate {
            Some(gate) if gate.per_head => gate_up.shaped_mut(tokens, cols),
            Some(_) => gate_up.shaped_mut(tokens, 2 * cols)?.columns(cols..2 * cols),
            None => attn.shaped_mut(tokens, cols),
        }
    }

    /// `attn = act(W x) * values`, where there is a gate.
    fn gate_heads(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (heads, cols) = (self.spec.heads, self.spec.heads.out_cols());
        let (Some(gate), Some(HeadGate { act, per_head, .. })) = (&self.attn_gate, self.spec.attn_gate)
        else {
            return Ok(());
        };
        let from = input.read(&s.residual, &s.normed, tokens)?;
        if per_head {
            let Some(gates) = &mut s.head_gates else { return Err(Error::internal("no room for gates")) };
            x.run(gate.linear(from, gates.shaped_mut(tokens, heads.heads)?).act(act))?;
            // A row for every head.
            let rows = tokens * heads.heads;
            let (values, gates) = (s.gate_up.shaped(rows, heads.v_dim)?, gates.shaped(rows, 1)?);
            return x.run(Combine::chain(values, gates, false, s.attn.shaped_mut(rows, heads.v_dim)?));
        }
        let out = s.gate_up.shaped_mut(tokens, 2 * cols)?.columns(0..cols)?;
        x.run(gate.linear(from, out))?;
        let (gate_up, out) = (s.gate_up.shaped(tokens, 2 * cols)?, s.attn.shaped_mut(tokens, cols)?);
        x.run(Gate { gate_up, act, clamp: None, out })
    }

    /// Norms, with `norms`, and rotates the heads of queries and keys in place, in the order of the model.
    fn turn(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        rope: Option<RopeView<'_, D::Mem>>,
        norms: bool,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, h, positions) = (step.view.shape.tokens, self.spec.heads, step.view.positions);
        let after = self.spec.qk_norm.is_some_and(|norm| norm.after_rope);
        let norms = self.qk_norm.as_ref().filter(|_| norms);
        let (q, k) = (0..h.q_cols(), h.q_cols()..h.q_cols() + h.k_cols());
        let both = [(q, norms.map(|n| &n.0)), (k, norms.map(|n| &n.1))];
        // Keys of another block have been turned there.
        let own = if self.spec.kv_from.is_some() { 1 } else { 2 };
        for (columns, norms) in both.into_iter().take(own) {
            let norm = norms.and_then(|norms| norms.first());
            for turns in [after, !after] {
                let part = s.workspace.shaped_mut(tokens, h.qkv_cols())?.columns(columns.clone())?;
                match (turns, rope, norm) {
                    (true, Some(rope), _) => x.run(Rope { x: part, width: h.k_dim, positions, rope })?,
                    (false, _, Some(norm)) => {
                        x.run(HeadNorm { x: part, width: h.k_dim, norm: norm.weights() })?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Norms of all query heads at once and of all key heads, with values of their own for every head, or
    /// before limits: those that no fused op takes. Whether they were of that kind.
    fn separate_norms(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<bool> {
        let h = self.spec.heads;
        let limited = self.spec.qkv_limit.is_some();
        let separate = self.spec.qk_norm.is_some_and(|n| n.span != QkSpan::Head || limited);
        if let (Some(columns), Some(norms)) = (&self.whole_norms, &self.qk_norm) {
            for (part, norms) in [&norms.0, &norms.1].into_iter().enumerate() {
                self.norm_of_all_ranks(x, tokens, (part, &columns[part]), norms, s)?;
            }
            return Ok(true);
        }
        if let (true, Some((q, k))) = (separate, &self.qk_norm) {
            let k_end = h.q_cols() + h.k_cols();
            for (norms, columns) in [(q, 0..h.q_cols()), (k, h.q_cols()..k_end)] {
                let span = columns.len() / norms.len().max(1);
                let each = self.spec.qk_norm.is_some_and(|n| n.span == QkSpan::Head);
                let width = if each { h.k_dim } else { span };
                for (i, norm) in norms.iter().enumerate() {
                    let from = columns.start + i * span;
                    let part = s.workspace.shaped_mut(tokens, h.qkv_cols())?.columns(from..from + span)?;
                    x.run(HeadNorm { x: part, width, norm: norm.weights() })?;
                }
            }
        }
        Ok(separate)
    }

    /// A norm over the heads of all ranks: of queries (part 0) or keys (part 1), whose `columns` each rank
    /// has.
    fn norm_of_all_ranks(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        (part, columns): (usize, &[Range<usize>]),
        norms: &[Norm<D>],
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (h, Scratch { workspace: qkv, all_heads, .. }) = (self.spec.heads, s);
        let (Some(all), [norm]) = (all_heads, norms) else {
            return Err(Error::internal("nowhere to gather heads, or no norm for them"));
        };
        let width = columns.iter().map(|range| range.end).max().unwrap_or(0);
        let own = if part == 0 { 0..h.q_cols() } else { h.q_cols()..h.q_cols() + h.k_cols() };
        let mine = columns.get(self.rank).cloned().unwrap_or(0..0);
        if !own.is_empty() {
            let from = qkv.shaped(tokens, h.qkv_cols())?.columns(own.clone())?;
            let out = all.shaped_mut(tokens, width)?.columns(mine.clone())?;
            x.run(Convert { x: from, bias: None, out })?;
        }
        x.all_gather(all.shaped_mut(tokens, width)?, columns)?;
        if own.is_empty() {
            return Ok(());
        }
        x.run(HeadNorm { x: all.shaped_mut(tokens, width)?, width, norm: norm.weights() })?;
        let (from, out) = (all.shaped(tokens, width)?.columns(mine)?, qkv.shaped_mut(tokens, h.qkv_cols())?);
        x.run(Convert { x: from, bias: None, out: out.columns(own)? })
    }

    /// What this rank has between the feed-forward matmuls; none where it has no column of them.
    fn columns_of<'a>(&self, from: &'a Mat<D::Mem>, tokens: usize) -> Result<Option<MatRef<'a, D::Mem>>> {
        match self.spec.mlp.inner {
            0 => Ok(None),
            columns => from.shaped(tokens, columns).map(Some),
        }
    }

    /// Leaves the feed-forward part in `partial`.
    fn feed_forward(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        if let Some(mlp) = &self.mlp {
            self.inner(x, mlp, tokens, input, s)?;
            let Scratch { workspace, partial, nodes, .. } = s;
            let nodes = of_rank(nodes, tokens, partial.cols())?;
            mlp.down.run(x, self.columns_of(workspace, tokens)?, nodes, partial.view_mut(tokens)?)?;
        }
        match &self.experts {
            Some(experts) => experts.forward(x, (&self.spec, self.mlp.is_some()), tokens, input, s),
            None => Ok(()),
        }
    }

    /// `act(up)` or `act(gate) * up` in `workspace`.
    fn inner(
        &self,
        x: &mut Exec<'_, D>,
        weights: &Mlp<D>,
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let mlp = self.spec.mlp;
        if mlp.inner == 0 {
            // None of the columns is this rank's; others need it where they gather all gates.
            return self.limit_gates(x, tokens, s);
        }
        let input = input.read(&s.residual, &s.normed, tokens)?;
        if let (true, Some(constants)) = (mlp.xielu, &weights.constants) {
            weights.up.run(x, input, s.workspace.shaped_mut(tokens, mlp.inner)?)?;
            return x.run(Xielu { x: s.workspace.shaped_mut(tokens, mlp.inner)?, constants });
        }
        let out = s.workspace.shaped_mut(tokens, mlp.inner)?;
        match (mlp.gated, weights.up.whole()) {
            (false, Some(up)) => x.run(up.linear(input, out).act(mlp.act)),
            (false, None) => Err(Error::internal("an ungated feed-forward part of several weights")),
            (true, Some(up)) if mlp.clamp.is_none() && mlp.cutoff.is_none() => {
                let scratch = s.gate_up.shaped_mut(tokens, 2 * mlp.inner)?;
                x.run(up.linear(input, out).gate(mlp.act, scratch))
            }
            // No matmul pairs outputs of two weights, holds them within limits, or cuts them off.
            (true, _) => {
                weights.up.run(x, input, s.gate_up.shaped_mut(tokens, 2 * mlp.inner)?)?;
                self.limit_gates(x, tokens, s)?;
                let out = s.workspace.shaped_mut(tokens, mlp.inner)?;
                let gate_up = s.gate_up.shaped(tokens, 2 * mlp.inner)?;
                x.run(Gate { gate_up, act: mlp.act, clamp: mlp.clamp, out })
            }
        }
    }

    /// Adds the partial result, normed by `post` where that is given, to the residual stream; `norm` of the
    /// sum is left in `normed` or, post-norm, becomes the residual stream.
    fn add_to_residual(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        placement: Placement,
        (post, norm): (Option<&Norm<D>>, Option<&Norm<D>>),
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        if let Some(post) = post {
            x.run(ops::Norm {
                x: s.partial.view(tokens)?,
                norm: post.weights(),
                out: s.normed.view_mut(tokens)?,
            })?;
            std::mem::swap(&mut s.partial, &mut s.normed);
        }
        if let Some(factor) = self.spec.branch_factor {
            x.run(Scale { x: s.partial.view_mut(tokens)?, factor, cap: None })?;
        }
        let (residual, partial) = (s.residual.view_mut(tokens)?, s.partial.view(tokens)?);
        let Some(norm) = norm else { return x.run(Add { acc: residual, x: partial }) };
        x.run(AddNorm { residual, x: partial, norm: norm.weights(), out: s.normed.view_mut(tokens)? })?;
        if post.is_none() && placement == Placement::Post {
            // The normed sum is the new residual stream, wherever it lies: a step reads neither buffer of the
            // step before.
            std::mem::swap(&mut s.residual, &mut s.normed);
        }
        Ok(())
    }
}

/// Where the residual stream goes through the norms, what the norm gave takes its place.
fn replace_residual<D: Device>(
    x: &mut Exec<'_, D>,
    tokens: usize,
    placement: Placement,
    s: &mut Scratch<D::Mem>,
) -> Result<()> {
    match placement {
        Placement::NormedResidual => {
            x.run(Convert { x: s.normed.view(tokens)?, bias: None, out: s.residual.view_mut(tokens)? })
        }
        _ => Ok(()),
    }
}
