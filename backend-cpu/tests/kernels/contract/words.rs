//! Words of device buffers that are out of range: nothing faults, and what they do is what the ops say.

use super::*;
use crate::testing::{bits, values};
use engraft_core::mem::{GroupBits, KvFormat, Table};
use engraft_core::ops::{
    Attend, AttendDense, Combine, Embed, ExpertLinear, GatherRows, Groups, KvAppend, KvCopyPages, KvRead,
    MarkSeen, Norm, NormWeights, Rope, RopeView, Route, Sample, Scatter, Sequences,
};
use engraft_core::params::{
    ExpertGroups, GroupRank, Heads, NormKind, Relative, RopeStyle, Router, RouterScore, Scores,
};
use engraft_core::sample::{NO_TOKEN, SampleRow};

/// Beyond anything, or just beyond `n`.
fn wild(n: u32) -> [u32; 6] {
    [n, n + 1, 1 << 31, (1 << 31) - 1, u32::MAX - 1, u32::MAX]
}

fn bench() -> Bench {
    Bench::new(Isa::detect(), true)
}

#[test]
fn ids_beyond_a_table_are_rows_of_zeros() {
    let mut b = bench();
    let values = values(15, 1);
    for (used_for, add) in [WeightUse::Embedding, WeightUse::EmbeddingAndLinear]
        .into_iter()
        .flat_map(|u| [(u, false), (u, true)])
    {
        let table = b.f32s(&values, 5, used_for);
        for id in wild(3) {
            let ids = b.buf(&[1, id, 2]);
            let (mut out, mut scratch) = (b.mat(&[7.0; 15], 5, Float::F32), b.mat(&[0.0; 15], 5, Float::F32));
            let add_to = add.then(|| scratch.view_mut(3).unwrap());
            let out_view = out.view_mut(3).unwrap();
            b.run(Embed { ids: ids.view(), table: &table, add: add_to, out: out_view }).unwrap();
            let old = if add { 7.0 } else { 0.0 };
            let want: Vec<f32> =
                (0..15).map(|i| [values[5 + i % 5], 0.0, values[10 + i % 5]][i / 5] + old).collect();
            assert_eq!(b.rows(&out), want, "{id} {used_for:?}");
        }
    }
}

#[test]
fn rows_beyond_a_matrix_are_zeros() {
    let mut b = bench();
    let x = b.mat(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, Float::F32);
    for row in wild(2) {
        let (rows, mut out) = (b.buf(&[row, 1]), b.mat(&[9.0; 6], 3, Float::F32));
        b.run(GatherRows { x: x.view(2).unwrap(), rows: rows.view(), out: out.view_mut(2).unwrap() })
            .unwrap();
        assert_eq!(b.rows(&out), [0.0, 0.0, 0.0, 4.0, 5.0, 6.0]);
    }
}

#[test]
fn rows_at_positions_beyond_the_table_are_not_rotated() {
    let mut b = bench();
    let before = values(3 * 8, 2);
    for (position, style) in
        wild(3).into_iter().flat_map(|p| [(p, RopeStyle::Half), (p, RopeStyle::Interleaved)])
    {
        let mut x = b.mat(&before, 8, Float::F32);
        let (positions, table) = (b.buf(&[2, position, 0]), b.buf(&values(2 * 3 * 2, 3)));
        let rope = RopeView { table: table.view(), positions: 3, pairs: 2, style };
        b.run(Rope { x: x.view_mut(3).unwrap(), width: 4, positions: positions.view(), rope }).unwrap();
        let after = b.rows(&x);
        assert_eq!(bits(&after[8..16]), bits(&before[8..16]), "{position}");
        assert!(after[..4] != before[..4] && after[16..20] != before[16..20]);
    }
}

const LAYOUT: KvLayout =
    KvLayout { pages: 3, page_size: 4, kv_heads: 2, k_dim: 3, v_dim: 5, format: KvFormat::Plain(Float::F32) };

/// The keys of the pages in `table`, page by page; what is not written stays 9.
fn keys(b: &mut Bench, slab: &Slab<CpuMem>, table: &[u32]) -> Vec<f32> {
    let positions = 4 * table.len();
    let mut k = b.mat(&vec![9.0; positions * 6], 6, Float::F32);
    let mut v = b.mat(&vec![9.0; positions * 10], 10, Float::F32);
    let pages = b.buf(table);
    let (k_view, v_view) = (k.view_mut(positions).unwrap(), v.view_mut(positions).unwrap());
    let table = Table { pages: pages.view(), stride: table.len() };
    b.run(KvRead { kv: slab.view(), table, row: 0, k: k_view, v: v_view }).unwrap();
    b.rows(&k)
}

/// A device with this memory, and another idea of how much a slab takes.
struct Smaller;

impl Device for Smaller {
    type Mem = CpuMem;
    type Weight = CpuWeight;
    type AttnPlan = ();

    fn kv_bytes(_: &KvLayout) -> (usize, usize) {
        (4, 4)
    }
}

#[test]
fn a_slab_made_for_another_device_is_refused() {
    let mut b = bench();
    let slab = Slab::<CpuMem>::new::<Smaller>(b.memory(&[0; 4]), b.memory(&[0; 4]), LAYOUT);
    let mut slab = slab.unwrap();
    let (k, v) = (b.mat(&values(30, 4), 6, Float::F32), b.mat(&values(50, 5), 10, Float::F32));
    let (slots, pairs) = (b.buf(&[0, 1, 2, 3, 4]), b.buf(&[0u32, 1]));
    let append =
        KvAppend { k: k.view(5).unwrap(), v: v.view(5).unwrap(), slots: slots.view(), kv: slab.view_mut() };
    let refused = b.run(append).unwrap_err().to_string();
    assert!(refused.contains("kv_append") && refused.contains("bytes of the kv slab"), "{refused}");
    let copy = KvCopyPages { pairs: pairs.view(), kv: slab.view_mut() };
    assert!(b.run(copy).unwrap_err().to_string().contains("bytes of the kv slab"));
}

#[test]
fn an_rms_norm_adds_the_bias_that_it_is_given() {
    let mut b = bench();
    let (x, mut out) = (b.mat(&[3.0, -3.0, 3.0, 3.0], 4, Float::F32), b.mat(&[7.0; 4], 4, Float::F32));
    let (weight, bias) =
        (b.f32s(&[2.0; 4], 4, WeightUse::Vector), b.f32s(&[1.0, 1.0, 0.0, -2.0], 4, WeightUse::Vector));
    let (kind, plus_one) = (NormKind::Rms, false);
    let norm = NormWeights { kind, eps: 0.0, weight: Some(&weight), bias: Some(&bias), plus_one };
    b.run(Norm { x: x.view(1).unwrap(), norm, out: out.view_mut(1).unwrap() }).unwrap();
    assert_eq!(b.rows(&out), [3.0, -1.0, 2.0, 0.0]);
}

#[test]
fn groups_that_no_kernel_reads_are_no_weights() {
    for (size, is_read) in [(0, true), (32, true), (64, true), (5, false), (16, false), (33, false)] {
        let groups = engraft_core::mem::Groups { bits: GroupBits::Eight, size, asymmetric: false };
        let format = WeightFormat::Group(groups);
        let info = WeightInfo { name: "w".into(), rows: 1, cols: 64, format, used_for: WeightUse::MATMUL };
        let bytes = vec![0; info.bytes()];
        let made = HostWeight::new(info, vec![bytes.into()]).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(made.is_ok(), is_read, "{size}: {made:?}");
    }
}

#[test]
fn slots_and_pages_beyond_a_slab_are_left_out() {
    let mut b = bench();
    let mut slab = b.slab(LAYOUT);
    let (k, v) = (b.mat(&values(30, 4), 6, Float::F32), b.mat(&values(50, 5), 10, Float::F32));
    let slots = b.buf(&[-1, i32::MIN, 12, 5, i32::MAX]);
    b.run(KvAppend {
        k: k.view(5).unwrap(),
        v: v.view(5).unwrap(),
        slots: slots.view(),
        kv: slab.view_mut(),
    })
    .unwrap();
    let mut want = vec![0.0; 72];
    want[30..36].copy_from_slice(&b.rows(&k)[18..24]);
    assert_eq!(keys(&mut b, &slab, &[0, 1, 2]), want, "only slot 5 was written");
    let mut pairs = vec![1, 2, 1, 1];
    pairs.extend(wild(3).iter().flat_map(|p| [*p, 0, 1, *p]));
    let pairs = b.buf(&pairs);
    b.run(KvCopyPages { pairs: pairs.view(), kv: slab.view_mut() }).unwrap();
    want.copy_within(24..48, 48);
    assert_eq!(keys(&mut b, &slab, &[0, 1, 2]), want, "page 1 was copied to page 2 alone");
    for page in wild(3) {
        let read = keys(&mut b, &slab, &[1, page, 1]);
        assert_eq!((&read[..24], &read[24..48], &read[48..]), (&want[24..48], &[9.0; 24][..], &want[24..48]));
    }
}

/// The words of an attention over [`LAYOUT`].
#[derive(Clone)]
struct Step {
    bounds: Vec<u32>,
    rows: Vec<u32>,
    lens: Vec<u32>,
    pages: Vec<u32>,
}

impl Step {
    fn attend(&self, b: &mut Bench, slab: &Slab<CpuMem>, window: Option<u32>) -> Result<Vec<f32>> {
        let heads = Heads { heads: 4, kv_heads: 2, k_dim: 3, v_dim: 5 };
        let (q, mut out) = (b.mat(&values(36, 6), 12, Float::F32), b.mat(&[9.0; 60], 20, Float::F32));
        let (bounds, rows) = (b.buf(&self.bounds), b.buf(&self.rows));
        let (lens, pages) = (b.buf(&self.lens), b.buf(&self.pages));
        let seqs = Sequences {
            bounds: bounds.view(),
            table_rows: rows.view(),
            kv_lens: lens.view(),
            max_query: 2,
            max_keys: 8,
        };
        b.run(Attend {
            plan: &b.cpu.attention_plan(Default::default())?,
            q: q.view(3)?,
            kv: slab.view(),
            heads,
            scores: &Scores { window, ..Scores::causal(0.5) },
            sinks: None,
            bias: None,
            seqs,
            table: Table { pages: pages.view(), stride: 2 },
            out: out.view_mut(3)?,
        })?;
        Ok(b.rows(&out))
    }
}

#[test]
fn attention_refuses_words_out_of_range() {
    let mut b = bench();
    let slab = b.slab(LAYOUT);
    let good = Step { bounds: vec![0, 1, 3], rows: vec![0, 1], lens: vec![2, 6], pages: vec![0, 1, 2, 0] };
    let mut refused = vec![
        Step { bounds: vec![0, 2, 1], ..good.clone() },
        Step { bounds: vec![2, 1, 3], ..good.clone() },
        Step { lens: vec![0, 6], ..good.clone() },
        Step { lens: vec![2, 1], ..good.clone() },
        Step { lens: vec![2, 9], ..good.clone() },
    ];
    for word in wild(4) {
        refused.push(Step { bounds: vec![0, 1, word], ..good.clone() });
        refused.push(Step { bounds: vec![word, 1, 3], ..good.clone() });
        refused.push(Step { bounds: vec![0, word, 3], ..good.clone() });
        refused.push(Step { lens: vec![2, word + (word < 8) as u32 * 8], ..good.clone() });
        refused.push(Step { rows: vec![0, word], ..good.clone() });
        refused.push(Step { pages: vec![0, 1, 2, word], ..good.clone() });
    }
    for window in [None, Some(1), Some(u32::MAX)] {
        let want = good.attend(&mut b, &slab, window).unwrap();
        for (i, step) in refused.iter().enumerate() {
            // A window of one key leaves the first page of the second sequence out, not its last.
            assert!(step.attend(&mut b, &slab, window).is_err(), "{i} {window:?}");
        }
        // Pages behind the last key are not read, nor are sequences without rows.
        let unused = Step { pages: vec![0, u32::MAX, 2, 0], ..good.clone() };
        assert_eq!(unused.attend(&mut b, &slab, window).unwrap(), want);
        let empty = Step { bounds: vec![1, 1, 3], rows: vec![9, 1], lens: vec![u32::MAX, 6], ..good.clone() };
        let rows = empty.attend(&mut b, &slab, window).unwrap();
        assert_eq!((&rows[..20], &rows[20..]), (&[9.0; 20][..], &want[20..]));
    }
}

#[test]
fn attention_without_pages_refuses_bounds_out_of_range() {
    let mut b = bench();
    let heads = Heads { heads: 2, kv_heads: 1, k_dim: 3, v_dim: 5 };
    let (q, k) = (b.mat(&values(18, 1), 6, Float::F32), b.mat(&values(9, 2), 3, Float::F32));
    let v = b.mat(&values(15, 3), 5, Float::F32);
    let mut attend = |words: &[u32]| {
        let (bounds, mut out) = (b.buf(words), b.mat(&[9.0; 30], 10, Float::F32));
        b.run(AttendDense {
            q: q.view(3)?,
            k: k.view(3)?,
            v: v.view(3)?,
            bounds: bounds.view(),
            max_rows: 3,
            heads,
            scores: &Scores::causal(1.0),
            sinks: None,
            bias: None,
            out: out.view_mut(3)?,
        })?;
        Ok::<_, engraft_core::Error>(b.rows(&out))
    };
    let whole = attend(&[0, 1, 3]).unwrap();
    let part = attend(&[1, 3]).unwrap();
    assert_eq!((&part[..10], &part[10..]), (&[9.0; 10][..], &whole[10..]));
    for word in wild(4) {
        assert!(attend(&[0, word]).is_err() && attend(&[word, 1]).is_err() && attend(&[0, word, 3]).is_err());
    }
    assert!(attend(&[0, 3, 2]).is_err());
}

#[test]
fn groups_out_of_range_leave_rows_out() {
    let mut b = bench();
    let w = b.f32s(&values(3 * 4 * 5, 1), 5, WeightUse::Experts { count: 3, grain: 1 });
    let bias = b.f32s(&values(12, 2), 12, WeightUse::Vector);
    let experts = b.buf(&[0u32, 1, 0, 2]);
    let mut run = |words: &[u32], rows: usize| {
        let (x, groups) = (b.mat(&values(rows * 5, 3), 5, Float::F32), b.buf(words));
        let mut out = b.mat(&[9.0; 16], 4, Float::F32);
        let groups = Groups { experts: experts.view(), groups: groups.view(), count: 3 };
        let (x, out_view) = (x.view(rows).unwrap(), out.view_mut(4).unwrap());
        b.run(ExpertLinear { x, weight: &w, bias: Some(&bias), groups, first: 0, out: out_view }).unwrap();
        b.rows(&out)
    };
    let good = [0, 2, 3, 4, 0, 2, 1, 3];
    for rows in [2, 4] {
        let want = run(&good, rows);
        assert!(want.iter().all(|v| *v != 9.0));
        for (i, word) in (0..8).flat_map(|i| wild(5).map(|w| (i, w))) {
            let mut words = good;
            words[i] = word;
            let got = run(&words, rows);
            let same = |r: usize| got[4 * r..4 * r + 4] == want[4 * r..4 * r + 4];
            let kept = |r: usize| got[4 * r..4 * r + 4] == [9.0; 4];
            assert!((0..4).all(|r| same(r) || kept(r)), "word {i} is {word}");
            if i >= 4 {
                assert!(kept(good[i] as usize) && (0..4).filter(|r| same(*r)).count() == 3);
            }
        }
        run(&[4, 3, 2, 1, 3, 3, 3, 3], rows);
    }
}

#[test]
fn any_logits_are_routed_to_experts_that_exist() {
    let mut b = bench();
    let mut logits = values(6 * 7, 1);
    logits[..7].fill(f32::NAN);
    logits[7..14].fill(f32::NEG_INFINITY);
    logits[14..21].fill(f32::INFINITY);
    logits[21..24].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::MIN]);
    let logits = b.mat(&logits, 7, Float::F32);
    let groups = |count, chosen, rank| Some(ExpertGroups { count, chosen, rank });
    let ways = [
        None,
        groups(7, 3, GroupRank::Best),
        groups(7, 4, GroupRank::BestTwo),
        groups(1, 1, GroupRank::BestTwo),
    ];
    for (score, renormalise, groups) in [RouterScore::Softmax, RouterScore::Sigmoid]
        .into_iter()
        .flat_map(|s| [(s, false), (s, true)])
        .flat_map(|(s, r)| ways.map(|groups| (s, r, groups)))
    {
        let router = Router { renormalise, groups, ..Router::new(7, 3, score) };
        let (mut experts, mut groups) = (b.buf(&[u32::MAX; 18]), b.buf(&[u32::MAX; 26]));
        let mut weights = b.mat(&[0.0; 18], 3, Float::F32);
        b.run(Route {
            logits: logits.view(6).unwrap(),
            router,
            choice_bias: None,
            experts: experts.view_mut(),
            weights: weights.view_mut(6).unwrap(),
            groups: groups.view_mut(),
        })
        .unwrap();
        assert!(b.read(experts.view()).chunks(3).all(|e| e.is_sorted() && e[2] < 7 && e[0] != e[1]));
        let groups = b.read(groups.view());
        assert!(groups[..8].is_sorted() && groups[7] == 18 && groups[8..].iter().all(|slot| *slot < 18));
        let (y, mut out) = (b.mat(&values(18 * 2, 2), 2, Float::F32), b.mat(&[0.0; 12], 2, Float::F32));
        let (y, weights, out) = (y.view(18).unwrap(), weights.view(6).unwrap(), out.view_mut(6).unwrap());
        b.run(Combine::chain(y, weights, true, out)).unwrap();
    }
}

#[test]
fn scattered_words_and_seen_tokens_out_of_range_do_nothing() {
    let mut b = bench();
    let mut pairs = vec![2, 5, 2, 6];
    pairs.extend(wild(3).iter().flat_map(|i| [*i, 77]));
    let (pairs, mut dst) = (b.buf(&pairs), b.buf(&[1u32, 2, 3]));
    b.run(Scatter { pairs: pairs.view(), dst: dst.view_mut() }).unwrap();
    assert_eq!(b.read(dst.view()), [1, 2, 6]);
    let mut ids = vec![0, 33, 63];
    ids.extend(wild(64));
    let (ids, mut seen) = (b.buf(&ids), b.buf(&[u32::MAX; 6]));
    b.run(MarkSeen { ids: ids.view(), slot: 1, words: 2, seen: seen.view_mut() }).unwrap();
    assert_eq!(b.read(seen.view()), [u32::MAX, u32::MAX, 1, 1 << 31 | 2, u32::MAX, u32::MAX]);
}

#[test]
fn any_sampling_row_gives_a_token_of_the_vocabulary_or_none() {
    const VOCAB: usize = 40;
    let mut b = bench();
    let mut logits = values(6 * VOCAB, 1);
    logits[..VOCAB].fill(f32::NAN);
    logits[VOCAB..2 * VOCAB].fill(f32::INFINITY);
    logits[2 * VOCAB] = f32::NAN;
    let logits = b.mat(&logits, VOCAB, Float::F32);
    let mut state = 1u64;
    for round in 0..500 {
        let mut word = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) as u32
        };
        let mut words: [u32; 24] = std::array::from_fn(|_| word());
        // Slots of seen bits: none, the one there is, one too far, anything.
        words[11] = [u32::MAX, 0, 1, 1 << 31, words[11]][round % 5];
        if round % 3 == 0 {
            words[0] = [0, 1f32.to_bits(), f32::NAN.to_bits(), f32::INFINITY.to_bits()][round / 3 % 4];
        }
        let rows: [SampleRow; 2] = bytemuck::cast(words);
        let (table, mut seen) = (b.buf(&rows), b.buf(&[word(), word()]));
        let (slots, positions) = (b.buf(&[0, 0, 1, 0, 2, u32::MAX]), b.buf(&[0, u32::MAX, 1, 2, 3, 4]));
        let mut out = b.buf(&[VOCAB as u32; 6]);
        b.run(Sample {
            logits: logits.view(6).unwrap(),
            table: table.view(),
            slots: slots.view(),
            positions: positions.view(),
            seen: seen.view_mut(),
            seen_words: 2,
            out: out.view_mut(),
        })
        .unwrap();
        let tokens = b.read(out.view());
        let sampled = |t: &u32| (*t as usize) < VOCAB || *t == NO_TOKEN;
        assert!(tokens[..4].iter().all(sampled), "{tokens:?} {rows:?}");
        assert_eq!(tokens[4..], [NO_TOKEN; 2], "rows without a slot");
    }
}

#[test]
fn biases_go_with_the_distances_of_their_scores() {
    let mut b = bench();
    let heads = Heads { heads: 2, kv_heads: 1, k_dim: 3, v_dim: 5 };
    let (q, k) = (b.mat(&values(18, 1), 6, Float::F32), b.mat(&values(9, 2), 3, Float::F32));
    let (v, bounds) = (b.mat(&values(15, 3), 5, Float::F32), b.buf(&[0u32, 3]));
    let mut refused = |relative, len: Option<usize>| {
        let bias = len.map(|len| b.f32s(&vec![0.5; len], len, WeightUse::Vector));
        let (scores, mut out) =
            (Scores { relative, ..Scores::causal(1.0) }, b.mat(&[9.0; 30], 10, Float::F32));
        let (q, k, v, out) = (q.view(3).unwrap(), k.view(3).unwrap(), v.view(3).unwrap(), out.view_mut(3));
        let (bounds, sinks, bias, out) = (bounds.view(), None, bias.as_ref(), out.unwrap());
        let op = AttendDense { q, k, v, bounds, max_rows: 3, heads, scores: &scores, sinks, bias, out };
        b.run(op).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let relative = Some(Relative { behind: 2, ahead: 1 });
    assert_eq!((refused(None, None), refused(relative, Some(8))), (String::new(), String::new()));
    for (relative, len, said) in [
        (relative, None, "`bias` of `Scores::relative` is none, expected given"),
        (None, Some(8), "`bias` without `Scores::relative` is given, expected none"),
        (relative, Some(7), "length of `bias` is 7, expected 8"),
    ] {
        let why = refused(relative, len);
        assert!(why.contains(said), "{why}");
    }
}
