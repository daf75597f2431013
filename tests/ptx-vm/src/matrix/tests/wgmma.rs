//! `wgmma`: operands placed in a shared-memory image by the CuTe layouts of the manual.

use super::*;
use crate::Row;
use crate::matrix::descriptor::{Descriptor, Major};
use crate::matrix::sum::Summation;
use crate::matrix::wgmma::{Wgmma, WgmmaA, WgmmaError};

/// A shape-and-stride layout in CuTe's notation, for one mode: index to offset, first mode fastest.
fn cute(mut index: usize, modes: &[(usize, usize)]) -> usize {
    let mut offset = 0;
    for &(shape, stride) in modes {
        offset += index % shape * stride;
        index /= shape;
    }
    offset
}

/// `Swizzle<bits, 4, 3>` on a byte address.
fn swizzle(address: usize, bits: usize) -> usize {
    address ^ (address >> 3 & ((1 << bits) - 1) << 4)
}

/// Byte address of element (mn, k) by the manual's canonical layouts, in elements: `T` to a chunk of 16
/// bytes.
fn canonical(d: &Descriptor, major: Major, kind: Element, mn: usize, k: usize) -> usize {
    let size = kind.bits() / 8;
    let t = 16 / size;
    let (sbo, lbo) = (d.stride as usize / size, d.leading as usize / size);
    let (w, bits) = match d.width {
        16 => (1, 0),
        32 => (2, 1),
        64 => (4, 2),
        _ => (8, 3),
    };
    let many = usize::MAX;
    let offset = match (major, w) {
        // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
        (Major::Mn, 1) => cute(mn, &[(t, 1), (1, t), (many, sbo)]) + cute(k, &[(8, t), (many, lbo)]),
        // ((T,W,m),(8,k)):((1,T,LBO),(W T,SBO))
        (Major::Mn, _) => cute(mn, &[(t, 1), (w, t), (many, lbo)]) + cute(k, &[(8, w * t), (many, sbo)]),
        // ((8,m),(T,2k)):((1T,SBO),(1,LBO))
        (Major::K, 1) => cute(mn, &[(8, t), (many, sbo)]) + cute(k, &[(t, 1), (many, lbo)]),
        // ((8,m),(T,2k)):((W T,SBO),(1,T))
        (Major::K, _) => cute(mn, &[(8, w * t), (many, sbo)]) + cute(k, &[(t, 1), (many, t)]),
    };
    swizzle(d.start as usize + offset * size, bits)
}

/// Strides of a matrix packed without gaps but for a little room, so that no two strides are equal.
fn descriptor(start: u32, width: u32, major: Major, lines: usize) -> Descriptor {
    let w = width / 16;
    let chunks = lines as u32 / 8;
    let (leading, stride) = match (major, width) {
        // Core matrices of 128 bytes: rows first, then the second chunk of k, with a gap.
        (Major::K, 16) => (128 * chunks + 256, 128),
        (Major::K, _) => (16, 128 * w),
        (Major::Mn, 16) => (128 * chunks + 128, 128),
        (Major::Mn, _) => (128 * w * 2, 128 * w),
    };
    Descriptor { start, leading, stride, base: 0, width }
}

fn place(
    image: &mut [u8],
    d: &Descriptor,
    major: Major,
    kind: Element,
    matrix: &[Vec<f64>],
    transpose: bool,
) {
    for (i, row) in matrix.iter().enumerate() {
        for (j, &value) in row.iter().enumerate() {
            let (mn, k) = if transpose { (j, i) } else { (i, j) };
            let at = canonical(d, major, kind, mn, k);
            let size = kind.bits() / 8;
            image[at..at + size].copy_from_slice(&encode(kind, value).to_le_bytes()[..size]);
        }
    }
}

pub struct Case {
    pub wgmma: Wgmma,
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
    c: Vec<Vec<f64>>,
}

impl Case {
    pub fn new(wgmma: Wgmma, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        Self {
            a: numbers.integers(wgmma.a, 64, wgmma.k()),
            b: numbers.integers(wgmma.b, wgmma.k(), wgmma.n),
            c: numbers.integers(Element::S4, 64, wgmma.n),
            wgmma,
        }
    }

    /// Warp, register, lane and bit of an element of D, from the manual's figure read backwards.
    fn home(&self, row: usize, column: usize) -> (usize, usize, usize, usize) {
        let lane = row % 8 * 4 + column % 8 / 2;
        let i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
        match self.wgmma.accumulator {
            Accumulator::F16 => (row / 16, i / 2, lane, 16 * (i % 2)),
            _ => (row / 16, i, lane, 0),
        }
    }

    pub fn accumulators(&self) -> Vec<Vec<Row>> {
        let mut d = vec![vec![[0u32; 32]; self.wgmma.d_registers()]; 4];
        for (row, values) in self.c.iter().enumerate() {
            for (column, &value) in values.iter().enumerate() {
                let (warp, register, lane, bit) = self.home(row, column);
                d[warp][register][lane] |= (encode_sum(self.wgmma.accumulator, value) as u32) << bit;
            }
        }
        d
    }

    /// The shared-memory image with both operands, and their descriptors.
    pub fn image(&self, a_width: u32, b_width: u32) -> (Vec<u8>, (u64, u64)) {
        let w = &self.wgmma;
        // The starts are aligned to the widest pattern; A and B lie apart.
        let da = descriptor(1024, a_width, w.a_major, 64);
        let db = descriptor(32768, b_width, w.b_major, w.n);
        let mut image = vec![0xaau8; 65536];
        place(&mut image, &da, w.a_major, w.a, &self.a, false);
        place(&mut image, &db, w.b_major, w.b, &self.b, true);
        (image, (da.encode(), db.encode()))
    }

    fn run(&self, a_width: u32, b_width: u32, registers: bool, scale_d: bool, summation: Summation) {
        let w = &self.wgmma;
        let (image, (da, db)) = self.image(a_width, b_width);
        let fragments: Vec<Vec<Row>> = (0..4).map(|warp| self.fragment(warp)).collect();
        let a = match &fragments[..] {
            [w0, w1, w2, w3] if registers => WgmmaA::Registers([w0, w1, w2, w3]),
            _ => WgmmaA::Shared(da),
        };
        let mut d = self.accumulators();
        let mut touched = 0;
        let mut read = |address: u32, bytes: &mut [u8]| -> Result<(), ()> {
            touched += bytes.len();
            bytes.copy_from_slice(&image[address as usize..address as usize + bytes.len()]);
            Ok(())
        };
        {
            let [d0, d1, d2, d3] = &mut d[..] else { panic!() };
            w.run([d0, d1, d2, d3], a, db, scale_d, summation, &mut read).unwrap();
        }
        assert_eq!(touched, 32 * (w.n + if registers { 0 } else { 64 }), "each byte once");
        self.compare(&d, scale_d, &format!("{w:?} widths {a_width}, {b_width}"));
    }

    /// Compares accumulators with the plain matmul.
    pub fn compare(&self, d: &[Vec<Row>], scale_d: bool, what: &str) {
        let w = &self.wgmma;
        let sign = if w.negate_a != w.negate_b { -1.0 } else { 1.0 };
        let a: Vec<Vec<f64>> = self.a.iter().map(|row| row.iter().map(|x| sign * x).collect()).collect();
        let zero = vec![vec![0.0; w.n]; 64];
        let want = matmul(&a, &self.b, if scale_d { &self.c } else { &zero });
        for (row, values) in want.iter().enumerate() {
            for (column, &value) in values.iter().enumerate() {
                let (warp, register, lane, bit) = self.home(row, column);
                let mask = if w.accumulator == Accumulator::F16 { 0xffff } else { u32::MAX };
                let code = d[warp][register][lane] >> bit & mask;
                assert_eq!(
                    decode_sum(w.accumulator, code.into()),
                    value,
                    "{what}, element ({row}, {column})"
                );
            }
        }
    }

    /// Operand A of one warp: as `mma` of 16 rows has it.
    pub fn fragment(&self, warp: usize) -> Vec<Row> {
        let (kind, e) = (self.wgmma.a, 32 / self.wgmma.a.bits());
        let mut out = vec![[0; 32]; 4];
        for (j, row) in out.iter_mut().enumerate() {
            for (lane, word) in row.iter_mut().enumerate() {
                let (down, across) = (16 * warp + lane / 4 + j % 2 * 8, lane % 4 * e + j / 2 * 4 * e);
                for i in 0..e {
                    *word |= (encode(kind, self.a[down][across + i]) as u32) << (i * kind.bits());
                }
            }
        }
        out
    }
}

pub fn parse(n: usize, k: usize, d: &str, a: &str, b: &str) -> Wgmma {
    let shape = format!("m64n{n}k{k}");
    Wgmma::parse(&["mma_async", "sync", "aligned", &shape, d, a, b]).unwrap()
}

#[test]
fn every_type_multiplies_from_registers_and_from_shared_memory() {
    let kinds = [
        (16, "f32", "bf16", "bf16"),
        (16, "f32", "f16", "f16"),
        (16, "f16", "f16", "f16"),
        (8, "f32", "tf32", "tf32"),
        (32, "s32", "s8", "s8"),
        (32, "s32", "u8", "s8"),
        (32, "s32", "s8", "u8"),
        (32, "f32", "e4m3", "e4m3"),
        (32, "f32", "e5m2", "e4m3"),
        (32, "f16", "e4m3", "e5m2"),
    ];
    for (seed, (k, d, a, b)) in kinds.into_iter().enumerate() {
        for n in [8, 48, 256] {
            let case = Case::new(parse(n, k, d, a, b), seed as u64);
            for width in [16, 32, 64, 128] {
                case.run(width, width, false, true, Summation::Plain);
                case.run(16, width, true, false, Summation::Plain);
            }
        }
    }
}

#[test]
fn both_majors_and_all_swizzles_and_signs() {
    for (a_major, b_major) in [(Major::K, Major::Mn), (Major::Mn, Major::K), (Major::Mn, Major::Mn)] {
        for kind in ["f16", "bf16"] {
            let mut wgmma = Wgmma { a_major, b_major, ..parse(64, 16, "f32", kind, kind) };
            for a_width in [16, 32, 64, 128] {
                for b_width in [16, 32, 64, 128] {
                    (wgmma.negate_a, wgmma.negate_b) = (a_width > 32, b_width > 16);
                    assert!(wgmma.is_valid());
                    Case::new(wgmma, 7).run(a_width, b_width, false, true, Summation::Plain);
                }
            }
        }
    }
}

#[test]
fn small_integers_are_exact_in_the_hardware_order_too() {
    for summation in [Summation::Ampere, Summation::Hopper] {
        for (k, d, kind) in [(16, "f32", "bf16"), (8, "f32", "tf32"), (16, "f16", "f16"), (32, "s32", "u8")] {
            Case::new(parse(16, k, d, kind, kind), 3).run(128, 64, false, true, summation);
        }
    }
}

#[test]
fn a_descriptor_moved_inside_the_swizzle_atom_reads_the_next_depth() {
    // 64 columns of k in one 128-byte row; the kernel adds 32 bytes to the start for each step of 16.
    let wgmma = parse(8, 16, "f32", "bf16", "bf16");
    let mut numbers = Numbers(5);
    let a = numbers.integers(Element::Bf16, 64, 64);
    let b = numbers.integers(Element::Bf16, 64, 8);
    let (da, db) = (descriptor(1024, 128, Major::K, 64), descriptor(16384, 128, Major::K, 8));
    let mut image = vec![0u8; 32768];
    place(&mut image, &da, Major::K, Element::Bf16, &a, false);
    place(&mut image, &db, Major::K, Element::Bf16, &b, true);
    let mut read = |address: u32, bytes: &mut [u8]| -> Result<(), ()> {
        bytes.copy_from_slice(&image[address as usize..][..bytes.len()]);
        Ok(())
    };
    let mut d = vec![vec![[0u32; 32]; 4]; 4];
    for step in 0..4 {
        let [d0, d1, d2, d3] = &mut d[..] else { panic!() };
        let (a, b) = (da.encode() + 2 * step, db.encode() + 2 * step);
        wgmma.run([d0, d1, d2, d3], WgmmaA::Shared(a), b, step > 0, Summation::Plain, &mut read).unwrap();
    }
    let want = matmul(&a, &b, &vec![vec![0.0; 8]; 64]);
    let case = Case::new(wgmma, 0);
    for (row, values) in want.iter().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let (warp, register, lane, _) = case.home(row, column);
            assert_eq!(f64::from(f32::from_bits(d[warp][register][lane])), value, "({row}, {column})");
        }
    }
}

#[test]
fn errors_come_back_and_leave_the_accumulators_alone() {
    let wgmma = parse(8, 16, "f32", "bf16", "bf16");
    let good = descriptor(0, 128, Major::K, 64).encode();
    let before = vec![vec![[7u32; 32]; 4]; 4];
    let run = |a: u64, b: u64, limit: u32| {
        let mut d = before.clone();
        let [d0, d1, d2, d3] = &mut d[..] else { panic!() };
        let mut read = |address: u32, _: &mut [u8]| if address < limit { Ok(()) } else { Err(address) };
        let result = wgmma.run([d0, d1, d2, d3], WgmmaA::Shared(a), b, true, Summation::Plain, &mut read);
        assert_eq!(d, before);
        result.unwrap_err()
    };
    assert_eq!(run(good, good, 4096), WgmmaError::Read(4096));
    assert!(
        matches!(run(good | 1 << 14, good, 1 << 20), WgmmaError::Operand(text) if text.contains("reserved"))
    );
}

#[test]
fn descriptors_keep_their_fields() {
    let d = Descriptor { start: 0x3fff0, leading: 0x120, stride: 1024, base: 5, width: 64 };
    assert_eq!(Descriptor::decode(d.encode()), Ok(d));
    assert_eq!(d.encode(), 0x3fff | 0x12 << 16 | 64 << 32 | 5 << 49 | 2 << 62);
    // A pattern that starts 128 bytes late is shifted by one line.
    let moved = Descriptor { start: 128, base: 1, width: 128, leading: 16, stride: 1024 };
    let still = Descriptor { start: 0, base: 0, ..moved };
    for line in 0..7 {
        for chunk in 0..8 {
            let (a, b) =
                (moved.chunk_address(Major::K, line, chunk), still.chunk_address(Major::K, line, chunk));
            assert_eq!(a, b + 128, "line {line}, chunk {chunk}");
        }
    }
}

#[test]
fn impossible_instructions_are_refused() {
    let refuse = |shape: &str, d, a, b| Wgmma::parse(&["mma_async", shape, d, a, b]).unwrap_err();
    for (shape, d, a, b) in [
        ("m64n12k16", "f32", "bf16", "bf16"),
        ("m64n264k16", "f32", "bf16", "bf16"),
        ("m64n0k16", "f32", "bf16", "bf16"),
        ("m64n8k32", "f32", "bf16", "bf16"),
        ("m64n40k32", "s32", "s8", "s8"),
        ("m64n8k16", "f32", "f16", "bf16"),
        ("m64n8k16", "f16", "bf16", "bf16"),
    ] {
        assert!(refuse(shape, d, a, b).contains("not an instruction"), "{shape} {d} {a} {b}");
    }
    assert!(refuse("m64n8x16", "f32", "bf16", "bf16").contains("shape `m64n8x16`"));
    let transposed = Wgmma { b_major: Major::Mn, ..parse(8, 8, "f32", "tf32", "tf32") };
    assert!(!transposed.is_valid());
}
