//! Disentangled attention and the convolution next to a block, as a model's description has them (DeBERTa,
//! arXiv 2006.03654).

use super::norm_spec::NormSpec;
use crate::params::Act;

/// A table with rows for distances from query to key: those behind the query, then its own and those ahead.
/// Distances far away share rows by the logarithm, and those beyond all rows have the last ones.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RelativeTable {
    /// Rows on either side; the table has twice as many.
    pub reach: usize,
    /// With a logarithm, the distance whose row is the last one; none: every distance has a row of its own.
    pub most: Option<usize>,
    /// Norm of the rows.
    pub norm: Option<NormSpec>,
}

impl RelativeTable {
    /// Of as many rows on either side, one for each distance, without a norm.
    pub fn new(reach: usize) -> Self {
        Self { reach, most: None, norm: None }
    }

    /// Rows of the table.
    pub fn rows(&self) -> usize {
        2 * self.reach
    }

    /// The bucket of a distance, of that distance's sign. Logarithms are in f32, as in the reference, where
    /// they decide which side of a boundary a distance is on.
    fn bucket(&self, distance: i64) -> i64 {
        let (middle, size) = (self.reach / 2, distance.unsigned_abs() as usize);
        let Some(most) = self.most.filter(|_| size > middle && middle > 0) else { return distance };
        let log = |x: f32| libm::log(f64::from(x)) as f32;
        let last = log((most as f64 - 1.0) as f32 / middle as f32);
        let grown = log(size as f32 / middle as f32) / last * (middle as f32 - 1.0);
        (libm::ceilf(grown) as i64 + middle as i64) * distance.signum()
    }

    /// The row of a query that is `distance` positions ahead of its key.
    pub fn row(&self, distance: i64) -> usize {
        let last = self.rows().saturating_sub(1) as i64;
        (self.bucket(distance) + self.reach as i64).clamp(0, last) as usize
    }

    /// Where a row stands among all, the nearest distances first: a step needs a run of them from the first
    /// on, as long as its longest text asks for.
    fn place(&self, row: usize) -> usize {
        match row.checked_sub(self.reach) {
            Some(ahead) => 2 * ahead,
            None => 2 * (self.reach - row) - 1,
        }
    }

    /// The rows in the order of their distances, the nearest first `[rows]`.
    pub fn nearest_first(&self) -> Vec<u32> {
        let mut rows: Vec<u32> = (0..self.rows() as u32).collect();
        rows.sort_by_key(|row| self.place(*row as usize));
        rows
    }

    /// Which of [`Self::nearest_first`] every distance has, from the key `longest - 1` behind a query to that
    /// ahead of it `[2 * longest - 1]`.
    pub fn by_distance(&self, longest: usize) -> Vec<u32> {
        let most = longest.max(1) as i64 - 1;
        (-most..=most).map(|ahead| self.place(self.row(-ahead)) as u32).collect()
    }

    /// How many of [`Self::nearest_first`] texts of up to so many tokens need.
    pub fn needed(&self, longest: usize) -> usize {
        let most = longest.max(1) as i64 - 1;
        1 + self.place(self.row(most)).max(self.place(self.row(-most)))
    }
}

/// Score terms of a block by the distance from query to key. With `r` the rows of
/// [`RelativeTable`] and `q`, `k` what the block's own matmul makes of tokens and of `r`, the score of query
/// `i` and key `j` is `scale (q_i . k_j + q_i . k(r[i - j]) + k_j . q(r[i - j]))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disentangled {
    /// Whether there is the second term, of a query and a distance.
    pub content_to_position: bool,
    /// Whether there is the third term, of a key and a distance.
    pub position_to_content: bool,
}

impl Disentangled {
    /// Those of the two terms.
    pub fn new(content_to_position: bool, position_to_content: bool) -> Self {
        Self { content_to_position, position_to_content }
    }

    /// Terms of a score, that of query and key among them.
    pub fn terms(&self) -> usize {
        1 + usize::from(self.content_to_position) + usize::from(self.position_to_content)
    }
}

/// A convolution over the rows of a text next to a block, from `x`, which the block reads, to `y`, which it
/// gives: `norm(y + act(bias + sum over i of w[i] x[t + i - kernel / 2]))`, rows outside count as zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LayerConv {
    /// Rows that each row reads, an odd number.
    pub kernel: usize,
    /// What follows the convolution.
    pub act: Act,
    /// Norm of the sum.
    pub norm: NormSpec,
}

impl LayerConv {
    /// Of an odd number of rows.
    pub fn new(kernel: usize, act: Act, norm: NormSpec) -> Self {
        Self { kernel, act, norm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(reach: usize, most: usize) -> RelativeTable {
        RelativeTable { most: Some(most), ..RelativeTable::new(reach) }
    }

    /// Against transformers' `make_log_bucket_position`, whose numbers torch computes in f32.
    #[test]
    fn distances_have_rows_as_in_the_reference() {
        let small = table(6, 40);
        let at = |distances: &[i64]| distances.iter().map(|d| small.row(*d)).collect::<Vec<_>>();
        assert_eq!(at(&[0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 39]), SMALL);
        assert_eq!(at(&[-1, -2, -3, -4, -10, -11, -39]), SMALL_BEHIND);
        let base = table(256, 512);
        let at = |distances: &[i64]| distances.iter().map(|d| base.row(*d)).collect::<Vec<_>>();
        assert_eq!(at(&[0, 127, 128, 129, 200, 300, 500, 510, 511, 600]), BASE);
        assert_eq!(at(&[-128, -129, -200, -511, -600]), BASE_BEHIND);
    }

    const SMALL: [usize; 11] = [6, 7, 8, 9, 10, 10, 10, 10, 11, 11, 11];
    const SMALL_BEHIND: [usize; 7] = [5, 4, 3, 2, 2, 1, 1];
    const BASE: [usize; 10] = [256, 383, 384, 385, 425, 463, 510, 511, 511, 511];
    const BASE_BEHIND: [usize; 5] = [128, 127, 87, 1, 0];

    #[test]
    fn without_a_logarithm_every_distance_has_a_row_up_to_the_last() {
        let plain = RelativeTable::new(4);
        let at: Vec<usize> = (-6..=6).map(|d| plain.row(d)).collect();
        assert_eq!(at, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]);
    }

    #[test]
    fn the_nearest_rows_are_those_that_short_texts_need() {
        for (table, longest) in [(table(6, 40), 40), (table(256, 512), 512), (RelativeTable::new(3), 9)] {
            let order = table.nearest_first();
            for tokens in [1, 2, 3, 7, longest] {
                let places = table.by_distance(tokens);
                let needed = table.needed(tokens);
                assert_eq!(places.len(), 2 * tokens - 1);
                assert_eq!(places.iter().max().map(|place| *place as usize + 1), Some(needed));
                for (at, place) in places.iter().enumerate() {
                    let ahead = at as i64 - (tokens as i64 - 1);
                    assert_eq!(order[*place as usize] as usize, table.row(-ahead), "{ahead} of {tokens}");
                }
            }
            assert!(table.needed(2) <= 3 && table.needed(longest) <= table.rows());
        }
    }
}
