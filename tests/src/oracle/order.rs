//! The contract's summation order, written once more and independently: what `linear` must equal to the last
//! bit.

use engraft_core::numerics::{Madd, leaf_bounds_of_groups};

/// `a * b + c` of the kind in force.
pub fn madd(kind: Madd, a: f32, b: f32, c: f32) -> f32 {
    match kind {
        Madd::Fused => a.mul_add(b, c),
        Madd::Separate => {
            let rounded = a * b;
            rounded + c
        }
    }
}

/// `sum_k x[k] w[k]`: 8 leaves, each one ascending chain from +0, then pairs of leaves, pairs of pairs, the
/// two halves. Leaves have whole grains, in groups.
pub fn dot(kind: Madd, x: &[f32], w: &[f32], (grain, group): (usize, usize)) -> f32 {
    let bounds = leaf_bounds_of_groups(x.len(), grain, group);
    let mut sums = Vec::new();
    for leaf in 0..8 {
        let mut sum = 0.0;
        for k in bounds[leaf]..bounds[leaf + 1] {
            sum = madd(kind, x[k], w[k], sum);
        }
        sums.push(sum);
    }
    tree(sums)
}

/// Pairs of leaves, pairs of pairs, the two halves.
pub fn tree(mut sums: Vec<f32>) -> f32 {
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two orders may agree on one sum by chance, hardly on twenty.
    #[test]
    fn order_and_multiply_add_show_in_the_bits() {
        let differs = |other: fn(&[f32], &[f32]) -> f32| {
            let sums = |k: usize| {
                let x: Vec<f32> = (0..k).map(|i| (i as f32 * 0.7).sin()).collect();
                let w: Vec<f32> = (0..k).map(|i| (i as f32 * 1.3).cos()).collect();
                (dot(Madd::Fused, &x, &w, (1, 1)), other(&x, &w))
            };
            (990..1010).map(sums).filter(|(a, b)| a != b).count() > 10
        };
        assert!(differs(|x, w| dot(Madd::Separate, x, w, (1, 1))), "the multiply-add");
        assert!(differs(|x, w| dot(Madd::Fused, x, w, (64, 1))), "the grain");
        assert!(differs(|x, w| x.iter().zip(w).fold(0.0, |a, (x, w)| x.mul_add(*w, a))), "one chain");
        assert!(!differs(|x, w| dot(Madd::Fused, x, w, (1, 1))), "itself");
    }
}
