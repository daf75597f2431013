//! Experts' matmuls by the kernels of every format: each has a copy of what finds slots, reads rows, decodes
//! and stores.

use crate::embed::{Weight, every_weight, plain};
use crate::machine::Machine;
use crate::moe::{How, Slots};
use engraft_kernels::params::Elem;
use engraft_kernels::params::moe::ExpertLinear;
use sample::some;

fn has_many(w: &Weight) -> bool {
    ExpertLinear::entries(w.format).count() > 1
}

/// Leaves that begin inside an eight, longer than what is staged at once; tiles that are full and not; plain
/// rows at multiples of 16 bytes and others; sums with a bias and without, as they are and rounded.
#[test]
fn every_kernel_sums_long_leaves_of_every_type() {
    const K: usize = 300;
    let aligned = Elem::ALL.map(|elem| plain(elem, 6, K + 4));
    for (i, w) in some(every_weight(6, K).into_iter().chain(aligned).enumerate()) {
        // Of two experts: 4 and 1 slots, 5 and 11.
        for each in [[4, 1], [5, 11]].into_iter().take(1 + usize::from(has_many(&w))) {
            let experts = [vec![0; each[0]], vec![1; each[1]]].concat();
            for (turn, elem) in Elem::ALL.into_iter().enumerate() {
                let elem_out = if (turn + i) % 2 == 0 { elem } else { Elem::F32 };
                let slots = Slots { experts: &experts, count: 2, top_k: 1, elem, per_token: false };
                let how = How { elem_out, bias: (turn + i / 3) % 2 == 0, grain: K / 2 - 1 };
                slots.check_how(&w, 0..2, how, Machine::once);
            }
        }
    }
}

/// A lane of a warp looks at four of these experts.
#[test]
fn every_kernel_finds_slots_among_a_hundred_experts() {
    const COUNT: usize = 103;
    let mut all = every_weight(COUNT, 16);
    all.dedup_by_key(|w| w.format);
    for w in some(all) {
        // Without slots, with one, with a tile and one more; neighbours have more tiles than their slots
        // would fill.
        let each = |e: usize| [1, 3, 0, 5, 2, 1, 4][e * 31 % 7];
        let few: Vec<u32> = (0..COUNT).flat_map(|e| vec![e as u32; each(e)]).collect();
        // Many to an expert are eight on average.
        let each = |e: usize| 5 + [0, 13, 2, 0, 9, 0, 1][e * 31 % 7];
        let many: Vec<u32> = (0..COUNT).flat_map(|e| vec![e as u32; each(e)]).collect();
        for experts in [&few, &many].into_iter().take(1 + usize::from(has_many(&w))) {
            let slots = Slots { experts, count: COUNT, top_k: 1, elem: Elem::F32, per_token: false };
            slots.check(&w, 0..COUNT, Machine::once);
            // Three to a lane, the last of which has two: the next one is another rank's.
            slots.check(&w, 2..97, Machine::once);
        }
    }
}
