//! Heads normed, rotated and appended at once, by every norm into every slab: what the norm, the rope and the
//! append one after the other give.

use crate::kv::{rotate, slabs};
use crate::machine::{Machine, numbers, rounded, same};
use crate::norm::{Kind, kinds, model};
use engraft_kernels::params::kv::{Append, HeadNorm, KvView, RotateAppend};
use engraft_kernels::params::{Elem, MatView};
use sample::some;

const TOKENS: usize = 4;
const HEADS: usize = 3;
const KV_HEADS: usize = 2;
/// Pairs that are rotated, positions of the table: one of the tokens lies beyond it.
const PAIRS: usize = 3;
const POSITIONS: usize = 9;
const SLOTS: [i32; TOKENS] = [3, -1, 6, 1];
const EPS: f32 = 1e-6;

/// Widths of keys and values: leaves of one column to five, whole eights and not, codes by four and by one.
const SHAPES: [(usize, usize); 5] = [(16, 24), (9, 5), (40, 8), (24, 66), (7, 36)];

fn by(gpu: &mut Machine, kind: &Kind<'_>) -> HeadNorm {
    HeadNorm {
        weight: kind.weight.map_or(0, |w| gpu.put(w)),
        bias: kind.bias.map_or(0, |b| gpu.put(b)),
        eps: EPS,
        flags: HeadNorm::NORM
            | if kind.layer { HeadNorm::LAYER } else { 0 }
            | if kind.plus_one { HeadNorm::PLUS_ONE } else { 0 },
    }
}

/// Bytes of both slabs.
fn slabs_of(gpu: &mut Machine, kv: KvView) -> [Vec<u8>; 2] {
    let (k, v) = kv.slab_bytes();
    [gpu.get(kv.keys, k as usize), gpu.get(kv.values, v as usize)]
}

/// Columns of rows that lie there.
fn part(rows: MatView, elem: Elem, from: usize, cols: usize) -> MatView {
    MatView { ptr: rows.ptr + (from * elem.bytes() as usize) as u64, cols: cols as u32, ..rows }
}

#[test]
fn every_norm_and_rotation_into_every_slab_equals_its_parts() {
    let held = [Elem::F32, Elem::F16, Elem::BF16, Elem::INT8, Elem::FP8];
    let turns = Elem::ALL.into_iter().flat_map(|elem| SHAPES.map(|shape| (elem, shape))).enumerate();
    for (i, (elem, (k_dim, v_dim))) in some(turns) {
        let cols = HEADS * k_dim + KV_HEADS * (k_dim + v_dim);
        let (w, b, table) = (numbers(k_dim, 3), numbers(k_dim, 4), numbers(2 * POSITIONS * PAIRS, 2));
        let mut x = numbers(TOKENS * cols, 1);
        // A value head of zeros, and a value that is tiny next to others of its head.
        x[cols - v_dim..cols].fill(0.0);
        x[cols - 2 * v_dim] = 1e-5;
        let positions = [8u32, 2, 9, 5];
        let kinds = kinds(&w, &b);
        for (turn, q_kind) in kinds.iter().enumerate() {
            let (k_kind, interleaved) = (&kinds[(turn + 3) % kinds.len()], turn % 2 == 0);
            let mut want = rounded(&x, elem);
            for (row, at) in want.chunks_mut(cols).zip(positions) {
                for (h, head) in row.chunks_mut(k_dim).take(HEADS + KV_HEADS).enumerate() {
                    let kind = if h < HEADS { q_kind } else { k_kind };
                    head.copy_from_slice(&rounded(&model(head, kind, EPS), elem));
                    if (at as usize) < POSITIONS {
                        rotate(head, k_dim, &table, (at as usize, POSITIONS), PAIRS, interleaved, elem);
                    }
                }
            }
            let held = held[(i + turn) % held.len()];
            Machine::once(&mut |gpu| {
                let mut slabs = || slabs(gpu, 2, 4, KV_HEADS as u32, k_dim as u32, v_dim as u32, held);
                let (kv, parts) = (slabs(), slabs());
                let slots = gpu.put(&SLOTS);
                let p = RotateAppend {
                    // Rows at multiples of 16 bytes where the dimensions are.
                    qkv: gpu.matrix(&x, cols, elem, cols.next_multiple_of(8), 0),
                    kv,
                    q_norm: by(gpu, q_kind),
                    k_norm: by(gpu, k_kind),
                    table: gpu.put(&table),
                    positions: gpu.put(&positions),
                    slots,
                    table_positions: POSITIONS as u32,
                    pairs: PAIRS as u32,
                    interleaved: u32::from(interleaved),
                    heads: HEADS as u32,
                    elem,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                let what = format!("{} into {}, norm {turn}", elem.name(), held.name());
                same(&gpu.values(p.qkv, elem), &want, &what);
                let rows = gpu.matrix(&want, cols, elem, cols, 0);
                let k = part(rows, elem, HEADS * k_dim, KV_HEADS * k_dim);
                let v = part(rows, elem, (HEADS + KV_HEADS) * k_dim, KV_HEADS * v_dim);
                let append = Append { k, v, kv: parts, slots, elem, reserved: 0 };
                gpu.run(&append, &append.launch());
                assert_eq!(slabs_of(gpu, kv), slabs_of(gpu, parts), "slabs, {what}");
            });
        }
    }
}
