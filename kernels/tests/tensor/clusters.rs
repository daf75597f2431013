//! Kernels whose blocks come in clusters: every one of them, by its name, keeps the rules of its barriers.

use std::collections::BTreeSet;

use crate::gemm::{QUANTIZED, case, of};
use crate::machine::{Type, schedules};
use crate::wide::run_boxed;
use ptx_vm::{Barriers, Options};

/// The kernels of all checked-in texts that wait at a cluster's barrier.
fn waiting() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(format!("{}/ptx", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "gz") {
            continue;
        }
        let text = engraft_kernels::unpack(&std::fs::read(path).unwrap()).unwrap();
        for entry in text.split(".visible .entry ").skip(1).filter(|entry| entry.contains("barrier.cluster"))
        {
            names.extend(entry.split(['(', '\n']).next().map(|name| name.trim().to_owned()));
        }
    }
    names
}

/// With `.aligned` all lanes of a warp have to come to such a barrier; a GPU hangs without, or does not.
#[test]
fn every_kernel_of_clusters_keeps_their_barriers() {
    let mut ran = BTreeSet::new();
    for ty in [Type::Bf16, Type::F16] {
        for (format, group) in [(of(ty), 0)].into_iter().chain(QUANTIZED) {
            let case = case(ty, format, group, 12, 24, 256);
            case.run_with(0..case.rows, |device, p| {
                for (boxed, _) in p.boxed_choices() {
                    if boxed.cluster == 1 || !ran.insert(boxed.launch.entry.clone()) {
                        continue;
                    }
                    for options in schedules() {
                        let strict = Options { barriers: Barriers::NoLane, ..options };
                        run_boxed(device, &boxed, &strict);
                    }
                }
            });
        }
    }
    let waiting = waiting();
    assert_eq!(ran, waiting);
    assert!(waiting.len() >= 20, "{waiting:?}");
}
