//! Stretches of a sum that are worked on one after the other.
//!
//! Depends on no other file of this package: `tests/kernels` compiles it with its tests.

use engraft_core::numerics::LEAVES;
use std::ops::Range;

/// A stretch of k: some whole leaves, or a part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The leaves, or the one that this is a part of.
    pub leaves: Range<usize>,
    /// Indices of the sum.
    pub k: Range<usize>,
    /// Whether it begins at the beginning of a leaf.
    pub first: bool,
    /// Whether it ends at the end of one.
    pub last: bool,
}

/// Splits k into pieces of at most `most`.
pub fn pieces(bounds: &[usize; LEAVES + 1], most: usize) -> impl Iterator<Item = Piece> {
    let (mut leaf, mut k) = (0, 0);
    std::iter::from_fn(move || {
        if leaf == 8 {
            return None;
        }
        let first = k == bounds[leaf];
        let whole = bounds[leaf + 1..].iter().take_while(|end| **end - k <= most).count();
        let piece = match whole {
            0 => Piece { leaves: leaf..leaf + 1, k: k..k + most, first, last: false },
            // The rest of a leaf is a piece of its own.
            _ if !first => Piece { leaves: leaf..leaf + 1, k: k..bounds[leaf + 1], first, last: true },
            n => Piece { leaves: leaf..leaf + n, k: k..bounds[leaf + n], first, last: true },
        };
        k = piece.k.end;
        leaf = if piece.last { piece.leaves.end } else { leaf };
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_leaf_once_and_in_order() {
        for bounds in [[0; 9], [0, 1, 1, 2, 3, 3, 3, 4, 5], [0, 48, 96, 144, 192, 240, 288, 336, 384]] {
            for most in [1, 2, 7, 48, 50, 100, 384, 1000] {
                let (mut k, mut leaf) = (0, 0);
                for piece in pieces(&bounds, most) {
                    assert_eq!((piece.k.start, piece.leaves.start), (k, leaf));
                    assert!(piece.k.len() <= most);
                    assert_eq!(piece.first, k == bounds[leaf]);
                    assert_eq!(piece.last, piece.k.end == bounds[piece.leaves.end]);
                    assert!(piece.leaves.len() == 1 || piece.first && piece.last);
                    k = piece.k.end;
                    leaf = if piece.last { piece.leaves.end } else { leaf };
                }
                assert_eq!((k, leaf), (bounds[8], 8));
            }
        }
    }
}
