//! A dispatch in several: command buffers must be short, and one dispatch alone may take longer than one may.
//!
//! A slice has every n-th workgroup along the longest axis of a grid. Its kernel is given which ones by a
//! parameter (`slices` in `wgsl/prelude.wgsl`), so every workgroup computes what it would have computed, and
//! no bit depends on the number of slices. That later rows of a prompt see more keys matters little: each
//! slice has rows from everywhere.

/// Slices of one dispatch at most: their number takes 12 bits of a parameter.
const MOST: u32 = 1 << 12;

/// The parameter of a dispatch that has all workgroups of its grid.
pub(crate) const ALL_GROUPS: u32 = 0;
/// The first of that parameter's bits that are the kernel's own.
pub(crate) const OWN_BITS: u32 = 26;

/// Some of the workgroups of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    /// How many along each axis.
    pub grid: [u32; 3],
    /// Which ones: its number, from bit 12 on how many slices there are beyond it, from bit 24 on the axis.
    pub word: u32,
}

/// Workgroups of a grid.
pub(crate) fn groups_of(grid: [u32; 3]) -> u64 {
    grid.map(u64::from).iter().product()
}

/// Slices of a grid with `most` workgroups each, or with one along its longest axis where that has more.
pub(crate) fn slices(grid: [u32; 3], most: u64) -> impl Iterator<Item = Slice> {
    let axis = (0..3).fold(0, |longest, axis| if grid[axis] > grid[longest] { axis } else { longest });
    let length = grid[axis].max(1);
    let others = (groups_of(grid) / u64::from(length)).max(1);
    let run = u32::try_from(most / others).unwrap_or(u32::MAX).clamp(1, length);
    let count = length.div_ceil(run).min(MOST);
    (0..count).map(move |number| {
        let mut grid = grid;
        grid[axis] = (length - number).div_ceil(count);
        Slice { grid, word: number | (count - 1) << 12 | (axis as u32) << 24 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of workgroups along all axes, as shaders make them.
    fn numbers(slice: Slice) -> Vec<[u32; 3]> {
        let [first, step, axis] = [slice.word & 0xfff, (slice.word >> 12 & 0xfff) + 1, slice.word >> 24 & 3];
        let along = |of: u32, number: u32| if of == axis { first + step * number } else { number };
        let [x, y, z] = slice.grid;
        let all = (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z])));
        all.map(|[x, y, z]| [along(0, x), along(1, y), along(2, z)]).collect()
    }

    #[test]
    fn every_workgroup_is_in_one_slice_and_none_is_too_large() {
        for grid in [[1, 1, 1], [3, 10, 1], [11, 1, 1], [2, 3, 13], [7, 7, 7], [5, 4, 5]] {
            let whole = groups_of(grid);
            for most in [1, 2, 3, 5, 7, 10, 17, 64, whole - 1, whole, u64::MAX] {
                let all: Vec<Slice> = slices(grid, most).collect();
                let longest = grid.iter().copied().max().map_or(1, u64::from);
                let bound = most.max(whole / longest);
                assert!(
                    all.iter().all(|slice| groups_of(slice.grid) <= bound),
                    "{grid:?} by {most}: {all:?}"
                );
                let mut found: Vec<[u32; 3]> = all.iter().copied().flat_map(numbers).collect();
                found.sort();
                let in_grid = |n: &[u32; 3]| n.iter().zip(grid).all(|(n, of)| *n < of);
                assert!(found.iter().all(in_grid) && found.len() as u64 == whole, "{grid:?} by {most}");
                found.dedup();
                assert_eq!(found.len() as u64, whole, "{grid:?} by {most}");
                assert_eq!(all.len() == 1, bound >= whole, "{grid:?} by {most}: {all:?}");
            }
        }
    }

    #[test]
    fn slices_are_as_many_as_needed_and_as_their_number_has_bits_for() {
        let count = |grid, most| slices(grid, most).count();
        assert_eq!([1, 2, 3].map(|n: u64| count([3, 10, 1], 3 * 10u64.div_ceil(n))), [1, 2, 3]);
        assert_eq!(count([65_535, 2, 1], 1), MOST as usize);
        // No step has them, but nothing may fail.
        assert_eq!(count([0, 4, 1], 1), 4);
    }
}
