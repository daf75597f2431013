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
