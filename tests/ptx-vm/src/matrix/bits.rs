//! Matmuls of single-bit elements: `D[m][n] = C[m][n] + popc(A[m][..] op B[..][n])`, in s32 that wraps.
//!
//! A register holds 32 elements of a row of A, or of a column of B, and four lanes hold 128: see the table in
//! [`super`].

use crate::Row;

/// How two single bits are combined before they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BitOp {
    /// `.xor.popc`
    Xor,
    /// `.and.popc`
    And,
}

impl BitOp {
    /// Reads the name of the operation.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "xor" => Some(Self::Xor),
            "and" => Some(Self::And),
            _ => None,
        }
    }

    fn count(self, a: u32, b: u32) -> u32 {
        match self {
            Self::Xor => (a ^ b).count_ones(),
            Self::And => (a & b).count_ones(),
        }
    }

    /// One warp's matmul of `8 blocks` rows; registers as [`Mma::run`](super::Mma::run) has them.
    pub(crate) fn multiply(self, blocks: usize, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row]) {
        for (j, (d, c)) in d.iter_mut().zip(c).enumerate() {
            for (lane, d) in d.iter_mut().enumerate() {
                // The lanes that hold row `g` of A and column `n` of B.
                let (g, n) = (lane / 4, 2 * (lane % 4) + j % 2);
                let depth = b.iter().zip(a.chunks_exact(blocks));
                let sum: u32 = depth
                    .flat_map(|(b, a)| (0..4).map(move |t| self.count(a[j / 2][4 * g + t], b[4 * n + t])))
                    .sum();
                *d = c[lane].wrapping_add(sum);
            }
        }
    }
}
