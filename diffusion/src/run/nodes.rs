//! One node as ops.

use super::cross::of_all;
use super::ops::{Around, Ops};
use super::{Nodes, rows_at_once, values::lost};
use crate::graph::{Node, Step, Weights};
use crate::load::Loaded;
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::ops::{
    Activate, Add, AttendDense, Checked, Conv, Convert, GatherRows, GroupNorm, Linear, Norm, NormWeights,
    Run as _, Scale,
};
use engraft_core::params::{Act, Heads, NormKind};

/// A convolution's input and which of its rows every output reads.
struct Taps<'a, M> {
    x: MatRef<'a, M>,
    rows: BufRef<'a, M, u32>,
    taps: usize,
}

impl<B: Backend> Nodes<B> {
    /// Runs the node of this number.
    pub(super) fn node(&mut self, stream: &mut B::Stream, loaded: &Loaded<B>, n: usize) -> Result<()> {
        let Self { graph, values, wide, scratch, taps, items, crossed, lists, angles, .. } = self;
        let Node { step, args, out } = &graph.nodes[n];
        let mut ops = Ops { stream, loaded, wide, scratch };
        if let Step::Keep(number) = step {
            return crossed[*number].keep(ops.stream, values.view(args[0])?);
        }
        let (size, copies) = (graph.size(*out), values.lives.copies[n]);
        let rows = size.rows / graph.items.max(1);
        let of_item = items.get(&rows).ok_or_else(lost)?;
        values.write(*out, |values, mut out| {
            if copies {
                ops.run(Convert { x: values.view(args[0])?, bias: None, out: out.reborrow() })?;
            }
            match *step {
                Step::Linear(weights, act) => ops.linear(values.view(args[0])?, weights, act, out),
                Step::Gated(weights, act) => ops.gated(values.view(args[0])?, weights, act, out),
                Step::Conv(window, weights, act) => {
                    let x = values.view(args[0])?;
                    let read = Taps { x, rows: taps[window].view(), taps: graph.windows[window].taps() };
                    ops.conv(&read, weights, act, out)
                }
                Step::Gate(act) => ops.gate(values.view(args[0])?, act, out),
                Step::Grouped(of) => ops.grouped(values.view(args[0])?, of, taps[of.window].view(), out),
                Step::Norm(kind, weights, eps) => {
                    let norm = norm_of(ops.loaded, kind, weights, eps)?;
                    ops.run(Norm { x: values.view(args[0])?, norm, out })
                }
                Step::GroupNorm(groups, weights, eps, act) => {
                    let norm = norm_of(ops.loaded, NormKind::Layer, Some(weights), eps)?;
                    ops.group_norm(values.view(args[0])?, (groups, norm, act), graph.items, out)
                }
                Step::Activate(act) => ops.run(Activate { x: out, act }),
                Step::Scale(factor) => ops.run(Scale { x: out, factor, cap: None }),
                Step::Add => ops.run(Add { acc: out, x: values.view(args[1])? }),
                Step::AddPerItem => ops.add_rows(values.view(args[1])?, of_item.of_rows.view(), out),
                Step::Join => {
                    let mut first = 0;
                    args.iter().try_for_each(|arg| {
                        let x = values.view(*arg)?;
                        let part = out.reborrow().columns(first..first + x.cols())?;
                        first += x.cols();
                        ops.run(Convert { x, bias: None, out: part })
                    })
                }
                Step::Attend(heads) => {
                    ops.attend(values.view(args[0])?, (heads, rows), of_item.bounds.view(), out)
                }
                Step::LinearAttend(heads) => {
                    ops.linear_attend(values.view(args[0])?, (heads, rows), of_item.bounds.view(), out)
                }
                Step::Cross(number) => crossed[number].attend(ops.stream, values.view(args[0])?, out),
                Step::Tokens(step) => {
                    let of_rows = of_item.of_rows.view();
                    ops.tokens(step, &Around { graph, values, args, of_rows, lists, angles }, out)
                }
                Step::Keep(_) => Err(lost()),
            }
        })
    }
}

fn norm_of<B: Backend>(
    loaded: &Loaded<B>,
    kind: NormKind,
    weights: Option<Weights>,
    eps: f32,
) -> Result<NormWeights<'_, B::Device>> {
    let weight = weights.map(|w| loaded.operand(w.weight)).transpose()?;
    let bias = weights.and_then(|w| w.bias).map(|bias| loaded.operand(bias)).transpose()?;
    Ok(NormWeights { kind, eps, weight, bias, plus_one: false })
}

impl<B: Backend> Ops<'_, B> {
    fn linear(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        weights: Weights,
        act: Option<Act>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let loaded = self.loaded;
        let bias = weights.bias.map(|bias| loaded.operand(bias)).transpose()?;
        let linear = Linear::new(x, loaded.operand(weights.weight)?, bias, out);
        self.run(match act {
            Some(act) => linear.act(act),
            None => linear,
        })
    }

    fn gated(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        weights: Weights,
        act: Act,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let Self { stream, loaded, scratch, .. } = self;
        let bias = weights.bias.map(|bias| loaded.operand(bias)).transpose()?;
        let scratch = scratch.shaped_mut(out.rows(), 2 * out.cols())?;
        let linear = Linear::new(x, loaded.operand(weights.weight)?, bias, out);
        stream.run(Checked::new(linear.gate(act, scratch))?)
    }

    fn conv(
        &mut self,
        read: &Taps<'_, Mem<B>>,
        weights: Weights,
        act: Option<Act>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let loaded = self.loaded;
        let bias = weights.bias.map(|bias| loaded.operand(bias)).transpose()?;
        let Taps { x, rows, taps } = *read;
        let (weight, window) = (loaded.operand(weights.weight)?, taps * x.cols());
        let scratch = self.scratch.shaped_mut(rows_at_once(window).min(out.rows()).max(1), window)?;
        self.stream.run(Checked::new(Conv { x, rows, taps, weight, bias, act, scratch, out })?)
    }

    fn group_norm(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        (groups, norm, act): (usize, NormWeights<'_, B::Device>, Option<Act>),
        items: usize,
        mut out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let rows = x.rows() / items.max(1);
        for item in 0..items {
            let own = item * rows..(item + 1) * rows;
            let (x, out) = (x.row_range(own.clone())?, out.reborrow().row_range(own)?);
            self.run(GroupNorm { x, groups, norm, out })?;
        }
        match act {
            Some(act) => self.run(Activate { x: out, act }),
            None => Ok(()),
        }
    }

    /// Adds to every row of `out` the row of `x` that `of_rows` names.
    fn add_rows(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        of_rows: BufRef<'_, Mem<B>, u32>,
        mut out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let (rows, cols) = (out.rows(), out.cols());
        let step = rows_at_once(cols);
        for start in (0..rows).step_by(step) {
            let part = start..(start + step).min(rows);
            let gathered = self.scratch.shaped_mut(part.len(), cols)?;
            self.stream.run(Checked::new(GatherRows {
                x,
                rows: of_rows.slice(part.clone())?,
                out: gathered,
            })?)?;
            let (acc, x) = (out.reborrow().row_range(part.clone())?, self.scratch.shaped(part.len(), cols)?);
            self.stream.run(Checked::new(Add { acc, x })?)?;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        qkv: MatRef<'_, Mem<B>>,
        (heads, max_rows): (usize, usize),
        bounds: BufRef<'_, Mem<B>, u32>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let width = out.cols() / heads.max(1);
        let heads = Heads { heads, kv_heads: heads, k_dim: width, v_dim: width };
        let scores = of_all(width);
        let attend = AttendDense::fused(qkv, (bounds, max_rows), heads, (&scores, None, None), out)?;
        self.run(attend)
    }
}
