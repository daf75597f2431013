//! Keys and values as codes: what is appended, copied and read, against the host's rounding of a row, byte
//! for byte.

use crate::kv::slabs;
use crate::machine::{Machine, numbers, round, rounded, same};
use engraft_core::mem::KvCode;
use engraft_core::quant::kv_row;
use engraft_kernels::params::Elem;
use engraft_kernels::params::kv::{Append, Copy, HeadNorm, KvView, Read, RotateAppend};

const BOTH: [Elem; 2] = [Elem::INT8, Elem::FP8];
const TOKENS: usize = 11;

fn code(held: Elem) -> Option<KvCode> {
    match held {
        Elem::INT8 => Some(KvCode::Int8),
        Elem::FP8 => Some(KvCode::Fp8),
        _ => None,
    }
}

/// Rows of `width` values as a slab of this type gives them.
pub fn kept(values: &[f32], width: usize, held: Elem) -> Vec<f32> {
    let Some(code) = code(held) else { return rounded(values, held) };
    kv_row::unpack(code, width, &kv_row::pack(code, width, values))
}

/// The bytes of a slab of codes that has these rows: codes, then scales.
pub fn slab_of(rows: &[f32], width: usize, held: Elem) -> Vec<u8> {
    let code = code(held).unwrap();
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in rows.chunks(width) {
        let mut of = vec![0; width];
        scales.extend(kv_row::encode(code, row, &mut of).to_le_bytes());
        codes.extend(of);
    }
    codes.resize(codes.len().next_multiple_of(16), 0);
    codes.extend(scales);
    codes
}

/// Rows of heads, among them what is at the ends of the range: rows of zeros, tiny and huge ones, infinities,
/// NaN, ties.
fn awkward(width: usize, heads: usize, seed: u64) -> Vec<f32> {
    let mut all = numbers(TOKENS * heads * width, seed);
    for (i, row) in all.chunks_mut(width).enumerate() {
        match i % 9 {
            1 => row.fill(if i % 2 == 0 { 0.0 } else { -0.0 }),
            2 => row.iter_mut().for_each(|v| *v *= 1e-31),
            3 => row.iter_mut().for_each(|v| *v *= 1e32),
            4 => row[width / 2] = f32::NAN,
            5 => row[width - 1] = f32::NEG_INFINITY,
            // Their scale is 1: halves of integers, and odd integers, of which e4m3 has none from 16 on.
            6 => {
                let (top, first, step) = if i % 2 == 0 { (127.0, -6.0, 0.5) } else { (448.0, 16.0, 1.0) };
                row.iter_mut().enumerate().for_each(|(d, v)| *v = first + (d % 16) as f32 * step);
                row[0] = top;
            }
            7 => row[0] = if i % 2 == 0 { 448.0 } else { -127.0 },
            _ => {}
        }
    }
    all
}

/// Which slots a case writes: pages 2 and 0 of four, one row left out, one beyond the slab.
fn slots(page_size: u32) -> Vec<i32> {
    let at = |i: u32| ((if i < page_size { 2 } else { 0 }) * page_size + i % page_size) as i32;
    let mut slots: Vec<i32> = (0..TOKENS as u32).map(at).collect();
    (slots[3], slots[5]) = (-1, 4 * page_size as i32);
    slots
}

/// A slab byte for byte: rows that a slot names are those of `x`, and all else is poison.
fn check(gpu: &mut Machine, kv: KvView, is_key: bool, x: &[f32], slots: &[i32]) {
    let (heads, page_size) = (kv.kv_heads as usize, kv.page_size as usize);
    let (slab, width, poison) =
        if is_key { (kv.keys, kv.k_dim, 0x55u8) } else { (kv.values, kv.v_dim, 0x66) };
    let (width, rows) = (width as usize, kv.pages as usize * heads * page_size);
    let bytes = if is_key { kv.slab_bytes().0 } else { kv.slab_bytes().1 };
    let scales_at = (rows * width).next_multiple_of(16);
    assert_eq!(bytes as usize, scales_at + rows * 4);
    let mut want = vec![poison; bytes as usize];
    for (row, slot) in x.chunks(heads * width).zip(slots) {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let (page, offset) = (slot / page_size, slot % page_size);
        for h in (0..heads).filter(|_| page < kv.pages as usize) {
            let row_number = (page * heads + h) * page_size + offset;
            let codes = &mut want[row_number * width..][..width];
            let scale = kv_row::encode(code(kv.elem).unwrap(), &row[h * width..][..width], codes);
            want[scales_at + row_number * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        }
    }
    let got: Vec<u8> = gpu.get(slab, bytes as usize);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let what = if i < scales_at { "code" } else { "byte of a scale" };
        assert_eq!(got, want, "{} {what} {i} of {bytes}, {width} columns", kv.elem.name());
    }
}

/// Heads, widths of keys and values, positions of a page: copies go by 16, 4, 2 and 1 bytes.
const SHAPES: [(usize, usize, usize, u32); 5] =
    [(2, 32, 16, 8), (1, 8, 24, 6), (3, 6, 10, 6), (3, 5, 7, 9), (1, 130, 66, 7)];

#[test]
fn rows_are_appended_as_the_host_rounds_them() {
    for (i, (heads, k_dim, v_dim, page_size)) in SHAPES.into_iter().enumerate() {
        let (k, v) = (awkward(k_dim, heads, 1), awkward(v_dim, heads, 2));
        let elem = Elem::ALL[i % 3];
        let slots = slots(page_size);
        for held in BOTH {
            Machine::each(&mut |gpu| {
                let kv = slabs(gpu, 4, page_size, heads as u32, k_dim as u32, v_dim as u32, held);
                let p = Append {
                    k: gpu.matrix(&k, heads * k_dim, elem, heads * k_dim + 1, 0),
                    v: gpu.matrix(&v, heads * v_dim, elem, heads * v_dim + 3, 1),
                    kv,
                    slots: gpu.put(&slots),
                    elem,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                check(gpu, kv, true, &rounded(&k, elem), &slots);
                check(gpu, kv, false, &rounded(&v, elem), &slots);
            });
        }
    }
}

#[test]
fn pages_of_codes_are_copied_and_read_with_their_scales() {
    let mut taken = std::collections::BTreeSet::new();
    for (heads, k_dim, v_dim, page_size) in SHAPES {
        let rows = 4 * page_size as usize * heads;
        let (k, v) = (numbers(rows * k_dim, 1), numbers(rows * v_dim, 2));
        for held in BOTH {
            Machine::each(&mut |gpu| {
                let mut kv = slabs(gpu, 4, page_size, heads as u32, k_dim as u32, v_dim as u32, held);
                kv.keys = gpu.put(&slab_of(&k, k_dim, held));
                kv.values = gpu.put(&slab_of(&v, v_dim, held));
                // Page 2 goes to 3 and from there to 1; page 0 stays.
                let copy = Copy { kv, pairs: gpu.put(&[2u32, 3, 0, 0, 3, 1, 9, 1]), count: 4, reserved: 0 };
                let launch = copy.launch();
                gpu.run(&copy, &launch);
                taken.insert(launch.entry);
                for (elem, pages) in [(Elem::F32, [1u32, 0]), (Elem::F16, [0, 3]), (Elem::BF16, [2, 1])] {
                    check_read(gpu, kv, [&k, &v], elem, pages);
                }
            });
        }
    }
    assert_eq!(taken, Copy::ENTRIES.map(String::from).into());
}

/// What positions of two pages read, where pages 1 and 3 have become what page 2 is.
fn check_read(gpu: &mut Machine, kv: KvView, rows: [&[f32]; 2], elem: Elem, pages: [u32; 2]) {
    let (heads, page_size) = (kv.kv_heads as usize, kv.page_size as usize);
    let count = page_size + page_size / 2;
    let widths = [kv.k_dim as usize, kv.v_dim as usize];
    let outs = widths.map(|width| {
        let cols = heads * width;
        gpu.matrix(&vec![9.0; count * cols], cols, elem, cols + 2, 0)
    });
    let p = Read { k: outs[0], v: outs[1], kv, pages: gpu.put(&pages), elem, reserved: 0 };
    gpu.run(&p, &p.launch());
    for ((out, rows), width) in outs.into_iter().zip(rows).zip(widths) {
        let values = kept(rows, width, kv.elem);
        let mut want = Vec::new();
        for position in 0..count {
            let page = if pages[position / page_size] == 0 { 0 } else { 2 };
            for h in 0..heads {
                let row = (page * heads + h) * page_size + position % page_size;
                want.extend(values[row * width..][..width].iter().map(|v| round(*v, elem)));
            }
        }
        same(&gpu.values(out, elem), &want, "read");
    }
}

/// Rounded to the activations' type first, as an append of its own would find them.
#[test]
fn rotated_heads_are_appended_as_codes() {
    for (elem, (k_dim, v_dim), pairs) in [
        (Elem::F32, (16, 24), 3),
        (Elem::F16, (9, 5), 4),
        (Elem::BF16, (64, 136), 32),
        (Elem::BF16, (8, 8), 0),
    ] {
        let (heads, kv_heads) = (3usize, 2usize);
        let cols = heads * k_dim + kv_heads * (k_dim + v_dim);
        let x = numbers(TOKENS * cols, 1);
        let table = numbers(2 * 9 * pairs, 2);
        let positions: Vec<u32> = (0..TOKENS as u32).map(|i| i * 5 % 9).collect();
        let slots = slots(6);
        for held in BOTH {
            Machine::each(&mut |gpu| {
                let kv = slabs(gpu, 4, 6, kv_heads as u32, k_dim as u32, v_dim as u32, held);
                let qkv = gpu.matrix(&x, cols, elem, cols + 8, 0);
                let by = HeadNorm { eps: 1e-6, flags: HeadNorm::NORM, ..HeadNorm::default() };
                let p = RotateAppend {
                    qkv,
                    kv,
                    q_norm: HeadNorm::default(),
                    k_norm: if k_dim == 9 { by } else { HeadNorm::default() },
                    table: if pairs > 0 { gpu.put(&table) } else { 0 },
                    positions: gpu.put(&positions),
                    slots: gpu.put(&slots),
                    table_positions: 9,
                    pairs: pairs as u32,
                    interleaved: 0,
                    heads: heads as u32,
                    elem,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                // What lies in the rows now is what was appended.
                let rows = gpu.values(qkv, elem);
                let part = |from: usize, width: usize| -> Vec<f32> {
                    rows.chunks(cols).flat_map(|row| row[from..][..kv_heads * width].to_vec()).collect()
                };
                check(gpu, kv, true, &part(heads * k_dim, k_dim), &slots);
                check(gpu, kv, false, &part((heads + kv_heads) * k_dim, v_dim), &slots);
            });
        }
    }
}
