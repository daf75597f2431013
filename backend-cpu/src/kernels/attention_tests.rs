//! Attention against the scalar order, bit for bit: pages, splits, groups, masks, forms, instruction sets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::kernels::AlignedBytes;
use crate::kernels::kv::{KvShape, kv_append};
use crate::kernels::testing::{bits, loaded, machines, stored, values};
use engraft_core::math::{FusedMadd, SeparateMadd};
use engraft_core::mem::Float;

/// Pages of some sequences in permuted order, and their slab.
struct Cache {
    k: AlignedBytes,
    v: AlignedBytes,
    shape: KvShape,
    table: Vec<u32>,
    max_pages: usize,
}

impl Cache {
    fn new(
        m: &Machine,
        a: &Attention,
        page_size: usize,
        dtype: Float,
        data: &[(Vec<f32>, Vec<f32>)],
    ) -> Cache {
        let lens: Vec<usize> = data.iter().map(|d| d.0.len() / (a.kv_heads * a.k_dim)).collect();
        let max_pages = lens.iter().max().unwrap().div_ceil(page_size);
        let pages = max_pages * lens.len() + 1;
        let shape = KvShape { pages, page_size, kv_heads: a.kv_heads, k_dim: a.k_dim, v_dim: a.v_dim, dtype };
        // Backwards and interleaved, so that no two neighbours are neighbours in memory.
        let table: Vec<u32> = (0..max_pages * lens.len())
            .map(|i| (pages - 1 - (i % max_pages * lens.len() + i / max_pages)) as u32)
            .collect();
        let mut c = Cache {
            k: AlignedBytes::zeroed(shape.k_bytes()),
            v: AlignedBytes::zeroed(shape.v_bytes()),
            shape,
            table,
            max_pages,
        };
        for (s, (k, v)) in data.iter().enumerate() {
            let slots: Vec<i32> = (0..lens[s])
                .map(|i| (c.table[s * max_pages + i / page_size] as usize * page_size + i % page_size) as i32)
                .collect();
            let kv = c.kv();
            // SAFETY: the slices outlive the call.
            let (k, v) = unsafe { (Rows::of(k, a.kv_heads * a.k_dim), Rows::of(v, a.kv_heads * a.v_dim)) };
            kv_append(m, kv, k, v, &slots).unwrap();
        }
        c
    }

    fn kv(&mut self) -> Kv {
        // SAFETY: the slabs live as long as the cache, which outlives every call here.
        unsafe { Kv::new(self.k.as_mut_ptr(), self.v.as_mut_ptr(), self.shape) }
    }
}

fn want<M: MulAdd>(
    a: &Attention,
    q: &[f32],
    lens: &[(usize, usize)],
    data: &[(Vec<f32>, Vec<f32>)],
) -> Vec<f32> {
    let group = a.heads / a.kv_heads;
    let mut out = Vec::new();
    let mut row = 0;
    for (s, (queries, len)) in lens.iter().enumerate() {
        let (k, v) = &data[s];
        for i in 0..*queries {
            let p = (len + i).saturating_sub(*queries);
            for h in 0..a.heads {
                let g = h / group;
                out.extend(row_ref::<M>(
                    a,
                    &q[(row * a.heads + h) * a.k_dim..][..a.k_dim],
                    |j, d| k[(j * a.kv_heads + g) * a.k_dim + d],
                    |j, d| v[(j * a.kv_heads + g) * a.v_dim + d],
                    p,
                    a.alibi.map_or(0.0, |s| s[h]),
                    a.visible(p, *len),
                ));
            }
            row += 1;
        }
    }
    out
}

fn run(m: &Machine, a: &Attention, q: &[f32], lens: &[(usize, usize)], keys: Keys) -> Vec<f32> {
    let mut cu = vec![0u32];
    lens.iter().for_each(|l| cu.push(cu[cu.len() - 1] + l.0 as u32));
    let kv_len: Vec<u32> = lens.iter().map(|l| l.1 as u32).collect();
    let mut y = vec![f32::NAN; cu[cu.len() - 1] as usize * a.heads * a.v_dim];
    // SAFETY: the slices outlive the call.
    let (qv, yv) = unsafe { (Rows::of(q, a.heads * a.k_dim), RowsMut::of(&mut y, a.heads * a.v_dim)) };
    attend(m, a, qv, &cu, &kv_len, keys, yv).unwrap();
    y
}

fn equals<M: MulAdd>() {
    let slopes: Vec<f32> = (0..6).map(|i| 0.5 / (i + 1) as f32).collect();
    let base = Attention {
        heads: 6,
        kv_heads: 2,
        k_dim: 20,
        v_dim: 24,
        scale: 0.31,
        causal: true,
        window: None,
        softcap: None,
        alibi: None,
    };
    let variants = [
        base,
        Attention { window: Some(50), ..base },
        Attention { softcap: Some(3.0), alibi: Some(&slopes), ..base },
        Attention { causal: false, kv_heads: 6, ..base },
    ];
    let lens = [(1, 130), (17, 17), (70, 200), (3, 64), (0, 5), (2, 65)];
    for a in &variants {
        let q = values(lens.iter().map(|l| l.0).sum::<usize>() * a.heads * a.k_dim, 1);
        for dtype in [Float::F32, Float::F16, Float::Bf16] {
            let round = |v: &[f32]| loaded(&stored(v, dtype), dtype);
            let data: Vec<(Vec<f32>, Vec<f32>)> = lens
                .iter()
                .enumerate()
                .map(|(s, l)| {
                    let (k, v) = (l.1 * a.kv_heads * a.k_dim, l.1 * a.kv_heads * a.v_dim);
                    (round(&values(k, 10 + s as u64)), round(&values(v, 20 + s as u64)))
                })
                .collect();
            let want = want::<M>(a, &q, &lens, &data);
            for m in machines(M::FORM) {
                for page_size in [1, 7, 16, 64, 96] {
                    let mut c = Cache::new(&m, a, page_size, dtype, &data);
                    let slots: Vec<u32> = (0..lens.len() as u32).collect();
                    let kv = c.kv();
                    let keys = Keys::Paged { kv, table: &c.table, max_pages: c.max_pages, slots: &slots };
                    let got = run(&m, a, &q, &lens, keys);
                    assert_eq!(bits(&got), bits(&want), "{dtype} page {page_size} {:?}", m.isa);
                }
            }
        }
    }
}

#[test]
fn pages_equal_the_scalar_order_fused() {
    equals::<FusedMadd>();
}

#[test]
fn pages_equal_the_scalar_order_separate() {
    equals::<SeparateMadd>();
}

#[test]
fn dense_keys_equal_the_scalar_order() {
    let a = Attention {
        heads: 4,
        kv_heads: 4,
        k_dim: 8,
        v_dim: 11,
        scale: 0.4,
        causal: false,
        window: None,
        softcap: None,
        alibi: None,
    };
    let lens = [(70, 70), (1, 1), (5, 90)];
    let data: Vec<(Vec<f32>, Vec<f32>)> =
        lens.iter().map(|l| (values(l.1 * 32, l.1 as u64), values(l.1 * 44, 3 + l.1 as u64))).collect();
    let q = values(76 * 32, 1);
    let want = want::<FusedMadd>(&a, &q, &lens, &data);
    let k: Vec<f32> = data.iter().flat_map(|d| d.0.clone()).collect();
    let v: Vec<f32> = data.iter().flat_map(|d| d.1.clone()).collect();
    for m in machines(engraft_core::numerics::Madd::Fused) {
        // SAFETY: the slices outlive the calls.
        let (k, v) = unsafe { (Rows::of(&k, 32), Rows::of(&v, 44)) };
        let got = run(&m, &a, &q, &lens, Keys::Dense { k, v, cu_k: &[0, 70, 71, 161] });
        assert_eq!(bits(&got), bits(&want));
    }
}

#[test]
fn nothing_visible_gives_zeros_and_bad_pages_an_error() {
    let a = Attention {
        heads: 1,
        kv_heads: 1,
        k_dim: 4,
        v_dim: 4,
        scale: 1.0,
        causal: false,
        window: None,
        softcap: None,
        alibi: None,
    };
    for m in machines(engraft_core::numerics::Madd::Fused) {
        let mut c = Cache::new(&m, &a, 16, Float::F32, &[(values(80, 1), values(80, 2))]);
        let kv = c.kv();
        let keys = |table| Keys::Paged { kv, table, max_pages: 2, slots: &[0] };
        assert_eq!(run(&m, &a, &values(4, 1), &[(1, 0)], keys(&c.table)), [0.0; 4]);
        let (q, mut y) = (values(4, 1), [0f32; 4]);
        // SAFETY: the slices outlive the call.
        let (qv, yv) = unsafe { (Rows::of(&q, 4), RowsMut::of(&mut y, 4)) };
        assert!(attend(&m, &a, qv, &[0, 1], &[20], keys(&[0, 99]), yv).is_err());
        assert!(attend(&m, &a, qv, &[0, 1], &[33], keys(&[0, 1]), yv).is_err());
    }
}
