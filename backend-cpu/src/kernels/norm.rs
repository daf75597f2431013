//! Row norms, alone, with the residual sum before, and over every head of a row; norms of groups of columns
//! over all rows.
//!
//! ```text
//! rms:   y = ((x * r) * w),                 r = rsqrt(sum(x^2) / n + eps)      (w + 1 where asked)
//! layer: y = madd((x - mean) * r, w, b),    mean = sum(x) / n, r = rsqrt(sum((x - mean)^2) / n + eps)
//! topk:  y = max(x - c, 0),                 c = madd(deviations, sqrt(sum((x - mean)^2) / n), mean)
//! match: y = x * (sqrt(sum(like^2) / n) / sqrt(max(sum(x^2) / n, floor)))
//! ```
//!
//! Sums have the 8 leaves of `sum` (grain 1). Fused add: `r' = round(r + x)` is stored, the norm reads `r'`.
//! Sums over rows have 64 strands of every 64th row, a chain for each column in them; the chains of a group
//! are added by ascending columns, the strands by a tree.

use super::{Floats, Machine, RawMat, RawMatMut, over, over_rows, same, same_shape, whole_parts};
use crate::simd::{Kernel, Lanes, wide};
use engraft_core::Result;
use engraft_core::math::{self, MulAdd};
use engraft_core::numerics::{LEAVES, STRANDS, leaf_bounds, tree, tree_of_strands};
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
    scaled::<M>(x, norm, std::iter::repeat(r));
}

/// `x * r` with weight and bias; an `r` for each value.
#[inline(always)]
fn scaled<M: MulAdd>(x: &mut [f32], norm: &Norm<'_>, r: impl Iterator<Item = f32>) {
    let all = x.iter_mut().zip(r);
    match (norm.weight, norm.bias) {
        (None, None) => all.for_each(|(v, r)| *v *= r),
        (None, Some(b)) => all.zip(b).for_each(|((v, r), b)| *v = *v * r + b),
        (Some(w), None) if norm.plus_one => all.zip(w).for_each(|((v, r), w)| *v = (*v * r) * (1.0 + w)),
        (Some(w), None) => all.zip(w).for_each(|((v, r), w)| *v = (*v * r) * w),
        (Some(w), Some(b)) if norm.plus_one => {
            all.zip(w).zip(b).for_each(|(((v, r), w), b)| *v = M::madd(*v * r, 1.0 + *w, *b));
        }
        (Some(w), Some(b)) => {
            all.zip(w).zip(b).for_each(|(((v, r), w), b)| *v = M::madd(*v * r, *w, *b));
        }
    }
}

/// `out = norm(x)` of every group of `cols / groups` columns over all rows: both `[rows, cols]`. `out` may be
/// the memory of `x`.
pub fn group_norm(machine: &Machine, x: RawMat, groups: usize, norm: Norm<'_>, out: RawMatMut) -> Result<()> {
    let (rows, cols) = (x.rows, x.cols);
    same_shape("group_norm", out.as_raw(), x)?;
    for vector in [norm.weight, norm.bias].into_iter().flatten() {
        same("group_norm", "length of a norm's vector", vector.len(), cols)?;
    }
    if x.is_empty() {
        return Ok(());
    }
    whole_parts("group_norm", cols, cols.checked_div(groups).unwrap_or(0))?;
    let (pitch, threads) = (cols.next_multiple_of(16), machine.pool.threads());
    let n = (rows * (cols / groups)) as f32;
    machine.with_scratch((STRANDS + 2 + threads) * pitch, |floats| {
        // SAFETY: parts of what was asked for: rows of chains, of means, of reciprocals, and one a thread.
        let of = unsafe {
            let [mean, r] = [0, 1].map(|i| Floats(floats.at((STRANDS + i) * pitch)));
            Groups { x, out, norm, chains: floats, mean, r, row: Floats(floats.at((STRANDS + 2) * pitch)) }
        };
        let each = |count: usize, step: usize, part: GroupPart| {
            over(machine, count, step, |range, thread| {
                wide::run_loops(machine.isa, machine.madd, GroupRows { of, part, range, thread });
            })
        };
        // SAFETY: `cols` values of a row of scratch, and no kernel runs.
        let row = |of: Floats| unsafe { std::slice::from_raw_parts_mut(of.at(0), cols) };
        row(of.mean).fill(0.0);
        if norm.kind == NormKind::Layer {
            each(STRANDS, 8, GroupPart::Sums)?;
            of.total(groups, row(of.mean), |sum| sum / n);
        }
        each(STRANDS, 8, GroupPart::Squares)?;
        of.total(groups, row(of.r), |sum| math::rsqrt(sum / n + norm.eps));
        each(rows, (8192 / cols).clamp(1, 64), GroupPart::Write)
    })
}

/// A norm of groups: operands, and scratch in rows of 16 floats' multiples.
#[derive(Clone, Copy)]
struct Groups<'a> {
    x: RawMat,
    out: RawMatMut,
    norm: Norm<'a>,
    /// `[STRANDS, cols]`.
    chains: Floats,
    /// Of every column's group.
    mean: Floats,
    /// The same.
    r: Floats,
    /// A row of each thread.
    row: Floats,
}

/// What is done of it, in this order.
#[derive(Clone, Copy, PartialEq)]
enum GroupPart {
    /// Chains of values.
    Sums,
    /// Chains of squared distances from the mean.
    Squares,
    /// Rows of `out`.
    Write,
}

struct GroupRows<'a> {
    of: Groups<'a>,
    part: GroupPart,
    /// Strands, or rows to write.
    range: std::ops::Range<usize>,
    thread: usize,
}

impl Groups<'_> {
    /// What `f` makes of every group's sum, for each of its columns.
    fn total(&self, groups: usize, to: &mut [f32], f: impl Fn(f32) -> f32) {
        let (cols, pitch) = (self.x.cols, self.x.cols.next_multiple_of(16));
        for (group, to) in to.chunks_exact_mut(cols / groups).enumerate() {
            let strand = |s: usize| {
                // SAFETY: a group's columns of a row of chains, which no kernel writes now.
                let chains = unsafe {
                    std::slice::from_raw_parts(self.chains.at(s * pitch + group * to.len()), to.len())
                };
                chains.iter().fold(0.0, |acc, chain| acc + chain)
            };
            to.fill(f(tree_of_strands(std::array::from_fn(strand))));
        }
    }
}

impl Kernel for GroupRows<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (Groups { x, out, norm, chains, mean, r, row }, part) = (self.of, self.part);
        let (cols, pitch) = (x.cols, x.cols.next_multiple_of(16));
        // SAFETY: rows of scratch, of which this call writes its thread's own and the chains of its strands;
        // `group_norm` has checked that the views go together.
        unsafe {
            let row = row.at(self.thread * pitch);
            let values = std::slice::from_raw_parts_mut(row, cols);
            let [mean, r] = [mean, r].map(|of| std::slice::from_raw_parts(of.at(0), cols));
            if part == GroupPart::Write {
                for at in self.range {
                    x.widen::<V>(at, 0, cols, row);
                    values.iter_mut().zip(mean).for_each(|(v, mean)| *v -= mean);
                    scaled::<V::M>(values, &norm, r.iter().copied());
                    out.narrow::<V>(at, 0, cols, row);
                }
                return;
            }
            let chains = |s: usize| std::slice::from_raw_parts_mut(chains.at(s * pitch), cols);
            self.range.clone().for_each(|s| chains(s).fill(0.0));
            for first in (0..x.rows).step_by(STRANDS) {
                for s in self.range.clone().take_while(|s| first + s < x.rows) {
                    x.widen::<V>(first + s, 0, cols, row);
                    let each = chains(s).iter_mut().zip(&*values);
                    match part {
                        GroupPart::Sums => each.for_each(|(acc, v)| *acc += v),
                        _ => each.zip(mean).for_each(|((acc, v), mean)| {
                            let d = v - mean;
                            *acc = V::M::madd(d, d, *acc);
                        }),
                    }
                }
            }
        }
    }
}

/// `x = max(x - (mean + deviations * std), 0)` row by row in place.
pub fn gaussian_topk(machine: &Machine, x: RawMatMut, deviations: f32) -> Result<()> {
    rescaled(machine, x, Rescale::Topk { deviations })
}

/// `x = x * (rms(like) / sqrt(max(mean(x^2), floor)))` for every part as wide as `like`, in place.
pub fn match_rms(machine: &Machine, x: RawMatMut, like: RawMat, floor: f32) -> Result<()> {
    same("match_rms", "rows", like.rows, x.rows)?;
    if x.as_raw().is_empty() {
        return Ok(());
    }
    whole_parts("match_rms", x.cols, like.cols)?;
    rescaled(machine, x, Rescale::Match { like, floor })
}

/// What rows get by their own moments.
#[derive(Clone, Copy)]
enum Rescale {
    Topk { deviations: f32 },
    Match { like: RawMat, floor: f32 },
}

fn rescaled(machine: &Machine, x: RawMatMut, how: Rescale) -> Result<()> {
    if x.as_raw().is_empty() {
        return Ok(());
    }
    over_rows(machine, [x.rows, x.cols], 8192, 2, |range, scratch| {
        wide::run_loops(machine.isa, machine.madd, RescaleRows { x, how, range, scratch });
    })
}

struct RescaleRows {
    x: RawMatMut,
    how: Rescale,
    range: std::ops::Range<usize>,
    scratch: Floats,
}

impl Kernel for RescaleRows {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (from, cols) = (self.x.as_raw(), self.x.cols);
        // SAFETY: two rows of scratch; what is read next to x has as many rows and no more columns.
        unsafe {
            let (row, other) = (self.scratch.at(0), self.scratch.at(cols.next_multiple_of(16)));
            let values = std::slice::from_raw_parts_mut(row, cols);
            for r in self.range {
                from.widen::<V>(r, 0, cols, row);
                match self.how {
                    Rescale::Topk { deviations } => topk_row::<V::M>(values, deviations),
                    Rescale::Match { like, floor } => {
                        like.widen::<V>(r, 0, like.cols, other);
                        let other = std::slice::from_raw_parts(other, like.cols);
                        let parts = values.chunks_exact_mut(like.cols);
                        parts.for_each(|part| match_row::<V::M>(part, other, floor));
                    }
                }
                self.x.narrow::<V>(r, 0, cols, row);
            }
        }
    }
}

#[inline(always)]
fn topk_row<M: MulAdd>(x: &mut [f32], deviations: f32) {
    let (bounds, n) = (leaf_bounds(x.len(), 1), x.len() as f32);
    let mean = leaves(x, &bounds, |acc, v| acc + v) / n;
    let variance = leaves(x, &bounds, |acc, v| M::madd(v - mean, v - mean, acc)) / n;
    let cutoff = M::madd(deviations, variance.sqrt(), mean);
    x.iter_mut().for_each(|v| {
        let above = *v - cutoff;
        *v = if above < 0.0 { 0.0 } else { above };
    });
}

#[inline(always)]
fn match_row<M: MulAdd>(x: &mut [f32], like: &[f32], floor: f32) {
    let bounds = leaf_bounds(x.len(), 1);
    let square = |x: &[f32]| leaves(x, &bounds, |acc, v| M::madd(v, v, acc)) / x.len() as f32;
    let own = square(x);
    let own = if own < floor { floor } else { own };
    let factor = square(like).sqrt() / own.sqrt();
    x.iter_mut().for_each(|v| *v *= factor);
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

/// The scalar definition of a norm of groups, for tests.
pub fn group_norm_ref<M: MulAdd>(x: &mut [f32], cols: usize, groups: usize, norm: &Norm<'_>) {
    let (rows, width) = (x.len() / cols.max(1), cols / groups.max(1));
    let n = (rows * width) as f32;
    for group in 0..groups {
        let columns = group * width..(group + 1) * width;
        let sum = |x: &[f32], step: &dyn Fn(f32, f32) -> f32| {
            let chain = |s: usize, c: usize| {
                (s..rows).step_by(STRANDS).fold(0.0, |acc, row| step(acc, x[row * cols + c]))
            };
            let strand = |s: usize| columns.clone().fold(0.0, |acc, c| acc + chain(s, c));
            tree_of_strands(std::array::from_fn(strand))
        };
        let layer = norm.kind == NormKind::Layer;
        let mean = if layer { sum(x, &|acc, v| acc + v) / n } else { 0.0 };
        let r = 1.0 / (sum(x, &|acc, v| M::madd(v - mean, v - mean, acc)) / n + norm.eps).sqrt();
        for (row, c) in (0..rows).flat_map(|row| columns.clone().map(move |c| (row, c))) {
            let v = (x[row * cols + c] - mean) * r;
            let w = norm.weight.map_or(1.0, |w| if norm.plus_one { 1.0 + w[c] } else { w[c] });
            x[row * cols + c] = norm.bias.map_or(v * w, |b| M::madd(v, w, b[c]));
        }
    }
}
