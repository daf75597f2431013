//! What a model knows of positions: tables, factors of queries, biases of scores. Rotations: `rope_spec`.

use crate::params::Relative;

/// A table of learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub rows: usize,
    /// Row of position 0.
    pub offset: usize,
}

/// Positions that are sines and cosines of their number, from a table that is computed (arXiv 1706.03762):
/// of row `p + offset`, column `i` of the first half is the sine, of the second half the cosine, of
/// `(p + offset) 10000^(-2 i / columns)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sinusoids {
    /// Row of position 0.
    pub offset: usize,
    /// Whether the exponent is `-i / (columns / 2 - 1)` (M2M-100).
    pub short: bool,
}

impl Sinusoids {
    /// The table `[positions, cols]`, in the reference's arithmetic: f64, rounded once; of the short form
    /// f32, and zero in a last column without a partner.
    pub fn table(&self, positions: usize, cols: usize) -> Vec<f32> {
        let half = if self.short { cols / 2 } else { cols.div_ceil(2) };
        let angle = |position: usize, i: usize| match self.short {
            true => {
                let step = (libm::log(10_000.0) / (half.max(2) - 1) as f64) as f32;
                let frequency = libm::exp(f64::from(-(i as f32 * step))) as f32;
                f64::from(position as f32 * frequency)
            }
            false => position as f64 / libm::pow(10_000.0, 2.0 * i as f64 / cols as f64),
        };
        let of = |position: usize, column: usize| match column {
            sine if sine < half => libm::sin(angle(position, sine)) as f32,
            cosine if cosine < 2 * half => libm::cos(angle(position, cosine - half)) as f32,
            _ => 0.0,
        };
        let rows = self.offset..self.offset + positions;
        rows.flat_map(|position| (0..cols).map(move |column| of(position, column))).collect()
    }
}

/// Factors of queries by their position `p`, after the rotation:
/// `1 + beta ln(1 + floor((p + from) / every))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// Factor of the logarithm.
    pub beta: f64,
    /// Positions that share a factor, at least 1.
    pub every: usize,
    /// What the first position counts as.
    pub from: usize,
}

impl QueryGrowth {
    /// The factor at a position.
    pub fn at(&self, position: usize) -> f32 {
        (1.0 + self.beta * libm::log(1.0 + ((position + self.from) / self.every.max(1)) as f64)) as f32
    }
}

/// A bias of scores by the distance from query to key, learned for buckets of distances (T5, arXiv
/// 1910.10683): half of them for one distance each, the others for runs that grow with the logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSpec {
    /// Buckets; with both sides, half of them for keys behind the query.
    pub buckets: usize,
    /// The distance from which on all are in the last bucket.
    pub most: usize,
    /// Whether keys behind the query have buckets of their own.
    pub both: bool,
    /// The block whose table it is.
    pub owner: usize,
}

impl BucketSpec {
    /// What scores are told of it.
    pub fn relative(&self) -> Relative {
        let most = u32::try_from(self.most).unwrap_or(u32::MAX);
        Relative { behind: most, ahead: if self.both { most } else { 0 } }
    }

    /// The bucket of a key that is `distance` behind its query, of `buckets` on that side; logarithms in f32,
    /// as in the reference, where they decide which side of a boundary a distance is on.
    fn of(buckets: usize, most: usize, distance: usize) -> usize {
        let exact = buckets / 2;
        if distance < exact {
            return distance;
        }
        let log = |x: f64| libm::log(x) as f32;
        let ratio = distance as f32 / exact as f32;
        let grown = log(f64::from(ratio)) / log(most as f64 / exact as f64) * (buckets - exact) as f32;
        (exact + grown as usize).min(buckets - 1)
    }

    /// The bucket of a key at `offset` from its query.
    pub fn bucket(&self, offset: i64) -> usize {
        let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        match (self.both, offset > 0) {
            (true, ahead) => {
                let half = self.buckets / 2;
                usize::from(ahead) * half + Self::of(half, self.most, distance)
            }
            (false, true) => 0,
            (false, false) => Self::of(self.buckets, self.most, distance),
        }
    }

    /// Of every head the bias of every distance `[heads, span]`, from the table of buckets
    /// `[buckets, heads]`.
    pub fn by_distance(&self, table: &[f32], heads: usize) -> Vec<f32> {
        let Relative { behind, ahead } = self.relative();
        let distances = -i64::from(behind)..=i64::from(ahead);
        let buckets: Vec<usize> = distances.map(|offset| self.bucket(offset)).collect();
        let of = |head: usize| buckets.iter().map(move |bucket| table.get(bucket * heads + head));
        (0..heads).flat_map(of).map(|value| value.copied().unwrap_or(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the reference's formula in numpy's f32.
    #[test]
    fn distances_fall_into_buckets_as_in_the_reference() {
        let both = BucketSpec { buckets: 32, most: 128, both: true, owner: 0 };
        let at = |offsets: &[i64]| offsets.iter().map(|o| both.bucket(*o)).collect::<Vec<_>>();
        assert_eq!(
            at(&[0, -1, -7, -8, -12, -15, -16, -32, -64, -127, -128, -1000]),
            [0, 1, 7, 8, 9, 9, 10, 12, 14, 15, 15, 15]
        );
        assert_eq!(at(&[1, 7, 8, 16, 128, 5000]), [17, 23, 24, 26, 31, 31]);
        let behind = BucketSpec { both: false, ..both };
        let at = |offsets: &[i64]| offsets.iter().map(|o| behind.bucket(*o)).collect::<Vec<_>>();
        assert_eq!(
            at(&[3, 0, -1, -15, -16, -31, -32, -64, -127, -128]),
            [0, 0, 1, 15, 16, 21, 21, 26, 31, 31]
        );
    }

    #[test]
    fn every_distance_has_the_bias_of_its_bucket() {
        let spec = BucketSpec { buckets: 4, most: 3, both: true, owner: 0 };
        let table: Vec<f32> = (0..8u8).map(f32::from).collect();
        let spread = spec.by_distance(&table, 2);
        assert_eq!(spread.len(), 2 * spec.relative().span());
        assert_eq!(spread[..7], [2.0, 2.0, 2.0, 0.0, 6.0, 6.0, 6.0]);
        assert_eq!(spread[7..], [3.0, 3.0, 3.0, 1.0, 7.0, 7.0, 7.0]);
    }
}
