//! What is done to columns in groups, as ops.

use super::ops::Ops;
use crate::graph::{Graph, Grouped, LinearHeads, Step};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::ops::{Checked, Gate, GroupedConv, LinearAttend, Run as _};
use engraft_core::params::Act;

/// Sums that heads of an item keep: rows and columns.
fn sums(of: LinearHeads, items: usize) -> (usize, usize) {
    (items * of.heads * of.width, of.width + 1)
}

/// The most values that an attention without a softmax keeps.
pub(super) fn sums_of(graph: &Graph) -> usize {
    let of_step = |step: &Step| match *step {
        Step::LinearAttend(heads) => {
            let (rows, cols) = sums(heads, graph.items);
            rows * cols
        }
        _ => 0,
    };
    graph.nodes.iter().map(|node| of_step(&node.step)).max().unwrap_or(0)
}

impl<B: Backend> Ops<'_, B> {
    /// `out = act(g) * u` of `[g | u]`.
    pub(super) fn gate(
        &mut self,
        gate_up: MatRef<'_, Mem<B>>,
        act: Act,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        self.run(Gate { gate_up, act, clamp: None, out })
    }

    pub(super) fn grouped(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        of: Grouped,
        rows: BufRef<'_, Mem<B>, u32>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let (loaded, Grouped { inputs, outputs, weights, .. }) = (self.loaded, of);
        let taps = rows.len() / out.rows().max(1);
        let bias = weights.bias.map(|bias| loaded.operand(bias)).transpose()?;
        let weight = loaded.operand(weights.weight)?;
        self.run(GroupedConv { x, rows, taps, inputs, outputs, weight, bias, out })
    }

    pub(super) fn linear_attend(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        (of, max_rows): (LinearHeads, usize),
        bounds: BufRef<'_, Mem<B>, u32>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let LinearHeads { heads, width, step, apart, eps } = of;
        let part = |n: usize| x.columns(n * apart..n * apart + of.span());
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let (rows, cols) = sums(of, bounds.len() - 1);
        let sums = self.wide.shaped_mut(rows, cols)?;
        let attend = LinearAttend { q, k, v, bounds, max_rows, heads, width, step, eps, sums, out };
        self.stream.run(Checked::new(attend)?)
    }
}
