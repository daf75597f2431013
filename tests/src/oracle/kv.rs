//! Slabs as flat rows: slot after slot.

use crate::compare::Want;
use crate::dice::round;
use crate::spec::kv::{AppendCase, CopyCase};

/// `kv_append`: keys and values of every slot.
pub fn append(case: &AppendCase) -> Vec<Want> {
    let layout = case.slab.layout;
    let mut k: Vec<f32> = case.slab.keys().iter().map(|v| *v as f32).collect();
    let mut v = case.slab.values();
    for (t, slot) in case.slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        for (to, from) in [(&mut k, &case.k), (&mut v, &case.v)] {
            for (i, x) in from.row(t).iter().enumerate() {
                to[slot * from.cols + i] = round(*x, layout.dtype);
            }
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
    for pair in case.pairs.chunks(2) {
        for (rows, cols) in [&mut k, &mut v].into_iter().zip(cols) {
            let page = layout.page_size * cols;
            let from = pair[0] as usize * page;
            rows.copy_within(from..from + page, pair[1] as usize * page);
        }
    }
    vec![Want::Exact(k), Want::Exact(v)]
}
