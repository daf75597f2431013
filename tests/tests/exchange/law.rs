//! The law of ranks by NCCL: 1, 2, 4 and 8 of them give the same bits, whatever order it adds in.

use super::both::{adds_nothing, columns};
use super::{device, double, ranks};
use conformance::backends::folder;
use conformance::dice::Dice;
use conformance::golden::{Types, open_with};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Layers, Request, Want};
use engraft_core::mem::Float;
use engraft_core::numerics::{Mode, tree_of_ranks};
use engraft_core::policy::Registry;
use engraft_cuda::Cuda;
use sample::some;
use soft_nccl::Order;
use std::sync::Arc;
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Tokens, logits and hidden states of two prompts.
pub fn given(gpu: &Arc<Cuda>, case: &str, types: Types) -> Vec<Vec<u32>> {
    let config = EngineConfig {
        dtype: types.dtype,
        kv_dtype: types.dtype.into(),
        max_context: 32,
        max_seqs: 2,
        logit_rows: Some(usize::MAX),
        ..EngineConfig::default()
    };
    let dir = folder().join("golden").join(case);
    let mut engine = open_with(gpu, &dir, config, &Registry::default(), types).unwrap();
    let vocab = engine.model().spec.vocab;
    let request = |length: usize| Request {
        prompt: (0..length).map(|i| ((7 * i + 3 * length) % (vocab - 3) + 3) as u32).collect(),
        max_new_tokens: 3,
        want: Want { logits: true, hidden: Layers::All, logprobs: false },
        ..Request::default()
    };
    let ids: Vec<u64> = [5, 1].into_iter().map(|length| engine.put(request(length)).unwrap()).collect();
    let mut tokens = engine.run().unwrap();
    let mut all = Vec::new();
    for id in ids {
        all.push(tokens.remove(&id).unwrap());
        let kept = engine.take_kept(id).unwrap();
        all.extend(kept.hidden.iter().chain([&kept.logits]).map(|values| bits(values)));
    }
    assert!(all.iter().all(|list| !list.is_empty()));
    all
}

#[test]
fn every_degree_gives_the_bits_of_one_rank_in_every_order() {
    let double = double();
    let gpu = device(&double, Mode::Reference);
    let moved = |gpu: &Arc<Cuda>| gpu.launches().get("elementwise_add_f32").copied().unwrap_or(0);
    for case in some(["llama_gqa_llama3", "qwen2_moe"]) {
        let one = given(&gpu, case, Float::F32.into());
        for (order, degrees) in Order::ALL.into_iter().zip([&[2, 4][..], &[4], &[2]]) {
            double.0.order(order);
            for &tp in degrees {
                let before = moved(&gpu);
                let types = Types { tp, ..Float::F32.into() };
                assert!(given(&gpu, case, types) == one, "{case}, {tp} ranks, {order:?}");
                // By NCCL and the kernel that adds, not by the host.
                assert!(moved(&gpu) > before, "{case}, {tp} ranks: no sum on the device");
            }
        }
    }
}

#[test]
fn mode_invariant_has_one_set_of_bits_in_16_bits() {
    let double = double();
    double.0.order(Order::Random);
    let gpu = device(&double, Mode::Invariant);
    let of =
        |tp| given(&gpu, "llama_gqa_llama3", Types { weights: Some(Float::Bf16), tp, ..Float::Bf16.into() });
    let (two, four) = (of(2), of(4));
    assert!(two == four, "2 ranks against 4: {}", sample::difference(&two, &four));
}

/// Nodes of ranks, of which some sums depend on the order.
pub fn nodes(world: usize, count: usize) -> Vec<Vec<f32>> {
    let mut dice = Dice::new(world as u64);
    let mut all: Vec<Vec<f32>> = (0..world).map(|_| dice.values(count, 1.0, Float::F32)).collect();
    all.iter_mut().for_each(|node| node[0] = -0.0);
    all
}

pub fn tree(nodes: &[Vec<f32>], i: usize) -> f32 {
    let of = |rank: usize| nodes[rank][i];
    match nodes.len() {
        2 => tree_of_ranks::<2>(std::array::from_fn(of)),
        4 => tree_of_ranks::<4>(std::array::from_fn(of)),
        _ => tree_of_ranks::<8>(std::array::from_fn(of)),
    }
}

#[test]
fn sums_are_the_tree_in_exact_modes_and_nccls_own_in_mode_fast() {
    let double = double();
    let (rows, cols) = (3, 37);
    let mut unlike = 0;
    for (mode, order) in [
        (Mode::Reference, Order::Ring),
        (Mode::Invariant, Order::Random),
        (Mode::Fast, Order::Tree),
        (Mode::Fast, Order::Ring),
        (Mode::Fast, Order::Random),
    ] {
        double.0.order(order);
        let gpu = device(&double, mode);
        for world in [2, 4, 8] {
            let nodes = nodes(world, rows * cols);
            let want: Vec<f32> = (0..rows * cols).map(|i| tree(&nodes, i)).collect();
            let got = ranks(&gpu, world, PATIENCE, |rank| {
                let mut rank = rank.unwrap();
                // Several, in the same scratch.
                let node = &nodes[rank.rank];
                let first = rank.sum(cols, node, true).unwrap();
                assert_eq!(bits(&rank.sum(cols, node, true).unwrap()).len(), first.len());
                first
            });
            for sums in &got {
                // What NCCL adds is the same on all ranks, too.
                assert_eq!(bits(sums), bits(&got[0]), "{mode:?}, {order:?}, {world} ranks");
            }
            let differ = bits(&got[0]).iter().zip(bits(&want)).filter(|(got, want)| **got != *want).count();
            match (mode, order) {
                (Mode::Fast, Order::Ring | Order::Random) => {
                    unlike += differ;
                    let near = got[0].iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5);
                    assert!(near, "{order:?}, {world} ranks");
                }
                _ => assert_eq!(differ, 0, "{mode:?}, {order:?}, {world} ranks"),
            }
        }
    }
    // The test sees the order of sums.
    assert!(unlike > 20, "{unlike}");
}

#[test]
fn a_rank_that_adds_nothing_counts_as_zeros() {
    let double = double();
    for mode in [Mode::Reference, Mode::Fast] {
        adds_nothing(&device(&double, mode));
    }
}

#[test]
fn columns_of_unequal_width_reach_every_rank() {
    let double = double();
    columns(&device(&double, Mode::Reference));
}
