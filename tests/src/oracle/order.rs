//! The contract's summation order, written once more and independently: what `linear` must equal to the last bit.

use engraft_core::numerics::{Madd, leaf_bounds};

/// `a * b + c` in the form in force.
pub fn madd(form: Madd, a: f32, b: f32, c: f32) -> f32 {
    match form {
        Madd::Fused => a.mul_add(b, c),
        Madd::Separate => {
            let product = a * b;
            product + c
        }
    }
}

/// `sum_k x[k] w[k]`: 8 leaves, each one ascending chain from +0, then pairs of leaves, pairs of pairs, the two halves.
pub fn dot(form: Madd, x: &[f32], w: &[f32], grain: usize) -> f32 {
    let bounds = leaf_bounds(x.len(), grain);
    let mut sums = Vec::new();
    for leaf in 0..8 {
        let mut sum = 0.0;
        for k in bounds[leaf]..bounds[leaf + 1] {
            sum = madd(form, x[k], w[k], sum);
        }
        sums.push(sum);
    }
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_form_show_in_the_bits() {
        let x: Vec<f32> = (0..999).map(|i| (i as f32 * 0.7).sin()).collect();
        let fused = dot(Madd::Fused, &x, &x, 1);
        assert_ne!(fused, dot(Madd::Separate, &x, &x, 1));
        assert_ne!(fused, dot(Madd::Fused, &x, &x, 64));
        assert_ne!(fused, x.iter().fold(0.0, |a, v| v.mul_add(*v, a)));
    }
}
