//! `mma.sync`: one warp's `D = A B + C`.
//!
//! [`Mma::parse`] reads the modifiers once, at load time, and refuses shapes that PTX does not have;
//! [`Mma::run`] is the step of one warp. The matmul is computed row by row with the columns of B innermost,
//! so that the compiler turns the inner loop into vector code; the order of additions is that of
//! [`Summation::Plain`] all the same.
//!
//! Why fragments are taken apart without any index per element: lane `4g + t` holds elements `e t` to
//! `e t + e - 1` of row
//! `g`, so a register over the 32 lanes, read as memory, *is* an 8 x 4e matrix by rows (by columns for B),
//! and a pair of accumulator registers, interleaved, is an 8 x 8 one.

use super::bits::BitOp;
use super::element::{Accumulator, Element, e4m3_codes};
use super::halves;
use super::sum::Summation;
use crate::Row;
use crate::number::{float, half};

/// A `mma.sync` instruction: `m x 8 x k`, A row-major, B column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mma {
    /// Rows of A and D: 8 or 16.
    pub m: usize,
    /// Depth.
    pub k: usize,
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Elements of C and D.
    pub accumulator: Accumulator,
    /// `.satfinite`: s32 results clamp instead of wrapping.
    pub saturate: bool,
    /// How single bits are combined; none for all other elements.
    pub bit_op: Option<BitOp>,
}

/// Registers of an operand at most, f64 shapes aside.
pub(crate) const MOST: usize = 4;

/// Columns of B and D in every shape.
pub const N: usize = 8;

/// The shapes of PTX ISA 8.7, dense, without `m8n8k4` of f16 (compute capability 7.0 only).
const SHAPES: [(Element, &[(usize, usize)]); 7] = [
    (Element::F16, &[(16, 8), (16, 16)]),
    (Element::Bf16, &[(16, 8), (16, 16)]),
    (Element::Tf32, &[(16, 4), (16, 8)]),
    (Element::S8, &[(8, 16), (16, 16), (16, 32)]),
    (Element::S4, &[(8, 32), (16, 32), (16, 64)]),
    (Element::B1, &[(8, 128), (16, 128), (16, 256)]),
    (Element::F64, &[(8, 4), (16, 4), (16, 8), (16, 16)]),
];

impl Mma {
    /// Reads the parts of an opcode after `mma`, e.g. `sync aligned m16n8k16 row col f32 bf16 bf16 f32`.
    ///
    /// # Errors
    /// A sentence that names the part, if it is unknown, missing, or a combination that PTX does not have.
    pub fn parse(parts: &[&str]) -> Result<Self, String> {
        let mut shape = None;
        let (mut saturate, mut popc, mut bit_op) = (false, false, None);
        let mut types = Vec::new();
        for &part in parts {
            match part {
                "sync" | "aligned" | "row" | "col" => {}
                "popc" => popc = true,
                "xor" | "and" => bit_op = BitOp::parse(part),
                "kind::f8f6f4" => {}
                "satfinite" => saturate = true,
                _ if part.starts_with('m') => shape = Some(part),
                _ => types.push(part),
            }
        }
        let [d, a, b, c] = types[..] else {
            return Err(format!("mma takes the types of d, a, b and c, found `{}`", types.join(".")));
        };
        let shape = shape.ok_or("mma without a shape")?;
        let (m, k) = parse_shape(shape).ok_or_else(|| format!("mma shape `{shape}` is unknown"))?;
        let element =
            |name: &str| Element::parse(name).ok_or_else(|| format!("mma operand type `{name}` is unknown"));
        let accumulator = Accumulator::parse(d).ok_or_else(|| format!("mma result type `{d}` is unknown"))?;
        let (a_element, b_element) = (element(a)?, element(b)?);
        if (a_element == Element::B1) != (popc && bit_op.is_some()) {
            return Err(format!("mma of `{a}`: single bits, and no others, take `.xor.popc` or `.and.popc`"));
        }
        let mma = Self { m, k, a: a_element, b: b_element, accumulator, saturate, bit_op };
        if c != d {
            return Err(format!("mma with accumulator type `{c}` and result type `{d}` is not supported"));
        }
        if !mma.is_valid() {
            return Err(format!("mma `{shape}` of {a} and {b} into {d} is not an instruction"));
        }
        Ok(mma)
    }

    fn is_valid(&self) -> bool {
        let family = match self.a {
            Element::U8 => Element::S8,
            Element::U4 => Element::S4,
            other => other,
        };
        let shaped = match self.a {
            Element::E4m3 | Element::E5m2 => matches!((self.m, self.k), (16, 16 | 32)),
            _ => SHAPES
                .iter()
                .any(|(element, shapes)| *element == family && shapes.contains(&(self.m, self.k))),
        };
        let accumulates = match self.a {
            Element::F16 | Element::E4m3 | Element::E5m2 => {
                matches!(self.accumulator, Accumulator::F16 | Accumulator::F32)
            }
            Element::Bf16 | Element::Tf32 => self.accumulator == Accumulator::F32,
            Element::F64 => self.accumulator == Accumulator::F64,
            _ => self.accumulator == Accumulator::S32,
        };
        let saturates = self.a.is_integer() && self.a != Element::B1;
        shaped && accumulates && self.a.mixes_with(self.b) && (!self.saturate || saturates)
    }

    /// Registers of operand A.
    pub const fn a_registers(&self) -> usize {
        self.m / 8 * self.b_registers()
    }

    /// Registers of operand B.
    pub const fn b_registers(&self) -> usize {
        self.k / (4 * self.a.per_register())
    }

    /// Registers of operands C and D.
    pub const fn c_registers(&self) -> usize {
        match self.accumulator {
            Accumulator::F16 => self.m / 8,
            _ => self.m / 4,
        }
    }

    /// One warp's matmul. f64 shapes have 64-bit registers and go through [`Mma::run_f64`].
    ///
    /// # Arguments
    /// `d`, `c`: [`Mma::c_registers`] rows; `a`: [`Mma::a_registers`]; `b`: [`Mma::b_registers`]. Other
    /// lengths are the caller's mistake: missing rows leave elements zero or results unwritten.
    pub fn run(&self, d: &mut [Row], a: &[Row], b: &[Row], c: &[Row], summation: Summation) {
        let zero = [0; 32];
        let (na, nb, nc) = (a.len().min(MOST), b.len().min(MOST), c.len().min(MOST));
        let mut all = [[&zero; MOST]; 3];
        all[0].iter_mut().zip(a).for_each(|(to, row)| *to = row);
        all[1].iter_mut().zip(b).for_each(|(to, row)| *to = row);
        all[2].iter_mut().zip(c).for_each(|(to, row)| *to = row);
        self.run_rows(d, &all[0][..na], &all[1][..nb], &all[2][..nc], summation);
    }

    /// [`Mma::run`] on rows wherever they are.
    pub(crate) fn run_rows(&self, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row], summation: Summation) {
        if let Some(op) = self.bit_op {
            return op.multiply(self.m / 8, d, a, b, c);
        }
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature the function is compiled for.
            return unsafe { self.run_wide(d, a, b, c, summation) };
        }
        self.run_any(d, a, b, c, summation);
    }

    /// The same code in vectors of eight: no multiply-add is fused and no sum reordered, so the bits are the
    /// same.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn run_wide(&self, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row], summation: Summation) {
        self.run_any(d, a, b, c, summation);
    }

    #[inline(always)]
    fn run_any(&self, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row], summation: Summation) {
        if summation == Summation::Plain && self.a == self.b && self.m == halves::M {
            match (self.a, self.k) {
                (Element::Bf16, 8) => return self.run_halves::<8>(d, a, b, c, half::f32_from_bf16),
                (Element::Bf16, 16) => return self.run_halves::<16>(d, a, b, c, half::f32_from_bf16),
                (Element::F16, 8) => return self.run_halves::<8>(d, a, b, c, half::f32_from_f16),
                (Element::F16, 16) => return self.run_halves::<16>(d, a, b, c, half::f32_from_f16),
                _ => {}
            }
        }
        self.run_any_depth(d, a, b, c, summation);
    }

    /// A depth known to the compiler: tiles no larger than needed, inner loops without a count.
    #[inline(always)]
    fn run_any_depth(&self, d: &mut [Row], a: &[&Row], b: &[&Row], c: &[&Row], summation: Summation) {
        match self.k {
            4 => self.run_depth::<4>(d, a, b, c, summation),
            8 => self.run_depth::<8>(d, a, b, c, summation),
            16 => self.run_depth::<16>(d, a, b, c, summation),
            32 => self.run_depth::<32>(d, a, b, c, summation),
            _ => self.run_depth::<64>(d, a, b, c, summation),
        }
    }

    /// The matmuls that kernels mostly ask for.
    #[inline(always)]
    fn run_halves<const K: usize>(
        &self,
        d: &mut [Row],
        a: &[&Row],
        b: &[&Row],
        c: &[&Row],
        value: impl Fn(u16) -> f32,
    ) {
        let mut sums = [0.0f32; 16 * N];
        read_sums(self.accumulator, c, &mut sums);
        halves::multiply::<K>(a, b, bytemuck::cast_mut(&mut sums), value);
        write_sums(self.accumulator, d, &sums);
    }

    /// [`Mma::run`] without the roads for frequent shapes.
    #[cfg(test)]
    pub(crate) fn run_general(&self, d: &mut [Row], a: &[Row], b: &[Row], c: &[Row]) {
        let (a, b, c): (Vec<_>, Vec<_>, Vec<_>) =
            (a.iter().collect(), b.iter().collect(), c.iter().collect());
        self.run_any_depth(d, &a, &b, &c, Summation::Plain);
    }

    #[inline(always)]
    fn run_depth<const K: usize>(
        &self,
        d: &mut [Row],
        a: &[&Row],
        b: &[&Row],
        c: &[&Row],
        summation: Summation,
    ) {
        let mut left = [[0.0f32; K]; 16];
        let mut right = [[0.0f32; N]; K];
        gather_a(self.a, self.m, a, &mut left);
        gather_b(self.b, b, &mut right);
        let mut sums = [0.0f32; 16 * N];
        if self.accumulator != Accumulator::S32 {
            read_sums(self.accumulator, c, &mut sums);
        }
        match summation.fused(self.a, false) {
            // Integer sums stay far below 2^24 and are exact in f32 either way.
            Some(fused) if !self.a.is_integer() => {
                for (row, left) in sums.chunks_exact_mut(N).zip(&left).take(self.m) {
                    for (n, sum) in row.iter_mut().enumerate() {
                        *sum = fused.dot((self.a, self.b), left, |k| right[k][n], *sum, self.accumulator);
                    }
                }
            }
            _ => multiply(self.m, &left, &right, &mut sums),
        }
        match self.accumulator {
            Accumulator::S32 => write_integers(d, c, &sums, self.saturate),
            kind => write_sums(kind, d, &sums),
        }
    }

    /// One warp's matmul of f64: a chain of fused multiply-adds in ascending `k`.
    ///
    /// # Arguments
    /// As [`Mma::run`], with rows of 64-bit registers.
    pub fn run_f64(&self, d: &mut [[u64; 32]], a: &[[u64; 32]], b: &[[u64; 32]], c: &[[u64; 32]]) {
        let at = |row: &[u64; 32], lane: usize| f64::from_bits(row[lane]);
        for (j, (d, c)) in d.iter_mut().zip(c).enumerate() {
            for (lane, d) in d.iter_mut().enumerate() {
                // The lanes that hold row `g` of A and column `n` of B.
                let (g, n) = (lane / 4, 2 * (lane % 4) + j % 2);
                let mut sum = at(c, lane);
                for k in 0..self.k {
                    let register = if self.m == 16 { 2 * (k / 4) + j / 2 } else { k / 4 };
                    let (Some(a), Some(b)) = (a.get(register), b.get(k / 4)) else { continue };
                    sum = at(a, 4 * g + k % 4).mul_add(at(b, 4 * n + k % 4), sum);
                }
                *d = float::canonical64(sum.to_bits());
            }
        }
    }
}

/// `m` and `k` of a shape name.
fn parse_shape(name: &str) -> Option<(usize, usize)> {
    let (m, k) = name.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, k.parse().ok()?))
}

/// A register over the lanes, read as memory.
fn memory(register: &Row) -> &[u8] {
    bytemuck::cast_slice(register)
}

/// Takes a fragment of A apart into rows of f32, `tile[row][k]`.
#[inline(always)]
pub(crate) fn gather_a<const K: usize>(kind: Element, m: usize, registers: &[&Row], tile: &mut [[f32; K]]) {
    let (width, codes) = (4 * kind.per_register(), e4m3_codes());
    for (j, register) in registers.iter().enumerate() {
        let (down, across) = if m == 16 { (8 * (j % 2), width * (j / 2)) } else { (0, width * j) };
        // Four lanes are a row.
        for (row, lanes) in tile[down..down + 8].iter_mut().zip(memory(register).chunks_exact(16)) {
            kind.widen(lanes, codes, &mut row[across..across + width]);
        }
    }
}

/// Takes a fragment of B apart into rows of f32, `tile[k][n]`.
#[inline(always)]
fn gather_b(kind: Element, registers: &[&Row], tile: &mut [[f32; N]]) {
    let (width, codes) = (4 * kind.per_register(), e4m3_codes());
    let mut values = [0.0f32; 256];
    for (rows, register) in tile.chunks_exact_mut(width).zip(registers) {
        kind.widen(memory(register), codes, &mut values);
        for (n, column) in values.chunks_exact(width).enumerate().take(N) {
            rows.iter_mut().zip(column).for_each(|(row, &value)| row[n] = value);
        }
    }
}

/// Eight rows of eight columns.
const BLOCK: usize = 8 * N;

#[inline(always)]
fn read_sums(kind: Accumulator, registers: &[&Row], sums: &mut [f32; 16 * N]) {
    if kind == Accumulator::F16 {
        for (block, register) in sums.chunks_exact_mut(BLOCK).zip(registers) {
            Element::F16.widen(memory(register), e4m3_codes(), block);
        }
        return;
    }
    for (block, pair) in sums.chunks_exact_mut(BLOCK).zip(registers.chunks_exact(2)) {
        for (sums, (&even, &odd)) in block.chunks_exact_mut(2).zip(pair[0].iter().zip(pair[1])) {
            sums[0] = f32::from_bits(even);
            sums[1] = f32::from_bits(odd);
        }
    }
}

#[inline(always)]
fn write_sums(kind: Accumulator, registers: &mut [Row], sums: &[f32; 16 * N]) {
    if kind == Accumulator::F16 {
        for (register, block) in registers.iter_mut().zip(sums.chunks_exact(BLOCK)) {
            for (out, pair) in register.iter_mut().zip(block.chunks_exact(2)) {
                *out = u32::from(half::f16_from_f32(pair[0])) | u32::from(half::f16_from_f32(pair[1])) << 16;
            }
        }
        return;
    }
    for (registers, block) in registers.chunks_exact_mut(2).zip(sums.chunks_exact(BLOCK)) {
        let (even, odd) = registers.split_at_mut(1);
        for (pair, (even, odd)) in block.chunks_exact(2).zip(even[0].iter_mut().zip(&mut odd[0])) {
            *even = float::canonical(pair[0].to_bits());
            *odd = float::canonical(pair[1].to_bits());
        }
    }
}

#[inline(always)]
fn write_integers(d: &mut [Row], c: &[&Row], sums: &[f32; 16 * N], saturate: bool) {
    for (j, (d, c)) in d.iter_mut().zip(c).enumerate() {
        let block = &sums[j / 2 * BLOCK..][..BLOCK];
        for (pair, (d, &c)) in block.chunks_exact(2).zip(d.iter_mut().zip(c.iter())) {
            let (sum, c) = (pair[j % 2] as i32, c as i32);
            *d = if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) } as u32;
        }
    }
}

#[inline(always)]
fn multiply<const K: usize>(
    m: usize,
    left: &[[f32; K]; 16],
    right: &[[f32; N]; K],
    sums: &mut [f32; 16 * N],
) {
    // Four rows at a time: four chains of additions hide each other's latency. Every shape has eight rows or
    // sixteen.
    for (sums, left) in sums.chunks_exact_mut(4 * N).zip(left.chunks_exact(4)).take(m / 4) {
        let mut chains = [[0.0f32; N]; 4];
        chains.as_flattened_mut().copy_from_slice(sums);
        for (k, right) in right.iter().enumerate() {
            for (chain, left) in chains.iter_mut().zip(left) {
                for (sum, &b) in chain.iter_mut().zip(right) {
                    *sum += left[k] * b;
                }
            }
        }
        sums.copy_from_slice(chains.as_flattened());
    }
}
