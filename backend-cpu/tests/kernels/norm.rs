//! Norms against their scalar definitions, bit for bit, on every machine.

use crate::testing::{bits, machines, values};
use engraft_core::math::{FusedMadd, MulAdd, SeparateMadd};
use engraft_core::numerics::{Madd, leaf_bounds};
use engraft_core::params::NormKind;
use engraft_cpu::kernels::norm::{Norm, add_norm, group_norm, group_norm_ref};
use engraft_cpu::kernels::{RawMat, RawMatMut};
use engraft_cpu::sum;

/// The scalar definition: sums by `sum`'s reference functions.
fn norm_ref<M: MulAdd>(x: &mut [f32], norm: &Norm<'_>) {
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
fn groups_have_the_reference_bits_on_every_machine() {
    // The last one as in a picture's decoder, with a row more.
    let of_models = (4097, 96, 32);
    for (rows, cols, groups) in [(1, 6, 3), (63, 20, 1), (64, 33, 33), (65, 48, 4), (200, 7, 7), of_models] {
        let (w, b) = (values(cols, 2), values(cols, 3));
        for (kind, bias) in [(NormKind::Rms, None), (NormKind::Layer, Some(&b[..]))] {
            let n = Norm { kind, eps: 1e-5, weight: Some(&w), bias, plus_one: false };
            for madd in [Madd::Fused, Madd::Separate] {
                let x = values(rows * cols, 1);
                let mut want = x.clone();
                match madd {
                    Madd::Fused => group_norm_ref::<FusedMadd>(&mut want, cols, groups, &n),
                    Madd::Separate => group_norm_ref::<SeparateMadd>(&mut want, cols, groups, &n),
                }
                for machine in machines(madd) {
                    let mut out = vec![f32::NAN; rows * cols];
                    // SAFETY: the vectors outlive the call.
                    unsafe {
                        let to = RawMatMut::of(&mut out, cols);
                        group_norm(&machine, RawMat::of(&x, cols), groups, n, to).unwrap();
                    }
                    assert_eq!(bits(&out), bits(&want), "{rows} x {cols} in {groups}, {kind:?} {madd:?}");
                }
            }
        }
    }
}

#[test]
fn every_machine_gives_the_reference_bits() {
    for cols in [1, 2, 7, 8, 31, 33, 96, 111, 4095, 4096, 4097] {
        let (w, b) = (values(cols, 2), values(cols, 3));
        for (kind, bias, plus_one) in [
            (NormKind::Rms, None, false),
            (NormKind::Rms, None, true),
            (NormKind::Rms, Some(&b[..]), false),
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
