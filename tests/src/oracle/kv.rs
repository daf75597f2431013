//! Slabs as flat rows: slot after slot.

use crate::compare::Want;
use crate::oracle::kv_row;
use crate::spec::kv::{AppendCase, CopyCase, ReadCase};

/// `kv_append`: keys and values of every slot.
pub fn append(case: &AppendCase) -> Vec<Want> {
    let layout = case.slab.layout;
    let mut k: Vec<f32> = case.slab.keys().iter().map(|v| *v as f32).collect();
    let mut v = case.slab.values();
    for (t, slot) in case.slots.iter().enumerate() {
        let Some(slot) = case.slab.slot(*slot) else { continue };
        for (to, from, width) in [(&mut k, &case.k, layout.k_dim), (&mut v, &case.v, layout.v_dim)] {
            let row = kv_row::rounded(layout.format, width, from.row(t));
            to[slot * from.cols..][..from.cols].copy_from_slice(&row);
        }
    }
    vec![Want::Exact(k), Want::Exact(v)]
}

/// `kv_copy_pages`: keys and values of every slot.
pub fn copy(case: &CopyCase) -> Vec<Want> {
    let layout = case.slab.layout;
    let mut k: Vec<f32> = case.slab.keys().iter().map(|v| *v as f32).collect();
    let mut v = case.slab.values();
    let cols = [layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim];
    let there = |pair: &&[u32]| pair.iter().all(|page| (*page as usize) < layout.pages);
    for pair in case.pairs.chunks(2).filter(there) {
        for (rows, cols) in [&mut k, &mut v].into_iter().zip(cols) {
            let page = layout.page_size * cols;
            let from = pair[0] as usize * page;
            rows.copy_within(from..from + page, pair[1] as usize * page);
        }
    }
    vec![Want::Exact(k), Want::Exact(v)]
}

/// `kv_read`: position `p` is row `p % page_size` of page `p / page_size` of the table's row.
pub fn read(case: &ReadCase) -> Vec<Want> {
    let layout = case.slab.layout;
    let k: Vec<f32> = case.slab.keys().iter().map(|v| *v as f32).collect();
    let cols = [layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim];
    let read = |all: Vec<f32>, cols: usize| {
        let slot = |p: usize| {
            let page = case.table[case.row * case.stride + p / layout.page_size] as usize;
            page * layout.page_size + p % layout.page_size
        };
        let rows = (0..case.positions).flat_map(|p| all[slot(p) * cols..][..cols].to_vec());
        Want::Exact(rows.collect())
    };
    vec![read(k, cols[0]), read(case.slab.values(), cols[1])]
}
