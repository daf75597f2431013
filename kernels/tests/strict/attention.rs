//! Attention.

use crate::attention_rows::check_rows;
use crate::codes::{kept, slab_of};
use crate::kv::slabs;
use crate::machine::{Machine, Runs, encode, numbers, rounded, same};
use bytemuck::Zeroable;
use engraft_core::math::{FusedMadd, exp, tanh};
use engraft_kernels::params::Elem;
use engraft_kernels::params::attention::{CHUNK, Paged, Scores, Split};
use engraft_kernels::params::kv::PageTable;

/// What a head has for itself; biases by distance from the furthest behind on.
#[derive(Clone, Copy)]
pub struct OfHead<'a> {
    pub slope: Option<f32>,
    pub sink: Option<f32>,
    pub bias: Option<&'a [f32]>,
    /// What a key's product becomes before it is scaled.
    pub terms: Option<&'a dyn Fn(usize, f32) -> f32>,
}

/// What the heads have where the rules say so.
pub struct OfHeads {
    slopes: Vec<f32>,
    sinks: Vec<f32>,
    bias: Vec<f32>,
}

fn span(scores: &Scores) -> usize {
    (scores.bias_behind + 1 + scores.bias_ahead) as usize
}

impl OfHeads {
    pub fn new(heads: usize, scores: &Scores, seed: u64) -> Self {
        let bias = numbers(heads * span(scores), seed + 100);
        Self { slopes: numbers(heads, seed), sinks: numbers(heads, seed + 1), bias }
    }

    pub fn of(&self, head: usize, scores: &Scores) -> OfHead<'_> {
        OfHead {
            slope: (scores.slopes != 0).then(|| self.slopes[head]),
            sink: (scores.sinks != 0).then(|| self.sinks[head]),
            bias: (scores.bias != 0).then(|| &self.bias[head * span(scores)..][..span(scores)]),
            terms: None,
        }
    }

    /// The rules with what they read on the device.
    pub fn put(&self, gpu: &mut Machine, scores: &Scores) -> Scores {
        let mut of_heads = |there: u64, values: &[f32]| if there != 0 { gpu.put(values) } else { 0 };
        let (slopes, sinks) = (of_heads(scores.slopes, &self.slopes), of_heads(scores.sinks, &self.sinks));
        Scores { slopes, sinks, bias: of_heads(scores.bias, &self.bias), ..*scores }
    }
}

/// One query row against keys and values `[keys, dim]` of its head, not yet rounded.
pub fn model(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    v_dim: usize,
    position: usize,
    scores: &Scores,
    OfHead { slope, sink, bias, terms }: OfHead<'_>,
) -> Vec<f32> {
    let (k_dim, len) = (q.len(), v.len() / v_dim);
    let hi = (position + 1).saturating_add(scores.ahead as usize).min(len);
    let windowed = scores.flags & Scores::WINDOW != 0;
    let chunked = scores.flags & Scores::CHUNKED != 0;
    let lo = match scores.window as usize {
        window if windowed => (position + 1).saturating_sub(window).min(hi),
        chunk if chunked => (position / chunk * chunk).min(hi),
        _ => 0,
    };
    let mut all: Option<(f32, f32, Vec<f32>)> = None;
    let mut chunk = lo / CHUNK as usize * CHUNK as usize;
    while lo < hi && chunk < hi {
        let (a, b) = (lo.max(chunk), hi.min(chunk + CHUNK as usize));
        let s: Vec<f32> = (a..b)
            .map(|j| {
                let dot = (0..k_dim).fold(0.0, |acc, d| q[d].mul_add(k[j * k_dim + d], acc));
                let mut s = terms.map_or(dot, |terms| terms(j, dot)) * scores.scale;
                if scores.flags & Scores::CAPPED != 0 {
                    s = scores.cap * tanh::<FusedMadd>(s * (1.0 / scores.cap));
                }
                s = slope.map_or(s, |slope| slope.mul_add(j as f32 - position as f32, s));
                let (behind, ahead) = (i64::from(scores.bias_behind), i64::from(scores.bias_ahead));
                let at = (j as i64 - position as i64).clamp(-behind, ahead) + behind;
                bias.map_or(s, |bias| s + bias[at as usize])
            })
            .collect();
        let m = s.iter().fold(f32::MIN, |m, v| if *v > m { *v } else { m });
        let e: Vec<f32> = s.iter().map(|v| exp::<FusedMadd>(v - m)).collect();
        let l = e.iter().fold(0.0, |l, e| l + e);
        let o: Vec<f32> =
            (0..v_dim).map(|d| (a..b).fold(0.0, |acc, j| e[j - a].mul_add(v[j * v_dim + d], acc))).collect();
        all = Some(match all {
            None => (m, l, o),
            Some((top, sum, old)) => {
                let max = if m > top { m } else { top };
                let (keep, take) = (exp::<FusedMadd>(top - max), exp::<FusedMadd>(m - max));
                let merged = old.iter().zip(&o).map(|(old, o)| old.mul_add(keep, o * take)).collect();
                (max, sum.mul_add(keep, l * take), merged)
            }
        });
        chunk += CHUNK as usize;
    }
    let Some((top, sum, o)) = all else { return vec![0.0; v_dim] };
    let Some(sink) = sink else { return o.iter().map(|o| o / sum).collect() };
    let max = if sink > top { sink } else { top };
    let keep = exp::<FusedMadd>(top - max);
    let sum = sum.mul_add(keep, exp::<FusedMadd>(sink - max));
    o.iter().map(|o| o * keep / sum).collect()
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl Shape {
    fn q_cols(&self) -> usize {
        self.heads * self.k_dim
    }

    fn out_cols(&self) -> usize {
        self.heads * self.v_dim
    }
}

/// Keys or values of one head as rows.
pub fn head_of(x: &[f32], heads: usize, dim: usize, head: usize) -> Vec<f32> {
    x.chunks(heads * dim).flat_map(|row| row[head * dim..][..dim].to_vec()).collect()
}

/// Every score rule once; slopes, sinks and biases are put where a test has as many heads.
pub fn rules() -> [Scores; 8] {
    let plain = Scores { ahead: Scores::ALL, scale: 0.3, ..Zeroable::zeroed() };
    [
        Scores { ahead: 0, ..plain },
        Scores { flags: Scores::WINDOW, ahead: 0, window: 70, sinks: 1, ..plain },
        Scores { flags: Scores::CAPPED, ahead: 0, cap: 5.0, slopes: 1, bias: 1, bias_behind: 66, ..plain },
        Scores { sinks: 1, ..plain },
        Scores { flags: Scores::WINDOW, window: 9, ahead: 70, ..plain },
        Scores { bias: 1, bias_behind: 3, bias_ahead: 5, ..plain },
        Scores { flags: Scores::CHUNKED, window: 70, ahead: 0, ..plain },
        // No key at all.
        Scores { flags: Scores::WINDOW, window: 0, ahead: 0, ..plain },
    ]
}

/// Sequences `(queries, keys)`; a row behind them belongs to no sequence.
fn check_paged(
    shape: &Shape,
    seqs: &[(usize, usize)],
    scores: &Scores,
    elem: Elem,
    held: Elem,
    page_size: usize,
) {
    check_paged_on(shape, seqs, scores, (elem, held), page_size, Machine::each);
}

/// By a walk that is whole and one that is split.
pub fn check_paged_on(
    shape: &Shape,
    seqs: &[(usize, usize)],
    scores: &Scores,
    (elem, held): (Elem, Elem),
    page_size: usize,
    on: Runs,
) {
    let case = Pages { shape: *shape, seqs, scores: *scores, elem, held, page_size };
    let (q, old) = (numbers(case.tokens() * shape.q_cols(), 1), numbers(case.tokens() * shape.out_cols(), 2));
    let own = OfHeads::new(shape.heads, scores, 3);
    let want = case.want(&q, &old, &own);
    on(&mut |gpu| {
        for split in [false, true] {
            let got = case.run(gpu, (&q, &old), &own, split);
            same(&got, &want, &format!("attend, split {split}, {case:?}"));
        }
    });
}

/// A case over pages.
#[derive(Debug)]
struct Pages<'a> {
    shape: Shape,
    /// Queries and keys.
    seqs: &'a [(usize, usize)],
    scores: Scores,
    elem: Elem,
    held: Elem,
    page_size: usize,
}

impl Pages<'_> {
    fn tokens(&self) -> usize {
        self.seqs.iter().map(|s| s.0).sum::<usize>() + 1
    }

    /// Where queries of sequences begin, and where the last ends.
    fn bounds(&self) -> Vec<u32> {
        let mut end = 0;
        let ends = self.seqs.iter().map(|(queries, _)| {
            end += *queries as u32;
            end
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Keys or values of every sequence.
    fn rows(&self, is_key: bool) -> Vec<Vec<f32>> {
        let (dim, seed) = if is_key { (self.shape.k_dim, 10) } else { (self.shape.v_dim, 20) };
        let seqs = self.seqs.iter().zip(seed..);
        seqs.map(|((_, len), seed)| numbers(len * self.shape.kv_heads * dim, seed)).collect()
    }

    /// Outputs of all rows.
    fn want(&self, q: &[f32], old: &[f32], own: &OfHeads) -> Vec<f32> {
        let Shape { heads, kv_heads, k_dim, v_dim } = self.shape;
        let (keys, values, bounds) = (self.rows(true), self.rows(false), self.bounds());
        let mut want = rounded(old, self.elem);
        for (s, (queries, len)) in self.seqs.iter().enumerate() {
            for (r, h) in (0..*queries).flat_map(|r| (0..heads).map(move |h| (r, h))) {
                let (row, kv_head) = (bounds[s] as usize + r, h / (heads / kv_heads));
                let query = rounded(&q[(row * heads + h) * k_dim..][..k_dim], self.elem);
                let k = kept(&head_of(&keys[s], kv_heads, k_dim, kv_head), k_dim, self.held);
                let v = kept(&head_of(&values[s], kv_heads, v_dim, kv_head), v_dim, self.held);
                let o =
                    model(&query, &k, &v, v_dim, len - queries + r, &self.scores, own.of(h, &self.scores));
                want[(row * heads + h) * v_dim..][..v_dim].copy_from_slice(&rounded(&o, self.elem));
            }
        }
        want
    }

    /// Pages of a sequence that has the most keys.
    fn stride(&self) -> usize {
        self.seqs.iter().map(|s| s.1.div_ceil(self.page_size)).max().unwrap()
    }

    /// The table's numbers: pages run backwards through the slab.
    fn table(&self) -> Vec<u32> {
        (0..(self.seqs.len() * self.stride()) as u32).rev().collect()
    }

    /// The sequences' rows of the table, in reverse order.
    fn table_rows(&self) -> Vec<u32> {
        (0..self.seqs.len() as u32).rev().collect()
    }

    /// A slab as the append would have left it.
    fn slab(&self, is_key: bool) -> Vec<u8> {
        let Shape { kv_heads, k_dim, v_dim, .. } = self.shape;
        let (page_size, table, rows) = (self.page_size, self.table(), self.table_rows());
        let dim = if is_key { k_dim } else { v_dim };
        let mut slab = vec![f32::NAN; table.len() * kv_heads * page_size * dim];
        for (s, x) in self.rows(is_key).iter().enumerate() {
            for (j, row) in x.chunks(kv_heads * dim).enumerate() {
                let page = table[rows[s] as usize * self.stride() + j / page_size] as usize;
                for h in 0..kv_heads {
                    let to = ((page * kv_heads + h) * page_size + j % page_size) * dim;
                    slab[to..to + dim].copy_from_slice(&row[h * dim..][..dim]);
                }
            }
        }
        if self.held.is_coded() { slab_of(&slab, dim, self.held) } else { encode(&slab, self.held) }
    }

    /// Outputs of all rows by the kernels.
    fn run(&self, gpu: &mut Machine, (q, old): (&[f32], &[f32]), own: &OfHeads, split: bool) -> Vec<f32> {
        let Shape { heads, kv_heads, k_dim, v_dim } = self.shape;
        let (elem, table, stride) = (self.elem, self.table(), self.stride() as u32);
        let [pages, page_size, kv_heads] = [table.len(), self.page_size, kv_heads].map(|n| n as u32);
        let mut kv = slabs(gpu, pages, page_size, kv_heads, k_dim as u32, v_dim as u32, self.held);
        (kv.keys, kv.values) = (gpu.put(&self.slab(true)), gpu.put(&self.slab(false)));
        let lens: Vec<u32> = self.seqs.iter().map(|s| s.1 as u32).collect();
        let most = *lens.iter().max().unwrap();
        let parts = Split::bytes(self.tokens() as u32, heads as u32, most, v_dim as u32);
        let chunks = most.div_ceil(CHUNK);
        let split = match split {
            true => Split { parts: gpu.empty(parts as usize), chunks, share: if chunks > 2 { 2 } else { 1 } },
            false => Split::default(),
        };
        let (q_cols, out_cols) = (self.shape.q_cols(), self.shape.out_cols());
        let out = gpu.matrix(old, out_cols, elem, out_cols + 1, 0);
        let p = Paged {
            q: gpu.matrix(q, q_cols, elem, q_cols + 3, 0),
            out,
            kv,
            scores: own.put(gpu, &self.scores),
            bounds: gpu.put(&self.bounds()),
            table_rows: gpu.put(&self.table_rows()),
            kv_lens: gpu.put(&lens),
            table: PageTable::new(gpu.put(&table), self.seqs.len() as u32, stride, &kv),
            split,
            seqs: self.seqs.len() as u32,
            heads: heads as u32,
            elem,
            reserved: 0,
        };
        gpu.run(&p, &p.launch());
        if let Some(merge) = p.merge() {
            gpu.run(&p, &merge);
        }
        gpu.values(out, elem)
    }
}

#[test]
fn pages_splits_and_batch_mates_change_no_bit() {
    let shape = Shape { heads: 6, kv_heads: 2, k_dim: 16, v_dim: 8 };
    for (i, scores) in rules().iter().enumerate() {
        let (elem, held) = [
            (Elem::F32, Elem::F32),
            (Elem::F16, Elem::F16),
            (Elem::BF16, Elem::BF16),
            (Elem::F32, Elem::BF16),
            (Elem::F32, Elem::F32),
            (Elem::F16, Elem::F16),
            (Elem::BF16, Elem::BF16),
            (Elem::F16, Elem::F16),
        ][i];
        check_paged(&shape, &[(1, 150), (3, 67), (2, 2)], scores, elem, held, 16);
    }
    let odd = Shape { heads: 5, kv_heads: 1, k_dim: 7, v_dim: 70 };
    check_paged(&odd, &[(2, 131)], &rules()[0], Elem::F32, Elem::F32, 5);
    let broad = Shape { heads: 1, kv_heads: 1, k_dim: 8, v_dim: 200 };
    check_paged(&broad, &[(1, 66)], &rules()[1], Elem::F32, Elem::F32, 32);
}

/// Over codes: the bits of attention over f32 with their values. Rows of 16 columns are read 16 bytes at a
/// time, others one by one; keys of 80 and values of 200 columns take several slices.
#[test]
fn codes_are_read_as_the_values_that_they_stand_for() {
    let shapes = [(6, 2, 16, 8), (4, 1, 80, 64), (5, 1, 7, 70), (1, 1, 32, 200)];
    for (i, (heads, kv_heads, k_dim, v_dim)) in shapes.into_iter().enumerate() {
        let shape = Shape { heads, kv_heads, k_dim, v_dim };
        for (j, held) in [Elem::INT8, Elem::FP8].into_iter().enumerate() {
            let scores = &rules()[(3 * i + j) % 7];
            check_paged(
                &shape,
                &[(1, 150), (3, 67), (2, 2)],
                scores,
                Elem::ALL[(i + j) % 3],
                held,
                [16, 5][i % 2],
            );
        }
    }
}

/// 32 heads of 128 over 8, a context of 17 chunks whose last has one key.
#[test]
fn many_heads_over_a_long_context() {
    let shape = Shape { heads: 32, kv_heads: 8, k_dim: 128, v_dim: 128 };
    let causal = Scores { scale: 0.088_388_35, ..Zeroable::zeroed() };
    check_paged_on(&shape, &[(1, 1025), (3, 66)], &causal, (Elem::BF16, Elem::BF16), 16, Machine::once);
}

/// Keys of a chunk (64), of two, of a page (16), and a window as wide as a chunk.
#[test]
fn keys_on_both_sides_of_every_threshold() {
    let shape = Shape { heads: 4, kv_heads: 2, k_dim: 16, v_dim: 64 };
    let [causal, windowed, ..] = rules();
    let windowed = Scores { window: CHUNK, ..windowed };
    for at in [16, CHUNK as usize, 2 * CHUNK as usize] {
        let seqs: Vec<_> = (at - 1..=at + 1).flat_map(|keys| [(1, keys), (2, keys)]).collect();
        for scores in [&causal, &windowed] {
            check_paged(&shape, &seqs, scores, Elem::F16, Elem::F16, 16);
        }
    }
}

#[test]
fn encoders_see_their_own_sequence() {
    for (i, scores) in rules().iter().enumerate() {
        check_rows(scores, Elem::ALL[i % 3]);
    }
}

/// Scores so far apart that exponents overflow where the largest one is missed: outputs of 16 bits show
/// nothing less.
#[test]
fn the_largest_score_is_found_wherever_it_lies() {
    let scores = Scores { scale: 60.0, ..Zeroable::zeroed() };
    let shape = Shape { heads: 4, kv_heads: 2, k_dim: 10, v_dim: 6 };
    for elem in Elem::ALL {
        check_rows(&scores, elem);
        check_rows(&Scores { ahead: Scores::ALL, ..scores }, elem);
        check_paged_on(&shape, &[(1, 150), (3, 67)], &scores, (elem, elem), 16, Machine::once);
    }
}
