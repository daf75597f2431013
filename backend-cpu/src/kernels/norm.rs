//! Row norms, alone, with the residual sum before, and over every head of a row.
//!
//! ```text
//! rms:   y = ((x * r) * w),                 r = rsqrt(sum(x^2) / n + eps)      (w + 1 where asked)
//! layer: y = madd((x - mean) * r, w, b),    mean = sum(x) / n, r = rsqrt(sum((x - mean)^2) / n + eps)
//! ```
//!
//! Sums have the 8 leaves of `sum` (grain 1). Fused add: `r' = round(r + x)` is stored, the norm reads `r'`.

use super::{Floats, Machine, RawMat, RawMatMut, over_rows, same, same_shape, whole_parts};
use crate::simd::{Kernel, Lanes, wide};
use crate::sum;
use engraft_core::Result;
use engraft_core::math::{self, MulAdd};
use engraft_core::numerics::{LEAVES, leaf_bounds, tree};
use engraft_core::params::NormKind;

/// A norm's parameters on the host.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Which.
    pub kind: NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// `[width]`.
    pub weight: Option<&'a [f32]>,
    /// `[width]`.
    pub bias: Option<&'a [f32]>,
    /// Multiply by `1 + weight`.
    pub plus_one: bool,
}

/// `out = norm(x)`: both `[rows, cols]`; every `width` columns are normed separately (the head width, or
/// `cols`). `out` may be the memory of `x`.
pub fn norm(machine: &Machine, x: RawMat, width: usize, norm: Norm<'_>, out: RawMatMut) -> Result<()> {
    each_row(machine, (x, None), width, norm, out)
}

/// `residual = round(residual + x); out = norm(residual)`: all `[rows, cols]`.
pub fn add_norm(
    machine: &Machine,
    residual: RawMatMut,
    x: RawMat,
    norm: Norm<'_>,
    out: RawMatMut,
) -> Result<()> {
    same_shape("add_norm", x, residual.as_raw())?;
    each_row(machine, (residual.as_raw(), Some((x, residual))), x.cols, norm, out)
}

/// Norms x, behind a sum that is stored where one is given.
fn each_row(
    machine: &Machine,
    (x, add): (RawMat, Option<(RawMat, RawMatMut)>),
    width: usize,
    norm: Norm<'_>,
    out: RawMatMut,
) -> Result<()> {
    let (rows, cols) = (x.rows, x.cols);
    same_shape("norm", out.as_raw(), x)?;
    for vector in [norm.weight, norm.bias].into_iter().flatten() {
        same("norm", "length of a norm's vector", vector.len(), width)?;
    }
    if x.is_empty() {
        return Ok(());
    }
    whole_parts("norm", cols, width)?;
    over_rows(machine, [rows, cols], 8192, 2, |range, scratch| {
        wide::run_loops(machine.isa, machine.madd, Part { x, add, width, norm, out, range, scratch });
    })
}

struct Part<'a> {
    x: RawMat,
    /// What is added, and where the sum goes.
    add: Option<(RawMat, RawMatMut)>,
    width: usize,
    norm: Norm<'a>,
    out: RawMatMut,
    range: std::ops::Range<usize>,
    scratch: Floats,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let cols = self.x.cols;
        // SAFETY: two rows of scratch; `each_row` has checked that the views go together.
        unsafe {
            let (row, other) = (self.scratch.at(0), self.scratch.at(cols.next_multiple_of(16)));
            let values = std::slice::from_raw_parts_mut(row, cols);
            for r in self.range {
                self.x.widen::<V>(r, 0, cols, row);
                if let Some((add, sum)) = self.add {
                    add.widen::<V>(r, 0, cols, other);
                    let other = std::slice::from_raw_parts(other, cols);
                    values.iter_mut().zip(other).for_each(|(v, o)| *v += o);
                    sum.narrow::<V>(r, 0, cols, row);
                    self.x.widen::<V>(r, 0, cols, row);
                }
                for part in values.chunks_exact_mut(self.width) {
                    norm_row::<V::M>(part, &self.norm);
                }
                self.out.narrow::<V>(r, 0, cols, row);
            }
        }
    }
}

#[inline(always)]
fn norm_row<M: MulAdd>(x: &mut [f32], norm: &Norm<'_>) {
    let bounds = leaf_bounds(x.len(), 1);
    let n = x.len() as f32;
    if norm.kind == NormKind::Layer {
        let mean = leaves(x, &bounds, |acc, v| acc + v) / n;
        x.iter_mut().for_each(|v| *v -= mean);
    }
    let r = math::rsqrt(leaves(x, &bounds, |acc, v| M::madd(v, v, acc)) / n + norm.eps);
    match (norm.weight, norm.bias) {
        (None, None) => x.iter_mut().for_each(|v| *v *= r),
        (None, Some(b)) => x.iter_mut().zip(b).for_each(|(v, b)| *v = *v * r + b),
        (Some(w), None) if norm.plus_one => x.iter_mut().zip(w).for_each(|(v, w)| *v = (*v * r) * (1.0 + w)),
        (Some(w), None) => x.iter_mut().zip(w).for_each(|(v, w)| *v = (*v * r) * w),
        (Some(w), Some(b)) if norm.plus_one => {
            x.iter_mut().zip(w).zip(b).for_each(|((v, w), b)| *v = M::madd(*v * r, 1.0 + *w, *b));
        }
        (Some(w), Some(b)) => {
            x.iter_mut().zip(w).zip(b).for_each(|((v, w), b)| *v = M::madd(*v * r, *w, *b));
        }
    }
}

/// Eight chains side by side: leaves are independent, so the processor overlaps them.
#[inline(always)]
fn leaves(x: &[f32], bounds: &[usize; LEAVES + 1], step: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [0.0; LEAVES];
    let common = (0..LEAVES).map(|l| bounds[l + 1] - bounds[l]).min().unwrap_or(0);
    for i in 0..common {
        for (l, acc) in acc.iter_mut().enumerate() {
            *acc = step(*acc, x[bounds[l] + i]);
        }
    }
    for (l, acc) in acc.iter_mut().enumerate() {
        for v in &x[bounds[l] + common..bounds[l + 1]] {
            *acc = step(*acc, *v);
        }
    }
    tree(acc)
}

/// The scalar definition, for tests: sums by `sum`'s reference functions.
pub fn norm_ref<M: MulAdd>(x: &mut [f32], norm: &Norm<'_>) {
    let bounds = leaf_bounds(x.len(), 1);
    let n = x.len() as f32;
    if norm.kind == NormKind::Layer {
        let mean = sum::sum_ref(x, &bounds) / n;
        x.iter_mut().for_each(|v| *v -= mean);
    }
    let r = 1.0 / (sum::square_sum_ref::<M>(x, &bounds) / n + norm.eps).sqrt();
    for (i, v) in x.iter_mut().enumerate() {
        let w = norm.weight.map_or(1.0, |w| if norm.plus_one { 1.0 + w[i] } else { w[i] });
        *v = match norm.bias {
            Some(b) => M::madd(*v * r, w, b[i]),
            None => (*v * r) * w,
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{bits, machines, values};
    use super::*;
    use engraft_core::math::{FusedMadd, SeparateMadd};
    use engraft_core::numerics::Madd;

    fn reference(x: &[f32], cols: usize, norm: &Norm<'_>, madd: Madd) -> Vec<f32> {
        let mut want = x.to_vec();
        for row in want.chunks_mut(cols) {
            match madd {
                Madd::Fused => norm_ref::<FusedMadd>(row, norm),
                Madd::Separate => norm_ref::<SeparateMadd>(row, norm),
            }
        }
        want
    }

    #[test]
    fn every_machine_gives_the_reference_bits() {
        for cols in [1, 2, 7, 8, 31, 33, 96, 111] {
            let (w, b) = (values(cols, 2), values(cols, 3));
            for (kind, bias, plus_one) in [
                (NormKind::Rms, None, false),
                (NormKind::Rms, None, true),
                (NormKind::Layer, Some(&b[..]), false),
                (NormKind::Layer, Some(&b[..]), true),
            ] {
                let n = Norm { kind, eps: 1e-5, weight: Some(&w), bias, plus_one };
                for madd in [Madd::Fused, Madd::Separate] {
                    let (x, y) = (values(5 * cols, 1), values(5 * cols, 4));
                    let added: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
                    let want = reference(&added, cols, &n, madd);
                    for machine in machines(madd) {
                        let (mut r, mut out) = (x.clone(), vec![f32::NAN; 5 * cols]);
                        // SAFETY: the vectors outlive the call.
                        unsafe {
                            let (rv, yv) = (RawMatMut::of(&mut r, cols), RawMat::of(&y, cols));
                            add_norm(&machine, rv, yv, n, RawMatMut::of(&mut out, cols)).unwrap();
                        }
                        assert_eq!(bits(&out), bits(&want), "{cols} {kind:?} {madd:?}");
                        assert_eq!(bits(&r), bits(&added));
                    }
                }
            }
        }
    }
}
