//! Elementwise kernels against the formulas of `engraft_core::math`.

use crate::testing::{bits, machines, values};
use engraft_core::math;
use engraft_core::numerics::Madd;
use engraft_cpu::kernels::elementwise::gate;
use engraft_cpu::kernels::{Activation, RawMat, RawMatMut};

#[test]
fn gate_is_act_times_up_on_every_machine() {
    let x = values(3 * 22, 5);
    for machine in machines(Madd::Fused) {
        let mut out = vec![f32::NAN; 3 * 11];
        // SAFETY: the vectors outlive the call.
        unsafe {
            gate(&machine, RawMat::of(&x, 22), (Activation::Silu, None), RawMatMut::of(&mut out, 11)).unwrap()
        };
        let want: Vec<f32> = (0..33)
            .map(|i| {
                let (r, c) = (i / 11, i % 11);
                math::silu::<math::FusedMadd>(x[r * 22 + c]) * x[r * 22 + 11 + c]
            })
            .collect();
        assert_eq!(bits(&out), bits(&want));
    }
}
