//! `wgmma.mma_async`: a warp group's `D = A B + D` with 64 rows, B (and usually A) in shared memory.
//!
//! [`Wgmma::parse`] reads the modifiers, [`Wgmma::run`] is the whole matmul, done at once: when it happens
//! (the latest legal moment) is the executor's affair. Shared memory is read through a closure in chunks of
//! 16 bytes, each exactly once, so that the executor can check every byte the hardware would read.

use super::descriptor::{Descriptor, Major};
use super::element::{Accumulator, Element};
use super::mma::gather_a;
use super::sum::Summation;
use crate::Row;
use crate::number::{float, half};

/// Rows of A and D.
pub const M: usize = 64;
/// Greatest depth (8-bit elements).
const MAX_K: usize = 32;

/// A `wgmma.mma_async` instruction, `m64 n k`; every operand of A and B is 32 bytes deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    /// Columns of B and D.
    pub n: usize,
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Elements of D.
    pub accumulator: Accumulator,
    /// `.satfinite`: s32 results clamp instead of wrapping.
    pub saturate: bool,
    /// How A lies in shared memory.
    pub a_major: Major,
    /// How B lies in shared memory.
    pub b_major: Major,
    /// `imm-scale-a` is -1.
    pub negate_a: bool,
    /// `imm-scale-b` is -1.
    pub negate_b: bool,
}

/// Where operand A comes from.
#[derive(Clone, Copy, Debug)]
pub enum WgmmaA<'a> {
    /// Four registers of each of the four warps, ascending.
    Registers([&'a [Row]; 4]),
    /// A matrix descriptor.
    Shared(u64),
}

/// Copies bytes of shared memory from an address of the shared window, or says why it cannot.
pub type Reader<'r, E> = dyn FnMut(u32, &mut [u8]) -> Result<(), E> + 'r;

/// One of the operands in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Operand A, 64 rows.
    A,
    /// Operand B, `n` columns.
    B,
}

/// Why a matmul could not be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WgmmaError<E> {
    /// A malformed descriptor.
    Operand(String),
    /// The reader's own error.
    Read(E),
}

impl Wgmma {
    /// Reads the parts of an opcode after `wgmma`, e.g. `mma_async sync aligned m64n128k16 f32 bf16 bf16`.
    /// The immediates (negation, transposition) are plain afterwards; the caller sets them.
    ///
    /// # Errors
    /// A sentence that names the part, if it is unknown, missing, or a combination that PTX does not have.
    pub fn parse(parts: &[&str]) -> Result<Self, String> {
        let mut shape = None;
        let mut saturate = false;
        let mut types = Vec::new();
        for &part in parts {
            match part {
                "mma_async" | "sync" | "aligned" => {}
                "satfinite" => saturate = true,
                "sp" => return Err("sparse wgmma is not supported".into()),
                _ if part.starts_with("m64n") => shape = Some(part),
                _ => types.push(part),
            }
        }
        let [d, a, b] = types[..] else {
            return Err(format!("wgmma takes the types of d, a and b, found `{}`", types.join(".")));
        };
        let shape = shape.ok_or("wgmma without a shape m64n..k..")?;
        let size = shape.strip_prefix("m64n").and_then(|rest| rest.split_once('k'));
        let (n, k) = size
            .and_then(|(n, k)| Some((n.parse::<usize>().ok()?, k.parse::<usize>().ok()?)))
            .ok_or_else(|| format!("wgmma shape `{shape}` is unknown"))?;
        let element = |name: &str| {
            Element::parse(name).ok_or_else(|| format!("wgmma operand type `{name}` is unknown"))
        };
        let accumulator =
            Accumulator::parse(d).ok_or_else(|| format!("wgmma result type `{d}` is unknown"))?;
        let (a_major, b_major) = (Major::K, Major::K);
        let (negate_a, negate_b) = (false, false);
        let (a, b) = (element(a)?, element(b)?);
        let wgmma = Self { n, a, b, accumulator, saturate, a_major, b_major, negate_a, negate_b };
        if k != wgmma.k() || !wgmma.is_valid() {
            return Err(format!("wgmma `{shape}` of {a:?} and {b:?} into {d} is not an instruction"));
        }
        Ok(wgmma)
    }

    /// Depth: 32 bytes of elements.
    pub const fn k(&self) -> usize {
        256 / self.a.bits()
    }

    /// Whether PTX has the combination, immediates included.
    pub fn is_valid(&self) -> bool {
        let accumulates = match self.a {
            Element::F16 | Element::E4m3 | Element::E5m2 => {
                matches!(self.accumulator, Accumulator::F16 | Accumulator::F32)
            }
            Element::Bf16 | Element::Tf32 => self.accumulator == Accumulator::F32,
            Element::S8 | Element::U8 => self.accumulator == Accumulator::S32,
            _ => false,
        };
        let integer = self.a.is_integer();
        // Integer matmuls come in steps of 16 columns beyond 32.
        let columns = (8..=256).contains(&self.n)
            && self.n.is_multiple_of(8)
            && (!integer || self.n <= 32 || self.n.is_multiple_of(16));
        let transposed = self.a_major == Major::Mn || self.b_major == Major::Mn;
        accumulates
            && columns
            && self.a.mixes_with(self.b)
            && (!self.saturate || integer)
            && (!transposed || self.a.bits() == 16)
            && (!integer || !(self.negate_a || self.negate_b))
    }

    /// Registers of D per warp.
    pub const fn d_registers(&self) -> usize {
        match self.accumulator {
            Accumulator::F16 => self.n / 4,
            _ => self.n / 2,
        }
    }

    /// Element type, majorness, and rows (columns) of an operand.
    const fn operand(&self, side: Side) -> (Element, Major, usize) {
        match side {
            Side::A => (self.a, self.a_major, M),
            Side::B => (self.b, self.b_major, self.n),
        }
    }

    /// Shared addresses of the 16-byte chunks of an operand, each once, in the order [`Wgmma::run`] reads
    /// them.
    ///
    /// # Errors
    /// A malformed descriptor, or the visitor's error.
    // Its visitors are a few instructions each: a call for every 16 bytes costs a twentieth of a matmul.
    #[inline(always)]
    pub fn addresses<E>(
        &self,
        side: Side,
        bits: u64,
        visit: &mut dyn FnMut(u32) -> Result<(), E>,
    ) -> Result<(), WgmmaError<E>> {
        let descriptor = Descriptor::decode(bits).map_err(WgmmaError::Operand)?;
        let (kind, major, lines) = self.operand(side);
        let per_chunk = 128 / kind.bits();
        let (outer, chunks) = match major {
            Major::K => (lines, self.k() / per_chunk),
            Major::Mn => (self.k(), lines / per_chunk),
        };
        for line in 0..outer {
            for chunk in 0..chunks {
                visit(descriptor.chunk_address(major, line as u32, chunk as u32))
                    .map_err(WgmmaError::Read)?;
            }
        }
        Ok(())
    }

    /// Computes the matmul.
    ///
    /// # Arguments
    /// - `d`: the accumulators of the four warps, ascending, [`Wgmma::d_registers`] rows each; read unless
    ///   `scale_d` is false, then written.
    /// - `a`, `b`: operand A, and the descriptor of B.
    /// - `scale_d`: false makes it `D = A B`.
    /// - `read`: copies 16 bytes of shared memory from an address of the shared window.
    ///
    /// # Errors
    /// A malformed descriptor, or the reader's error; `d` is then as before.
    pub fn run<E>(
        &self,
        d: [&mut [Row]; 4],
        a: WgmmaA<'_>,
        b: u64,
        scale_d: bool,
        summation: Summation,
        read: &mut Reader<'_, E>,
    ) -> Result<(), WgmmaError<E>> {
        let mut left = vec![[0.0f32; MAX_K]; M];
        match a {
            WgmmaA::Registers(warps) => {
                for (rows, registers) in left.chunks_exact_mut(16).zip(warps) {
                    let registers: Vec<&Row> = registers.iter().collect();
                    gather_a(self.a, 16, &registers, rows);
                }
            }
            WgmmaA::Shared(bits) => {
                self.read_operand(Side::A, bits, read, |line, start, values| match self.a_major {
                    Major::K => left[line][start..start + values.len()].copy_from_slice(values),
                    Major::Mn => values.iter().enumerate().for_each(|(i, &x)| left[start + i][line] = x),
                })?
            }
        }
        let mut right = vec![0.0f32; self.k() * self.n];
        let n = self.n;
        self.read_operand(Side::B, b, read, |line, start, values| match self.b_major {
            Major::K => values.iter().enumerate().for_each(|(i, &x)| right[(start + i) * n + line] = x),
            Major::Mn => right[line * n + start..][..values.len()].copy_from_slice(values),
        })?;
        if self.negate_a != self.negate_b {
            left.iter_mut().flatten().for_each(|x| *x = -*x);
        }
        let mut sums = vec![0.0f32; M * n];
        if scale_d && self.accumulator != Accumulator::S32 {
            self.read(&d, &mut sums);
        }
        match summation.fused(self.a, true) {
            Some(fused) if !self.a.is_integer() => {
                for (sums, left) in sums.chunks_exact_mut(n).zip(&left) {
                    for (column, sum) in sums.iter_mut().enumerate() {
                        let (a, b) = (&left[..self.k()], |k: usize| right[k * n + column]);
                        *sum = fused.dot((self.a, self.b), a, b, *sum, self.accumulator);
                    }
                }
            }
            _ => multiply(self.k(), n, &left, &right, &mut sums),
        }
        self.write(d, &sums, scale_d);
        Ok(())
    }

    /// Reads an operand and hands over its chunks as `(line, start, values)`: `values` lie along the
    /// contiguous dimension from `start` on, at index `line` of the other one.
    fn read_operand<E>(
        &self,
        side: Side,
        bits: u64,
        read: &mut Reader<'_, E>,
        mut chunk: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), WgmmaError<E>> {
        let codes = super::element::e4m3_codes();
        let (kind, major, lines) = self.operand(side);
        let per_chunk = 128 / kind.bits();
        let across = if major == Major::K { self.k() } else { lines } / per_chunk;
        let mut values = [0.0f32; 32];
        let mut index = 0;
        self.addresses(side, bits, &mut |address| {
            let mut bytes = [0u8; 16];
            read(address, &mut bytes)?;
            kind.widen(&bytes, codes, &mut values);
            chunk(index / across, index % across * per_chunk, &values[..per_chunk]);
            index += 1;
            Ok(())
        })
    }

    /// Where register `j` of a warp begins: the row and the column of lane 0. Lane `4g + t` holds row `+ g`,
    /// column `+ 2t`.
    const fn corner(&self, warp: usize, j: usize) -> (usize, usize) {
        match self.accumulator {
            Accumulator::F16 => (16 * warp + 8 * (j % 2), 8 * (j / 2)),
            _ => (16 * warp + 8 * (j / 2 % 2), 8 * (j / 4) + j % 2),
        }
    }

    /// The accumulators as rows of `n` sums.
    fn read(&self, d: &[&mut [Row]; 4], sums: &mut [f32]) {
        for (warp, registers) in d.iter().enumerate() {
            for (j, register) in registers.iter().enumerate().take(self.d_registers()) {
                let (row, column) = self.corner(warp, j);
                for (g, lanes) in register.chunks_exact(4).enumerate() {
                    let sums = &mut sums[(row + g) * self.n + column..];
                    for (t, &bits) in lanes.iter().enumerate() {
                        if self.accumulator == Accumulator::F16 {
                            sums[2 * t] = half::f32_from_f16(bits as u16);
                            sums[2 * t + 1] = half::f32_from_f16((bits >> 16) as u16);
                        } else {
                            sums[2 * t] = f32::from_bits(bits);
                        }
                    }
                }
            }
        }
    }

    fn write(&self, d: [&mut [Row]; 4], sums: &[f32], scale_d: bool) {
        for (warp, registers) in d.into_iter().enumerate() {
            for (j, register) in registers.iter_mut().enumerate().take(self.d_registers()) {
                let (row, column) = self.corner(warp, j);
                for (g, lanes) in register.chunks_exact_mut(4).enumerate() {
                    let sums = &sums[(row + g) * self.n + column..];
                    for (t, out) in lanes.iter_mut().enumerate() {
                        *out = self.result(*out, sums, 2 * t, scale_d);
                    }
                }
            }
        }
    }

    /// A register's new bits from its old ones and the sums at a place.
    #[inline(always)]
    fn result(&self, old: u32, sums: &[f32], at: usize, scale_d: bool) -> u32 {
        match self.accumulator {
            Accumulator::F16 => {
                u32::from(half::f16_from_f32(sums[at])) | u32::from(half::f16_from_f32(sums[at + 1])) << 16
            }
            Accumulator::S32 => {
                let old = if scale_d { old as i32 } else { 0 };
                let sum = sums[at] as i32;
                (if self.saturate { old.saturating_add(sum) } else { old.wrapping_add(sum) }) as u32
            }
            Accumulator::F32 | Accumulator::F64 => float::canonical(sums[at].to_bits()),
        }
    }
}

/// Columns that the inner loop keeps in vector registers.
const BLOCK: usize = 8;

fn multiply(k: usize, n: usize, left: &[[f32; MAX_K]], right: &[f32], sums: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature the function is compiled for.
        return unsafe { multiply_wide(k, n, left, right, sums) };
    }
    multiply_any(k, n, left, right, sums);
}

/// The same code in vectors of eight; the bits are the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_wide(k: usize, n: usize, left: &[[f32; MAX_K]], right: &[f32], sums: &mut [f32]) {
    multiply_any(k, n, left, right, sums);
}

#[inline(always)]
fn multiply_any(k: usize, n: usize, left: &[[f32; MAX_K]], right: &[f32], sums: &mut [f32]) {
    for at in (0..n).step_by(BLOCK) {
        let mut columns = [[0.0f32; BLOCK]; MAX_K];
        for (columns, right) in columns.iter_mut().zip(right.chunks_exact(n)) {
            columns.copy_from_slice(&right[at..at + BLOCK]);
        }
        // Two rows at a time: two chains of additions hide each other's latency.
        for (sums, left) in sums.chunks_exact_mut(2 * n).zip(left.chunks_exact(2)) {
            let (upper, lower) = sums.split_at_mut(n);
            let (upper, lower) = (&mut upper[at..at + BLOCK], &mut lower[at..at + BLOCK]);
            let (mut first, mut second) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            first.copy_from_slice(upper);
            second.copy_from_slice(lower);
            for ((columns, &x), &y) in columns.iter().zip(&left[0]).zip(&left[1]).take(k) {
                for ((first, second), &b) in first.iter_mut().zip(&mut second).zip(columns) {
                    *first += x * b;
                    *second += y * b;
                }
            }
            upper.copy_from_slice(&first);
            lower.copy_from_slice(&second);
        }
    }
}
