//! Matrices of integer codes: a value is `(code - zero) * scale`, zero and scale of a group of inputs.
//!
//! GPTQ, AWQ and compressed-tensors differ in where the bits lie, not in what they mean. Codes of few enough
//! bits become GGUF's blocks without a rounding: `d * (q - 8)`, `d * (q - 16)` or `d * q` for 32 inputs of
//! one group, where every scale is a 16-bit float and no input has a group of its own. All else becomes f32.

use super::floats;
use super::part::Part;
use crate::checkpoint::Source;
use crate::mem::{Block, Stored};
use crate::quant::block;
use crate::{Error, Result};
use half::f16;
use std::ops::Range;

/// Where AWQ's `gemm` layout keeps column `c` of a word: nibble `AWQ[c]`.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Rows that are decoded at once: words along the outputs hold codes of several rows.
const TILE: usize = 64;

/// How codes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Words `[inputs / n, outputs]` of n codes along the inputs, the lowest bits first (GPTQ).
    Inputs,
    /// Words `[inputs, outputs / 8]` of 8 codes along the outputs (AWQ).
    Outputs,
    /// Words `[outputs, inputs / n]`, the lowest bits first (compressed-tensors).
    Rows,
    /// Signed bytes `[outputs, inputs]`.
    Bytes,
}

/// Where zero points are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Zeros {
    /// One for all.
    All(i32),
    /// Words `[groups, outputs / n]` in the order of the codes, and whether they are stored minus one.
    ByGroup(Part, bool),
    /// Words `[outputs / n, groups]`, the lowest bits first.
    ByOutput(Part),
    /// Signed bytes `[outputs, groups]`.
    Bytes(Part),
}

/// A packed matrix `[rows, cols]`.
#[derive(Debug, Clone)]
pub(super) struct Integers {
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs.
    pub(super) cols: usize,
    /// Bits of a code.
    pub(super) bits: u32,
    /// How the codes lie.
    pub(super) order: Order,
    /// The codes.
    pub(super) codes: Part,
    /// The zero points.
    pub(super) zeros: Zeros,
    /// The scales: `[groups, outputs]` where codes lie along inputs or outputs, else `[outputs, groups]`.
    pub(super) scales: Part,
    /// The group of every input, where groups are no runs.
    pub(super) of: Option<Part>,
}

/// Zeros and scales `[rows, groups]`, and the group of every input.
struct Factors {
    groups: usize,
    zeros: Vec<i32>,
    scales: Vec<f32>,
    of: Vec<usize>,
}

impl Integers {
    /// The tensors that it is made of.
    pub(super) fn parts(&self) -> Vec<&Part> {
        let zeros = match &self.zeros {
            Zeros::All(_) => None,
            Zeros::ByGroup(part, _) | Zeros::ByOutput(part) | Zeros::Bytes(part) => Some(part),
        };
        [&self.codes, &self.scales].into_iter().chain(zeros).chain(&self.of).collect()
    }

    /// Codes of a word.
    fn per_word(&self) -> usize {
        (32 / self.bits) as usize
    }

    /// What the matrix becomes.
    ///
    /// # Errors
    /// `Tensor` where zeros, scales or groups do not go with the matrix.
    pub(super) fn target(&self, source: &dyn Source) -> Result<Stored> {
        let factors = self.factors(source)?;
        let runs = factors.of.chunks(Block::VALUES).all(|run| run.iter().all(|g| *g == run[0]));
        let exact = |scale: &f32| f16::from_f32(*scale).to_f32() == *scale;
        if !self.cols.is_multiple_of(Block::VALUES) || !runs || !factors.scales.iter().all(exact) {
            return Ok(Stored::F32);
        }
        let low = factors.zeros.iter().min().copied().unwrap_or(0);
        let high = factors.zeros.iter().max().copied().unwrap_or(0);
        let (first, last) = if self.order == Order::Bytes { (-128, 127) } else { (0, (1 << self.bits) - 1) };
        let fits = |below: i32, above: i32| first - high >= below && last - low <= above;
        Ok(match () {
            _ if fits(-8, 7) => Stored::Block(Block::Q4_0),
            _ if fits(-16, 15) => Stored::Block(Block::Q5_0),
            _ if fits(-128, 127) => Stored::Block(Block::Q8_0),
            _ => Stored::F32,
        })
    }

    /// The matrix in the format that [`Integers::target`] said.
    ///
    /// # Errors
    /// As there, and what reading raises.
    pub(super) fn read(&self, source: &dyn Source, target: Stored) -> Result<Vec<u8>> {
        let factors = self.factors(source)?;
        let raw = source.bytes(&self.codes.name)?;
        let size = target.bytes(self.rows * self.cols).unwrap_or(0);
        let mut out = Vec::with_capacity(size);
        let mut codes = Vec::new();
        for start in (0..self.rows).step_by(TILE) {
            let rows = start..(start + TILE).min(self.rows);
            codes.resize(rows.len() * self.cols, 0);
            self.tile(&raw, rows.clone(), &mut codes);
            for (row, codes) in rows.zip(codes.chunks_exact_mut(self.cols.max(1))) {
                factors.write(row, codes, target, &mut out);
            }
        }
        match out.len() == size {
            true => Ok(out),
            false => Err(Error::internal(format!("{} has {} bytes of {size}", self.codes.name, out.len()))),
        }
    }

    /// Codes of some rows, one row after the other.
    fn tile(&self, raw: &[u8], rows: Range<usize>, out: &mut [i32]) {
        let (bits, per, cols) = (self.bits, self.per_word(), self.cols);
        let mask = ((1u64 << bits) - 1) as u32;
        match self.order {
            Order::Inputs => {
                for i in 0..cols.div_ceil(per) {
                    for (row, out) in rows.clone().zip(out.chunks_exact_mut(cols)) {
                        let word = word(raw, i * self.rows + row);
                        for (k, code) in out[i * per..cols.min((i + 1) * per)].iter_mut().enumerate() {
                            *code = (word >> (bits * k as u32) & mask) as i32;
                        }
                    }
                }
            }
            Order::Outputs => {
                for i in 0..cols {
                    for (row, out) in rows.clone().zip(out.chunks_exact_mut(cols)) {
                        let word = word(raw, i * (self.rows / per) + row / per);
                        out[i] = (word >> (bits as usize * AWQ[row % per]) & mask) as i32;
                    }
                }
            }
            Order::Rows => {
                let words = cols.div_ceil(per);
                for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
                    for (i, run) in out.chunks_mut(per).enumerate() {
                        let word = word(raw, row * words + i);
                        for (k, code) in run.iter_mut().enumerate() {
                            *code = (word >> (bits * k as u32) & mask) as i32;
                        }
                    }
                }
            }
            Order::Bytes => {
                for (code, byte) in out.iter_mut().zip(&raw[rows.start * cols..]) {
                    *code = i32::from(*byte as i8);
                }
            }
        }
    }

    /// Whether scales and zeros lie group by group, not output by output.
    fn is_by_group(&self) -> bool {
        matches!(self.order, Order::Inputs | Order::Outputs)
    }

    fn factors(&self, source: &dyn Source) -> Result<Factors> {
        let scales = floats::read(source, &self.scales)?;
        // One for the whole tensor, or for whole rows.
        let groups = match scales.len() {
            1 => 1,
            n if self.rows > 0 && n.is_multiple_of(self.rows) => n / self.rows,
            n => {
                let what = format!("{n} scales for {} outputs of `{}`", self.rows, self.codes.name);
                return Err(Error::tensor(&self.scales.name, what));
            }
        };
        let of = self.groups(source, groups)?;
        let at = |row: usize, group: usize| match (scales.len(), self.is_by_group()) {
            (1, _) => 0,
            (_, true) => group * self.rows + row,
            (_, false) => row * groups + group,
        };
        let each = || (0..self.rows).flat_map(|row| (0..groups).map(move |group| (row, group)));
        let zeros = self.zeros(source, groups, &mut each())?;
        let scales = each().map(|(row, group)| scales[at(row, group)]).collect();
        Ok(Factors { groups, zeros, scales, of })
    }

    /// The zero of every row and group.
    fn zeros(
        &self,
        source: &dyn Source,
        groups: usize,
        each: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Result<Vec<i32>> {
        let (bits, per) = (self.bits as usize, self.per_word());
        let mask = ((1u64 << bits) - 1) as u32;
        let sized = |part: &Part, want: usize, stored: Stored| match (part.elements, part.stored) {
            (elements, found) if (elements, found) == (want, stored) => source.bytes(&part.name),
            (elements, found) => {
                let what = format!(
                    "{elements} elements of {found}; {want} of {stored} are expected for {groups} groups"
                );
                Err(Error::tensor(&part.name, what))
            }
        };
        Ok(match &self.zeros {
            Zeros::All(zero) => each.map(|_| *zero).collect(),
            Zeros::ByGroup(part, minus_one) => {
                let words = self.rows.div_ceil(per);
                let raw = sized(part, groups * words, Stored::I32)?;
                // What is stored minus one was so as a whole word: its carries are part of it.
                let add = if *minus_one { u32::MAX / mask } else { 0 };
                let nibble =
                    |row: usize| if self.order == Order::Outputs { AWQ[row % per] } else { row % per };
                let zero = |(row, group)| {
                    let word = word(&raw, group * words + row / per).wrapping_add(add);
                    let shifted = word >> (bits * nibble(row));
                    (shifted & mask) as i32
                };
                each.map(zero).collect()
            }
            Zeros::ByOutput(part) => {
                let raw = sized(part, self.rows.div_ceil(per) * groups, Stored::I32)?;
                let zero = |(row, group)| {
                    (word(&raw, row / per * groups + group) >> (bits * (row % per)) & mask) as i32
                };
                each.map(zero).collect()
            }
            Zeros::Bytes(part) => {
                let raw = sized(part, self.rows * groups, Stored::I8)?;
                each.map(|(row, group)| i32::from(raw[row * groups + group] as i8)).collect()
            }
        })
    }

    /// The group of every input.
    fn groups(&self, source: &dyn Source, groups: usize) -> Result<Vec<usize>> {
        let bad = |name: &str, what: String| Err(Error::tensor(name, what));
        let runs = || match groups > 0 && self.cols.is_multiple_of(groups) {
            true => Ok((0..self.cols).map(|col| col / (self.cols / groups)).collect()),
            false => bad(&self.scales.name, format!("{groups} groups do not divide {} inputs", self.cols)),
        };
        let Some(part) = &self.of else { return runs() };
        if part.elements != self.cols {
            return bad(&part.name, format!("{} groups of {} inputs", part.elements, self.cols));
        }
        let of = floats::read(source, part)?;
        // Writers that have no order of inputs leave it all zero, or all -1.
        if groups > 1 && of.iter().all(|group| *group == 0.0) || of.iter().all(|group| *group == -1.0) {
            return runs();
        }
        match of.iter().find(|group| !(0.0..groups as f32).contains(*group)) {
            Some(group) => bad(&part.name, format!("an input's group is {group}; there are {groups}")),
            None => Ok(of.iter().map(|group| *group as usize).collect()),
        }
    }
}

impl Factors {
    /// A row's codes in `target`, at the end of `out`.
    fn write(&self, row: usize, codes: &mut [i32], target: Stored, out: &mut Vec<u8>) {
        let factor = |col: usize| row * self.groups + self.of[col];
        for (col, code) in codes.iter_mut().enumerate() {
            *code -= self.zeros[factor(col)];
        }
        let Stored::Block(format) = target else {
            let value = |(col, code): (usize, &i32)| *code as f32 * self.scales[factor(col)];
            out.extend(codes.iter().enumerate().map(value).flat_map(f32::to_le_bytes));
            return;
        };
        for (i, codes) in codes.as_chunks::<{ Block::VALUES }>().0.iter().enumerate() {
            let start = out.len();
            out.resize(start + format.bytes(), 0);
            let d = f16::from_f32(self.scales[factor(i * Block::VALUES)]);
            block::write(format, d, codes, &mut out[start..]);
        }
    }
}

/// Word `i` of little-endian words.
fn word(raw: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([raw[4 * i], raw[4 * i + 1], raw[4 * i + 2], raw[4 * i + 3]])
}

/// The shape `[rows, cols]` of codes that lie in `order`, from what is stored.
///
/// # Errors
/// `Tensor` for other shapes, or a size that no address reaches.
pub(super) fn shape_of(codes: &Part, order: Order, bits: u32) -> Result<[usize; 2]> {
    let [a, b] = codes.matrix()?;
    let per = (32 / bits) as usize;
    let shape = match order {
        Order::Inputs => Some(b).zip(a.checked_mul(per)),
        Order::Outputs => b.checked_mul(per).zip(Some(a)),
        Order::Rows => Some(a).zip(b.checked_mul(per)),
        Order::Bytes => Some((a, b)),
    };
    let fits = shape.filter(|(rows, cols)| rows.checked_mul(*cols).and_then(|n| n.checked_mul(4)).is_some());
    let wrong = || Error::tensor(&codes.name, format!("shape [{a}, {b}] of {bits}-bit codes overflows"));
    fits.map(|(rows, cols)| [rows, cols]).ok_or_else(wrong)
}
