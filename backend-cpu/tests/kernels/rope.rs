//! Rotary embedding against its formula.

use crate::testing::{bits, machines, values};
use engraft_core::numerics::Madd;
use engraft_core::params::RopeStyle;
use engraft_cpu::kernels::rope::{Angles, rope};
use engraft_cpu::kernels::{Machine, RawMatMut};

#[test]
fn every_machine_rotates_alike_and_leaves_the_rest() {
    for (style, pairs) in [(RopeStyle::Half, 4), (RopeStyle::Interleaved, 3)] {
        let (cos, sin) = (values(6 * pairs, 1), values(6 * pairs, 2));
        let angles = Angles { cos: &cos, sin: &sin, pairs, style };
        let x = values(5 * 3 * 9, 3);
        let run = |machine: &Machine| {
            let mut y = x.clone();
            // SAFETY: the vector outlives the call.
            rope(machine, unsafe { RawMatMut::of(&mut y, 27) }, 9, &[5, 0, 1, 1, 3], angles).unwrap();
            y
        };
        let all: Vec<Vec<f32>> = machines(Madd::Fused).iter().map(run).collect();
        assert!(all.iter().all(|y| bits(y) == bits(&all[0])));
        let (p, i) = (5, 1);
        let (a, b) = if style == RopeStyle::Half { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
        let (c, s) = (cos[p * pairs + i], sin[p * pairs + i]);
        assert_eq!(all[0][a], x[a].mul_add(c, -(x[b] * s)));
        assert_eq!(all[0][b], x[b].mul_add(c, x[a] * s));
        assert_eq!(all[0][2 * pairs..9], x[2 * pairs..9], "columns beyond the pairs stay");
    }
}
