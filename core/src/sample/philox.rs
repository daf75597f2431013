//! Philox4x32-10: the counter-based generator behind every sampled token.
//!
//! A sample is a pure function of (seed, subsequence, position, index), so ranks and backends agree without
//! talking and batch mates cannot matter. No state is here and none is anywhere else.
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.

/// Multipliers of counter words 0 and 2.
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Key increments per round: golden ratio and sqrt(3) - 1, as 32-bit fractions.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The 128 random bits of `counter` under `key`: ten rounds of Philox4x32.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..ROUNDS {
        let (p0, p1) =
            (u64::from(MULTIPLIER[0]) * u64::from(c[0]), u64::from(MULTIPLIER[1]) * u64::from(c[2]));
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    c
}

/// The 64 bits that choose one token: words 0 (low) and 1 (high) of Philox at counter
/// `(subsequence, position, index, 0)`.
pub fn random_bits(seed: [u32; 2], subsequence: u32, position: u32, index: u32) -> u64 {
    let [lo, hi, _, _] = philox4x32([subsequence, position, index, 0], seed);
    u64::from(hi) << 32 | u64::from(lo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_the_paper() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox4x32(counter, key), want);
        }
    }

    #[test]
    fn every_counter_word_changes_the_bits() {
        let base = random_bits([1, 2], 3, 4, 5);
        let others = [
            random_bits([0, 2], 3, 4, 5),
            random_bits([1, 0], 3, 4, 5),
            random_bits([1, 2], 0, 4, 5),
            random_bits([1, 2], 3, 0, 5),
            random_bits([1, 2], 3, 4, 0),
        ];
        assert!(others.iter().all(|&o| o != base));
    }
}
