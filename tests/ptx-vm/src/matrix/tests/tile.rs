//! `ldmatrix`, `stmatrix`, `movmatrix`.

use crate::matrix::tile::{self, Tile};

fn numbered() -> Tile {
    std::array::from_fn(|row| std::array::from_fn(|byte| (16 * row + byte) as u8))
}

/// Element (row, column) of the numbered matrix.
fn element(row: usize, column: usize) -> u32 {
    let low = (16 * row + 2 * column) as u32;
    low | (low + 1) << 8
}

#[test]
fn lanes_hold_two_neighbours_of_a_row() {
    let loaded = tile::load(&numbered(), false);
    let transposed = tile::load(&numbered(), true);
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        assert_eq!(loaded[lane], element(g, 2 * t) | element(g, 2 * t + 1) << 16);
        assert_eq!(transposed[lane], element(2 * t, g) | element(2 * t + 1, g) << 16);
    }
}

#[test]
fn storing_undoes_loading() {
    let numbered = numbered();
    for transpose in [false, true] {
        assert_eq!(tile::store(&tile::load(&numbered, transpose), transpose), numbered);
    }
    assert_eq!(tile::transposed(&tile::load(&numbered, false)), tile::load(&numbered, true));
    assert_eq!(
        tile::transposed(&tile::transposed(&tile::load(&numbered, false))),
        tile::load(&numbered, false)
    );
}

#[test]
fn the_fragments_of_mma_come_out_of_ldmatrix() {
    // A 16x16 tile of 16-bit elements, row-major: the four matrices of `.x4` with the usual addresses give
    // operand A.
    let value = |row: usize, k: usize| (100 * row + k) as u16;
    let matrix = |down: usize, across: usize| -> Tile {
        std::array::from_fn(|r| {
            std::array::from_fn(|byte| value(down + r, across + byte / 2).to_le_bytes()[byte % 2])
        })
    };
    let registers: Vec<_> =
        [(0, 0), (8, 0), (0, 8), (8, 8)].map(|(d, a)| tile::load(&matrix(d, a), false)).into();
    for (j, register) in registers.iter().enumerate() {
        for (lane, &word) in register.iter().enumerate() {
            let (row, k) = (lane / 4 + 8 * (j % 2), 2 * (lane % 4) + 8 * (j / 2));
            assert_eq!(word, u32::from(value(row, k)) | u32::from(value(row, k + 1)) << 16);
        }
    }
    assert_eq!([tile::address_lane(0, 7), tile::address_lane(3, 2)], [7, 26]);
}
