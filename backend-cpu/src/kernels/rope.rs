//! Rotary position embedding, in place.
//!
//! Row t of `[tokens, heads * dim]` at position p: in each head the first `rot` of `dim` values are pairs `(x0, x1)`, either
//! halves `(i, i + rot / 2)` or neighbours `(2 i, 2 i + 1)`. With c and s from row p of the tables `[positions, rot / 2]`:
//! `x0' = madd(x0, c, -(x1 * s))`, `x1' = madd(x1, c, x0 * s)`. The tables are made on the host in f64 (`core::math`).

use super::{Machine, RowsMut, over};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::math::MulAdd;
use engraft_core::{Error, Result};
use std::ops::Range;

/// How values pair up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// `(i, i + rot / 2)`: LLaMA as published on the hub, GPT-NeoX.
    Half,
    /// `(2 i, 2 i + 1)`: GPT-J, original LLaMA.
    Neighbours,
}

/// The rotation of one model.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Width of a head.
    pub dim: usize,
    /// Values of a head that are rotated, even.
    pub rot: usize,
    /// Pairing.
    pub pairs: Pairs,
    /// `[positions, rot / 2]`.
    pub cos: &'a [f32],
    /// `[positions, rot / 2]`.
    pub sin: &'a [f32],
}

/// Rotates every head of every row; `positions[t]` selects the table row.
///
/// Errors: shapes; a position beyond the table.
pub fn rope(machine: &Machine, x: RowsMut, rope: &Rope, positions: &[u32]) -> Result<()> {
    let bad = |what, got, want| Err(Error::Shape { op: "rope", what, got, want });
    if positions.len() != x.rows {
        return bad("positions", positions.len(), x.rows);
    }
    if rope.dim == 0 || !x.cols.is_multiple_of(rope.dim) {
        return bad("columns modulo the head width", x.cols % rope.dim.max(1), 0);
    }
    if !rope.rot.is_multiple_of(2) || rope.rot > rope.dim {
        return bad("rotated values of a head", rope.rot, rope.dim);
    }
    let half = rope.rot / 2;
    if half == 0 {
        return Ok(());
    }
    let rows = rope.cos.len().min(rope.sin.len()) / half;
    if let Some(p) = positions.iter().find(|p| **p as usize >= rows) {
        return bad("position", *p as usize, rows);
    }
    let step = (8192 / x.cols.max(1)).max(1);
    over(machine, x.rows, step, |rows, _| {
        simd::run(machine.isa, machine.madd, Body { x, rope, positions, rows });
    })
}

struct Body<'a> {
    x: RowsMut,
    rope: &'a Rope<'a>,
    positions: &'a [u32],
    rows: Range<usize>,
}

impl Kernel for Body<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Rope { dim, rot, pairs, cos, sin } = *self.rope;
        let half = rot / 2;
        /// Pairs at a time; bounds the buffers whatever the head width.
        const SOME: usize = 64;
        let mut v = [[0f32; 2 * SOME]; 2];
        for t in self.rows {
            let at = self.positions[t] as usize * half;
            for head in 0..self.x.cols / dim {
                let mut i = 0;
                while i < half {
                    let n = (half - i).min(SOME);
                    let (c, s) = (&cos[at + i..][..n], &sin[at + i..][..n]);
                    let [a, b] = &mut v;
                    let x = self.x.as_rows();
                    // SAFETY: columns within the head; buffers of 128; this call alone uses these rows.
                    unsafe {
                        match pairs {
                            Pairs::Half => {
                                let (p, q) = (head * dim + i, head * dim + half + i);
                                x.widen::<V>(t, p, n, a.as_mut_ptr());
                                x.widen::<V>(t, q, n, b.as_mut_ptr());
                                for j in 0..n {
                                    let (x0, x1) = (a[j], b[j]);
                                    a[j] = V::M::madd(x0, c[j], -(x1 * s[j]));
                                    b[j] = V::M::madd(x1, c[j], x0 * s[j]);
                                }
                                self.x.narrow::<V>(t, p, n, a.as_ptr());
                                self.x.narrow::<V>(t, q, n, b.as_ptr());
                            }
                            Pairs::Neighbours => {
                                let p = head * dim + 2 * i;
                                x.widen::<V>(t, p, 2 * n, a.as_mut_ptr());
                                for j in 0..n {
                                    let (x0, x1) = (a[2 * j], a[2 * j + 1]);
                                    a[2 * j] = V::M::madd(x0, c[j], -(x1 * s[j]));
                                    a[2 * j + 1] = V::M::madd(x1, c[j], x0 * s[j]);
                                }
                                self.x.narrow::<V>(t, p, 2 * n, a.as_ptr());
                            }
                        }
                    }
                    i += n;
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kernels::testing::{bits, machines, values};
    use engraft_core::math::{FusedMadd, SeparateMadd};
    use engraft_core::numerics::Madd;

    #[test]
    fn both_pairings_equal_the_formula() {
        let (t, heads, dim, rot) = (5, 3, 20, 14);
        let (cos, sin) = (values(9 * rot / 2, 1), values(9 * rot / 2, 2));
        let positions = [0, 8, 3, 3, 1];
        for madd in [Madd::Fused, Madd::Separate] {
            let form = if madd == Madd::Fused { FusedMadd::madd } else { SeparateMadd::madd };
            for m in machines(madd) {
                for pairs in [Pairs::Half, Pairs::Neighbours] {
                    let x = values(t * heads * dim, 3);
                    let mut want = x.clone();
                    for r in 0..t * heads {
                        for i in 0..rot / 2 {
                            let (p, q) =
                                if pairs == Pairs::Half { (i, i + rot / 2) } else { (2 * i, 2 * i + 1) };
                            let k = positions[r / heads] as usize * rot / 2 + i;
                            let (x0, x1) = (x[r * dim + p], x[r * dim + q]);
                            want[r * dim + p] = form(x0, cos[k], -(x1 * sin[k]));
                            want[r * dim + q] = form(x1, cos[k], x0 * sin[k]);
                        }
                    }
                    let mut got = x.clone();
                    // SAFETY: the slice outlives the call.
                    let v = unsafe { RowsMut::of(&mut got, heads * dim) };
                    let r = Rope { dim, rot, pairs, cos: &cos, sin: &sin };
                    rope(&m, v, &r, &positions).unwrap();
                    assert_eq!(bits(&got), bits(&want), "{pairs:?}");
                    assert!(rope(&m, v, &r, &[0, 9, 0, 0, 0]).is_err());
                }
            }
        }
    }
}
