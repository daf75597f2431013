//! Experts: routing to them, and adding up what they gave. `choice` picks the largest scores; the matmuls are
//! in `experts`.
//!
//! Invariant: a token's experts, weights and sum depend on its own rows alone; slots are grouped in ascending
//! order.

use super::choice::{choose, comparable, open};
use super::{Floats, Machine, RawMat, RawMatMut, over_rows, same};
use crate::simd::{self, Kernel, Lanes};
use crate::sum;
use engraft_core::math::{self, MulAdd};
use engraft_core::numerics::{LEAVES, leaf_bounds};
use engraft_core::params::{ExpertShare, Router, RouterScore};
use engraft_core::{Error, Result};
use std::ops::Range;

/// Words that chunks write disjoint parts of.
#[derive(Clone, Copy)]
struct Words(*mut u32);
// SAFETY: a pointer only; each chunk has rows of its own.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// # Safety
    /// `n` words from `at` on belong to the caller.
    unsafe fn part<'a>(self, at: usize, n: usize) -> &'a mut [u32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), n) }
    }
}

/// What routing gives.
pub struct Routed<'a> {
    /// `[tokens * top_k]`.
    pub experts: &'a mut [u32],
    /// `[tokens, top_k]` f32.
    pub weights: RawMatMut,
}

/// Chooses experts: logits `[tokens, experts]` f32; the bias for the choice `[experts]`.
pub fn route(
    machine: &Machine,
    logits: RawMat,
    (router, bias): (&Router, Option<&[f32]>),
    out: Routed<'_>,
) -> Result<()> {
    let (Routed { experts, weights }, router) = (out, *router);
    if let Some(bias) = bias {
        same("route", "length of the bias of the choice", bias.len(), router.experts)?;
    }
    same("route", "columns of the logits", logits.cols, router.experts)?;
    same("route", "rows of the weights", weights.rows, logits.rows)?;
    same("route", "columns of the weights", weights.cols, router.top_k)?;
    let slots = logits.rows.saturating_mul(router.top_k);
    same("route", "slots", experts.len(), slots)?;
    let most = router.experts.min(Router::MAX_TOP_K);
    if router.top_k > most {
        return Err(Error::Shape { op: "route", what: "chosen experts", got: router.top_k, want: most });
    }
    if logits.is_empty() {
        return Ok(());
    }
    let experts = Words(experts.as_mut_ptr());
    over_rows(machine, [logits.rows, router.experts], 4096, 3, |range, scratch| {
        simd::run(
            machine.isa,
            machine.madd,
            Choose { logits, router, bias, experts, weights, range, scratch },
        );
    })
}

struct Choose<'a> {
    logits: RawMat,
    router: Router,
    bias: Option<&'a [f32]>,
    experts: Words,
    weights: RawMatMut,
    range: Range<usize>,
    scratch: Floats,
}

impl Kernel for Choose<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (n, k) = (self.router.experts, self.router.top_k);
        // SAFETY: three rows of scratch.
        let [row, scores, keys] = [0, 1, 2].map(|i| unsafe {
            std::slice::from_raw_parts_mut(self.scratch.at(i * n.next_multiple_of(16)), n)
        });
        let mut weights = [0f32; Router::MAX_TOP_K];
        for r in self.range.clone() {
            // SAFETY: a row of logits, words and weights of this row alone.
            let chosen = unsafe {
                self.logits.widen::<V>(r, 0, n, row.as_mut_ptr());
                self.experts.part(r * k, k)
            };
            score::<V::M>(self.router.score, row, scores);
            match self.router.is_by_score() {
                true => {
                    self.keys(scores, keys);
                    let (size, open) = self.router.groups.map_or((n, 1), |groups| open(keys, groups));
                    choose(keys, (0..n as u32).filter(|i| open >> (*i as usize / size) & 1 != 0), chosen);
                }
                false => choose(row, 0..n as u32, chosen),
            }
            match self.router.near {
                None => weigh(&self.router, scores, chosen, &mut weights[..k]),
                Some(near) => {
                    for (weight, c) in weights.iter_mut().zip(&*chosen) {
                        *weight = self.router.scale / left::<V::M>(row, *c as usize, near, scores);
                    }
                }
            }
            // SAFETY: as above.
            unsafe { self.weights.narrow::<V>(r, 0, k, weights.as_ptr()) };
        }
    }
}

impl Choose<'_> {
    /// What experts are chosen by: their scores, those of a softmax divided by the sum of all, and the bias.
    fn keys(&self, scores: &[f32], keys: &mut [f32]) {
        let total = whole(self.router.score, scores);
        for (i, (key, score)) in keys.iter_mut().zip(scores).enumerate() {
            let score = score / total;
            *key = self.bias.map_or(score, |bias| score + bias[i]);
        }
    }
}

/// Scores of all experts: see `engraft_core::ops::Route`. Those of a softmax are not divided yet.
#[inline(always)]
fn score<M: MulAdd>(score: RouterScore, logits: &[f32], scores: &mut [f32]) {
    match score {
        RouterScore::Softmax => {
            let max = logits.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
            scores.iter_mut().zip(logits).for_each(|(s, v)| *s = math::exp::<M>(v - max));
        }
        RouterScore::Sigmoid => {
            scores.iter_mut().zip(logits).for_each(|(s, v)| *s = math::sigmoid::<M>(*v));
        }
    }
}

/// What scores are divided by where they are not renormalised.
fn whole(score: RouterScore, scores: &[f32]) -> f32 {
    match score {
        RouterScore::Softmax => sum::sum_ref(scores, &leaf_bounds(scores.len(), 1)),
        RouterScore::Sigmoid => 1.0,
    }
}

/// Weights of the chosen.
fn weigh(router: &Router, scores: &[f32], chosen: &[u32], out: &mut [f32]) {
    let total = match router.renormalise {
        true => chosen.iter().fold(0.0, |sum: f32, c| sum + scores[*c as usize]),
        false => whole(router.score, scores),
    };
    let total = if total == 0.0 { 1.0 } else { total };
    for (out, c) in out.iter_mut().zip(chosen) {
        *out = scores[*c as usize] / total * router.scale;
    }
}

/// The sum of a softmax over the logits that are left when expert `c` is chosen, and near its own; `scores`
/// holds its terms.
#[inline(always)]
fn left<M: MulAdd>(logits: &[f32], c: usize, near: f32, scores: &mut [f32]) -> f32 {
    let (best, key) = (logits[c], comparable(logits[c]));
    for (i, (score, s)) in scores.iter_mut().zip(logits).enumerate() {
        let before = comparable(*s) > key || comparable(*s) == key && i < c;
        let size = if s.abs() > best { s.abs() } else { best };
        let out = before || best - *s > near * size;
        *score = if out { 0.0 } else { math::exp::<M>(*s - best) };
    }
    sum::sum_ref(scores, &leaf_bounds(scores.len(), 1))
}

/// What slots' experts gave.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    /// `[tokens * k, cols]`.
    pub y: RawMat,
    /// `[tokens, k]` f32.
    pub weights: RawMat,
    /// `[tokens * k]` the experts, ascending within a token, and those whose results count; none: one chain.
    pub chosen: Option<(&'a [u32], ExpertShare)>,
}

/// `out[t] = sum_j weights[t, j] * y[t * k + j]`, by leaves of expert number, added to `out[t]` where asked.
pub fn combine(machine: &Machine, slots: Slots<'_>, add: bool, out: RawMatMut) -> Result<()> {
    let Slots { y, weights, chosen } = slots;
    same("combine", "rows of the weights", weights.rows, out.rows)?;
    same("combine", "columns", y.cols, out.cols)?;
    let count = out.rows.saturating_mul(weights.cols);
    same("combine", "slots", y.rows, count)?;
    same("combine", "experts of slots", chosen.map_or(count, |(experts, _)| experts.len()), count)?;
    if out.as_raw().is_empty() {
        return Ok(());
    }
    let (bounds, own) = match chosen {
        Some((_, share)) => (share.bounds(), share.leaves()),
        None => ([0; LEAVES + 1], 0..0),
    };
    let experts = chosen.map(|(experts, _)| experts);
    over_rows(machine, [out.rows, out.cols], 8192, 2 + DEPTH, |range, scratch| {
        let leaves = Leaves { bounds: &bounds, own: own.clone(), experts };
        simd::run(machine.isa, machine.madd, Combine { y, weights, leaves, add, out, range, scratch });
    })
}

/// Sums that are kept while a tree of leaves is walked.
const DEPTH: usize = LEAVES.ilog2() as usize + 1;

/// Which slots are in which leaf.
struct Leaves<'a> {
    bounds: &'a [usize; LEAVES + 1],
    own: Range<usize>,
    experts: Option<&'a [u32]>,
}

struct Combine<'a> {
    y: RawMat,
    weights: RawMat,
    leaves: Leaves<'a>,
    add: bool,
    out: RawMatMut,
    range: Range<usize>,
    scratch: Floats,
}

impl Kernel for Combine<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (cols, k) = (self.out.cols, self.weights.cols);
        let row = |i: usize| {
            // SAFETY: as many rows of scratch, each used by one borrow at a time.
            unsafe { std::slice::from_raw_parts_mut(self.scratch.at(i * cols.next_multiple_of(16)), cols) }
        };
        for t in self.range.clone() {
            match self.leaves.experts {
                None => self.chain::<V>(t, 0..k, row(2)),
                Some(experts) => self.tree::<V>(t, &experts[t * k..(t + 1) * k], |i| row(2 + i)),
            }
            let acc = row(2);
            // SAFETY: `combine` has checked that the views go together.
            unsafe {
                if self.add {
                    let old = row(1);
                    self.out.as_raw().widen::<V>(t, 0, cols, old.as_mut_ptr());
                    acc.iter_mut().zip(old).for_each(|(a, o)| *a += *o);
                }
                self.out.narrow::<V>(t, 0, cols, acc.as_ptr());
            }
        }
    }
}

impl Combine<'_> {
    /// The chain of some of a token's slots.
    #[inline(always)]
    fn chain<V: Lanes>(&self, t: usize, slots: Range<usize>, acc: &mut [f32]) {
        let (k, cols, mut w) = (self.weights.cols, acc.len(), [0f32; 1]);
        acc.fill(0.0);
        for j in slots {
            // SAFETY: the first row of scratch; `combine` has checked that the views go together.
            let y = unsafe {
                let y = self.scratch.at(0);
                self.weights.widen::<V>(t, j, 1, w.as_mut_ptr());
                self.y.widen::<V>(t * k + j, 0, cols, y);
                std::slice::from_raw_parts(y, cols)
            };
            acc.iter_mut().zip(y).for_each(|(a, y)| *a = V::M::madd(w[0], *y, *a));
        }
    }

    /// The sum over the leaves of a token's slots in `row(0)`. Leaves without a slot are zeros: they change
    /// no sum, as none is -0.
    #[inline(always)]
    fn tree<'r, V: Lanes>(&self, t: usize, chosen: &[u32], row: impl Fn(usize) -> &'r mut [f32]) {
        let Leaves { bounds, own, .. } = &self.leaves;
        // Sums that wait for their other half, and the first leaf of each.
        let (mut waiting, mut first) = (0, [0; DEPTH]);
        let mut start = 0;
        for leaf in 0..LEAVES {
            let end =
                start + chosen[start..].iter().take_while(|e| (**e as usize) < bounds[leaf + 1]).count();
            if own.contains(&leaf) && start < end {
                self.chain::<V>(t, start..end, row(waiting));
                first[waiting] = leaf;
                waiting += 1;
            }
            start = end;
            for span in (1..DEPTH).map(|level| 1 << level).filter(|span| (leaf + 1) % span == 0) {
                if waiting > 1 && first[waiting - 2] + span > leaf {
                    waiting -= 1;
                    row(waiting - 1).iter_mut().zip(row(waiting)).for_each(|(a, b)| *a += *b);
                }
            }
        }
        if waiting == 0 {
            row(0).fill(0.0);
        }
    }
}
