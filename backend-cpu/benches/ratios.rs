//! Kernels as shares of what the machine can do, both measured in turns within one run.
//!
//! `cargo bench -p engraft-cpu --bench ratios -- [threads] [rounds] [format]`. The shapes are model M's (dim
//! 768, 12 layers, ffn 2048, vocabulary 32000), every layer with weights of its own, so that decode really
//! reads memory. Best and median of rounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft_core::mem::{Block, Float, KvLayout, WeightFormat};
use engraft_core::numerics::Madd;
use engraft_core::params::{Heads, Scores};
use engraft_core::quant::encode_rows;
use engraft_cpu::kernels::attention::{Pages, Queries, attend_paged};
use engraft_cpu::kernels::kv::{Slab, slab_bytes};
use engraft_cpu::kernels::linear::{After, Epilogue, Layout, Packed, linear};
use engraft_cpu::kernels::{Activation, AlignedBytes, Machine, RawMat, RawMatMut};
use engraft_cpu::limits::{self, Limits};
use std::time::Instant;

const SHAPES: [(usize, usize, Layout); 4] = [
    (2304, 768, Layout::Plain),
    (768, 768, Layout::Plain),
    (4096, 768, Layout::Gate),
    (768, 2048, Layout::Plain),
];

fn random((n, k): (usize, usize), format: WeightFormat) -> Vec<u8> {
    let (bytes, mut s) = (format.bytes(n, k), 7u32);
    if let WeightFormat::Group(_) = format {
        let row: Vec<f32> = (0..k).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect();
        let mut raw = vec![0; format.bytes(1, k)];
        encode_rows(format, k, &row, &mut raw);
        return raw.repeat(n);
    }
    let mut v: Vec<u8> = (0..bytes)
        .map(|_| {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 24) as u8
        })
        .collect();
    match format {
        // Exponents near 1: no NaN, no subnormals.
        WeightFormat::Plain(Float::F32) => v.chunks_mut(4).for_each(|c| c[3] = 0x3c | c[3] & 0x80),
        WeightFormat::Plain(_) => v.chunks_mut(2).for_each(|c| c[1] = 0x3c | c[1] & 0x80),
        WeightFormat::Block(b) => v.chunks_mut(b.bytes()).for_each(|c| match b {
            Block::Q6K => c[209] = 0x1c,
            Block::Q4K => (c[1], c[3]) = (0x1c, 0x1c),
            _ => c[1] = 0x1c,
        }),
        _ => {}
    }
    v
}

/// Seconds: this thread's time on a processor where it is the only one (a busy machine then spoils less),
/// else the wall's.
fn clock(m: &Machine) -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|s| s.split_whitespace().next().and_then(|v| v.parse::<f64>().ok()));
    match on_cpu {
        Some(ns) if m.pool.threads() == 1 => ns * 1e-9,
        _ => START.get_or_init(Instant::now).elapsed().as_secs_f64(),
    }
}

struct Model {
    layers: Vec<Vec<Packed>>,
    head: Packed,
    bytes: usize,
}

impl Model {
    fn new(m: &Machine, format: WeightFormat) -> Model {
        let start = Instant::now();
        let mut spent = 0.0;
        let mut pack = |n: usize, k: usize, layout| {
            let raw = random((n, k), format);
            let t = Instant::now();
            let mut p = Packed::new(format, n, k, 1, layout).unwrap();
            p.fill_rows(&m.pool, format, 0..n, &raw).unwrap();
            spent += t.elapsed().as_secs_f64();
            p
        };
        let layers: Vec<Vec<Packed>> =
            (0..12).map(|_| SHAPES.iter().map(|(n, k, l)| pack(*n, *k, *l)).collect()).collect();
        let head = pack(32000, 768, Layout::Plain);
        let bytes = layers.iter().flatten().map(Packed::bytes).sum::<usize>() + head.bytes();
        println!(
            "{format}: {:.0} MB packed in {spent:.3} s (with data {:.1} s)",
            bytes as f64 * 1e-6,
            start.elapsed().as_secs_f64()
        );
        Model { layers, head, bytes }
    }

    /// All linears of a step; logits for `logits` rows.
    fn step(&self, m: &Machine, t: usize, logits: usize, x: &[f32], y: &mut [f32]) -> f64 {
        let start = clock(m);
        for layer in &self.layers {
            for w in layer {
                let after =
                    if w.layout() == Layout::Gate { After::Gate(Activation::Silu) } else { After::Nothing };
                // SAFETY: the slices outlive the call.
                let (xv, yv) = unsafe {
                    (
                        RawMat::of(&x[..t * w.cols()], w.cols()),
                        RawMatMut::of(&mut y[..t * w.outputs()], w.outputs()),
                    )
                };
                linear(m, xv, w, yv, &Epilogue { bias: None, after }).unwrap();
            }
        }
        // SAFETY: as above.
        let (xv, yv) =
            unsafe { (RawMat::of(&x[..logits * 768], 768), RawMatMut::of(&mut y[..logits * 32000], 32000)) };
        linear(m, xv, &self.head, yv, &Epilogue::NONE).unwrap();
        clock(m) - start
    }
}

fn summary(mut v: Vec<f64>) -> (f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[0], v[v.len() / 2])
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let m = Machine::new(args.first().copied().unwrap_or(2), Madd::Fused);
    let rounds = args.get(1).copied().unwrap_or(9);
    println!("{} threads, {}, {rounds} rounds", m.pool.threads(), m.isa.name());
    let x: Vec<f32> = (0..512 * 2048).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect();
    let mut y = vec![0f32; 512 * 4096];
    let large = [Block::Q4K, Block::Q6K].map(WeightFormat::Block);
    let named = ["f32", "bf16", "f16", "Q8_0", "Q4_0", "fp8", "fp6", "fp4:16", "mxfp4", "nf4:64", "IQ4_NL"];
    let formats: Vec<WeightFormat> = named.into_iter().map(|f| f.parse().unwrap()).chain(large).collect();
    let known = |a: &String| a == "attention" || formats.iter().any(|f| f.to_string() == *a);
    let only = std::env::args().skip(1).find(known);
    let mut linear_prefill = 0.0;
    for &format in &formats {
        if only.as_ref().is_some_and(|o| format.to_string() != *o) {
            continue;
        }
        let model = Model::new(&m, format);
        for (t, logits) in [(1, 1), (8, 8), (512, 1)] {
            let (mut times, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..if t == 512 { rounds.div_ceil(3) } else { rounds } {
                limits.push(limits::measure(&m, 1).unwrap());
                times.push(model.step(&m, t, logits, &x, &mut y));
            }
            let limit = Limits {
                read_gb_s: 1.0 / summary(limits.iter().map(|l| 1.0 / l.read_gb_s).collect()).0,
                fma_gflop_s: 1.0 / summary(limits.iter().map(|l| 1.0 / l.fma_gflop_s).collect()).0,
            };
            let (best, median) = summary(times);
            if t == 512 && format == WeightFormat::Plain(Float::F32) {
                linear_prefill = best;
            }
            let flops =
                2e-9 * (12 * (768 * (2304 + 768 + 4096) + 2048 * 768) * t + logits * 768 * 32000) as f64;
            let gb = model.bytes as f64 * 1e-9;
            println!(
                "{format:>5} t={t:<3} {:8.1} tok/s (median {:8.1})  {:5.1} GB/s = {:3.0} % of {:.1}  {:6.1} GFLOP/s = {:3.0} % of {:.1}",
                t as f64 / best,
                t as f64 / median,
                gb / best,
                100.0 * gb / best / limit.read_gb_s,
                limit.read_gb_s,
                flops / best,
                100.0 * flops / best / limit.fma_gflop_s,
                limit.fma_gflop_s,
            );
        }
    }
    attention(&m, rounds, linear_prefill);
}

/// 12 layers of 12 heads of 64: a prompt of 512, and one step behind 512 keys.
fn attention(m: &Machine, rounds: usize, linear_prefill: f64) {
    let layout =
        KvLayout { pages: 32, page_size: 16, kv_heads: 12, k_dim: 64, v_dim: 64, format: Float::F32.into() };
    let (k_bytes, v_bytes) = slab_bytes(&layout);
    let (mut k, mut v) = (AlignedBytes::zeroed(k_bytes), AlignedBytes::zeroed(v_bytes));
    // SAFETY: the slabs outlive all calls.
    let slab = unsafe { Slab::new(k.as_mut_ptr(), v.as_mut_ptr(), layout) };
    let table: Vec<u32> = (0..32).rev().collect();
    let heads = Heads { heads: 12, kv_heads: 12, k_dim: 64, v_dim: 64 };
    let scores = Scores::causal(0.125);
    for t in [512usize, 1] {
        let q = vec![0.3f32; t * 768];
        let mut y = vec![0f32; t * 768];
        let times = (0..rounds)
            .map(|_| {
                let start = clock(m);
                for _ in 0..12 {
                    // SAFETY: the slices outlive the call.
                    let (qv, yv) = unsafe { (RawMat::of(&q, 768), RawMatMut::of(&mut y, 768)) };
                    let bounds = [0, t as u32];
                    let pages =
                        Pages { bounds: &bounds, table_rows: &[0], lens: &[512], pages: &table, stride: 32 };
                    attend_paged(
                        m,
                        Queries { q: qv, heads, scores: &scores, sinks: None, bias: None, distances: None },
                        slab,
                        pages,
                        yv,
                    )
                    .unwrap();
                }
                clock(m) - start
            })
            .collect();
        let (best, median) = summary(times);
        let share = if t == 512 && linear_prefill > 0.0 {
            format!(" = {:.0} % of the linears", 100.0 * best / linear_prefill)
        } else {
            String::new()
        };
        println!("attention t={t}: best {:.3} ms, median {:.3} ms{share}", best * 1e3, median * 1e3);
    }
}
