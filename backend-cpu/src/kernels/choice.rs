//! Which experts are chosen by their keys, and which groups of experts; the slots of every expert.
//!
//! Depends on no other file of this package: `tests/kernels` compiles it with its tests.

use engraft_core::params::{ExpertGroups, GroupRank};

/// NaN counts as the smallest.
#[inline]
pub fn comparable(v: f32) -> f32 {
    if v.is_nan() { f32::NEG_INFINITY } else { v }
}

/// Experts of a group, and the groups whose experts may be chosen, a bit each.
pub fn open(keys: &[f32], groups: ExpertGroups) -> (usize, u32) {
    let (mut ranks, mut best) = ([0.0; ExpertGroups::MAX], [0; ExpertGroups::MAX]);
    let size = (keys.len() / groups.count).max(1);
    for (rank, keys) in ranks.iter_mut().zip(keys.chunks_exact(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for key in keys.iter().map(|key| comparable(*key)) {
            if key > first {
                (first, second) = (key, first);
            } else if key > second {
                second = key;
            }
        }
        *rank = if groups.rank == GroupRank::BestTwo && size > 1 { first + second } else { first };
    }
    let best = &mut best[..groups.chosen];
    choose(&ranks[..groups.count], 0..groups.count as u32, best);
    (size, best.iter().fold(0, |open, group| open | 1 << group))
}

/// Of the columns `from`, ascending, those with the largest keys, ascending; ties go to the lowest.
pub fn choose(keys: &[f32], from: impl Iterator<Item = u32>, chosen: &mut [u32]) {
    let key = |i: u32| comparable(keys[i as usize]);
    let mut count = 0;
    for i in from {
        // `chosen[..count]` is in descending order; equals stay in front.
        let at = chosen[..count].partition_point(|c| key(*c) >= key(i));
        if at == chosen.len() {
            continue;
        }
        let end = (count + 1).min(chosen.len());
        chosen[at..end].rotate_right(1);
        chosen[at] = i;
        count = end;
    }
    chosen.sort_unstable();
}

/// Slots by expert: `groups` holds `count + 1` bounds, then the slots of expert 0, of expert 1, ..., each
/// ascending. All of `experts` are below `count`, and `groups` has room.
pub fn group(experts: &[u32], count: usize, groups: &mut [u32]) {
    let (bounds, order) = groups.split_at_mut(count + 1);
    bounds.fill(0);
    for e in experts {
        bounds[*e as usize + 1] += 1;
    }
    for e in 0..count {
        bounds[e + 1] += bounds[e];
    }
    // Each bound walks to the end of its group and is moved back afterwards.
    for (slot, e) in experts.iter().enumerate() {
        let next = &mut bounds[*e as usize];
        order[*next as usize] = slot as u32;
        *next += 1;
    }
    bounds.copy_within(0..count, 1);
    bounds[0] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_in_ascending_order() {
        let mut chosen = [9; 3];
        choose(&[0.0, 5.0, f32::NAN, 5.0, -1.0, 5.0, 7.0], 0..7, &mut chosen);
        assert_eq!(chosen, [1, 3, 6], "of equals the lowest, NaN last");
        let mut all = [9; 2];
        choose(&[f32::NAN, f32::NAN], 0..2, &mut all);
        assert_eq!(all, [0, 1]);
    }

    #[test]
    fn groups_are_ranked_by_their_best_or_their_two_best() {
        let keys = [0.5, 0.0, 0.4, 0.3, f32::NAN, 0.75, 0.35, 0.35];
        let groups = |chosen, rank| ExpertGroups { count: 4, chosen, rank };
        assert_eq!(open(&keys, groups(1, GroupRank::Best)), (2, 0b0100));
        assert_eq!(open(&keys, groups(2, GroupRank::Best)), (2, 0b0101));
        // A sum with NaN counts as the smallest; of equals the lowest.
        assert_eq!(open(&keys, groups(1, GroupRank::BestTwo)), (2, 0b0010));
        assert_eq!(open(&keys, groups(2, GroupRank::BestTwo)), (2, 0b1010));
        let alone = ExpertGroups { count: 8, ..groups(2, GroupRank::BestTwo) };
        assert_eq!(open(&keys, alone), (1, 0b0010_0001));
    }

    #[test]
    fn slots_are_grouped_in_order() {
        let mut groups = [9; 5 + 6];
        group(&[2, 0, 2, 3, 0, 2], 4, &mut groups);
        assert_eq!(groups, [0, 2, 2, 5, 6, 1, 4, 0, 2, 5, 3]);
    }
}
