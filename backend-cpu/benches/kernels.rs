//! Single kernels under criterion, for before-and-after comparisons: linear at 1, 8 and 512 rows, norm,
//! attention.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use criterion::{Criterion, criterion_group, criterion_main};
use engraft_core::mem::{Float, Stored, WeightFormat};
use engraft_core::numerics::Madd;
use engraft_core::params::{Heads, NormKind, Scores};
use engraft_cpu::kernels::attention::{DenseKeys, Queries, attend_dense};
use engraft_cpu::kernels::linear::{Epilogue, Layout, Packed, linear};
use engraft_cpu::kernels::norm::{Norm, norm};
use engraft_cpu::kernels::{Machine, RawMat, RawMatMut};

fn kernels(c: &mut Criterion) {
    let m = Machine::new(2, Madd::Fused);
    let (n, k) = (2304, 768);
    let raw: Vec<u8> = (0..n * k).flat_map(|i| ((i % 17) as f32 - 8.0).to_le_bytes()).collect();
    let f32s = WeightFormat::Plain(Float::F32);
    let w =
        Packed::new(f32s, n, k, 1, Layout::Plain).and_then(|p| p.filled(&m.pool, Stored::F32, &raw)).unwrap();
    let x = vec![0.5f32; 512 * k];
    let mut y = vec![0f32; 512 * n];
    for t in [1usize, 8, 512] {
        c.bench_function(&format!("linear {t}x{n}x{k}"), |b| {
            b.iter(|| {
                // SAFETY: the slices outlive the call.
                let (xv, yv) = unsafe { (RawMat::of(&x[..t * k], k), RawMatMut::of(&mut y[..t * n], n)) };
                linear(&m, xv, &w, yv, &Epilogue::NONE).unwrap();
            });
        });
    }
    let weight = vec![1f32; k];
    for t in [1usize, 512] {
        c.bench_function(&format!("rms norm {t}x{k}"), |b| {
            b.iter(|| {
                // SAFETY: as above.
                let (xv, yv) = unsafe { (RawMat::of(&x[..t * k], k), RawMatMut::of(&mut y[..t * k], k)) };
                let (kind, weight) = (NormKind::Rms, Some(&weight[..]));
                norm(&m, xv, k, Norm { kind, weight, bias: None, eps: 1e-5, plus_one: false }, yv).unwrap();
            });
        });
    }
    let heads = Heads { heads: 12, kv_heads: 12, k_dim: 64, v_dim: 64 };
    let scores = Scores::causal(0.125);
    c.bench_function("attention 512 rows, dense", |b| {
        b.iter(|| {
            // SAFETY: as above.
            let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y[..512 * k], k)) };
            let queries = Queries { q: xv, heads, scores: &scores, sinks: None, bias: None, distances: None };
            attend_dense(&m, queries, DenseKeys { k: xv, v: xv, bounds: &[0, 512] }, yv).unwrap();
        });
    });
}

criterion_group!(benches, kernels);
criterion_main!(benches);
