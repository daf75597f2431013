//! What transformers do with tokens, as ops.

use super::ops::{Around, Ops};
use super::values::lost;
use crate::graph::{Angles, Columns, TokenStep};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{DeviceMem, MatLayout, MatMut, MatRef};
use engraft_core::ops::{Convert, Embed, GatherRows, HeadNorm, Modulate, NormWeights, Rope, RopeView};
use engraft_core::params::{NormKind, RopeStyle};

/// These columns.
fn columns_of<M: DeviceMem>(x: MatMut<'_, M>, Columns { first, count }: Columns) -> Result<MatMut<'_, M>> {
    x.columns(first..first + count)
}

impl<B: Backend> Ops<'_, B> {
    /// Runs one of them.
    pub(super) fn tokens(
        &mut self,
        step: TokenStep,
        from: &Around<'_, Mem<B>>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        match step {
            TokenStep::HeadNorm { weight, columns, width, eps } => {
                let weight = Some(self.loaded.operand(weight)?);
                let norm = NormWeights { kind: NormKind::Rms, eps, weight, bias: None, plus_one: false };
                self.run(HeadNorm { x: columns_of(out, columns)?, width, norm })
            }
            TokenStep::Modulate(by) => {
                let (all, cols) = (from.arg(1)?, out.cols());
                let part = |first: usize| all.columns(first..first + cols);
                let (scale, shift) = (part(by.scale)?, by.shift.map(part).transpose()?);
                self.run(Modulate { x: out, scale, shift, rows: from.of_rows, plus_one: by.plus_one })
            }
            TokenStep::Turn { angles, columns, width } => {
                let table = from.angles.get(angles).ok_or_else(lost)?.view();
                let Angles { positions, pairs, list, .. } = from.graph.angles.get(angles).ok_or_else(lost)?;
                let (positions, pairs, style) = (*positions, *pairs, RopeStyle::Interleaved);
                let rope = RopeView { table, positions, pairs, style };
                self.run(Rope { x: columns_of(out, columns)?, width, positions: from.list(*list)?, rope })
            }
            TokenStep::AddVector(vector) => {
                let loaded = self.loaded;
                self.run(Convert { x: from.arg(0)?, bias: Some(loaded.operand(vector)?), out })
            }
            TokenStep::JoinRows => self.join_rows(from, out),
            TokenStep::TakeRows(first) => self.take_rows(from, first, out),
            TokenStep::LookUp(table, number) => {
                let loaded = self.loaded;
                self.run(Embed { ids: from.list(number)?, table: loaded.operand(table)?, add: None, out })
            }
            TokenStep::Reorder(number) => {
                let (x, cols) = (from.arg(0)?, out.cols().max(1));
                let seen = MatLayout::dense(x.rows() * x.cols() / cols, cols, x.dtype());
                let x = MatRef::new(x.mem(), MatLayout { offset: x.offset(), ..seen })?;
                self.run(GatherRows { x, rows: from.list(number)?, out })
            }
        }
    }

    fn join_rows(&mut self, from: &Around<'_, Mem<B>>, mut out: MatMut<'_, Mem<B>>) -> Result<()> {
        let (mut first, items) = (0, from.graph.items);
        for item in 0..items {
            for n in 0..from.args.len() {
                let arg = from.arg(n)?;
                let rows = arg.rows() / items;
                let x = arg.row_range(item * rows..(item + 1) * rows)?;
                let part = out.reborrow().row_range(first..first + rows)?;
                self.run(Convert { x, bias: None, out: part })?;
                first += rows;
            }
        }
        Ok(())
    }

    fn take_rows(
        &mut self,
        from: &Around<'_, Mem<B>>,
        first: usize,
        mut out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let (x, items) = (from.arg(0)?, from.graph.items);
        let (all, rows) = (x.rows() / items.max(1), out.rows() / items.max(1));
        for item in 0..items {
            let start = item * all + first;
            let part = out.reborrow().row_range(item * rows..(item + 1) * rows)?;
            self.run(Convert { x: x.row_range(start..start + rows)?, bias: None, out: part })?;
        }
        Ok(())
    }
}
