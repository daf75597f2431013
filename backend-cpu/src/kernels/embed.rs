//! Embedding rows out of packed panels, so that a tied table and head are one weight in memory.

use super::linear::Packed;
use super::{Floats, Machine, RowsMut, over};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::{Error, Result};
use std::ops::Range;

/// `y[t] = round(scale * table[ids[t]])`; `scale` 1 changes nothing.
///
/// Errors: shapes; an id beyond the table.
pub fn embed(machine: &Machine, ids: &[u32], table: &Packed, scale: f32, y: RowsMut) -> Result<()> {
    let bad = |what, got, want| Err(Error::Shape { op: "embed", what, got, want });
    if y.rows != ids.len() {
        return bad("rows of y", y.rows, ids.len());
    }
    if y.cols != table.cols() {
        return bad("columns of y", y.cols, table.cols());
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= table.rows()) {
        return bad("token id", *id as usize, table.rows());
    }
    let row = y.cols.next_multiple_of(16);
    machine.with_scratch(row * machine.pool.threads(), |s| {
        over(machine, y.rows, 4, |rows, thread| {
            // SAFETY: each thread has a row of its own.
            let buffer = Floats(unsafe { s.at(thread * row) });
            simd::run(machine.isa, machine.madd, Body { ids, table, scale, y, rows, buffer });
        })
    })
}

struct Body<'a> {
    ids: &'a [u32],
    table: &'a Packed,
    scale: f32,
    y: RowsMut,
    rows: Range<usize>,
    buffer: Floats,
}

impl Kernel for Body<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // SAFETY: this thread's row of scratch.
        let v = unsafe { std::slice::from_raw_parts_mut(self.buffer.0, self.y.cols) };
        for t in self.rows {
            self.table.unpack::<V>(self.ids[t] as usize, v);
            v.iter_mut().for_each(|v| *v *= self.scale);
            // SAFETY: a row of y, this call's alone.
            unsafe { self.y.narrow::<V>(t, 0, v.len(), v.as_ptr()) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kernels::linear::Layout;
    use crate::kernels::testing::{machines, stored, values};
    use engraft_core::mem::{Float, Stored, WeightFormat};
    use engraft_core::numerics::Madd;

    #[test]
    fn rows_come_back_as_stored() {
        let (n, k) = (50, 33);
        let w = values(n * k, 1);
        for m in machines(Madd::Fused) {
            let f = WeightFormat::Plain(Float::F32);
            let raw = stored(&w, Float::F32);
            let table = Packed::pack(&m.pool, f, Stored::F32, &raw, n, k, 1, Layout::Plain).unwrap();
            let ids = [49, 0, 17, 17, 16, 15];
            let mut y = vec![0f32; ids.len() * k];
            // SAFETY: the slice outlives the call.
            let v = unsafe { RowsMut::of(&mut y, k) };
            embed(&m, &ids, &table, 2.0, v).unwrap();
            for (t, id) in ids.iter().enumerate() {
                assert!((0..k).all(|i| y[t * k + i] == 2.0 * w[*id as usize * k + i]));
            }
            assert!(embed(&m, &[50, 0, 0, 0, 0, 0], &table, 1.0, v).is_err());
        }
    }
}
