//! GGUF's blocks of 256 values (Q4_K, Q5_K, Q6_K) to codes and numbers of their eight groups of 32, and
//! back. What lies where is said in `engraft_core::quant`; source: ggml's `block_q*_K`.

use super::encoding::{Encoding, HALF};

/// Values of a block.
pub const VALUES: usize = 256;
/// Its groups.
pub const GROUPS: usize = VALUES / HALF;

/// Bytes of a block in a file.
pub const fn bytes(encoding: Encoding) -> usize {
    match encoding {
        Encoding::LargeFourBits => 144,
        Encoding::LargeFiveBits => 176,
        _ => 210,
    }
}

/// Some bits of a byte.
#[derive(Clone, Copy)]
struct Bits {
    at: usize,
    shift: usize,
    count: usize,
}

impl Bits {
    const fn new(at: usize, shift: usize, count: usize) -> Self {
        Bits { at, shift, count }
    }

    fn of(self, file: &[u8]) -> u8 {
        file[self.at] >> self.shift & ((1 << self.count) - 1)
    }

    /// Where they are zero.
    fn put(self, file: &mut [u8], value: u8) {
        file[self.at] |= (value & ((1 << self.count) - 1)) << self.shift;
    }
}

/// The lower and the upper bits of the code of value `i`.
const fn code_at(encoding: Encoding, i: usize) -> [Bits; 2] {
    // Two halves of 128 values, four runs of 32 in each.
    let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
    match encoding {
        Encoding::LargeFourBits => [Bits::new(16 + i / 64 * 32 + l, run % 2 * 4, 4), Bits::new(0, 0, 0)],
        Encoding::LargeFiveBits => {
            [Bits::new(48 + i / 64 * 32 + l, run % 2 * 4, 4), Bits::new(16 + l, i / 32, 1)]
        }
        _ => [
            Bits::new(half * 64 + run % 2 * 32 + l, run / 2 * 4, 4),
            Bits::new(128 + half * 32 + l, run * 2, 2),
        ],
    }
}

/// The lower and the upper bits of the 6-bit numbers `s` and `t` of group `j`.
const fn small_at(j: usize) -> [[Bits; 2]; 2] {
    match j {
        0..4 => [[Bits::new(4 + j, 0, 6), Bits::new(0, 0, 0)], [Bits::new(8 + j, 0, 6), Bits::new(0, 0, 0)]],
        _ => [[Bits::new(8 + j, 0, 4), Bits::new(j, 6, 2)], [Bits::new(8 + j, 4, 4), Bits::new(4 + j, 6, 2)]],
    }
}

/// Where the f16 numbers of a block are that each of its groups has: `d`, perhaps `e`.
const fn halves_at(encoding: Encoding) -> &'static [usize] {
    if let Encoding::LargeSixBits = encoding { &[208] } else { &[0, 2] }
}

/// The codes of a block and its groups' numbers: `d`, perhaps `e`, and two bytes of its own.
pub fn read(encoding: Encoding, file: &[u8], codes: &mut [u8], numbers: &mut [u16]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let [low, high] = code_at(encoding, i);
        *code = low.of(file) | high.of(file) << low.count;
    }
    let halves = halves_at(encoding);
    for (j, numbers) in numbers.chunks_exact_mut(halves.len() + 1).enumerate() {
        for (number, at) in numbers.iter_mut().zip(halves) {
            *number = u16::from_le_bytes([file[*at], file[at + 1]]);
        }
        let small = match encoding {
            Encoding::LargeSixBits => [file[192 + 2 * j], file[193 + 2 * j]],
            _ => small_at(j).map(|[low, high]| low.of(file) | high.of(file) << low.count),
        };
        numbers[halves.len()] = u16::from_le_bytes(small);
    }
}

/// The inverse of [`read`], where the file's bytes were zero.
pub fn write(encoding: Encoding, file: &mut [u8], codes: &[u8], numbers: &[u16]) {
    for (i, code) in codes.iter().enumerate() {
        let [low, high] = code_at(encoding, i);
        low.put(file, *code);
        high.put(file, code >> low.count);
    }
    let halves = halves_at(encoding);
    for (j, numbers) in numbers.chunks_exact(halves.len() + 1).enumerate() {
        for (number, at) in numbers.iter().zip(halves) {
            file[*at..at + 2].copy_from_slice(&number.to_le_bytes());
        }
        let small = numbers[halves.len()].to_le_bytes();
        if encoding == Encoding::LargeSixBits {
            file[192 + 2 * j..][..2].copy_from_slice(&small);
            continue;
        }
        for ([low, high], s) in small_at(j).into_iter().zip(small) {
            low.put(file, s);
            high.put(file, s >> low.count);
        }
    }
}
