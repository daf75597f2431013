//! Operands that end where their memory ends: no kernel reads or writes beyond, and where they lie changes no
//! bit.

use super::*;
use crate::testing::values;
use engraft_core::mem::{Block, SKIP, Table};
use engraft_core::ops::{
    Activate, Add, AddNorm, Attend, AttendDense, Combine, Convert, Embed, ExpertLinear, Gate, GatherRows,
    Groups, HeadNorm, KvAppend, KvRead, Linear, Norm, NormWeights, QkvRopeAppend, Rope, RopeView, Route,
    Scale, Sequences,
};
use engraft_core::params::{Act, Heads, NormKind, RopeStyle, Router, RouterScore, Scores};
use engraft_core::quant;

const TYPES: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];

/// The bytes that `ops` gives on every instruction set, with and without a guard behind each operand.
fn everywhere(ops: impl Fn(&mut Bench) -> Vec<u8>) {
    let want = ops(&mut Bench::new(Isa::Portable, false));
    assert!(!want.is_empty());
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
        assert!(ops(&mut Bench::new(isa, true)) == want, "{isa:?}");
    }
}

/// Sizes around vectors of 8 and 16.
const SIZES: [usize; 8] = [1, 3, 7, 8, 9, 15, 17, 33];

#[test]
fn elementwise() {
    everywhere(|b| {
        let mut all = Vec::new();
        for (cols, dtype) in SIZES.into_iter().flat_map(|c| TYPES.map(|t| (c, t))) {
            let x = b.mat(&values(3 * cols, 1), cols, dtype);
            let gate_up = b.mat(&values(6 * cols, 2), 2 * cols, dtype);
            let mut y = b.mat(&values(3 * cols, 3), cols, dtype);
            b.run(Add { acc: y.view_mut(3).unwrap(), x: x.view(3).unwrap() }).unwrap();
            all.extend(bytes_of(&y));
            b.run(Activate { x: y.view_mut(3).unwrap(), act: Act::Gelu }).unwrap();
            b.run(Scale { x: y.view_mut(3).unwrap(), factor: 0.5, cap: Some(2.0) }).unwrap();
            all.extend(bytes_of(&y));
            let (gate_up, out) = (gate_up.view(3).unwrap(), y.view_mut(3).unwrap());
            b.run(Gate { gate_up, act: Act::Silu, clamp: None, out }).unwrap();
            all.extend(bytes_of(&y));
            for other in TYPES {
                let mut z = b.mat(&vec![0.0; 3 * cols], cols, other);
                b.run(Convert { x: x.view(3).unwrap(), bias: None, out: z.view_mut(3).unwrap() }).unwrap();
                all.extend(bytes_of(&z));
            }
            let rows = b.buf(&[2u32, 0, 2]);
            let (x, out) = (x.view(3).unwrap(), y.view_mut(3).unwrap());
            b.run(GatherRows { x, rows: rows.view(), out }).unwrap();
            all.extend(bytes_of(&y));
        }
        all
    });
}

#[test]
fn norms_and_rope() {
    everywhere(|b| {
        let mut all = Vec::new();
        for (cols, dtype) in SIZES.into_iter().flat_map(|c| TYPES.map(|t| (c, t))) {
            let (w, bias) = (values(cols, 4), values(cols, 5));
            let (w, bias) = (b.f32s(&w, cols, WeightUse::Vector), b.f32s(&bias, cols, WeightUse::Vector));
            for kind in [NormKind::Rms, NormKind::Layer] {
                let (weight, bias) = (Some(&w), (kind == NormKind::Layer).then_some(&bias));
                let norm = NormWeights { kind, eps: 1e-5, weight, bias, plus_one: false };
                let x = b.mat(&values(6 * cols, 1), 2 * cols, dtype);
                let mut residual = b.mat(&values(6 * cols, 2), 2 * cols, dtype);
                let mut out = b.mat(&vec![0.0; 6 * cols], 2 * cols, dtype);
                b.run(HeadNorm { x: residual.view_mut(3).unwrap(), width: cols, norm }).unwrap();
                let plain = NormWeights { weight: None, bias: None, ..norm };
                b.run(AddNorm {
                    residual: residual.view_mut(3).unwrap(),
                    x: x.view(3).unwrap(),
                    norm: plain,
                    out: out.view_mut(3).unwrap(),
                })
                .unwrap();
                all.extend(bytes_of(&residual));
                all.extend(bytes_of(&out));
                let (x, out_view) = (x.view(3).unwrap(), out.view_mut(3).unwrap());
                b.run(Norm { x, norm: plain, out: out_view }).unwrap();
                all.extend(bytes_of(&out));
                for style in [RopeStyle::Half, RopeStyle::Interleaved] {
                    let pairs = cols / 2;
                    let table = b.buf(&values(2 * 4 * pairs, 6));
                    let positions = b.buf(&[3u32, 0, 4]);
                    let rope = RopeView { table: table.view(), positions: 4, pairs, style };
                    let (x, positions) = (out.view_mut(3).unwrap(), positions.view());
                    b.run(Rope { x, width: cols, positions, rope }).unwrap();
                    all.extend(bytes_of(&out));
                }
            }
        }
        all
    });
}

/// Rows of a format whose scales are finite.
fn rows(format: WeightFormat, n: usize, k: usize) -> Vec<u8> {
    let mut raw = vec![0; format.bytes(n, k)];
    match format {
        WeightFormat::Plain(dtype) => raw = stored(&values(n * k, 7), dtype),
        WeightFormat::Group(groups) => quant::group::encode(groups, k, &values(n * k, 5), &mut raw),
        _ => {
            for block in raw.chunks_exact_mut(34) {
                block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
                block[2..].iter_mut().enumerate().for_each(|(i, q)| *q = (i * 37 % 251) as u8);
            }
        }
    }
    raw
}

/// A format, and sums of a length that it can have.
fn formats() -> Vec<(WeightFormat, usize)> {
    use engraft_core::mem::{GroupBits, Groups};
    let mut all: Vec<_> =
        TYPES.into_iter().flat_map(|t| [1, 5, 17, 39].map(|k| (WeightFormat::Plain(t), k))).collect();
    all.extend([(WeightFormat::Block(Block::Q8_0), 96), (WeightFormat::W8A8, 96)]);
    for asymmetric in [false, true] {
        let groups = Groups { bits: GroupBits::Four, size: 32, asymmetric };
        all.extend([7, 77].map(|k| (WeightFormat::Group(groups), k)));
    }
    all
}

#[test]
fn matmuls() {
    everywhere(|b| {
        let mut all = Vec::new();
        for ((format, k), dtype) in formats().into_iter().flat_map(|f| TYPES.map(|t| (f, t))) {
            for (n, t) in [(2, 1), (18, 3), (34, 16), (14, 31)] {
                let raw = rows(format, n, k);
                let bias = b.f32s(&values(n, 2), n, WeightUse::Vector);
                let x = b.mat(&values(t * k, 3), k, dtype);
                let mut scratch = b.mat(&vec![0.0; t * n], n, dtype);
                let mut out = b.mat(&values(t * n, 4), n, dtype);
                let mut half = b.mat(&vec![0.0; t * n / 2], n / 2, dtype);
                let plain = b.weight(&raw, (n, k), format, WeightUse::MATMUL);
                let gated = b.weight(&raw, (n, k), format, WeightUse::GatedLinear { grain: 1 });
                let (x, bias) = (x.view(t).unwrap(), Some(&bias));
                let add = Linear::new(x, &plain, bias, out.view_mut(t).unwrap());
                b.run(add.add_to(scratch.view_mut(t).unwrap())).unwrap();
                all.extend(bytes_of(&out));
                let act = Linear::new(x, &gated, None, out.view_mut(t).unwrap());
                b.run(act.act(Act::Silu)).unwrap();
                all.extend(bytes_of(&out));
                let gate = Linear::new(x, &gated, bias, half.view_mut(t).unwrap());
                b.run(gate.gate(Act::Silu, scratch.view_mut(t).unwrap())).unwrap();
                all.extend(bytes_of(&half));
            }
        }
        all
    });
}

#[test]
fn look_ups() {
    everywhere(|b| {
        let mut all = Vec::new();
        for ((format, k), dtype) in formats().into_iter().flat_map(|f| TYPES.map(|t| (f, t))) {
            for used_for in [WeightUse::Embedding, WeightUse::EmbeddingAndLinear] {
                let table = b.weight(&rows(format, 18, k), (18, k), format, used_for);
                let ids = b.buf(&[17u32, 0, 18]);
                let mut out = b.mat(&values(3 * k, 1), k, dtype);
                let mut scratch = b.mat(&vec![0.0; 3 * k], k, dtype);
                let add = Some(scratch.view_mut(3).unwrap());
                b.run(Embed { ids: ids.view(), table: &table, add, out: out.view_mut(3).unwrap() }).unwrap();
                all.extend(bytes_of(&out));
                let out_view = out.view_mut(3).unwrap();
                b.run(Embed { ids: ids.view(), table: &table, add: None, out: out_view }).unwrap();
                all.extend(bytes_of(&out));
            }
        }
        all
    });
}

#[test]
fn experts() {
    everywhere(|b| {
        let mut all = Vec::new();
        for (cols, dtype) in SIZES.into_iter().flat_map(|c| TYPES.map(|t| (c, t))) {
            let (k, experts) = (cols, 5);
            let logits = b.mat(&values(3 * experts, 1), experts, Float::F32);
            let router = Router { renormalise: true, ..Router::new(experts, 2, RouterScore::Softmax) };
            let (mut chosen, mut groups) = (b.buf(&[0u32; 6]), b.buf(&[0u32; 12]));
            let mut weights = b.mat(&[0.0; 6], 2, Float::F32);
            b.run(Route {
                logits: logits.view(3).unwrap(),
                router,
                choice_bias: None,
                experts: chosen.view_mut(),
                weights: weights.view_mut(3).unwrap(),
                groups: groups.view_mut(),
            })
            .unwrap();
            let used_for = WeightUse::Experts { count: experts, grain: 1 };
            let w = b.f32s(&values(experts * cols * k, 2), k, used_for);
            let x = b.mat(&values(3 * k, 3), k, dtype);
            let mut y = b.mat(&vec![0.0; 6 * cols], cols, dtype);
            let groups = Groups { experts: chosen.view(), groups: groups.view(), count: experts };
            let (x, out) = (x.view(3).unwrap(), y.view_mut(6).unwrap());
            b.run(ExpertLinear { x, weight: &w, bias: None, groups, first: 0, out }).unwrap();
            all.extend(bytes_of(&y));
            let mut out = b.mat(&values(3 * cols, 4), cols, dtype);
            let (y, weights) = (y.view(6).unwrap(), weights.view(3).unwrap());
            b.run(Combine::chain(y, weights, true, out.view_mut(3).unwrap())).unwrap();
            all.extend(bytes_of(&out));
        }
        all
    });
}

const HEADS: [Heads; 3] = [
    Heads { heads: 2, kv_heads: 1, k_dim: 5, v_dim: 3 },
    Heads { heads: 6, kv_heads: 3, k_dim: 17, v_dim: 9 },
    Heads { heads: 2, kv_heads: 2, k_dim: 8, v_dim: 72 },
];

#[test]
fn attention_over_pages() {
    everywhere(|b| {
        let mut all = Vec::new();
        for (heads, (page_size, dtype)) in
            HEADS.into_iter().flat_map(|h| [1, 7, 16].map(|p| TYPES.map(|t| (h, (p, t))))).flatten()
        {
            let Heads { kv_heads, k_dim, v_dim, .. } = heads;
            let stride = 70usize.div_ceil(page_size);
            let layout =
                KvLayout { pages: 2 * stride, page_size, kv_heads, k_dim, v_dim, format: dtype.into() };
            let mut slab = b.slab(layout);
            // The last page, which ends where the slab ends, holds the last keys of the first sequence.
            let pages: Vec<u32> = (0..stride as u32).map(|p| 2 * stride as u32 - stride as u32 + p).collect();
            let slot = |p: usize| (pages[p / page_size] as usize * page_size + p % page_size) as i32;
            let mut slots: Vec<i32> = (0..70).map(slot).collect();
            slots[3] = SKIP;
            let (slots, positions) = (b.buf(&slots), b.buf(&[0u32; 70]));
            let mut qkv = b.mat(&values(70 * heads.qkv_cols(), 1), heads.qkv_cols(), dtype);
            b.run(QkvRopeAppend {
                qkv: qkv.view_mut(70).unwrap(),
                heads,
                q_norm: None,
                k_norm: None,
                rope: None,
                positions: positions.view(),
                slots: slots.view(),
                kv: slab.view_mut(),
            })
            .unwrap();
            let table = b.buf(&pages);
            let table = Table { pages: table.view(), stride };
            all.extend(attend(b, &slab, heads, &table, dtype));
            let mut k = b.mat(&vec![0.0; 70 * heads.k_cols()], heads.k_cols(), dtype);
            let mut v = b.mat(&vec![0.0; 70 * heads.v_cols()], heads.v_cols(), dtype);
            let (k_view, v_view) = (k.view_mut(70).unwrap(), v.view_mut(70).unwrap());
            b.run(KvRead { kv: slab.view(), table, row: 0, k: k_view, v: v_view }).unwrap();
            let k_rows = k.view(70).unwrap();
            b.run(KvAppend { k: k_rows, v: v.view(70).unwrap(), slots: slots.view(), kv: slab.view_mut() })
                .unwrap();
            all.extend(bytes_of(&k));
            all.extend(bytes_of(&v));
        }
        all
    });
}

fn attend(
    b: &mut Bench,
    slab: &Slab<CpuMem>,
    heads: Heads,
    table: &Table<'_, CpuMem>,
    dtype: Float,
) -> Vec<u8> {
    let q = b.mat(&values(5 * heads.q_cols(), 2), heads.q_cols(), dtype);
    let mut out = b.mat(&vec![0.0; 5 * heads.out_cols()], heads.out_cols(), dtype);
    let (bounds, rows, lens) = (b.buf(&[0u32, 3, 4, 5]), b.buf(&[0u32; 3]), b.buf(&[70u32, 1, 69]));
    let seqs = Sequences {
        bounds: bounds.view(),
        table_rows: rows.view(),
        kv_lens: lens.view(),
        max_query: 3,
        max_keys: 70,
    };
    let scores = Scores { alibi: Some(vec![0.1; heads.heads].into()), ..Scores::causal(0.3) };
    let plan = b.cpu.attention_plan(Default::default()).unwrap();
    b.run(Attend {
        plan: &plan,
        q: q.view(5).unwrap(),
        kv: slab.view(),
        heads,
        scores: &scores,
        sinks: None,
        bias: None,
        seqs,
        table: *table,
        out: out.view_mut(5).unwrap(),
    })
    .unwrap();
    bytes_of(&out)
}

#[test]
fn attention_over_rows() {
    everywhere(|b| {
        let mut all = Vec::new();
        for (heads, dtype) in HEADS.into_iter().flat_map(|h| TYPES.map(|t| (h, t))) {
            let (q, k) = (values(70 * heads.q_cols(), 1), values(70 * heads.k_cols(), 2));
            let (q, k) = (b.mat(&q, heads.q_cols(), dtype), b.mat(&k, heads.k_cols(), dtype));
            let v = b.mat(&values(70 * heads.v_cols(), 3), heads.v_cols(), dtype);
            let (bounds, scores) = (b.buf(&[0u32, 3, 70]), Scores::causal(0.3));
            let mut out = b.mat(&vec![0.0; 70 * heads.out_cols()], heads.out_cols(), dtype);
            b.run(AttendDense {
                q: q.view(70).unwrap(),
                k: k.view(70).unwrap(),
                v: v.view(70).unwrap(),
                bounds: bounds.view(),
                max_rows: 67,
                heads,
                scores: &scores,
                sinks: None,
                bias: None,
                out: out.view_mut(70).unwrap(),
            })
            .unwrap();
            all.extend(bytes_of(&out));
        }
        all
    });
}
