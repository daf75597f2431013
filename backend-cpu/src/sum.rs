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

#[cfg(test)]
mod tests {
    use super::*;
    use engraft_core::math::{FusedMadd, SeparateMadd};
    use engraft_core::numerics::leaf_bounds;

    #[test]
    fn side_by_side_equals_one_after_the_other() {
        for (k, grain) in [(0, 1), (1, 1), (7, 1), (64, 1), (77, 5), (300, 64)] {
            let x: Vec<f32> = (0..k).map(|i| ((i * 37 % 101) as f32 - 50.3) / 7.0).collect();
            let b = leaf_bounds(k, grain);
            assert_eq!(row_sum(&b, |a, i| a + x[i]).to_bits(), sum_ref(&x, &b).to_bits());
            let fused = row_sum(&b, |a, i| FusedMadd::madd(x[i], x[i], a));
            assert_eq!(fused.to_bits(), square_sum_ref::<FusedMadd>(&x, &b).to_bits());
        }
    }

    #[test]
    fn the_multiply_add_and_the_order_show_in_the_bits() {
        let x: Vec<f32> = (0..999).map(|i| (i as f32 * 0.7).sin()).collect();
        let differing =
            |f: &dyn Fn(&[f32]) -> (f32, f32)| (100..900).map(|n| f(&x[..n])).filter(|(a, b)| a != b).count();
        let kinds = |x: &[f32]| {
            let b = leaf_bounds(x.len(), 1);
            (dot_ref::<FusedMadd>(x, x, &b), dot_ref::<SeparateMadd>(x, x, &b))
        };
        let orders = |x: &[f32]| {
            let b = leaf_bounds(x.len(), 1);
            (dot_ref::<FusedMadd>(x, x, &b), x.iter().fold(0.0, |a, v| FusedMadd::madd(*v, *v, a)))
        };
        assert!(differing(&kinds) > 100 && differing(&orders) > 100);
    }
}
