//! The order of sums, and that it shows in the bits.

use engraft_core::math::{FusedMadd, MulAdd, SeparateMadd};
use engraft_core::numerics::leaf_bounds;
use engraft_cpu::sum::{dot_ref, row_sum, square_sum_ref, sum_ref};

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
