//! Drivers that contract or reassociate one class of kernels: a plainer kernel stands in, or nothing is
//! promised.

use super::{on_driver, opened_as, stand_in, with};
use crate::arithmetic::Arithmetic;
use crate::{Probe, Reduce, Wgpu, WgpuConfig, probe, wanted};
use engraft_core::backend::{Backend, block_on};
use engraft_core::numerics::Mode;
use engraft_shaders::{Attention, Elem, Elementwise, Kernel, Moe, Norm, Packing};
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
    Kernel::Attention(how, F32, F32.into())
}

pub(crate) fn attention_tile() -> Kernel {
    Kernel::AttentionTile(1, false, F32, F32.into())
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

/// `once(a, b, c)`: the product and the sum rounded once.
fn rotates_once(text: String) -> String {
    let head = "fn madd(a: f32, b: f32, c: f32) -> f32 {";
    let text = with(text, head, &format!("fn once(a: f32, b: f32, c: f32) -> f32 {{ {ONCE} }}\n{head}"));
    with(text, "og(b * c) + og(a * s)", "once(b, c, og(a * s))")
}

/// A class of which there is one kernel: bits depend on no batch, but they are not the host's.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_lone_kernel_that_is_contracted_takes_the_hosts_bits_alone() {
    let drivers: [(&str, Driver); 8] = [
        ("sample", |kernel, text| match kernel {
            Kernel::Sample => {
                with(text, "og(l * row.inv_temperature)", "og(l * og(1.000_001 * row.inv_temperature))")
            }
            _ => text,
        }),
        ("moe_route_f32", |kernel, text| match kernel {
            Kernel::Moe(Moe::Route, _) => other_tree(text),
            _ => text,
        }),
        ("moe_route_by_score", |kernel, text| match kernel {
            Kernel::Moe(Moe::RouteByScore, _) => {
                with(text, "og(total + scores[j])", "og(total + scores[p.top_k - 1u - j])")
            }
            _ => text,
        }),
        ("quantize", |kernel, text| match kernel {
            // A constant that is rounded up.
            Kernel::Quantize(_) => with(text, "0.007874015718698502", "0.0078740162"),
            _ => text,
        }),
        ("rope_f32", |kernel, text| match kernel {
            Kernel::Rope(..) => rotates_once(text),
            _ => text,
        }),
        ("rope_append_f32_f32", |kernel, text| match kernel {
            Kernel::RopeAppend(..) => rotates_once(text),
            _ => text,
        }),
        ("gate_f32_f32", |kernel, text| match kernel {
            Kernel::Elementwise(Elementwise::Gate, ..) => contracted(text),
            _ => text,
        }),
        ("moe_combine", |kernel, text| match kernel {
            Kernel::Moe(Moe::Combine, _) => contracted(text),
            _ => text,
        }),
    ];
    let found = |driver: Driver| {
        let gpu = Arc::new(on_driver(WgpuConfig { mode: Mode::Reference, ..WgpuConfig::default() }, driver));
        let (found, probes) = block_on(probe::run(&gpu)).unwrap();
        let gpu = Arc::try_unwrap(gpu).unwrap();
        let mode = gpu.probed(&WgpuConfig::default(), found, None, None).unwrap().numerics().mode;
        let probe = probes.into_iter().find(|probe| probe.name == "kernels without twins").unwrap();
        (mode, probe)
    };
    let (mode, sound) = found(|_, text| text);
    assert_eq!((mode, sound.found.as_str()), (Mode::Reference, "the host's bits in 8 cases"));
    for (label, driver) in drivers {
        let (mode, probe) = found(driver);
        assert_eq!(mode, Mode::Invariant, "{label}: {probe:?}");
        let named = probe.found.starts_with(label) && !probe.found.contains("; ");
        assert!(probe.passed == Some(false) && named, "{label}: {probe:?}");
    }
}

/// Where one format, an activation in the kernel of a matmul or a cap of scores makes the difference: the
/// case of that kernel shows it, and no other.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_driver_that_gets_one_variant_wrong_loses_the_promise() {
    let drivers: [(&str, Driver); 4] = [
        ("linear_q4_0_", |kernel, text| match kernel {
            Kernel::Linear { weight: Packing::Q4_0, .. } => other_tree(text),
            _ => text,
        }),
        ("linear_q4_k_", |kernel, text| match kernel {
            Kernel::Linear { weight: Packing::Q4K, .. } => contracted(text),
            _ => text,
        }),
        ("linear_act_", |kernel, text| match kernel {
            Kernel::Linear { act: true, .. } => contracted(text),
            _ => text,
        }),
        ("attention_paged_capped_", |kernel, text| match kernel {
            Kernel::Attention(how, ..) if how.capped => other_end(text),
            _ => text,
        }),
    ];
    for (label, driver) in drivers {
        let (found, probes) = block_on(probe::run(&Arc::new(on(driver)))).unwrap();
        let probe = probes.iter().find(|probe| probe.name == "sums of kernels").unwrap();
        let named = probe.found.split("; ").all(|one| one.starts_with(label));
        assert!(!found.order && found.alone && named, "{label}: {probe:?}");
    }
}

/// A driver whose partners in an exchange, or whose subgroups in their number, are others in some pipelines.
const OTHER_PARTNERS: Driver = |kernel, text| match kernel.subgroups() {
    true => {
        let text = text.replace("subgroupMax(mine)", "subgroupBroadcastFirst(mine)");
        let text = text.replace("subgroupShuffleXor(", "neighbour(");
        format!("{text}\nfn neighbour(v: f32, bit: u32) -> f32 {{ return subgroupShuffleXor(v, 1u); }}\n")
    }
    false => text,
};
const OTHER_SIZE: Driver = |kernel, text| match kernel.subgroups() {
    true => with(text, "let v = subgroup * size + place;", "let v = subgroup * (size / 2u) + place;"),
    false => text,
};

/// Whichever kernel it is, and whether bits are promised or nothing is.
#[test]
#[ignore = "needs a wgpu adapter"]
fn no_kernel_that_exchanges_with_others_than_its_own_is_used() {
    for (mode, driver, partners) in [
        (Mode::Invariant, OTHER_PARTNERS, true),
        (Mode::Invariant, OTHER_SIZE, false),
        (Mode::Fast, OTHER_PARTNERS, true),
        (Mode::Fast, OTHER_SIZE, false),
    ] {
        let config = WgpuConfig { mode, reduce: Some(Reduce::Subgroups), ..WgpuConfig::default() };
        let size = block_on(probe::subgroups(&opened_as(config.clone()))).unwrap().0;
        let mut gpu = on_driver(config, driver);
        gpu.pipelines.tries_rows = false;
        let all = wanted::classes(&gpu.select, false);
        assert!(all.len() >= 14, "{all:?}");
        for kernel in all {
            // Lanes of a sum lie eight apart at least.
            let alone = partners && size <= 8 && matches!(kernel, Kernel::LinearLanes { .. });
            let runs = if alone { kernel } else { kernel.twin().unwrap() };
            assert_eq!(
                stand_in(&gpu, &[kernel]),
                [runs],
                "{mode:?}, subgroups of {size}, {}",
                kernel.label()
            );
        }
    }
}

/// Where nothing is promised, in mode `Fast` or because the probe withheld it, a kernel that sums in another
/// order is as good as its twin; one that sums other numbers is not.
#[test]
#[ignore = "needs a wgpu adapter"]
fn where_nothing_is_promised_kernels_need_not_have_the_bits_of_their_twins() {
    let driver: Driver = |kernel, text| match kernel {
        Kernel::Norm(Norm::Add, ..) => OTHER_PARTNERS(kernel, text),
        Kernel::Linear { rows: 4, .. } | Kernel::Experts { rows: 4, .. } => other_tree(text),
        Kernel::AttentionTile(..) => other_end(text),
        _ => text,
    };
    let of = |how, reduce| Kernel::Norm(how, F32, reduce);
    let config = |mode| WgpuConfig { mode, reduce: Some(Reduce::Subgroups), ..WgpuConfig::default() };
    let fast = on_driver(config(Mode::Fast), driver);
    let withheld = on_driver(config(Mode::Invariant), driver);
    let withheld = withheld.probed(&config(Mode::Invariant), Arithmetic::default(), None, None).unwrap();
    for gpu in [fast, withheld] {
        let [alone, add] = [Norm::Alone, Norm::Add].map(|how| of(how, Reduce::Subgroups));
        let all = [tile(4), experts(4), attention_tile(), alone, add];
        let runs = [tile(4), experts(4), attention_tile(), alone, of(Norm::Add, Reduce::Shared)];
        assert_eq!(stand_in(&gpu, &all), runs, "{:?}", gpu.replaced_kernels());
        let replaced = gpu.replaced_kernels();
        assert!(replaced.len() == 1 && replaced[0].1.contains("not near"), "{replaced:?}");
    }
    // Where bits are promised the same driver keeps none of them.
    let held = on_driver(config(Mode::Invariant), driver);
    assert_eq!(stand_in(&held, &[tile(4), experts(4)]), [tile(1), experts(1)]);
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
