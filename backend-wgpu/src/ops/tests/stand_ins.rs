//! Ops whose kernel the driver gets wrong run by a plainer one, with the grid and the operands of that one.

use super::{Bench, HEADS};
use crate::command::{Call, Slot};
use crate::pipelines::Pipelines;
use crate::tests::classes::{Driver, lanes, on, other_end, other_tree};
use engraft_core::backend::Backend;
use engraft_core::mem::WeightUse;
use engraft_core::ops::{AttendDense, Linear};
use engraft_core::params::Scores;
use engraft_shaders::{Dialect, Elem, Kernel, Moe, Packing};
use std::sync::Arc;
use std::time::Instant;

fn bench(driver: Driver) -> Bench {
    Bench::on(Arc::new(on(driver)))
}

/// Few rows, many, queries, slots of experts: the bits are those of a driver that gets nothing wrong.
#[test]
#[ignore = "needs a wgpu adapter"]
fn ops_run_by_kernels_that_stand_in() {
    let mut sound = bench(|_, text| text);
    let one = sound.matmul_in_slices("lanes of one row", 1, 200, [28, 1, 1]);
    let few = sound.matmul_in_slices("lanes", 3, 200, [28, 1, 1]);
    let many = sound.matmul_in_slices("tiles", 9, 200, [7, 2, 1]);
    let attention = sound.attention_in_slices("attention in tiles", [5, 1, 1]);
    let experts = sound.experts_in_slices(26);
    assert_eq!((&one, &one), (&few[..200].to_vec(), &many[..200].to_vec()));

    let mut wrong = bench(|kernel, text| if *kernel == lanes(1) { other_tree(text) } else { text });
    assert_eq!(wrong.matmul_in_slices("one row by tiles", 1, 200, [7, 1, 1]), one);
    assert_eq!(wrong.matmul_in_slices("lanes", 3, 200, [28, 1, 1]), few);
    let mut wrong = bench(|kernel, text| if *kernel == lanes(4) { other_tree(text) } else { text });
    assert_eq!(wrong.matmul_in_slices("few rows one by one", 3, 200, [28, 3, 1]), few);
    let mut wrong = bench(|kernel, text| match kernel {
        Kernel::Linear { rows: 8, weight: Packing::F32, .. } | Kernel::Experts { rows: 8, .. } => {
            other_tree(text)
        }
        Kernel::AttentionTile(..) => other_end(text),
        _ => text,
    });
    assert_eq!(wrong.matmul_in_slices("many rows one by one", 9, 200, [7, 9, 1]), many);
    assert_eq!(wrong.attention_in_slices("attention query by query", [9, 2, 1]), attention);
    assert_eq!(wrong.experts_in_slices(26), experts);
    assert_eq!(wrong.gpu.replaced_kernels().len(), 3, "{:?}", wrong.gpu.replaced_kernels());
}

/// Slots by expert, each expert's in their order: of more experts than a workgroup counts, and more slots
/// than it has invocations.
#[test]
#[ignore = "needs a wgpu adapter"]
fn slots_are_sorted_by_expert_and_keep_their_order() {
    let mut bench = Bench::new();
    let mut state = 7u32;
    for (count, slots) in [(1, 1), (3, 255), (64, 256), (1023, 257), (1024, 3000), (3000, 1000)] {
        let experts: Vec<u32> = (0..slots)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // The last ones of all among them, and some that have none.
                if state >> 28 == 0 { count - 1 } else { (state >> 8) % count / 2 * 2 % count }
            })
            .collect();
        let mut order: Vec<u32> = (0..slots).collect();
        order.sort_by_key(|slot| experts[*slot as usize]);
        let below = |expert: u32| experts.iter().filter(|own| **own < expert).count() as u32;
        let want: Vec<u32> = (0..=count).map(below).chain(order).collect();
        let (from, out) = (bench.words(&experts), bench.guarded(want.len()));
        let (gpu, whole) = (bench.gpu.clone(), out.whole());
        let slot = |mem| Slot::whole(gpu.limits(), mem, "a test").unwrap();
        let slots_of = [slot(from.view().mem()), slot(whole.view().mem())];
        let (kernel, words) = (Kernel::Moe(Moe::Group, Elem::F32), [slots, count, 0, super::AROUND as u32]);
        // One workgroup for all experts, and one for each thousand of them.
        for groups in [1, (count + 1).div_ceil(1024)] {
            let call = Call { kernel, slots: &slots_of, words: &words, grid: [groups, 1, 1] };
            bench.stream.call(&call).unwrap();
            assert_eq!(bench.inside(&out), want, "{slots} slots of {count} experts, {groups} workgroups");
        }
    }
}

/// Guards of sums change no bit where a driver keeps their order; how long both take is printed.
#[test]
#[ignore = "needs a wgpu adapter"]
fn guards_of_sums_change_no_bit() {
    let (rows, cols, outputs) = (64, 1024, 256);
    let mut seen: Option<[Vec<u32>; 2]> = None;
    for strict in [true, false] {
        let mut gpu = on(|_, text| text);
        gpu.pipelines = Pipelines::new(Dialect { strict, ..gpu.pipelines.dialect }, None, true);
        let mut bench = Bench::on(Arc::new(gpu));
        let weight = bench.noisy_weight(outputs, cols, WeightUse::Linear { grain: 1, group: 1 });
        let x = bench.noise(rows, cols);
        let mut matmul = |bench: &mut Bench| {
            let mut out = bench.guarded(rows * outputs);
            bench.run(Linear::new(x.view(rows).unwrap(), &weight, None, out.mat(rows, outputs)));
            bench.inside(&out)
        };
        let (wide, bounds, scores) = (HEADS.heads * HEADS.k_dim, bench.words(&[0, 512]), Scores::causal(0.7));
        let (q, kv) = (bench.noise(512, wide), bench.noise(512, HEADS.k_dim));
        let mut attention = |bench: &mut Bench| {
            let mut out = bench.guarded(512 * wide);
            let (q, k) = (q.view(512).unwrap(), kv.view(512).unwrap());
            let (bounds, max_rows, scores) = (bounds.view(), 512, &scores);
            let (sinks, bias, to) = (None, None, out.mat(512, wide));
            bench.run(AttendDense {
                q,
                k,
                v: k,
                bounds,
                max_rows,
                heads: HEADS,
                scores,
                sinks,
                bias,
                out: to,
            });
            bench.inside(&out)
        };
        // Compiled the first time.
        let found = [matmul(&mut bench), attention(&mut bench)];
        let mut timed = |op: &mut dyn FnMut(&mut Bench) -> Vec<u32>| {
            let each = (0..7).map(|_| {
                let start = Instant::now();
                op(&mut bench);
                start.elapsed().as_secs_f64() * 1e3
            });
            each.fold(f64::INFINITY, f64::min)
        };
        let times = [timed(&mut matmul), timed(&mut attention)];
        println!("{}, {strict}: matmul {:.2} ms, attention {:.2} ms", bench.gpu.name(), times[0], times[1]);
        let first = seen.get_or_insert_with(|| found.clone());
        assert_eq!(found, *first);
    }
}
