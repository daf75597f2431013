//! Convolutions in groups of columns, and attention that is linear in the rows.
//!
//! ```text
//! grouped:  out[r, c] = bias[c] + sum_(t, i) x[rows[r, t], g(c), i] w[t, i, c]
//! linear:   s = sum_t k'[t]^T [v[t], 1],  out[t] = (q'[t] . s[.., ..width]) / (q'[t] . s[.., width] + eps)
//! ```
//!
//! All sums have the 8 leaves of `sum` (grain 1): over `taps * inputs` products, over the rows of an item,
//! over the columns of a head. Leaves stand side by side in scratch, columns next to each other.

use super::{Floats, Machine, RawMat, RawMatMut, check_factors, over, same, same_shape};
use crate::simd::{Kernel, Lanes, wide};
use engraft_core::math::{self, MulAdd};
use engraft_core::numerics::{LEAVES, leaf_bounds, tree};
use engraft_core::{Error, Result};
use std::ops::Range;

/// A convolution in groups of columns.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'a> {
    /// `[rows * taps]`: rows that are read.
    pub rows: &'a [u32],
    /// Rows that an output reads.
    pub taps: usize,
    /// Columns of a group that are read.
    pub inputs: usize,
    /// Columns of a group that are written.
    pub outputs: usize,
    /// `[taps * inputs, cols]`.
    pub weight: &'a [f32],
    /// `[cols]`.
    pub bias: Option<&'a [f32]>,
}

/// Columns of a depthwise convolution that are done at once: their leaves stay in the first cache.
const BLOCK: usize = 256;

/// `out = conv(x)`: x `[any, groups * inputs]`, out `[rows, cols]`; a row number beyond `x` is a row of
/// zeros.
///
/// # Errors
/// `Shape` for operands that do not go together.
pub fn grouped_conv(machine: &Machine, x: RawMat, of: Grouped<'_>, out: RawMatMut) -> Result<()> {
    const OP: &str = "grouped_conv";
    let (cols, inputs) = (out.cols, of.inputs);
    let groups = x.cols.checked_div(inputs).unwrap_or(0);
    same(OP, "columns beyond whole groups", groups.saturating_mul(inputs), x.cols)?;
    check_factors(OP, "row numbers", of.rows.len(), out.rows, of.taps)?;
    check_factors(OP, "length of the weight", of.weight.len(), of.taps.saturating_mul(inputs), cols)?;
    if let Some(bias) = of.bias {
        same(OP, "length of the bias", bias.len(), cols)?;
    }
    if out.as_raw().is_empty() {
        return Ok(());
    }
    match groups.checked_mul(of.outputs) {
        Some(round @ 1..) => same(OP, "columns beyond whole rounds of the groups", cols % round, 0)?,
        _ => return Err(Error::Shape { op: OP, what: "groups", got: 0, want: 1 }),
    }
    // One column to a group: it is read where it is written.
    let depthwise = inputs == 1 && of.outputs == 1 && cols == x.cols;
    let block = if depthwise { BLOCK.min(cols) } else { cols };
    let (pitch, wide_row) = (block.next_multiple_of(16), x.cols.next_multiple_of(16));
    let per_thread = (LEAVES + 1) * pitch + if depthwise { 0 } else { wide_row };
    let step = (8192 / cols.saturating_mul(of.taps * inputs).max(1)).clamp(1, 64);
    machine.with_scratch(per_thread * machine.pool.threads(), |floats| {
        over(machine, out.rows, step, |range, thread| {
            // SAFETY: a part of what was asked for; each thread has its own.
            let scratch = Floats(unsafe { floats.at(thread * per_thread) });
            let part = Conv { x, of, out, depthwise, block, range, scratch };
            wide::run_loops(machine.isa, machine.madd, part);
        })
    })
}

struct Conv<'a> {
    x: RawMat,
    of: Grouped<'a>,
    out: RawMatMut,
    depthwise: bool,
    /// Columns at once.
    block: usize,
    range: Range<usize>,
    /// Leaves, what every column reads, and a row of `x`.
    scratch: Floats,
}

impl Conv<'_> {
    /// Of `n` columns from `first` on what each reads of the product of this number.
    ///
    /// # Safety
    /// Scratch has room; `row` lies in `x`, or there is none.
    #[inline(always)]
    unsafe fn read<V: Lanes>(&self, (row, input): (Option<usize>, usize), first: usize, to: &mut [f32]) {
        let Some(row) = row else { return to.fill(0.0) };
        // SAFETY: the caller's promise.
        unsafe {
            if self.depthwise {
                return self.x.widen::<V>(row, first, to.len(), to.as_mut_ptr());
            }
            let whole = self.scratch.at((LEAVES + 1) * self.block.next_multiple_of(16));
            if input == 0 {
                self.x.widen::<V>(row, 0, self.x.cols, whole);
            }
            let (whole, inputs) = (std::slice::from_raw_parts(whole, self.x.cols), self.of.inputs);
            let mut group = 0;
            for part in to.chunks_mut(self.of.outputs) {
                part.fill(whole[group * inputs + input]);
                group = if (group + 1) * inputs == self.x.cols { 0 } else { group + 1 };
            }
        }
    }
}

impl Kernel for Conv<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (of, cols, pitch) = (self.of, self.out.cols, self.block.next_multiple_of(16));
        let terms = of.taps * of.inputs;
        let bounds = leaf_bounds(terms, 1);
        for (r, first) in self.range.clone().flat_map(|r| (0..cols).step_by(self.block).map(move |c| (r, c)))
        {
            let n = self.block.min(cols - first);
            // SAFETY: scratch has so many rows; `grouped_conv` has checked that operands go together.
            unsafe {
                let read = std::slice::from_raw_parts_mut(self.scratch.at(LEAVES * pitch), n);
                for leaf in 0..LEAVES {
                    let sums = std::slice::from_raw_parts_mut(self.scratch.at(leaf * pitch), n);
                    sums.fill(0.0);
                    for at in bounds[leaf]..bounds[leaf + 1] {
                        let (tap, input) = (at / of.inputs, at % of.inputs);
                        let row = of.rows[r * of.taps + tap] as usize;
                        self.read::<V>(((row < self.x.rows).then_some(row), input), first, read);
                        let weight = &of.weight[at * cols + first..][..n];
                        let terms = read.iter().zip(weight);
                        sums.iter_mut().zip(terms).for_each(|(acc, (x, w))| *acc = V::M::madd(*x, *w, *acc));
                    }
                }
                let sums = join(self.scratch, pitch, n);
                if let Some(bias) = of.bias {
                    sums.iter_mut().zip(&bias[first..]).for_each(|(sum, bias)| *sum += bias);
                }
                self.out.narrow::<V>(r, first, n, sums.as_ptr());
            }
        }
    }
}

/// The tree over leaves `pitch` floats apart, of `n` sums each, in the place of the first.
///
/// # Safety
/// Scratch has room for 8 leaves, and nothing else refers to them.
#[inline(always)]
unsafe fn join<'a>(leaves: Floats, pitch: usize, n: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise; leaves do not overlap.
    unsafe {
        let sums = std::slice::from_raw_parts_mut(leaves.at(0), n);
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum =
                tree(std::array::from_fn(|leaf| if leaf == 0 { *sum } else { *leaves.at(leaf * pitch + i) }));
        }
        sums
    }
}

/// Attention without a softmax.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, (heads - 1) * step + width]`.
    pub q: RawMat,
    /// As `q`.
    pub k: RawMat,
    /// As `q`.
    pub v: RawMat,
    /// `[items + 1]`.
    pub bounds: &'a [u32],
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Columns from head to head.
    pub step: usize,
    /// Added to what divides.
    pub eps: f32,
}

/// Sums `[items * heads * width, width + 1]` of keys and values, and `out` `[rows, heads * width]`, what
/// queries make of them.
///
/// # Errors
/// `Shape` and `Internal` for operands that do not go together, bounds that do not ascend or end beyond the
/// rows.
pub fn linear_attend(machine: &Machine, of: Linear<'_>, sums: RawMatMut, out: RawMatMut) -> Result<()> {
    const OP: &str = "linear_attend";
    let Linear { q, k, v, bounds, heads, width, step, .. } = of;
    let items = bounds.len().saturating_sub(1);
    same_shape(OP, k, q)?;
    same_shape(OP, v, q)?;
    same(OP, "columns of q", q.cols, heads.saturating_sub(1).saturating_mul(step).saturating_add(width))?;
    same(OP, "rows of the output", out.rows, q.rows)?;
    check_factors(OP, "columns of the output", out.cols, heads, width)?;
    check_factors(OP, "rows of the sums", sums.rows, items, out.cols)?;
    same(OP, "columns of the sums", sums.cols, width + 1)?;
    if !bounds.is_sorted() {
        return Err(Error::internal(format!("{OP}: bounds of items that do not ascend")));
    }
    let end = bounds.last().map_or(0, |end| *end as usize);
    if end > q.rows {
        return Err(Error::Shape { op: OP, what: "the last bound", got: end, want: q.rows });
    }
    if sums.as_raw().is_empty() {
        return Ok(());
    }
    let pitch = (width + 1).next_multiple_of(16);
    let per_thread = (3 + LEAVES + LEAVES * width) * pitch;
    machine.with_scratch(per_thread * machine.pool.threads(), |floats| {
        over(machine, items * heads, 1, |range, thread| {
            // SAFETY: a part of what was asked for; each thread has its own.
            let scratch = Floats(unsafe { floats.at(thread * per_thread) });
            wide::run_loops(machine.isa, machine.madd, Attend { of, sums, out, pitch, range, scratch });
        })
    })
}

struct Attend<'a> {
    of: Linear<'a>,
    sums: RawMatMut,
    out: RawMatMut,
    /// Floats of a row of scratch.
    pitch: usize,
    /// Heads of all items.
    range: Range<usize>,
    /// Three rows, a row for each leaf, `width` rows for each leaf.
    scratch: Floats,
}

impl Attend<'_> {
    /// The sums of a head over `rows`, in scratch.
    ///
    /// # Safety
    /// Scratch has room, `rows` are those of keys and values, and `first` is the head's first column.
    #[inline(always)]
    unsafe fn sum<V: Lanes>(&self, rows: Range<usize>, first: usize) -> &[f32] {
        let (Linear { k, v, width, .. }, pitch, bounds) = (self.of, self.pitch, leaf_bounds(rows.len(), 1));
        // SAFETY: the caller's promise; parts of scratch that do not overlap.
        unsafe {
            let keys = std::slice::from_raw_parts_mut(self.scratch.at(0), width);
            let values = std::slice::from_raw_parts_mut(self.scratch.at(pitch), pitch);
            let leaves = Floats(self.scratch.at((3 + LEAVES) * pitch));
            // Behind the values a one, which sums the keys, and zeros.
            values.fill(0.0);
            values[width] = 1.0;
            for leaf in 0..LEAVES {
                let sums = std::slice::from_raw_parts_mut(leaves.at(leaf * width * pitch), width * pitch);
                sums.fill(0.0);
                for row in rows.start + bounds[leaf]..rows.start + bounds[leaf + 1] {
                    k.widen::<V>(row, first, width, keys.as_mut_ptr());
                    v.widen::<V>(row, first, width, values.as_mut_ptr());
                    for (key, sums) in keys.iter().zip(sums.chunks_exact_mut(pitch)) {
                        let key = math::relu(*key);
                        let each = sums.iter_mut().zip(&*values);
                        each.for_each(|(acc, value)| *acc = V::M::madd(key, *value, *acc));
                    }
                }
            }
            join(leaves, width * pitch, width * pitch)
        }
    }

    /// A row of a head from its sums.
    ///
    /// # Safety
    /// Scratch has room, and there is such a row.
    #[inline(always)]
    unsafe fn read<V: Lanes>(&self, row: usize, (first, to): (usize, usize), sums: &[f32]) {
        let (Linear { q, width, eps, .. }, pitch) = (self.of, self.pitch);
        let bounds = leaf_bounds(width, 1);
        // SAFETY: the caller's promise; parts of scratch that do not overlap.
        unsafe {
            let queries = std::slice::from_raw_parts_mut(self.scratch.at(2 * pitch), width);
            q.widen::<V>(row, first, width, queries.as_mut_ptr());
            let leaves = Floats(self.scratch.at(3 * pitch));
            for leaf in 0..LEAVES {
                let acc = std::slice::from_raw_parts_mut(leaves.at(leaf * pitch), pitch);
                acc.fill(0.0);
                for at in bounds[leaf]..bounds[leaf + 1] {
                    let (query, sums) = (math::relu(queries[at]), &sums[at * pitch..][..pitch]);
                    acc.iter_mut().zip(sums).for_each(|(acc, sum)| *acc = V::M::madd(query, *sum, *acc));
                }
            }
            let made = join(leaves, pitch, width + 1);
            let by = made[width] + eps;
            made[..width].iter_mut().for_each(|value| *value /= by);
            self.out.narrow::<V>(row, to, width, made.as_ptr());
        }
    }
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Linear { bounds, heads, width, step, .. } = self.of;
        for at in self.range.clone() {
            let (item, head) = (at / heads, at % heads);
            let rows = bounds[item] as usize..bounds[item + 1] as usize;
            // SAFETY: `linear_attend` has checked that operands go together and asked for the scratch.
            unsafe {
                let sums = self.sum::<V>(rows.clone(), head * step);
                for (d, row) in sums.chunks_exact(self.pitch).enumerate() {
                    self.sums.narrow::<V>(at * width + d, 0, width + 1, row.as_ptr());
                }
                rows.for_each(|row| self.read::<V>(row, (head * step, head * width), sums));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{bits, machines, values};
    use super::*;
    use crate::sum;
    use engraft_core::math::{FusedMadd, SeparateMadd};
    use engraft_core::numerics::Madd;

    fn dot(madd: Madd, x: &[f32], w: &[f32]) -> f32 {
        let bounds = leaf_bounds(x.len(), 1);
        match madd {
            Madd::Fused => sum::dot_ref::<FusedMadd>(x, w, &bounds),
            Madd::Separate => sum::dot_ref::<SeparateMadd>(x, w, &bounds),
        }
    }

    #[test]
    fn groups_have_the_reference_bits_on_every_machine() {
        // Depthwise, wider than a block; whole groups; several columns of one; a second round of the groups.
        for (taps, groups, inputs, outputs, rounds) in [
            (9, 300, 1, 1, 1),
            (25, 7, 1, 1, 1),
            (1, 5, 8, 8, 1),
            (4, 6, 1, 2, 1),
            (3, 4, 5, 3, 2),
            (2, 3, 4, 1, 4),
        ] {
            let (from, to, cols) = (5, 4, groups * outputs * rounds);
            let x = values(from * groups * inputs, 1);
            let (w, b) = (values(taps * inputs * cols, 2), values(cols, 3));
            let rows: Vec<u32> = (0..to * taps).map(|i| (i * 7 % (from + 2)) as u32).collect();
            for madd in [Madd::Fused, Madd::Separate] {
                let at = |r: usize, c: usize| {
                    let group = c / outputs % groups;
                    let read = |k: usize| {
                        let row = rows[r * taps + k / inputs] as usize;
                        if row < from { x[(row * groups + group) * inputs + k % inputs] } else { 0.0 }
                    };
                    let x: Vec<f32> = (0..taps * inputs).map(read).collect();
                    let w: Vec<f32> = (0..taps * inputs).map(|k| w[k * cols + c]).collect();
                    dot(madd, &x, &w) + b[c]
                };
                let want: Vec<f32> = (0..to * cols).map(|i| at(i / cols, i % cols)).collect();
                for machine in machines(madd) {
                    let mut out = vec![f32::NAN; to * cols];
                    let of = Grouped { rows: &rows, taps, inputs, outputs, weight: &w, bias: Some(&b) };
                    // SAFETY: the vectors outlive the call.
                    unsafe {
                        let (x, out) = (RawMat::of(&x, groups * inputs), RawMatMut::of(&mut out, cols));
                        grouped_conv(&machine, x, of, out).unwrap();
                    }
                    assert_eq!(bits(&out), bits(&want), "{taps} taps, {groups} of {inputs} to {outputs}");
                }
            }
        }
    }

    #[test]
    fn linear_attention_has_the_reference_bits_on_every_machine() {
        for (bounds, heads, width, step) in
            [(vec![0, 1], 1, 1, 1), (vec![0, 13, 13, 30], 3, 7, 7), (vec![0, 21, 61], 2, 33, 99)]
        {
            let (rows, cols) = (bounds[bounds.len() - 1] as usize, (heads - 1) * step + width);
            let [q, k, v] = [1, 2, 3].map(|seed| values(rows * cols, seed));
            let relu = |x: &[f32], r: usize, c: usize| math::relu(x[r * cols + c]);
            for madd in [Madd::Fused, Madd::Separate] {
                let (mut want, mut kept) = (vec![0.0; rows * heads * width], Vec::new());
                for (item, head) in (0..bounds.len() - 1).flat_map(|i| (0..heads).map(move |h| (i, h))) {
                    let (own, first) = (bounds[item] as usize..bounds[item + 1] as usize, head * step);
                    let sum = |d: usize, c: usize| {
                        let keys: Vec<f32> = own.clone().map(|r| relu(&k, r, first + d)).collect();
                        let value = |r: usize| if c < width { v[r * cols + first + c] } else { 1.0 };
                        dot(madd, &keys, &own.clone().map(value).collect::<Vec<_>>())
                    };
                    let sums: Vec<f32> =
                        (0..width * (width + 1)).map(|i| sum(i / (width + 1), i % (width + 1))).collect();
                    for r in own.clone() {
                        let queries: Vec<f32> = (0..width).map(|d| relu(&q, r, first + d)).collect();
                        let read = |c: usize| {
                            let of: Vec<f32> = (0..width).map(|d| sums[d * (width + 1) + c]).collect();
                            dot(madd, &queries, &of)
                        };
                        let by = read(width) + 1e-6;
                        (0..width).for_each(|c| want[(r * heads + head) * width + c] = read(c) / by);
                    }
                    kept.extend(sums);
                }
                for machine in machines(madd) {
                    let (mut sums, mut out) = (vec![f32::NAN; kept.len()], vec![f32::NAN; want.len()]);
                    // SAFETY: the vectors outlive the call.
                    unsafe {
                        let [q, k, v] = [&q, &k, &v].map(|x| RawMat::of(x, cols));
                        let of = Linear { q, k, v, bounds: &bounds, heads, width, step, eps: 1e-6 };
                        let (sums, out) =
                            (RawMatMut::of(&mut sums, width + 1), RawMatMut::of(&mut out, heads * width));
                        linear_attend(&machine, of, sums, out).unwrap();
                    }
                    assert_eq!(bits(&sums), bits(&kept), "sums of {heads} heads of {width}");
                    assert_eq!(bits(&out), bits(&want), "{heads} heads of {width}");
                }
            }
        }
    }
}
