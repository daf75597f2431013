//! Exchanges by kernels over memory that all ranks reach.

use super::both::{adds_nothing, columns, does_not_come, leaves, text};
use super::law::{PATIENCE, bits, given, nodes, tree};
use super::{double, ranks, reached};
use conformance::backends::{cuda_with, folder};
use conformance::golden::{Types, open_with};
use engraft_core::backend::{Backend, Exchange};
use engraft_core::config::EngineConfig;
use engraft_core::engine::Request;
use engraft_core::mem::Float;
use engraft_core::numerics::Mode;
use engraft_core::policy::Registry;
use engraft_cuda::{Cuda, CudaConfig};
use engraft_ranks::ThreadBoard;
use sample::some;
use std::sync::{Arc, Barrier};

fn launches(gpu: &Arc<Cuda>, entry: &str) -> u64 {
    gpu.launches().get(entry).copied().unwrap_or(0)
}

#[test]
fn every_degree_gives_the_bits_of_one_rank() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    for (case, degrees) in some([("llama_gqa_llama3", &[2, 4][..]), ("qwen2_moe", &[2])]) {
        let one = given(&gpu, case, Float::F32.into());
        for &tp in degrees {
            let entries = [format!("exchange_reduce_w{tp}"), "exchange_gather".into()];
            let before = entries.clone().map(|entry| launches(&gpu, &entry));
            let types = Types { tp, ..Float::F32.into() };
            assert!(given(&gpu, case, types) == one, "{case}, {tp} ranks");
            for (entry, before) in entries.iter().zip(before) {
                assert!(launches(&gpu, entry) > before, "{case}, {tp} ranks: no {entry}");
            }
        }
    }
}

/// So many tokens of two requests, and the sizes of the steps that were captured.
fn tokens(gpu: &Arc<Cuda>, tp: usize, count: usize) -> (Vec<Vec<u32>>, Vec<usize>) {
    let config = EngineConfig { max_context: 32, max_seqs: 2, ..EngineConfig::default() };
    let dir = folder().join("golden").join("llama_gqa_llama3");
    let types = Types { tp, ..Float::F32.into() };
    let mut engine = open_with(gpu, &dir, config, &Registry::default(), types).unwrap();
    let vocab = engine.model().spec.vocab;
    let request = |length: usize| Request {
        prompt: (0..length).map(|i| ((7 * i + 3 * length) % (vocab - 3) + 3) as u32).collect(),
        max_new_tokens: count,
        ..Request::default()
    };
    let ids: Vec<u64> = [5, 1].into_iter().map(|length| engine.put(request(length)).unwrap()).collect();
    let mut given = engine.run().unwrap();
    assert!(engine.refused_graphs().is_empty(), "{:?}", engine.refused_graphs());
    (ids.into_iter().map(|id| given.remove(&id).unwrap()).collect(), engine.captured_graphs())
}

/// The kernels count exchanges on the device: a step is captured once, and replays go on with the count, also
/// between steps that run op by op.
#[test]
fn captured_steps_exchange_and_give_the_same_tokens() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    // Few: the driver compares every access with all that came before it.
    for (tp, count) in some([(2, 6), (4, 4)]) {
        let (one, _) = tokens(&gpu, 1, count);
        assert!(one.iter().all(|list| list.len() == count));
        let (got, captured) = tokens(&gpu, tp, count);
        assert_eq!(got, one, "{tp} ranks");
        assert!(!captured.is_empty(), "{tp} ranks: no step was captured");
    }
}

#[test]
fn sums_are_the_tree_in_every_mode_and_size() {
    let double = double();
    for mode in [Mode::Reference, Mode::Fast] {
        let gpu = reached(&double, mode);
        // Odd sizes, and sizes from which ranks share the sums.
        let long: &[_] = if mode == Mode::Fast { &[] } else { &[(4, 3, 43_691, 1), (8, 33, 1001, 1)] };
        let all = [(2, 3, 37, 3), (4, 1, 1, 3), (8, 5, 13, 3)];
        for &(world, rows, cols, times) in all.iter().chain(long) {
            let nodes = nodes(world, rows * cols);
            let want: Vec<f32> = (0..rows * cols).map(|i| tree(&nodes, i)).collect();
            let together = Barrier::new(world);
            let got = ranks(&gpu, world, PATIENCE, |rank| {
                let mut rank = rank.unwrap();
                // Several: the halves of the buffers alternate. Those of every second rank begin at a
                // multiple of 16 bytes, the others behind a row.
                let node = &nodes[rank.rank];
                let before = |time: usize| (rank.rank + time) % 2;
                let all: Vec<usize> = (0..times).map(before).collect();
                let sums: Vec<_> = all
                    .into_iter()
                    .map(|before| rank.sum_behind(before, cols, node, true).unwrap())
                    .collect();
                assert!(sums.iter().all(|sum| bits(sum) == bits(&sums[0])));
                together.wait();
                sums[0].clone()
            });
            for sums in &got {
                assert!(bits(sums) == bits(&want), "{mode:?}, {world} ranks, {rows} x {cols}");
            }
        }
        let shared = launches(&gpu, "exchange_shared_w4") + launches(&gpu, "exchange_shared_w8");
        assert_eq!(shared, long.len() as u64, "{mode:?}");
    }
}

/// More values than a buffer holds take several launches.
#[test]
fn long_exchanges_go_in_parts() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    let count = (1 << 20) + 5;
    let got = ranks(&gpu, 2, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        let values: Vec<f32> = (0..count).map(|i| (i % 1000 + rank.rank) as f32).collect();
        rank.sum(count, &values, true).unwrap()
    });
    for sums in got {
        let wrong = sums.iter().enumerate().position(|(i, sum)| *sum != (2 * (i % 1000) + 1) as f32);
        assert_eq!(wrong, None);
    }
    assert_eq!(launches(&gpu, "exchange_reduce_w2"), 2);
}

#[test]
fn a_rank_that_adds_nothing_counts_as_zeros() {
    let double = double();
    adds_nothing(&reached(&double, Mode::Reference));
}

#[test]
fn columns_of_unequal_width_reach_every_rank() {
    let double = double();
    columns(&reached(&double, Mode::Reference));
}

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    leaves(&gpu);
    // The device is as good as before.
    let together = Barrier::new(2);
    let again = ranks(&gpu, 2, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        let sum = rank.sum(1, &[3.0], true).unwrap();
        together.wait();
        sum
    });
    assert_eq!(again, [[6.0]; 2]);
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let double = double();
    does_not_come(&reached(&double, Mode::Reference));
}

/// Ranks that do not reach each other exchange by the host, unless kernels were asked for.
#[test]
fn ranks_on_one_device_exchange_by_the_host() {
    let double = double();
    for (exchange, refused) in [(Exchange::Auto, false), (Exchange::Host, false), (Exchange::Peers, true)] {
        let gpu = cuda_with("cuda:soft", CudaConfig { exchange, ..CudaConfig::default() }).unwrap();
        let boards = ThreadBoard::group_with_patience(2, PATIENCE).unwrap();
        let said: Vec<String> = std::thread::scope(|scope| {
            let shared = &gpu;
            let group = |board: ThreadBoard| {
                move || text(shared.group(Box::new(board)).map(|comm| assert_eq!(comm.world(), 2)))
            };
            let all: Vec<_> = boards.into_iter().map(|board| scope.spawn(group(board))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for said in said {
            assert_eq!(
                said.contains("`exchange`") && said.contains("has the same device"),
                refused,
                "{said}"
            );
            assert_eq!(said == "a result", !refused, "{said}");
        }
    }
    // Asked for the host, ranks with a device each go by it.
    let config = CudaConfig { exchange: Exchange::Host, ..CudaConfig::default() };
    let gpu = cuda_with("cuda:soft", config).unwrap();
    let got = ranks(&gpu, 2, PATIENCE, |rank| rank.unwrap().sum(1, &[2.0], true).unwrap());
    assert_eq!((got, launches(&gpu, "exchange_reduce_w2")), (vec![vec![4.0]; 2], 0));
    drop(double);
}
