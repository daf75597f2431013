//! Attention against the scalar definition that `kernels::attention` begins with, bit for bit, on every
//! machine.

use crate::testing::{bits, machines, values};
use engraft_core::math::{self, FusedMadd, MulAdd, SeparateMadd};
use engraft_core::mem::{Float, KvFormat, KvLayout};
use engraft_core::numerics::Madd;
use engraft_core::params::{Heads, Relative, Scores};
use engraft_core::quant::kv_row;
use engraft_cpu::kernels::attention::{CHUNK, DenseKeys, Pages, Queries, attend_dense, attend_paged};
use engraft_cpu::kernels::kv::{Slab, append, slab_bytes};
use engraft_cpu::kernels::{AlignedBytes, RawMat, RawMatMut};

/// A key or a value of the head, by position.
type Row<'a> = &'a dyn Fn(usize) -> Vec<f32>;

/// One query row and head, scalar; there are `len` keys, and `width` columns of values.
fn row_ref<M: MulAdd>(
    q: &[f32],
    (position, len): (usize, usize),
    head: usize,
    (scores, sinks, bias): (&Scores, Option<&[f32]>, Option<&[f32]>),
    (k, v): (Row<'_>, Row<'_>),
    width: usize,
) -> Vec<f32> {
    let ahead = scores.ahead.map_or(len, |ahead| (position + 1 + ahead as usize).min(len));
    let hi = if scores.causal { (position + 1).min(len) } else { ahead };
    let lo = scores.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
    let (mut max, mut sum, mut out, mut any) = (0.0f32, 0.0f32, vec![0.0f32; width], false);
    for chunk in (lo / CHUNK * CHUNK..hi).step_by(CHUNK) {
        let (a, b) = (chunk.max(lo), (chunk + CHUNK).min(hi));
        let s: Vec<f32> = (a..b)
            .map(|j| {
                let dot = q.iter().zip(k(j)).fold(0.0, |acc, (q, k)| M::madd(*q, k, acc));
                let mut s = dot * scores.scale;
                if let Some(cap) = scores.soft_cap {
                    s = cap * math::tanh::<M>(s * (1.0 / cap));
                }
                if let Some(slopes) = &scores.alibi {
                    s = M::madd(slopes[head], j as f32 - position as f32, s);
                }
                if let (Some(relative), Some(bias)) = (scores.relative, bias) {
                    let (behind, ahead) = (relative.behind as i64, relative.ahead as i64);
                    let at = (j as i64 - position as i64).clamp(-behind, ahead) + behind;
                    s += bias[head * relative.span() + at as usize];
                }
                s
            })
            .collect();
        let m = s.iter().copied().fold(f32::MIN, f32::max);
        let (mut l, mut o) = (0.0, vec![0.0; width]);
        for (s, j) in s.iter().zip(a..b) {
            let e = math::exp::<M>(s - m);
            l += e;
            o.iter_mut().zip(v(j)).for_each(|(o, v)| *o = M::madd(e, v, *o));
        }
        if any {
            let new = max.max(m);
            let (keep, take) = (math::exp::<M>(max - new), math::exp::<M>(m - new));
            sum = M::madd(sum, keep, l * take);
            out.iter_mut().zip(o).for_each(|(out, o)| *out = M::madd(*out, keep, o * take));
            max = new;
        } else {
            (max, sum, out, any) = (m, l, o, true);
        }
    }
    match (any, sinks) {
        (false, _) => vec![0.0; width],
        (true, None) => out.iter().map(|o| o / sum).collect(),
        (true, Some(sinks)) => {
            let new = max.max(sinks[head]);
            let keep = math::exp::<M>(max - new);
            sum = M::madd(sum, keep, math::exp::<M>(sinks[head] - new));
            out.iter().map(|o| o * keep / sum).collect()
        }
    }
}

struct Case {
    heads: Heads,
    scores: Scores,
    sinks: Option<Vec<f32>>,
    /// `(query rows, keys)` per sequence.
    seqs: Vec<(usize, usize)>,
}

impl Case {
    fn bias(&self) -> Option<Vec<f32>> {
        self.scores.relative.map(|relative| values(self.heads.heads * relative.span(), 4))
    }
}

fn cases() -> Vec<Case> {
    let scores = |causal, window, soft_cap, alibi: Option<Vec<f32>>, relative: Option<(u32, u32)>| Scores {
        scale: 0.3,
        causal,
        window,
        chunk: None,
        ahead: window.map(|_| 3),
        soft_cap,
        alibi: alibi.map(Into::into),
        relative: relative.map(|(behind, ahead)| Relative { behind, ahead }),
    };
    let heads = |heads, kv_heads, k_dim, v_dim| Heads { heads, kv_heads, k_dim, v_dim };
    vec![
        Case {
            heads: heads(2, 1, 8, 8),
            scores: scores(true, None, None, None, None),
            sinks: None,
            seqs: vec![(1, 1), (3, 70)],
        },
        Case {
            heads: heads(6, 2, 20, 12),
            scores: scores(true, Some(9), Some(2.0), None, Some((3, 2))),
            sinks: Some(vec![-3.0, 0.0, 0.5, 1.0, 4.0, 90.0]),
            seqs: vec![(40, 40), (1, 130), (0, 0), (5, 64)],
        },
        Case {
            heads: heads(1, 1, 64, 72),
            scores: scores(false, Some(70), None, Some(vec![-0.25]), Some((0, 66))),
            sinks: Some(vec![2.5]),
            seqs: vec![(7, 7), (2, 131)],
        },
        Case {
            heads: heads(3, 3, 5, 3),
            scores: scores(true, None, None, Some(vec![0.5, 0.25, 0.125]), None),
            sinks: None,
            seqs: vec![(17, 150)],
        },
        // Windows that begin inside a page, before whole pages.
        Case {
            heads: heads(2, 2, 16, 32),
            scores: scores(true, Some(33), None, None, None),
            sinks: None,
            seqs: vec![(1, 130), (2, 90), (20, 203)],
        },
        Case {
            heads: heads(4, 2, 8, 8),
            scores: scores(false, None, None, None, Some((70, 0))),
            sinks: None,
            seqs: vec![(150, 150), (2, 200)],
        },
    ]
}

/// Thousands of keys with the heads of models, latent ones too; a window that ends among them.
fn of_models() -> Vec<Case> {
    let case = |(heads, kv_heads, k_dim, v_dim), window, seqs: &[(usize, usize)]| Case {
        heads: Heads { heads, kv_heads, k_dim, v_dim },
        scores: Scores { scale: 0.1, window, ..Scores::causal(0.1) },
        sinks: None,
        seqs: seqs.to_vec(),
    };
    vec![
        case((2, 1, 64, 64), None, &[(1, 4097), (5, 4096)]),
        case((1, 1, 128, 128), Some(4095), &[(1, 4095), (2, 4098)]),
        case((1, 1, 576, 512), None, &[(1, 4097)]),
    ]
}

/// The reference for a case, over rows `k`, `v` of all keys of all sequences.
fn reference(case: &Case, q: &[f32], k: &[f32], v: &[f32], madd: Madd) -> Vec<f32> {
    let (h, bias) = (case.heads, case.bias());
    let (mut out, mut row, mut first) = (Vec::new(), 0, 0);
    for (rows, len) in &case.seqs {
        for i in 0..*rows {
            for head in 0..h.heads {
                let g = head / (h.heads / h.kv_heads);
                let qh = &q[row * h.q_cols() + head * h.k_dim..][..h.k_dim];
                let key = |j| k[(first + j) * h.k_cols() + g * h.k_dim..][..h.k_dim].to_vec();
                let value = |j| v[(first + j) * h.v_cols() + g * h.v_dim..][..h.v_dim].to_vec();
                let of = match madd {
                    Madd::Fused => row_ref::<FusedMadd>,
                    Madd::Separate => row_ref::<SeparateMadd>,
                };
                let place = (len - rows + i, *len);
                out.extend(of(
                    qh,
                    place,
                    head,
                    (&case.scores, case.sinks.as_deref(), bias.as_deref()),
                    (&key, &value),
                    h.v_dim,
                ));
            }
            row += 1;
        }
        first += len;
    }
    out
}

#[test]
fn pages_of_any_size_and_order_give_the_reference_bits() {
    for (case, page_size) in cases().iter().flat_map(|c| [1, 7, 16, 20, 24, 64, 80].map(|p| (c, p))) {
        let plain = [Float::F32, Float::F16, Float::Bf16].map(KvFormat::Plain);
        for format in plain.into_iter().chain([KvFormat::INT8, KvFormat::FP8]) {
            in_pages(case, page_size, format);
        }
    }
}

#[test]
fn thousands_of_keys_give_the_reference_bits() {
    for (case, page_size) in of_models().iter().zip([16, 64, 20]) {
        for format in [KvFormat::Plain(Float::F32), KvFormat::Plain(Float::Bf16), KvFormat::INT8] {
            in_pages(case, page_size, format);
        }
    }
}

/// Values as a slab holds them, of heads of so many columns.
fn held(format: KvFormat, width: usize, values: &[f32]) -> Vec<f32> {
    match format {
        KvFormat::Plain(Float::F32) => values.to_vec(),
        KvFormat::Plain(Float::F16) => values.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect(),
        KvFormat::Plain(Float::Bf16) => values.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect(),
        KvFormat::Coded(code) => kv_row::unpack(code, width, &kv_row::pack(code, width, values)),
    }
}

/// A case in pages of so many positions, against the reference over what they hold.
fn in_pages(case: &Case, page_size: usize, format: KvFormat) {
    let (h, bias) = (case.heads, case.bias());
    let (rows, keys): (usize, usize) =
        case.seqs.iter().fold((0, 0), |(r, k), (rows, len)| (r + rows, k + len));
    let (q, k, v) =
        (values(rows * h.q_cols(), 1), values(keys * h.k_cols(), 2), values(keys * h.v_cols(), 3));
    let stride = case.seqs.iter().map(|(_, l)| l.div_ceil(page_size)).max().unwrap();
    let total = stride * case.seqs.len();
    let layout =
        KvLayout { pages: total, page_size, kv_heads: h.kv_heads, k_dim: h.k_dim, v_dim: h.v_dim, format };
    // Pages in reverse: the order may not matter.
    let pages: Vec<u32> = (0..total as u32).rev().collect();
    let (kb, vb) = slab_bytes(&layout);
    let (mut ks, mut vs) = (AlignedBytes::zeroed(kb), AlignedBytes::zeroed(vb));
    // SAFETY: slabs of the right size that outlive the test.
    let slab = unsafe { Slab::new(ks.as_mut_ptr(), vs.as_mut_ptr(), layout) };
    let mut slots = Vec::new();
    let (mut bounds, mut lens) = (vec![0u32], Vec::new());
    for (s, (rows, len)) in case.seqs.iter().enumerate() {
        bounds.push(bounds[s] + *rows as u32);
        lens.push(*len as u32);
        slots.extend(
            (0..*len)
                .map(|p| (pages[s * stride + p / page_size] as usize * page_size + p % page_size) as i32),
        );
    }
    let table_rows: Vec<u32> = (0..case.seqs.len() as u32).collect();
    let (held_k, held_v) = (held(format, h.k_dim, &k), held(format, h.v_dim, &v));
    for madd in [Madd::Fused, Madd::Separate] {
        let want = reference(case, &q, &held_k, &held_v, madd);
        for machine in machines(madd) {
            let mut out = vec![f32::NAN; rows * h.out_cols()];
            // SAFETY: the vectors outlive the calls.
            unsafe {
                append(&machine, RawMat::of(&k, h.k_cols()), RawMat::of(&v, h.v_cols()), &slots, slab)
                    .unwrap();
                let p =
                    Pages { bounds: &bounds, table_rows: &table_rows, lens: &lens, pages: &pages, stride };
                let (q, o) = (RawMat::of(&q, h.q_cols()), RawMatMut::of(&mut out, h.out_cols()));
                let (sinks, bias) = (case.sinks.as_deref(), bias.as_deref());
                let queries = Queries { q, heads: h, scores: &case.scores, sinks, bias, distances: None };
                attend_paged(&machine, queries, slab, p, o).unwrap();
            }
            assert_eq!(bits(&out), bits(&want), "page size {page_size} {format} {madd:?} {h:?}");
        }
    }
}

#[test]
fn plain_rows_give_the_reference_bits() {
    // A long text of which a query sees little: every row is one.
    let few = Scores { window: Some(70), ..Scores::causal(0.3) };
    let heads = Heads { heads: 1, kv_heads: 1, k_dim: 24, v_dim: 8 };
    let long = Case { heads, scores: few, sinks: None, seqs: vec![(4097, 4097)] };
    for case in cases().into_iter().chain([long]) {
        let (h, bias) = (case.heads, case.bias());
        let seqs: Vec<(usize, usize)> = case.seqs.iter().map(|(_, len)| (*len, *len)).collect();
        let case = Case { seqs, ..case };
        let keys: usize = case.seqs.iter().map(|s| s.1).sum();
        let (q, k, v) =
            (values(keys * h.q_cols(), 1), values(keys * h.k_cols(), 2), values(keys * h.v_cols(), 3));
        let mut bounds = vec![0u32];
        for (rows, _) in &case.seqs {
            bounds.push(bounds[bounds.len() - 1] + *rows as u32);
        }
        for madd in [Madd::Fused, Madd::Separate] {
            let want = reference(&case, &q, &k, &v, madd);
            for machine in machines(madd) {
                let mut out = vec![f32::NAN; keys * h.out_cols()];
                // SAFETY: the vectors outlive the call.
                unsafe {
                    let (q, o) = (RawMat::of(&q, h.q_cols()), RawMatMut::of(&mut out, h.out_cols()));
                    let (k, v) = (RawMat::of(&k, h.k_cols()), RawMat::of(&v, h.v_cols()));
                    let (sinks, bias) = (case.sinks.as_deref(), bias.as_deref());
                    let queries = Queries { q, heads: h, scores: &case.scores, sinks, bias, distances: None };
                    attend_dense(&machine, queries, DenseKeys { k, v, bounds: &bounds }, o).unwrap();
                }
                assert_eq!(bits(&out), bits(&want), "{madd:?} {h:?}");
            }
        }
    }
}
