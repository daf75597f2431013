//! Matmuls of the sizes that models have: sums of 129 blocks in leaves that begin inside a unit of the ring,
//! rings that go round many times, thousands of outputs with a tile that is not full.

use crate::elementwise::SILU;
use crate::embed::{in_blocks, plain};
use crate::linear::{Case, check_on, leaves, same_codes};
use crate::machine::{Machine, numbers, rounded, same};
use crate::moe::Slots;
use engraft_core::mem::Block;
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_core::quant::activation::{self, SPAN};
use engraft_kernels::bytes::Bytes;
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::params::int8::{self, Codes, DENSE_FROM, Dense, Quantize};
use engraft_kernels::params::linear::{Linear, Then};
use engraft_kernels::params::{Activation, Elem, MatView, WeightView};

const N: usize = 4112;
const K: usize = 4096 + SPAN;

/// Codes and scales of a row, as the contract quantizes it.
fn quantized(row: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let mut codes = vec![0; row.len()];
    let blocks = row.chunks(SPAN).zip(codes.chunks_mut(SPAN));
    let scales = blocks.map(|(x, to)| activation::encode(x.try_into().unwrap(), to.try_into().unwrap()));
    let scales = scales.collect();
    (codes, scales)
}

/// A weight in its file's blocks: codes without a pattern, scales that differ from block to block.
fn weight() -> Vec<u8> {
    let mut file = Vec::with_capacity(N * K / SPAN * (SPAN + 2));
    let mut state = 7u32;
    for block in 0..N * K / SPAN {
        file.extend(half::f16::from_f32(0.001 + (block % 61) as f32 * 1e-4).to_le_bytes());
        for _ in 0..SPAN {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            file.push((state >> 24) as u8);
        }
    }
    file
}

/// `x w^T` as the contract sums it: blocks exactly, leaves in chains, leaves in a tree.
fn matmul(x: &[f32], file: &[u8], grain: usize) -> Vec<f32> {
    let b = leaf_bounds(K, grain);
    let block_bytes = SPAN + 2;
    let of = |row: &[f32]| {
        let (codes, scales) = quantized(row);
        let block = |acc: f32, i: usize, w: &[u8]| {
            let raw = &w[i * block_bytes..][..block_bytes];
            let dw = half::f16::from_le_bytes([raw[0], raw[1]]).to_f32();
            let terms = codes[i * SPAN..][..SPAN].iter().zip(&raw[2..]);
            let sum: i32 = terms.map(|(q, w)| i32::from(*q) * i32::from(*w as i8)).sum();
            (scales[i] * dw).mul_add(sum as f32, acc)
        };
        let rows = file.chunks(K / SPAN * block_bytes);
        let leaf = |w: &[u8], l: usize| (b[l] / SPAN..b[l + 1] / SPAN).fold(0.0, |acc, i| block(acc, i, w));
        rows.map(|w| tree(std::array::from_fn(|l| leaf(w, l)))).collect::<Vec<f32>>()
    };
    x.chunks(K).flat_map(of).collect()
}

/// As many rows as `few` is given at most, and one more than `dense` is given at least.
#[test]
fn quantized_activations_at_the_sizes_of_models() {
    let file = weight();
    let mut packed = vec![0; Bytes { n: N, k: K }.bytes()];
    let rows = FileRows::new([&file[..]], file.len() / N).unwrap();
    let (codes, scales) = packed.split_at_mut(N * K);
    assert!(Bytes { n: N, k: K }.pack(0..N, &rows, codes, scales));
    let most = DENSE_FROM as usize + 1;
    let values = rounded(&numbers(most * K, 41), Elem::BF16);
    let want = matmul(&values, &file, 32);
    Machine::once(&mut |gpu| {
        let x = gpu.matrix(&values, K, Elem::BF16, K + 8, 0);
        let weight = WeightView {
            ptr: gpu.put_weight(&packed),
            row_bytes: 0,
            rows: N as u32,
            cols: K as u32,
            group: 0,
            reserved: 0,
        };
        let blank = vec![0.0; most * N];
        let linear = |gpu: &mut Machine, rows: usize| Linear {
            x: MatView { rows: rows as u32, ..x },
            weight,
            out: gpu.dense(&blank[..rows * N], N, Elem::F32),
            bias: 0,
            leaves: leaves(K, 32),
            x_elem: Elem::BF16,
            out_elem: Elem::F32,
            then: Then::NOTHING,
            act: Activation::NONE,
            reserved: 0,
        };
        let p = linear(gpu, most - 2);
        gpu.run(&p, &int8::launch_few(&p));
        same(&gpu.values(p.out, Elem::F32), &want[..(most - 2) * N], "few");
        let p = linear(gpu, most);
        let codes = Codes::at(gpu.empty(Codes::bytes(most as u32, K as u32) as usize), most as u32, K as u32);
        let quantize = Quantize { x: p.x, to: codes, x_elem: p.x_elem, reserved: 0 };
        gpu.run(&quantize, &quantize.launch());
        same_codes(gpu, codes, &values, K);
        let dense = Dense { linear: p, x: codes };
        gpu.run(&dense, &dense.launch());
        same(&gpu.values(p.out, Elem::F32), &want, "dense");
    });
}

/// Thousands of outputs with long sums: by the kernel for few rows and, where there is one, that for many.
#[test]
fn matmuls_at_the_sizes_of_models() {
    let case = |rows, elem| Case {
        rows,
        grain: 64,
        x_elem: elem,
        out_elem: Elem::F32,
        bias: true,
        then: Then::NOTHING,
        act: SILU,
        w8a8: false,
    };
    let f32s = plain(Elem::F32, N, K);
    check_on(&case(1, Elem::F32), &f32s, Machine::once);
    check_on(&case(9, Elem::F32), &f32s, Machine::once);
    check_on(&case(9, Elem::BF16), &in_blocks(Block::Q6K, N, 4096 + 256), Machine::once);
}

/// The same of experts: one slot of the first, sixteen and one of the second.
#[test]
fn experts_at_the_sizes_of_models() {
    let experts: Vec<u32> = (0..18).map(|slot| u32::from(slot > 0)).collect();
    let slots = |experts| Slots { experts, count: 2, top_k: 1, elem: Elem::BF16, per_token: false };
    let w = plain(Elem::BF16, 2 * N, 4096);
    slots(&experts).check(&w, 0..2, Machine::once);
    slots(&experts[..2]).check(&w, 0..2, Machine::once);
}
