//! A kernel that does not wait for the launches before it: seen by its first access to what they may write.

use crate::machine::{HOPPER, Machine, numbers};
use engraft_kernels::Launch;
use engraft_kernels::params::Elem;
use engraft_kernels::params::elementwise::Add;
use engraft_kernels::params::rows::{Gather, Scatter};
use ptx_vm::{FaultKind, Module, Options};
use std::sync::Arc;

const WAIT: &str = "griddepcontrol.wait;";

/// The text of a kernel alone, without its wait and with it.
fn texts(launch: &Launch) -> [Arc<Module>; 2] {
    let path = format!("{}/ptx/{}.{HOPPER}.ptx.gz", env!("CARGO_MANIFEST_DIR"), launch.stem());
    let text = engraft_kernels::unpack(&std::fs::read(path).unwrap()).unwrap();
    let text = engraft_kernels::single(&text, &launch.entry).unwrap();
    assert_eq!(text.matches(WAIT).count(), 1, "{}", launch.entry);
    [text.replace(WAIT, ""), text].map(|text| Arc::new(Module::parse(&text).unwrap()))
}

fn check<P: bytemuck::Pod>(gpu: &mut Machine, params: &P, launch: &Launch) {
    let [hasty, whole] = texts(launch);
    let options = Options::default();
    let fault = gpu.outcome(&hasty, HOPPER, params, launch, &options).unwrap_err();
    assert_eq!(fault.kind, FaultKind::GridDependency, "{fault}");
    assert!(fault.line > 0 && fault.kernel == launch.entry, "{fault}");
    gpu.outcome(&whole, HOPPER, params, launch, &options).unwrap();
}

#[test]
fn a_kernel_that_waits_for_no_launch_before_it_is_seen() {
    let elem = Elem::F32;
    Machine::once(&mut |gpu| {
        let (x, out) = (gpu.dense(&numbers(8, 1), 4, elem), gpu.dense(&numbers(8, 2), 4, elem));
        // Reads first, and a kernel that reads words.
        let p = Gather { x, out, rows: gpu.put(&[1u32, 0]), elem, reserved: 0 };
        check(gpu, &p, &p.launch());
        let p = Add { acc: out, x, elem, reserved: 0 };
        check(gpu, &p, &p.launch());
        let p = Scatter { pairs: gpu.put(&[[0u32, 7]]), dst: gpu.put(&[3u32; 4]), count: 1, len: 4 };
        check(gpu, &p, &p.launch());
    });
}
