//! Pages: what is appended, copied and read are the rows in the pages' type or, of codes, what
//! `quant::kv_row` makes of them, bit for bit, and nothing else is written.

use crate::testing::{bits, loaded, machines, stored, values};
use engraft_core::mem::{Float, KvFormat, KvLayout};
use engraft_core::numerics::Madd;
use engraft_core::quant::kv_row;
use engraft_cpu::kernels::kv::{PAD, Slab, append, copy_pages, read, slab_bytes};
use engraft_cpu::kernels::{AlignedBytes, RawMat, RawMatMut};

const PAGES: usize = 5;

/// Keys and values of all slots.
fn all(slab: Slab, layout: &KvLayout) -> [Vec<f32>; 2] {
    let cols = [layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim];
    let mut parts = cols.map(|cols| vec![f32::NAN; layout.slots() * cols]);
    let pages: Vec<u32> = (0..PAGES as u32).collect();
    let [k, v] = &mut parts;
    // SAFETY: the vectors outlive the call.
    unsafe { read(slab, &pages, RawMatMut::of(k, cols[0]), RawMatMut::of(v, cols[1])).unwrap() };
    parts
}

/// Rows as a slab holds them.
fn held(format: KvFormat, width: usize, rows: &[f32]) -> Vec<f32> {
    match format {
        KvFormat::Plain(dtype) => loaded(&stored(rows, dtype), dtype),
        KvFormat::Coded(code) => kv_row::unpack(code, width, &kv_row::pack(code, width, rows)),
    }
}

fn law(format: KvFormat, (page_size, kv_heads): (usize, usize), (k_dim, v_dim): (usize, usize)) {
    let layout = KvLayout { pages: PAGES, page_size, kv_heads, k_dim, v_dim, format };
    let (cols, slots) = ([kv_heads * k_dim, kv_heads * v_dim], layout.slots());
    let (k_bytes, v_bytes) = slab_bytes(&layout);
    for machine in machines(Madd::Fused) {
        let (mut ks, mut vs) = (AlignedBytes::zeroed(k_bytes), AlignedBytes::zeroed(v_bytes));
        // SAFETY: slabs of the right size that outlive the test; PAD bytes behind them are theirs.
        let slab = unsafe {
            ks.as_mut_ptr().write_bytes(0x21, k_bytes);
            vs.as_mut_ptr().write_bytes(0x21, v_bytes);
            Slab::new(ks.as_mut_ptr(), vs.as_mut_ptr(), layout)
        };
        let before = all(slab, &layout);
        // Every third slot stays as it was, some rows go nowhere.
        let to: Vec<i32> =
            (0..slots as i32 + 2).rev().map(|slot| if slot % 3 == 1 { -1 } else { slot }).collect();
        let (k, v) = (values(to.len() * cols[0], 4), values(to.len() * cols[1], 5));
        // SAFETY: the vectors outlive the call.
        unsafe {
            append(&machine, RawMat::of(&k, cols[0]), RawMat::of(&v, cols[1]), &to, slab).unwrap();
        }
        let mut want = before;
        for (want, (from, (cols, width))) in
            want.iter_mut().zip([(&k, (cols[0], k_dim)), (&v, (cols[1], v_dim))])
        {
            for (row, slot) in from.chunks(cols).zip(&to) {
                if let Some(place) = usize::try_from(*slot).ok().filter(|slot| *slot < slots) {
                    want[place * cols..][..cols].copy_from_slice(&held(format, width, row));
                }
            }
        }
        let what = format!("{format:?}, pages of {page_size}, {kv_heads} heads of {k_dim} and {v_dim}");
        let got = all(slab, &layout);
        assert_eq!((bits(&got[0]), bits(&got[1])), (bits(&want[0]), bits(&want[1])), "{what}");
        copy_pages(&[3, 1, 4, 4, 9, 0, 0, PAGES as u32], slab);
        for (want, cols) in want.iter_mut().zip(cols) {
            want.copy_within(3 * page_size * cols..4 * page_size * cols, page_size * cols);
        }
        let got = all(slab, &layout);
        assert_eq!((bits(&got[0]), bits(&got[1])), (bits(&want[0]), bits(&want[1])), "copied: {what}");
        // SAFETY: the bytes of both slabs.
        let pads = unsafe {
            [(&ks, k_bytes), (&vs, v_bytes)]
                .map(|(slab, bytes)| std::slice::from_raw_parts(slab.as_ptr().add(bytes - PAD), PAD).to_vec())
        };
        assert!(pads.concat().iter().all(|byte| *byte == 0x21), "written behind the slab: {what}");
    }
}

#[test]
fn rows_are_appended_copied_and_read() {
    let plain = [Float::F32, Float::F16, Float::Bf16].map(KvFormat::Plain);
    for format in plain.into_iter().chain([KvFormat::INT8, KvFormat::FP8]) {
        for pages in [(1, 1), (3, 2), (16, 1), (7, 5)] {
            for dims in [(1, 2), (33, 31), (64, 16), (130, 65)] {
                law(format, pages, dims);
            }
        }
    }
}
