//! The choice of the best keys.

use crate::machine::{Machine, words};
use engraft_kernels::params::MatView;
use engraft_kernels::params::index::{Choose, Lists};

const PAGE: usize = 16;

/// Slots of the `count` largest scores in the order of positions, of equal ones the earlier; pages run
/// backwards.
fn chosen(scores: &[f32], pages: usize, count: usize) -> Vec<u32> {
    let mut best: Vec<usize> = (0..scores.len()).collect();
    best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    best.truncate(count);
    best.sort_unstable();
    best.into_iter().map(|key| ((pages - 1 - key / PAGE) * PAGE + key % PAGE) as u32).collect()
}

/// Scores that differ in one byte alone: the others are all equal, and every key counts in the search
/// for the least that is chosen, those behind the first 256 as well.
#[test]
fn scores_may_differ_in_one_byte_alone() {
    for (keys, shift) in [(600usize, 0), (513, 8), (300, 16), (257, 0)] {
        let pages = keys.div_ceil(PAGE);
        let scores: Vec<f32> =
            words(keys, 3).iter().map(|word| f32::from_bits(0x3f00_0000 | (word >> 24) << shift)).collect();
        for count in [1, 37, 100, keys - 1] {
            let mut want = chosen(&scores, pages, count);
            // Nothing is written behind the row.
            want.push(77);
            let table: Vec<u32> = (0..pages as u32).rev().collect();
            Machine::each(&mut |gpu| {
                let lists = Lists {
                    bounds: gpu.put(&[0u32, 1]),
                    table_rows: gpu.put(&[0u32]),
                    kv_lens: gpu.put(&[keys as u32]),
                    table: gpu.put(&table),
                    seqs: 1,
                    rows: 1,
                    stride: pages as u32,
                    page_size: PAGE as u32,
                    first: 0,
                    count: count as u32,
                };
                let (at, out, counts) = (gpu.put(&scores), gpu.put(&vec![77u32; count + 1]), gpu.empty(4));
                let view = MatView { ptr: at, pitch: keys as u64, rows: 1, cols: keys as u32 };
                let p = Choose { scores: view, lists, chosen: out, counts };
                gpu.run(&p, &p.launch());
                assert_eq!(gpu.get::<u32>(out, count + 1), want, "{count} of {keys} keys, shift {shift}");
                assert_eq!(gpu.get::<u32>(counts, 1), [count as u32]);
            });
        }
    }
}
