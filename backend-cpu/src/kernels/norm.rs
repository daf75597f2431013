//! Root-mean-square and layer norm of rows, alone or behind a residual addition.
//!
//! Formulas, in f32, sums in the contract's order with grain 1 over the row's n values:
//! - rms: `y = (x * r) * w`, `r = rsqrt(sum(x^2) / n + eps)`, the squares as chains of `madd(x, x, acc)`;
//! - layer: `mean = sum(x) / n`, `c = x - mean`, `r = rsqrt(sum(c^2) / n + eps)`, `y = madd(c * r, w, b)`, without a bias
//!   `(c * r) * w`, without a weight `c * r`.
//!
//! The fused form first stores `r' = round(residual + x)` and then norms r', so it equals the two ops. `x` and `y` may be
//! the same memory.

use super::{Floats, Machine, Rows, RowsMut, over};
use crate::simd::{self, Kernel, Lanes};
use crate::sum::row_sum;
use engraft_core::math::{MulAdd, rsqrt};
use engraft_core::numerics::leaf_bounds;
use engraft_core::{Error, Result};
use std::ops::Range;

/// Which formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Root mean square with `w + 1` in place of w (Gemma).
    RmsPlusOne,
    /// Mean and variance.
    Layer,
}

/// A norm's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Formula.
    pub kind: NormKind,
    /// Weight of n values.
    pub weight: Option<&'a [f32]>,
    /// Bias of n values (layer norm).
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square or variance.
    pub eps: f32,
}

/// `y = norm(x)`, rows of `[tokens, n]`.
pub fn norm(machine: &Machine, x: Rows, y: RowsMut, norm: &Norm) -> Result<()> {
    start(machine, x, None, y, norm)
}

/// `residual = round(residual + x)`, then `y = norm(residual)`.
pub fn add_norm(machine: &Machine, x: Rows, residual: RowsMut, y: RowsMut, norm: &Norm) -> Result<()> {
    start(machine, x, Some(residual), y, norm)
}

fn start(machine: &Machine, x: Rows, residual: Option<RowsMut>, y: RowsMut, norm: &Norm) -> Result<()> {
    let same = |what, got, want| {
        if got == want { Ok(()) } else { Err(Error::Shape { op: "norm", what, got, want }) }
    };
    same("rows of y", y.rows, x.rows)?;
    same("columns of y", y.cols, x.cols)?;
    same("length of the weight", norm.weight.map_or(x.cols, <[f32]>::len), x.cols)?;
    same("length of the bias", norm.bias.map_or(x.cols, <[f32]>::len), x.cols)?;
    if let Some(r) = residual {
        same("rows of the residual", r.rows, x.rows)?;
        same("columns of the residual", r.cols, x.cols)?;
    }
    let row = (2 * x.cols).next_multiple_of(16);
    // A row of a usual model takes half a microsecond: few rows are not worth a second thread.
    let step = (8192 / x.cols.max(1)).max(4);
    machine.with_scratch(row * machine.pool.threads(), |s| {
        over(machine, x.rows, step, |rows, thread| {
            // SAFETY: each thread has a part of its own.
            let buffer = Floats(unsafe { s.at(thread * row) });
            simd::run(machine.isa, machine.madd, Body { x, residual, y, norm, rows, buffer });
        })
    })
}

struct Body<'a> {
    x: Rows,
    residual: Option<RowsMut>,
    y: RowsMut,
    norm: &'a Norm<'a>,
    rows: Range<usize>,
    buffer: Floats,
}

impl Kernel for Body<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let n = self.x.cols;
        let bounds = leaf_bounds(n, 1);
        // SAFETY: this thread's part of the scratch holds two rows; rows in range below.
        let (v, other) = unsafe { std::slice::from_raw_parts_mut(self.buffer.0, 2 * n) }.split_at_mut(n);
        for r in self.rows.clone() {
            // SAFETY: rows in range, buffers of n; this call alone writes these rows.
            unsafe {
                self.x.widen::<V>(r, 0, n, v.as_mut_ptr());
                if let Some(residual) = self.residual {
                    residual.as_rows().widen::<V>(r, 0, n, other.as_mut_ptr());
                    v.iter_mut().zip(&*other).for_each(|(v, r)| *v += *r);
                    residual.narrow::<V>(r, 0, n, v.as_ptr());
                    residual.as_rows().widen::<V>(r, 0, n, v.as_mut_ptr());
                }
            }
            if self.norm.kind == NormKind::Layer {
                let mean = row_sum(&bounds, |a, i| a + v[i]) / n as f32;
                v.iter_mut().for_each(|v| *v -= mean);
            }
            let square = row_sum(&bounds, |a, i| V::M::madd(v[i], v[i], a));
            let scale = rsqrt(square / n as f32 + self.norm.eps);
            self.finish::<V>(v, scale);
            // SAFETY: as above.
            unsafe { self.y.narrow::<V>(r, 0, n, v.as_ptr()) };
        }
    }
}

impl Body<'_> {
    #[inline(always)]
    fn finish<V: Lanes>(&self, v: &mut [f32], scale: f32) {
        let plus = if self.norm.kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
        match (self.norm.weight, self.norm.bias) {
            (None, None) => v.iter_mut().for_each(|v| *v *= scale),
            (None, Some(b)) => v.iter_mut().zip(b).for_each(|(v, b)| *v = *v * scale + b),
            // `w + 0` is w, but for -0, which a product hides up to the sign of a zero: keep the plain form apart.
            (Some(w), None) if plus == 0.0 => v.iter_mut().zip(w).for_each(|(v, w)| *v = (*v * scale) * w),
            (Some(w), None) => v.iter_mut().zip(w).for_each(|(v, w)| *v = (*v * scale) * (w + plus)),
            (Some(w), Some(b)) => {
                for ((v, w), b) in v.iter_mut().zip(w).zip(b) {
                    *v = V::M::madd(*v * scale, *w, *b);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kernels::testing::{aligned, bits, bytes, loaded, machines, stored, values};
    use crate::sum::{square_sum_ref, sum_ref};
    use engraft_core::math::{FusedMadd, SeparateMadd};
    use engraft_core::mem::Float;

    fn row_ref<M: MulAdd>(x: &[f32], norm: &Norm) -> Vec<f32> {
        let (n, b) = (x.len() as f32, leaf_bounds(x.len(), 1));
        let mean = if norm.kind == NormKind::Layer { sum_ref(x, &b) / n } else { 0.0 };
        let c: Vec<f32> = x.iter().map(|v| v - mean).collect();
        let r = rsqrt(square_sum_ref::<M>(&c, &b) / n + norm.eps);
        let one = if norm.kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
        let w = |i: usize| norm.weight.map_or(1.0, |w| w[i] + one);
        (0..x.len())
            .map(|i| match norm.bias {
                Some(b) => M::madd(c[i] * r, w(i), b[i]),
                None => c[i] * r * w(i),
            })
            .collect()
    }

    fn equals<M: MulAdd>() {
        let round = |v: &[f32], d| loaded(&stored(v, d), d);
        for m in machines(M::FORM) {
            for dtype in [Float::F32, Float::F16, Float::Bf16] {
                for (t, n) in [(1, 1), (3, 77), (300, 64), (2, 768)] {
                    let (w, b) = (values(n, 1), values(n, 2));
                    for kind in [NormKind::Rms, NormKind::RmsPlusOne, NormKind::Layer] {
                        let bias = (kind == NormKind::Layer).then_some(&b[..]);
                        let norm = Norm { kind, weight: Some(&w), bias, eps: 1e-5 };
                        let x = round(&values(t * n, 3), dtype);
                        let res = round(&values(t * n, 4), dtype);
                        let (xs, mut rs, mut ys) = (
                            aligned(&stored(&x, dtype)),
                            aligned(&stored(&res, dtype)),
                            aligned(&stored(&x, dtype)),
                        );
                        // SAFETY: the memory outlives the calls.
                        let (xv, rv, yv) = unsafe {
                            (
                                Rows::new(xs.as_ptr(), dtype, t, n, n),
                                RowsMut::new(rs.as_mut_ptr(), dtype, t, n, n),
                                RowsMut::new(ys.as_mut_ptr(), dtype, t, n, n),
                            )
                        };
                        let want = |x: &[f32]| -> Vec<f32> {
                            x.chunks(n).flat_map(|r| row_ref::<M>(r, &norm)).collect()
                        };
                        super::norm(&m, xv, yv, &norm).unwrap();
                        assert_eq!(
                            bits(&loaded(bytes(&ys), dtype)),
                            bits(&round(&want(&x), dtype)),
                            "{kind:?}"
                        );
                        add_norm(&m, xv, rv, yv, &norm).unwrap();
                        let sum: Vec<f32> = res.iter().zip(&x).map(|(a, b)| a + b).collect();
                        let sum = round(&sum, dtype);
                        assert_eq!(bits(&loaded(bytes(&rs), dtype)), bits(&sum));
                        assert_eq!(bits(&loaded(bytes(&ys), dtype)), bits(&round(&want(&sum), dtype)));
                    }
                }
            }
        }
    }

    #[test]
    fn rows_equal_the_scalar_formulas() {
        equals::<FusedMadd>();
        equals::<SeparateMadd>();
    }
}
