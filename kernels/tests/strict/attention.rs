//! Attention.

use crate::codes::{kept, slab_of};
use crate::kv::slabs;
use crate::machine::{Machine, Runs, encode, numbers, rounded, same};
use bytemuck::Zeroable;
use engraft_core::math::{FusedMadd, exp, tanh};
use engraft_kernels::params::Elem;
use engraft_kernels::params::attention::{CHUNK, Dense, Paged, Scores, Split};
use engraft_kernels::params::kv::PageTable;

/// What a head has for itself; biases by distance from the furthest behind on.
#[derive(Clone, Copy)]
struct OfHead<'a> {
    slope: Option<f32>,
    sink: Option<f32>,
    bias: Option<&'a [f32]>,
}

/// What the heads have where the rules say so.
struct OfHeads {
    slopes: Vec<f32>,
    sinks: Vec<f32>,
    bias: Vec<f32>,
}

fn span(scores: &Scores) -> usize {
    (scores.bias_behind + 1 + scores.bias_ahead) as usize
}

impl OfHeads {
    fn new(heads: usize, scores: &Scores, seed: u64) -> Self {
        let bias = numbers(heads * span(scores), seed + 100);
        Self { slopes: numbers(heads, seed), sinks: numbers(heads, seed + 1), bias }
    }

    fn of(&self, head: usize, scores: &Scores) -> OfHead<'_> {
        OfHead {
            slope: (scores.slopes != 0).then(|| self.slopes[head]),
            sink: (scores.sinks != 0).then(|| self.sinks[head]),
            bias: (scores.bias != 0).then(|| &self.bias[head * span(scores)..][..span(scores)]),
        }
    }

    /// The rules with what they read on the device.
    fn put(&self, gpu: &mut Machine, scores: &Scores) -> Scores {
        let mut of_heads = |there: u64, values: &[f32]| if there != 0 { gpu.put(values) } else { 0 };
        let (slopes, sinks) = (of_heads(scores.slopes, &self.slopes), of_heads(scores.sinks, &self.sinks));
        Scores { slopes, sinks, bias: of_heads(scores.bias, &self.bias), ..*scores }
    }
}

/// One query row against keys and values `[keys, dim]` of its head, not yet rounded.
fn model(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    v_dim: usize,
    position: usize,
    scores: &Scores,
    OfHead { slope, sink, bias }: OfHead<'_>,
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
                let mut s = dot * scores.scale;
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

struct Shape {
    heads: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
}

/// Keys or values of one head as rows.
fn head_of(x: &[f32], heads: usize, dim: usize, head: usize) -> Vec<f32> {
    x.chunks(heads * dim).flat_map(|row| row[head * dim..][..dim].to_vec()).collect()
}

/// Every score rule once; slopes, sinks and biases are put where a test has as many heads.
fn rules() -> [Scores; 8] {
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

/// Sequences `(queries, keys)`; a row before and one behind them belong to no sequence.
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

fn check_paged_on(
    shape: &Shape,
    seqs: &[(usize, usize)],
    scores: &Scores,
    (elem, held): (Elem, Elem),
    page_size: usize,
    on: Runs,
) {
    let Shape { heads, kv_heads, k_dim, v_dim } = *shape;
    let tokens: usize = seqs.iter().map(|s| s.0).sum::<usize>() + 1;
    let q = numbers(tokens * heads * k_dim, 1);
    let old = numbers(tokens * heads * v_dim, 2);
    let own = OfHeads::new(heads, scores, 3);
    let stride = seqs.iter().map(|s| s.1.div_ceil(page_size)).max().unwrap();
    let pages = seqs.len() * stride;
    // Pages run backwards through the slab; the table's rows stand in reverse order.
    let table: Vec<u32> = (0..pages as u32).map(|i| pages as u32 - 1 - i).collect();
    let mut want = rounded(&old, elem);
    let (mut bounds, mut keys, mut values) = (vec![0u32], vec![], vec![]);
    for (s, (queries, len)) in seqs.iter().enumerate() {
        let (k, v) =
            (numbers(len * kv_heads * k_dim, 10 + s as u64), numbers(len * kv_heads * v_dim, 20 + s as u64));
        let first = bounds[s] as usize;
        for r in 0..*queries {
            for h in 0..heads {
                let kv_head = h / (heads / kv_heads);
                let query = rounded(&q[((first + r) * heads + h) * k_dim..][..k_dim], elem);
                let (k, v) = (head_of(&k, kv_heads, k_dim, kv_head), head_of(&v, kv_heads, v_dim, kv_head));
                let o = model(
                    &query,
                    &kept(&k, k_dim, held),
                    &kept(&v, v_dim, held),
                    v_dim,
                    len - queries + r,
                    scores,
                    own.of(h, scores),
                );
                want[((first + r) * heads + h) * v_dim..][..v_dim].copy_from_slice(&rounded(&o, elem));
            }
        }
        bounds.push((first + queries) as u32);
        keys.push(k);
        values.push(v);
    }
    let rows: Vec<u32> = (0..seqs.len() as u32).rev().collect();
    // The slabs as the append would have left them.
    let fill = |data: &[Vec<f32>], dim: usize| {
        let mut slab = vec![f32::NAN; pages * kv_heads * page_size * dim];
        for (s, x) in data.iter().enumerate() {
            for (j, row) in x.chunks(kv_heads * dim).enumerate() {
                let page = table[rows[s] as usize * stride + j / page_size] as usize;
                for h in 0..kv_heads {
                    let to = ((page * kv_heads + h) * page_size + j % page_size) * dim;
                    slab[to..to + dim].copy_from_slice(&row[h * dim..][..dim]);
                }
            }
        }
        if held.is_coded() { slab_of(&slab, dim, held) } else { encode(&slab, held) }
    };
    let (k_slab, v_slab) = (fill(&keys, k_dim), fill(&values, v_dim));
    let lens: Vec<u32> = seqs.iter().map(|s| s.1 as u32).collect();
    let most = *lens.iter().max().unwrap();
    on(&mut |gpu| {
        for split in [false, true] {
            let mut kv =
                slabs(gpu, pages as u32, page_size as u32, kv_heads as u32, k_dim as u32, v_dim as u32, held);
            (kv.keys, kv.values) = (gpu.put(&k_slab), gpu.put(&v_slab));
            let parts = Split::bytes(tokens as u32, heads as u32, most, v_dim as u32);
            let split = match split {
                true => Split { parts: gpu.empty(parts as usize), chunks: most.div_ceil(CHUNK), share: 2 },
                false => Split::default(),
            };
            let out = gpu.matrix(&old, heads * v_dim, elem, heads * v_dim + 1, 0);
            let p = Paged {
                q: gpu.matrix(&q, heads * k_dim, elem, heads * k_dim + 3, 0),
                out,
                kv,
                scores: own.put(gpu, scores),
                bounds: gpu.put(&bounds),
                table_rows: gpu.put(&rows),
                kv_lens: gpu.put(&lens),
                table: PageTable::new(gpu.put(&table), seqs.len() as u32, stride as u32, &kv),
                split,
                seqs: seqs.len() as u32,
                heads: heads as u32,
                elem,
                reserved: 0,
            };
            gpu.run(&p, &p.launch());
            if let Some(merge) = p.merge() {
                gpu.run(&p, &merge);
            }
            same(&gpu.values(out, elem), &want, "attend");
        }
    });
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
        check_dense(scores, Elem::ALL[i % 3]);
    }
}

/// Scores so far apart that exponents overflow where the largest one is missed: outputs of 16 bits show
/// nothing less.
#[test]
fn the_largest_score_is_found_wherever_it_lies() {
    let scores = Scores { scale: 60.0, ..Zeroable::zeroed() };
    let shape = Shape { heads: 4, kv_heads: 2, k_dim: 10, v_dim: 6 };
    for elem in Elem::ALL {
        check_dense(&scores, elem);
        check_dense(&Scores { ahead: Scores::ALL, ..scores }, elem);
        check_paged_on(&shape, &[(1, 150), (3, 67)], &scores, (elem, elem), 16, Machine::once);
    }
}

/// Four heads over sequences of 3, 0 and 80 tokens that stand among others.
fn check_dense(scores: &Scores, elem: Elem) {
    let Shape { heads, kv_heads, k_dim, v_dim } = Shape { heads: 4, kv_heads: 2, k_dim: 10, v_dim: 6 };
    let bounds = [1u32, 4, 4, 84];
    let tokens = 85;
    let q = numbers(tokens * heads * k_dim, 1);
    let (k, v) = (numbers(tokens * kv_heads * k_dim, 2), numbers(tokens * kv_heads * v_dim, 3));
    let old = numbers(tokens * heads * v_dim, 4);
    let own = OfHeads::new(heads, scores, 5);
    let mut want = rounded(&old, elem);
    for w in bounds.windows(2) {
        let (first, end) = (w[0] as usize, w[1] as usize);
        for r in first..end {
            for h in 0..heads {
                let query = rounded(&q[(r * heads + h) * k_dim..][..k_dim], elem);
                let part = |x: &[f32], dim: usize| {
                    rounded(
                        &head_of(&x[first * kv_heads * dim..end * kv_heads * dim], kv_heads, dim, h / 2),
                        elem,
                    )
                };
                let o = model(
                    &query,
                    &part(&k, k_dim),
                    &part(&v, v_dim),
                    v_dim,
                    r - first,
                    scores,
                    own.of(h, scores),
                );
                want[(r * heads + h) * v_dim..][..v_dim].copy_from_slice(&rounded(&o, elem));
            }
        }
    }
    Machine::each(&mut |gpu| {
        let out = gpu.dense(&old, heads * v_dim, elem);
        let p = Dense {
            q: gpu.dense(&q, heads * k_dim, elem),
            out,
            k: gpu.matrix(&k, kv_heads * k_dim, elem, kv_heads * k_dim + 4, 0),
            v: gpu.dense(&v, kv_heads * v_dim, elem),
            scores: own.put(gpu, scores),
            bounds: gpu.put(&bounds),
            seqs: 3,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
            elem,
        };
        gpu.run(&p, &p.launch());
        same(&gpu.values(out, elem), &want, "attend_dense");
    });
}
