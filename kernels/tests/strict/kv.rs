//! Rope, paged keys and values, and what is fused of them.

use crate::codes::{kept, slab_of};
use crate::machine::{Machine, decode, numbers, round, rounded, same};
use crate::norm;
use engraft_kernels::params::Elem;
use engraft_kernels::params::kv::{Append, Copy, HeadNorm, KvView, Read, RotateAppend};
use engraft_kernels::params::rope::Rope;

/// Slabs of pages that hold a poison, with room for `pages`.
pub fn slabs(
    gpu: &mut Machine,
    pages: u32,
    page_size: u32,
    kv_heads: u32,
    k_dim: u32,
    v_dim: u32,
    elem: Elem,
) -> KvView {
    let mut kv = KvView { keys: 0, values: 0, pages, page_size, kv_heads, k_dim, v_dim, elem };
    let (k, v) = kv.slab_bytes();
    kv.keys = gpu.put(&vec![0x55u8; k as usize]);
    kv.values = gpu.put(&vec![0x66u8; v as usize]);
    kv
}

/// Turns the heads of a row by the angles of position `at` of `positions`.
pub fn rotate(
    row: &mut [f32],
    width: usize,
    table: &[f32],
    (at, positions): (usize, usize),
    pairs: usize,
    interleaved: bool,
    elem: Elem,
) {
    let (cos, sin) = (&table[at * pairs..], &table[(positions + at) * pairs..]);
    for head in row.chunks_mut(width) {
        for i in 0..pairs {
            let (f, s) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
            let (a, b) = (head[f], head[s]);
            head[f] = round(a.mul_add(cos[i], -(b * sin[i])), elem);
            head[s] = round(b.mul_add(cos[i], a * sin[i]), elem);
        }
    }
}

#[test]
fn heads_rotate_and_the_rest_stays() {
    const TOKENS: usize = 5;
    for elem in Elem::ALL {
        for (heads, width, pairs, interleaved) in [(3, 10, 4, true), (2, 16, 8, false), (1, 9, 3, false)] {
            let x = numbers(TOKENS * heads * width, 1);
            let table = numbers(2 * 7 * pairs, 2);
            let positions = [6u32, 0, 3, 7, 3];
            let mut want = rounded(&x, elem);
            for (row, at) in want.chunks_mut(heads * width).zip(positions) {
                if at < 7 {
                    rotate(row, width, &table, (at as usize, 7), pairs, interleaved, elem);
                }
            }
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, heads * width, elem, heads * width + 3, 1);
                let p = Rope {
                    x: m,
                    positions: gpu.put(&positions),
                    table: gpu.put(&table),
                    table_positions: 7,
                    pairs: pairs as u32,
                    heads: heads as u32,
                    width: width as u32,
                    interleaved: u32::from(interleaved),
                    elem,
                };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "rope");
            });
        }
    }
}

#[test]
fn what_is_appended_copied_and_read_is_what_was_written() {
    const TOKENS: usize = 6;
    for (elem, held) in Elem::ALL.into_iter().flat_map(|elem| Elem::ALL.map(|held| (elem, held))) {
        for (heads, k_dim, v_dim, page_size) in [(2usize, 16usize, 8usize, 4u32), (3, 5, 7, 3)] {
            let (k, v) = (numbers(TOKENS * heads * k_dim, 1), numbers(TOKENS * heads * v_dim, 2));
            // Rows 0..6 are positions 0..6 of a sequence with pages 2 and 0; row 3 is skipped, row 5 lies
            // beyond the slab.
            let slot = |i: u32| (if i < page_size { 2 * page_size + i } else { i - page_size }) as i32;
            let mut slots: Vec<i32> = (0..6).map(slot).collect();
            (slots[3], slots[5]) = (-1, 4 * page_size as i32);
            Machine::each(&mut |gpu| {
                let kv = slabs(gpu, 4, page_size, heads as u32, k_dim as u32, v_dim as u32, held);
                let p = Append {
                    k: gpu.matrix(&k, heads * k_dim, elem, heads * k_dim + 1, 0),
                    v: gpu.dense(&v, heads * v_dim, elem),
                    kv,
                    slots: gpu.put(&slots),
                    elem,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                // Page 2 goes to 3 and from there to 1; page 0 stays.
                let copy = Copy { kv, pairs: gpu.put(&[2u32, 3, 0, 0, 3, 1, 9, 1]), count: 4, reserved: 0 };
                gpu.run(&copy, &copy.launch());
                for first in [2u32, 1] {
                    let pages = gpu.put(&[first, 0]);
                    let old = vec![9.0; 5 * heads * k_dim.max(v_dim)];
                    let out_k =
                        gpu.matrix(&old[..5 * heads * k_dim], heads * k_dim, elem, heads * k_dim + 2, 1);
                    let out_v = gpu.dense(&old[..5 * heads * v_dim], heads * v_dim, elem);
                    let read = Read { k: out_k, v: out_v, kv, pages, elem, reserved: 0 };
                    gpu.run(&read, &read.launch());
                    for (out, x, dim, poison) in [(out_k, &k, k_dim, 0x55u8), (out_v, &v, v_dim, 0x66)] {
                        let poison = decode(&vec![poison; held.bytes() as usize], held)[0];
                        let cols = heads * dim;
                        let mut want = rounded(&rounded(x, elem), held);
                        want[3 * cols..4 * cols].fill(poison);
                        same(&gpu.values(out, elem), &rounded(&want[..5 * cols], elem), "kv");
                    }
                }
            });
        }
    }
}

/// Into rows that begin at multiples of 16 bytes, eight values at once.
#[test]
fn pages_of_codes_are_read_into_whole_units() {
    let (heads, page_size, dims) = (2usize, 4usize, [16usize, 8]);
    let rows = 3 * page_size * heads;
    let slabs_of = dims.map(|dim| numbers(rows * dim, dim as u64));
    for (held, elem) in
        [Elem::INT8, Elem::FP8].into_iter().flat_map(|held| Elem::ALL.map(|elem| (held, elem)))
    {
        let pages = [2u32, 0];
        let want = [0, 1].map(|i| {
            let (values, dim) = (kept(&slabs_of[i], dims[i], held), dims[i]);
            let row = |at: usize| {
                let (position, head) = (at / heads, at % heads);
                let page = pages[position / page_size] as usize;
                let first = ((page * heads + head) * page_size + position % page_size) * dim;
                rounded(&values[first..first + dim], elem)
            };
            (0..7 * heads).flat_map(row).collect::<Vec<f32>>()
        });
        Machine::each(&mut |gpu| {
            let mut kv = slabs(gpu, 3, 4, heads as u32, dims[0] as u32, dims[1] as u32, held);
            kv.keys = gpu.put(&slab_of(&slabs_of[0], dims[0], held));
            kv.values = gpu.put(&slab_of(&slabs_of[1], dims[1], held));
            let [k, v] = dims.map(|dim| gpu.dense(&vec![9.0; 7 * heads * dim], heads * dim, elem));
            let read = Read { k, v, kv, pages: gpu.put(&pages), elem, reserved: 0 };
            gpu.run(&read, &read.launch());
            same(&gpu.values(k, elem), &want[0], "keys");
            same(&gpu.values(v, elem), &want[1], "values");
        });
    }
}

#[test]
fn the_fused_op_equals_its_parts() {
    const TOKENS: usize = 3;
    let (heads, kv_heads, pairs) = (4usize, 2usize, 3usize);
    for (elem, held) in [(Elem::F32, Elem::F32), (Elem::F16, Elem::F16), (Elem::BF16, Elem::F32)] {
        for (k_dim, v_dim) in [(16usize, 24usize), (9, 5)] {
            for (normed, with_rope, interleaved) in
                [(true, true, false), (false, true, true), (true, false, false)]
            {
                let cols = heads * k_dim + kv_heads * (k_dim + v_dim);
                let x = numbers(TOKENS * cols, 1);
                let (table, weight) = (numbers(2 * 9 * pairs, 2), numbers(k_dim, 3));
                let (positions, slots) = ([8u32, 2, 5], [3i32, -1, 6]);
                let mut want = rounded(&x, elem);
                for (row, at) in want.chunks_mut(cols).zip(positions) {
                    let rotated = &mut row[..(heads + kv_heads) * k_dim];
                    if normed {
                        let all: Vec<f32> = rotated
                            .chunks(k_dim)
                            .flat_map(|h| norm::model(h, &norm::Kind::rms(&weight), 1e-6))
                            .collect();
                        rotated.copy_from_slice(&rounded(&all, elem));
                    }
                    if with_rope {
                        rotate(rotated, k_dim, &table, (at as usize, 9), pairs, interleaved, elem);
                    }
                }
                Machine::each(&mut |gpu| {
                    let kv = slabs(gpu, 2, 4, kv_heads as u32, k_dim as u32, v_dim as u32, held);
                    let qkv = gpu.matrix(&x, cols, elem, cols + 8, 0);
                    let by = HeadNorm { weight: gpu.put(&weight), bias: 0, eps: 1e-6, flags: HeadNorm::NORM };
                    let by = if normed { by } else { HeadNorm::default() };
                    let p = RotateAppend {
                        qkv,
                        kv,
                        q_norm: by,
                        k_norm: by,
                        table: if with_rope { gpu.put(&table) } else { 0 },
                        positions: gpu.put(&positions),
                        slots: gpu.put(&slots),
                        table_positions: 9,
                        pairs: pairs as u32,
                        interleaved: u32::from(interleaved),
                        heads: heads as u32,
                        elem,
                        reserved: 0,
                    };
                    gpu.run(&p, &p.launch());
                    same(&gpu.values(qkv, elem), &want, "q, k and v in place");
                    check_slab(gpu, kv, &want, cols, heads * k_dim, &slots);
                });
            }
        }
    }
}

/// Keys and values of the slab against the rows of q | k | v that were appended.
fn check_slab(gpu: &mut Machine, kv: KvView, qkv: &[f32], cols: usize, k_at: usize, slots: &[i32]) {
    let (heads, k_dim, v_dim) = (kv.kv_heads as usize, kv.k_dim as usize, kv.v_dim as usize);
    for (dim, slab, from) in [(k_dim, kv.keys, k_at), (v_dim, kv.values, k_at + heads * k_dim)] {
        let all = (kv.pages * kv.page_size) as usize * heads * dim;
        let bytes: Vec<u8> = gpu.get(slab, all * kv.elem.bytes() as usize);
        let got = decode(&bytes, kv.elem);
        let poison = decode(&[if slab == kv.keys { 0x55u8 } else { 0x66 }; 4], kv.elem)[0];
        let mut want = vec![poison; all];
        for (row, slot) in qkv.chunks(cols).zip(slots) {
            let Ok(slot) = usize::try_from(*slot) else { continue };
            let (page, offset) = (slot / kv.page_size as usize, slot % kv.page_size as usize);
            for h in 0..heads {
                let to = ((page * heads + h) * kv.page_size as usize + offset) * dim;
                let head = &row[from + h * dim..][..dim];
                want[to..to + dim].copy_from_slice(&rounded(head, kv.elem));
            }
        }
        same(&got, &want, "slab");
    }
}
