//! What is measured of this machine.

use engraft_core::numerics::Madd;
use engraft_cpu::kernels::Machine;
use engraft_cpu::limits::measure;

#[test]
fn limits_are_plausible() {
    let l = measure(&Machine::new(1, Madd::Fused), 1).unwrap();
    assert!(l.read_gb_s > 0.1 && l.read_gb_s < 2000.0, "{l:?}");
    assert!(l.fma_gflop_s > 0.1 && l.fma_gflop_s < 2000.0, "{l:?}");
}
