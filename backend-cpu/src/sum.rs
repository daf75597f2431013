//! The summation order of the reference backend, in scalar code that can be read.
//!
//! Every kernel of this package is tested bit for bit against these functions, and they are the contract's
//! own words:
//!
//! 1. A sum over K is split into 8 leaves at `leaf_bounds(K, grain)` (`engraft_core::numerics`).
//! 2. A leaf is **one chain** in ascending k from +0: multiply-adds for matmuls (of the kind in force, fused
//!    or separate), plain additions for sums.
//! 3. The 8 leaf sums are added by the balanced tree `((0+1)+(2+3)) + ((4+5)+(6+7))`; an empty leaf is +0.
//!
//! The order knows K and the grain, and nothing of rows, tiles, threads or ranks. Kernels get speed by doing
//! many outputs at once, never by splitting a chain.

use engraft_core::math::MulAdd;
use engraft_core::numerics::{LEAVES, tree};

/// Leaf boundaries, as `engraft_core::numerics::leaf_bounds` gives them.
pub type Bounds = [usize; LEAVES + 1];

/// Tree of the 8 leaves, each folded from +0 over its indices by `step`.
#[inline(always)]
fn leaves(bounds: &Bounds, step: impl Fn(f32, usize) -> f32) -> f32 {
    tree(std::array::from_fn(|l| (bounds[l]..bounds[l + 1]).fold(0.0, &step)))
}

/// `sum_k x[k] w[k]`; both slices have `bounds[8]` elements.
pub fn dot_ref<M: MulAdd>(x: &[f32], w: &[f32], bounds: &Bounds) -> f32 {
    leaves(bounds, |acc, k| M::madd(x[k], w[k], acc))
}

/// `sum_k x[k]` by plain additions.
pub fn sum_ref(x: &[f32], bounds: &Bounds) -> f32 {
    leaves(bounds, |acc, k| acc + x[k])
}

/// `sum_k x[k]^2` by chains of `madd(x, x, acc)`.
pub fn square_sum_ref<M: MulAdd>(x: &[f32], bounds: &Bounds) -> f32 {
    leaves(bounds, |acc, k| M::madd(x[k], x[k], acc))
}

/// The order of [`sum_ref`] at speed: the 8 chains advance side by side. `term(acc, k)` extends a chain by
/// index k.
#[inline(always)]
pub fn row_sum(bounds: &Bounds, term: impl Fn(f32, usize) -> f32) -> f32 {
    let common = (0..LEAVES).map(|l| bounds[l + 1] - bounds[l]).min().unwrap_or(0);
    let mut acc = [0f32; LEAVES];
    for i in 0..common {
        for (l, a) in acc.iter_mut().enumerate() {
            *a = term(*a, bounds[l] + i);
        }
    }
    for (l, a) in acc.iter_mut().enumerate() {
        for k in bounds[l] + common..bounds[l + 1] {
            *a = term(*a, k);
        }
    }
    tree(acc)
}
