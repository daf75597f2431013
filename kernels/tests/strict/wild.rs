//! Values in device buffers that no step would hold: whatever they are, no kernel touches anything outside
//! its operands. The machine ends a test that does; what comes out means nothing.

use crate::embed::every_weight;
use crate::kv::slabs;
use crate::linear::leaves;
use crate::machine::{Machine, numbers, words};
use engraft_core::sample::SampleRow;
use engraft_kernels::params::Elem;
use engraft_kernels::params::attention::{Dense, Paged, Scores, Split};
use engraft_kernels::params::embed::Embed;
use engraft_kernels::params::kv::{Append, Copy, PageTable, Read};
use engraft_kernels::params::moe::ExpertLinear;
use engraft_kernels::params::picture::{Conv, Linear};
use engraft_kernels::params::rope::Rope;
use engraft_kernels::params::rows::{Gather, Scatter, Seen};
use engraft_kernels::params::sample::Sample;

/// Words that lie inside, on and beyond every bound of these tests.
fn wild(n: usize, seed: u64) -> Vec<u32> {
    const SOME: [u32; 16] =
        [0, 1, 2, 3, 4, 6, 7, 9, 63, 64, 65, 300, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
    words(n, seed).into_iter().map(|w| if w & 64 == 0 { SOME[w as usize % 16] } else { w }).collect()
}

/// Biases of four heads, of one to three distances each, for some seeds.
fn biased(gpu: &mut Machine, seed: u64, scores: Scores) -> Scores {
    let (behind, ahead) = (seed as u32 % 3, 0);
    match seed % 5 {
        3 | 4 => {
            let bias = gpu.put(&numbers(4 * (behind + 1 + ahead) as usize, 3));
            Scores { bias, bias_behind: behind, bias_ahead: ahead, ..scores }
        }
        _ => scores,
    }
}

fn scores(seed: u64) -> Scores {
    let flags = [0, Scores::CHUNKED, Scores::WINDOW, Scores::WINDOW];
    let ahead = [Scores::ALL, 0, 0, 3];
    Scores {
        ahead: ahead[seed as usize % 4],
        scale: 0.3,
        window: 5,
        flags: flags[seed as usize % 4],
        ..bytemuck::Zeroable::zeroed()
    }
}

#[test]
fn attention_over_pages() {
    let (heads, kv_heads, dim, tokens, seqs, stride) = (4u32, 2u32, 8u32, 6usize, 3usize, 5u32);
    for seed in 0..24 {
        Machine::once(&mut |gpu| {
            // Without pages there is nothing to see.
            let held = [Elem::BF16, Elem::INT8, Elem::FP8][seed as usize % 3];
            let kv = slabs(gpu, if seed == 0 { 0 } else { 4 }, 16, kv_heads, dim, dim, held);
            let rows = 2;
            // Scratch for less than a row of the table.
            let chunks = 1;
            let parts = Split::bytes(tokens as u32, heads, 64 * chunks, dim);
            let split = match seed % 2 {
                0 => Split::default(),
                _ => Split { parts: gpu.put(&vec![0u8; parts as usize]), chunks, share: 1 },
            };
            let cols = (heads * dim) as usize;
            let p = Paged {
                q: gpu.dense(&numbers(tokens * cols, 1), cols, Elem::F32),
                out: gpu.dense(&numbers(tokens * cols, 2), cols, Elem::F32),
                kv,
                scores: biased(gpu, seed, scores(seed / 2)),
                bounds: gpu.put(&wild(seqs + 1, seed)),
                table_rows: gpu.put(&wild(seqs, seed + 100)),
                kv_lens: gpu.put(&wild(seqs, seed + 200)),
                table: PageTable::new(
                    gpu.put(&wild((rows * stride) as usize, seed + 300)),
                    rows,
                    stride,
                    &kv,
                ),
                split,
                seqs: seqs as u32,
                heads,
                elem: Elem::F32,
                reserved: 0,
            };
            gpu.run(&p, &p.launch());
            p.merge().iter().for_each(|merge| gpu.run(&p, merge));
        });
    }
}

#[test]
fn attention_over_rows() {
    let (heads, kv_heads, dim, tokens, seqs) = (4u32, 2u32, 8u32, 70usize, 3usize);
    for seed in 0..16 {
        Machine::once(&mut |gpu| {
            let (cols, kv_cols) = ((heads * dim) as usize, (kv_heads * dim) as usize);
            let p = Dense {
                q: gpu.dense(&numbers(tokens * cols, 1), cols, Elem::F16),
                out: gpu.dense(&numbers(tokens * cols, 2), cols, Elem::F16),
                k: gpu.dense(&numbers(tokens * kv_cols, 3), kv_cols, Elem::F16),
                v: gpu.dense(&numbers(tokens * kv_cols, 4), kv_cols, Elem::F16),
                scores: biased(gpu, seed, scores(seed)),
                bounds: gpu.put(&wild(seqs + 1, seed)),
                seqs: seqs as u32,
                heads,
                kv_heads,
                k_dim: dim,
                v_dim: dim,
                elem: Elem::F16,
            };
            gpu.run(&p, &p.launch());
        });
    }
}

#[test]
fn experts() {
    let (count, n, k, slots, tokens) = (5usize, 35usize, 64usize, 14usize, 7usize);
    let weight = &every_weight(count * n, k)[0];
    for seed in 0..24 {
        Machine::once(&mut |gpu| {
            let (x, out) = (numbers(tokens * k, 1), vec![0.0; slots * n]);
            let mut groups = wild(count + 1 + slots, seed);
            if seed % 2 == 0 {
                // Bounds in order, so that many tiles run: slots are wild alone.
                groups[..=count].copy_from_slice(&[0, 3, 3, 9, u32::MAX, 0]);
            }
            let p = ExpertLinear {
                x: gpu.dense(&x, k, Elem::F32),
                weight: weight.view(gpu),
                out: gpu.dense(&out, n, Elem::F32),
                bias: gpu.put(&numbers(count * n, 2)),
                groups: gpu.put(&groups),
                leaves: leaves(k, 1),
                count: count as u32,
                first: 0,
                own: count as u32,
                elem: Elem::F32,
                elem_out: Elem::F32,
            };
            gpu.run_wild(&p, &p.launch(weight.format));
            // Many slots to an expert: the other entry.
            let launch = ExpertLinear { count: 1, own: 1, ..p };
            gpu.run_wild(&launch, &launch.launch(weight.format));
        });
    }
}

#[test]
fn keys_and_values() {
    let (tokens, kv_heads, dim, page_size) = (9usize, 2u32, 8u32, 4u32);
    for seed in 0..16 {
        Machine::once(&mut |gpu| {
            let held = [Elem::F16, Elem::INT8, Elem::FP8][seed as usize % 3];
            let kv = slabs(gpu, 3, page_size, kv_heads, dim, dim, held);
            let cols = (kv_heads * dim) as usize;
            let [k, v] = [1, 2].map(|s| gpu.dense(&numbers(tokens * cols, s), cols, Elem::F32));
            let slots = gpu.put(&wild(tokens, seed));
            let append = Append { k, v, kv, slots, elem: Elem::F32, reserved: 0 };
            gpu.run_wild(&append, &append.launch());
            let copy = Copy { kv, pairs: gpu.put(&wild(8, seed)), count: 4, reserved: 0 };
            gpu.run(&copy, &copy.launch());
            let pages = gpu.put(&wild(tokens.div_ceil(page_size as usize), seed));
            let read = Read { k, v, kv, pages, elem: Elem::F32, reserved: 0 };
            gpu.run(&read, &read.launch());
        });
    }
}

#[test]
fn rows_ids_and_positions() {
    let (rows, cols) = (9usize, 16usize);
    let table = &every_weight(7, cols)[0];
    for seed in 0..16 {
        Machine::once(&mut |gpu| {
            let [x, out] = [1, 2].map(|s| gpu.dense(&numbers(rows * cols, s), cols, Elem::F32));
            let ids = gpu.put(&wild(rows, seed));
            let embed = Embed { ids, table: table.view(gpu), out, elem: Elem::F32, add: 1 };
            gpu.run(&embed, &embed.launch(table.format));
            let gather = Gather { x, out, rows: ids, elem: Elem::F32, reserved: 0 };
            gpu.run(&gather, &gather.launch());
            let rope = Rope {
                x,
                positions: ids,
                table: gpu.put(&numbers(2 * 5 * 4, 3)),
                table_positions: 5,
                pairs: 4,
                heads: 2,
                width: 8,
                interleaved: 0,
                elem: Elem::F32,
            };
            gpu.run(&rope, &rope.launch());
            let (dst, seen) = (gpu.put(&[0u32; 6]), gpu.put(&[0u32; 3]));
            let scatter = Scatter { pairs: gpu.put(&wild(8, seed)), dst, count: 4, len: 6 };
            gpu.run(&scatter, &scatter.launch());
            let seen = Seen { ids, seen, count: rows as u32, words: 3 };
            gpu.run(&seen, &seen.launch());
        });
    }
}

#[test]
fn convolutions_in_groups_and_linear_attention() {
    let (rows, heads, width) = (9usize, 2usize, 8usize);
    let cols = heads * width;
    for seed in 0..16 {
        Machine::once(&mut |gpu| {
            let [x, k, v, out] = [1, 2, 3, 4].map(|s| gpu.dense(&numbers(rows * cols, s), cols, Elem::F32));
            let conv = Conv {
                x,
                out,
                rows: gpu.put(&wild(rows * 3, seed)),
                weight: gpu.put(&numbers(3 * cols, 5)),
                bias: 0,
                taps: 3,
                inputs: 1,
                outputs: 1,
                elem: Elem::F32,
            };
            gpu.run(&conv, &conv.launch());
            let items = 3;
            let linear = Linear {
                q: x,
                k,
                v,
                sums: gpu.dense(&vec![0.0; items * cols * (width + 1)], width + 1, Elem::F32),
                out,
                bounds: gpu.put(&wild(items + 1, seed + 100)),
                items: items as u32,
                heads: heads as u32,
                width: width as u32,
                step: width as u32,
                eps: 1e-6,
                elem: Elem::F32,
            };
            linear.launches().iter().for_each(|launch| gpu.run(&linear, launch));
        });
    }
}

#[test]
fn sampling() {
    let (rows, vocab) = (6usize, 70usize);
    for seed in 0..16 {
        Machine::once(&mut |gpu| {
            let table: Vec<SampleRow> = wild(4 * 12, seed)
                .chunks(12)
                .map(|row| bytemuck::pod_read_unaligned(bytemuck::cast_slice(row)))
                .collect();
            let p = Sample {
                logits: gpu.dense(&numbers(rows * vocab, 1), vocab, Elem::F32),
                table: gpu.put(&table),
                slots: gpu.put(&wild(rows, seed + 1)),
                positions: gpu.put(&wild(rows, seed + 2)),
                seen: gpu.put(&[0u32; 6]),
                out: gpu.empty(4 * rows),
                table_rows: table.len() as u32,
                seen_rows: 2,
                seen_words: 3,
                reserved: 0,
            };
            gpu.run_wild(&p, &p.launch());
        });
    }
}
