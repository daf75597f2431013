//! How files hold a row of packed weights: its codes, and the numbers of its groups as the kernels take them.
//!
//! A group's numbers are 16 bits each: f16 `d`, perhaps `m`; the two halves of a f32, the lower first; of a
//! power of two the upper half of its f32; of blocks of 256 values `d`, perhaps `e`, and the two bytes that
//! the group has of its own (`s` and `t`, or `s` of both its parts of 16 values). `d` and `e` stand by each
//! group of a block.

use super::encoding::{Encoding, HALF};
use super::{Layout, large};
use crate::params::Format;
use std::ops::Range;

/// Bytes of fifth bits before a block's nibbles in a file.
const FIFTHS: usize = 4;

impl Layout {
    /// Values of a block of a row in the file.
    fn block(&self) -> usize {
        match self.encoding {
            encoding if encoding.is_large() => large::VALUES,
            Encoding::E2m1 => HALF / 2,
            _ => self.group,
        }
    }

    /// Bytes before a block's codes.
    fn file_head(&self) -> usize {
        match self.encoding {
            Encoding::Mx => 1,
            Encoding::E4m3 | Encoding::E2m1 => 4,
            encoding => encoding.head(),
        }
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        match self.encoding {
            Encoding::Plain => 2 * self.k,
            _ => (0..self.k).step_by(self.block()).map(|at| self.block_bytes(at)).sum(),
        }
    }

    /// Bytes of the block of a row that begins at value `at`.
    fn block_bytes(&self, at: usize) -> usize {
        let values = self.block().min(self.k - at);
        match self.encoding {
            encoding if encoding.is_large() => large::bytes(encoding),
            Encoding::FiveBits { .. } => self.file_head() + FIFTHS + values.div_ceil(2),
            encoding if encoding.in_nibbles() => self.file_head() + values.div_ceil(2),
            _ => self.file_head() + values,
        }
    }

    /// Numbers of a group.
    pub(super) fn numbers(&self) -> usize {
        self.encoding.head() / 2
    }

    /// The values, bytes and numbers of every block of a row in the file.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>, Range<usize>)> {
        let (size, mut from) = (self.block(), 0);
        // Blocks of 16 have half a group's numbers, those of 256 have eight groups'.
        let count = match self.encoding {
            encoding if encoding.is_large() => large::GROUPS * self.numbers(),
            Encoding::E2m1 => self.numbers() / 2,
            _ => self.numbers(),
        };
        (0..self.k).step_by(size).enumerate().map(move |(number, first)| {
            let bytes = from..from + self.block_bytes(first);
            from = bytes.end;
            (first..(first + size).min(self.k), bytes, number * count..(number + 1) * count)
        })
    }

    /// A row's codes, one byte each, as they are packed (bytes of whole numbers biased by 128), and its
    /// groups' numbers.
    pub(super) fn read_row(&self, file: &[u8], codes: &mut [u8], numbers: &mut [u16]) {
        for (values, bytes, of) in self.blocks() {
            let (file, codes, numbers) = (&file[bytes], &mut codes[values], &mut numbers[of]);
            if self.encoding.is_large() {
                large::read(self.encoding, file, codes, numbers);
                continue;
            }
            let (head, file) = file.split_at(self.file_head());
            if self.encoding == Encoding::Mx {
                numbers[0] = power(head[0]);
            }
            for (number, two) in numbers.iter_mut().zip(head.chunks_exact(2)) {
                *number = u16::from_le_bytes([two[0], two[1]]);
            }
            codes.iter_mut().enumerate().for_each(|(i, code)| *code = self.code(file, i));
        }
    }

    /// The inverse of [`Layout::read_row`].
    pub(super) fn write_row(&self, codes: &[u8], numbers: &[u16], file: &mut [u8]) {
        file.fill(0);
        for (values, bytes, of) in self.blocks() {
            let (file, codes, numbers) = (&mut file[bytes], &codes[values], &numbers[of]);
            if self.encoding.is_large() {
                large::write(self.encoding, file, codes, numbers);
                continue;
            }
            let (head, file) = file.split_at_mut(self.file_head());
            if self.encoding == Encoding::Mx {
                head[0] = (numbers[0] >> 7) as u8;
            }
            for (two, number) in head.chunks_exact_mut(2).zip(numbers) {
                two.copy_from_slice(&number.to_le_bytes());
            }
            codes.iter().enumerate().for_each(|(i, code)| self.put_code(file, i, *code));
        }
    }

    /// Whether nibble `j` of a file's byte is value `j`, `j + 16` (GGUF) or `2 j`, `2 j + 1` (own groups).
    fn split_nibbles(&self) -> bool {
        matches!(self.format, Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1)
    }

    /// Code `i` of a block's.
    fn code(&self, bytes: &[u8], i: usize) -> u8 {
        match self.encoding {
            Encoding::FiveBits { .. } => {
                bytes[FIFTHS + i % 16] >> (i / 16 * 4) & 15 | (bytes[i / 8] >> (i % 8) & 1) << 4
            }
            _ if self.split_nibbles() => bytes[i % 16] >> (i / 16 * 4) & 15,
            encoding if encoding.in_nibbles() => bytes[i / 2] >> (i % 2 * 4) & 15,
            Encoding::E4m3 => bytes[i],
            _ => bytes[i] ^ 0x80,
        }
    }

    /// Its inverse, where the bytes were zero.
    fn put_code(&self, bytes: &mut [u8], i: usize, code: u8) {
        match self.encoding {
            Encoding::FiveBits { .. } => {
                bytes[FIFTHS + i % 16] |= (code & 15) << (i / 16 * 4);
                bytes[i / 8] |= (code >> 4) << (i % 8);
            }
            _ if self.split_nibbles() => bytes[i % 16] |= code << (i / 16 * 4),
            encoding if encoding.in_nibbles() => bytes[i / 2] |= code << (i % 2 * 4),
            Encoding::E4m3 => bytes[i] = code,
            _ => bytes[i] = code ^ 0x80,
        }
    }
}

/// The upper half of the f32 of a power of two in e8m0: 0 is 2^-127, 255 is NaN.
const fn power(byte: u8) -> u16 {
    match byte {
        0 => 1 << 6,
        255 => 0x7fc0,
        _ => (byte as u16) << 7,
    }
}
