//! Drivers that contract or reassociate one class of kernels: a plainer kernel stands in, or nothing is
//! promised.

use super::{on_driver, stand_in, with};
use crate::{Probe, Reduce, Wgpu, WgpuConfig, probe};
use engraft_core::backend::{Backend, block_on};
use engraft_core::numerics::Mode;
use engraft_shaders::{Attention, Elem, Kernel, Packing};
use std::sync::Arc;

const F32: Elem = Elem::F32;

pub(crate) fn tile(rows: u32) -> Kernel {
    Kernel::Linear { weight: Packing::F32, x: F32, out: F32, rows, gate: false, vector: true, act: false }
}

pub(crate) fn lanes(rows: u32) -> Kernel {
    let (gate, act, subgroups) = (false, false, false);
    Kernel::LinearLanes { weight: Packing::F32, x: F32, out: F32, rows, gate, act, subgroups }
}

pub(crate) fn experts(rows: u32) -> Kernel {
    let (weight, grouped) = (Packing::F32, rows > 1);
    Kernel::Experts { weight, x: F32, out: F32, rows, vector: true, grouped }
}

fn attention() -> Kernel {
    let how = Attention { dense: false, columns: 1, capped: false, subgroups: false, distances: false };
    Kernel::Attention(how, F32, F32)
}

pub(crate) fn attention_tile() -> Kernel {
    Kernel::AttentionTile(1, false, F32, F32)
}

/// A multiply-add rounded once, whatever guards it: with what its two roundings leave over. Drivers that run
/// on the CPU have `fma` with two.
const ONCE: &str = "let p_ = og(a * b);
    let high_a = og(og(4097.0 * a) - og(og(4097.0 * a) - a));
    let high_b = og(og(4097.0 * b) - og(og(4097.0 * b) - b));
    let low_a = og(a - high_a);
    let low_b = og(b - high_b);
    let both = og(og(og(high_a * high_b) - p_) + og(high_a * low_b));
    let of_multiply = og(og(both + og(low_a * high_b)) + og(low_a * low_b));
    let s_ = og(p_ + c);
    let back = og(s_ - p_);
    let of_add = og(og(p_ - og(s_ - back)) + og(c - back));
    return s_ + og(of_add + of_multiply);";

fn contracted(text: String) -> String {
    with(text, "return og(a * b) + c;", ONCE)
}

/// Leaves in another order.
pub(crate) fn other_tree(text: String) -> String {
    with(text, "og(og(a + b) + og(c + d))", "og(og(a + c) + og(b + d))")
}

/// A score's chain from its other end.
pub(crate) fn other_end(text: String) -> String {
    let text =
        with(text, "keys_at(k_base + d * p.page_size)", "keys_at(k_base + (k_dim - 1u - d) * p.page_size)");
    ["q_base", "q0", "q1", "q2", "q3"].into_iter().fold(text, |text, row| {
        text.replace(&format!("q_at({row} + d)"), &format!("q_at({row} + k_dim - 1u - d)"))
    })
}

/// A norm's strands added at other distances first, or its leaves in another order.
fn other_distances(text: String) -> String {
    match text.contains("swap[(v ^ 1u)") {
        true => {
            with(with(with(text, "(v ^ 1u)", "(v ^ 64u)"), "(v ^ 32u)", "(v ^ 1u)"), "(v ^ 64u)", "(v ^ 32u)")
        }
        false => other_tree(text),
    }
}

pub(crate) type Driver = fn(&Kernel, String) -> String;

pub(crate) fn on(driver: Driver) -> Wgpu {
    on_driver(WgpuConfig { reduce: Some(Reduce::Shared), ..WgpuConfig::default() }, driver)
}

/// What is run for the kernels of `all`, and what the device promises.
fn outcome(driver: Driver, all: &[Kernel]) -> (Vec<Kernel>, Mode) {
    let gpu = on(driver);
    let stood_in = stand_in(&gpu, all);
    let gpu = Arc::new(gpu);
    let (found, _) = block_on(probe::run(&gpu)).unwrap();
    let gpu = Arc::try_unwrap(gpu).unwrap();
    (stood_in, gpu.probed(&WgpuConfig::default(), found, None, None).unwrap().numerics().mode)
}

/// Where one of two kernels that the number of rows decides between is another: the plainer one runs.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_class_for_some_rows_that_is_contracted_or_reassociated_is_not_used() {
    let all = [lanes(1), lanes(4), tile(4), attention_tile(), experts(4)];
    assert_eq!(outcome(|_, text| text, &all), (all.to_vec(), Mode::Invariant));
    let one_row: [Driver; 2] = [
        |kernel, text| if *kernel == lanes(1) { contracted(text) } else { text },
        |kernel, text| if *kernel == lanes(1) { other_tree(text) } else { text },
    ];
    for driver in one_row {
        assert_eq!(outcome(driver, &all[..2]), (vec![tile(1), lanes(4)], Mode::Invariant));
    }
    let several: [Driver; 2] = [
        |kernel, text| if [lanes(4), tile(4)].contains(kernel) { contracted(text) } else { text },
        |kernel, text| if [lanes(4), tile(4)].contains(kernel) { other_tree(text) } else { text },
    ];
    for driver in several {
        assert_eq!(outcome(driver, &all[..3]), (vec![lanes(1), lanes(1), tile(1)], Mode::Invariant));
    }
    let queries: [Driver; 2] = [
        |kernel, text| if *kernel == attention_tile() { contracted(text) } else { text },
        |kernel, text| if *kernel == attention_tile() { other_end(text) } else { text },
    ];
    for driver in queries {
        assert_eq!(outcome(driver, &[attention_tile()]), (vec![attention()], Mode::Invariant));
    }
    let groups: [Driver; 2] = [
        |kernel, text| if *kernel == experts(4) { contracted(text) } else { text },
        |kernel, text| if *kernel == experts(4) { other_tree(text) } else { text },
    ];
    for driver in groups {
        assert_eq!(outcome(driver, &[experts(4)]), (vec![experts(1)], Mode::Invariant));
    }
}

fn is_matmul(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Linear { .. } | Kernel::LinearLanes { .. })
}

fn is_of_experts(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Experts { .. })
}

fn attends(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Attention(..) | Kernel::AttentionTile(..))
}

fn norms(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Norm(..))
}

/// Where all of a class are others, alike: no kernel shows it to another.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_whole_class_that_is_contracted_or_reassociated_takes_the_promise() {
    let drivers: [(&str, Driver); 8] = [
        ("linear_f32", |kernel, text| if is_matmul(kernel) { contracted(text) } else { text }),
        ("linear_f32", |kernel, text| if is_matmul(kernel) { other_tree(text) } else { text }),
        ("expert_linear", |kernel, text| if is_of_experts(kernel) { contracted(text) } else { text }),
        ("expert_linear", |kernel, text| if is_of_experts(kernel) { other_tree(text) } else { text }),
        ("attention_paged", |kernel, text| if attends(kernel) { contracted(text) } else { text }),
        ("attention_paged", |kernel, text| if attends(kernel) { other_end(text) } else { text }),
        ("norm_alone", |kernel, text| if norms(kernel) { contracted(text) } else { text }),
        ("norm_alone", |kernel, text| if norms(kernel) { other_distances(text) } else { text }),
    ];
    for (label, driver) in drivers {
        let all = [lanes(1), tile(4), attention_tile(), experts(4)];
        // Twins agree.
        assert_eq!(outcome(driver, &all), (all.to_vec(), Mode::Fast), "{label}");
        let gpu = Arc::new(on(driver));
        let (arithmetic, probes) = block_on(probe::run(&gpu)).unwrap();
        assert!(!arithmetic.order && arithmetic.division, "{arithmetic:?}");
        let others = |probe: &&Probe| probe.passed == Some(false) && probe.name != "subnormals";
        let failed: Vec<_> = probes.iter().filter(others).collect();
        let [failed] = failed[..] else { panic!("{label}: {failed:?}") };
        let named = |other: &&str| failed.found.split("; ").any(|one| one.starts_with(other));
        let labels = ["linear_f32", "expert_linear", "attention_paged", "norm_alone"];
        assert_eq!(labels.iter().filter(|label| named(label)).collect::<Vec<_>>(), [&label], "{failed:?}");
    }
}

/// A kernel that is refused where nothing plainer is left withholds the promise, and ends nothing else.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_plain_kernel_that_is_refused_takes_the_promise() {
    let driver: Driver =
        |kernel, text| if norms(kernel) { text.replace("fn main(", "fn no_entry(") } else { text };
    let (found, probes) = block_on(probe::run(&Arc::new(on(driver)))).unwrap();
    assert!(!found.order && probes.iter().any(|probe| probe.found.contains("norm_alone")), "{probes:?}");
}
