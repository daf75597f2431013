//! One bit per byte.

/// A set of byte positions.
#[derive(Debug, Clone)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(bytes: usize) -> Self {
        Bits(vec![0; bytes.div_ceil(64)])
    }

    pub(crate) fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    pub(crate) fn put(&mut self, at: usize, value: bool) {
        let bit = 1 << (at % 64);
        if value {
            self.0[at / 64] |= bit;
        } else {
            self.0[at / 64] &= !bit;
        }
    }

    /// The first position of `start .. start + count` that is not in the set.
    #[inline]
    pub(crate) fn first_missing(&self, start: usize, count: usize) -> Option<usize> {
        // Accesses of up to 16 aligned bytes lie in one word: the common case is one test.
        if count <= 64 && start % 64 + count <= 64 {
            let mask = (!0u64 >> (64 - count.max(1))) << (start % 64);
            let missing = !self.0[start / 64] & mask;
            return (missing != 0 && count > 0).then(|| start / 64 * 64 + missing.trailing_zeros() as usize);
        }
        (start..start + count).find(|&i| !self.get(i))
    }

    /// Adds `start .. start + count`.
    #[inline]
    pub(crate) fn set(&mut self, start: usize, count: usize) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let n = (64 - at % 64).min(end - at);
            self.0[at / 64] |= (!0u64 >> (64 - n)) << (at % 64);
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_across_words() {
        for (start, count) in [(0, 1), (3, 61), (60, 8), (64, 64), (1, 300), (63, 1), (5, 0)] {
            let mut b = Bits::new(400);
            b.set(start, count);
            for i in 0..400 {
                assert_eq!(b.get(i), (start..start + count).contains(&i), "{start} {count} {i}");
            }
            assert_eq!(b.first_missing(start, count), None);
            assert_eq!(b.first_missing(start, count + 2), Some(start + count));
        }
    }
}
