//! Matrices of small floats: `value * factor` of eight bits, where a factor belongs to a block, a row or all,
//! and NVFP4, `value * scale / global` with a scale of 16 inputs.
//!
//! Both become own groups, FP8 of the same codes and factors; of NVFP4 the scale divided by the tensor's
//! number is the group's, as compressed-tensors multiplies it. Where no group has such a size or factor,
//! values are multiplied out in f32, rounded once.

use super::native;
use super::part::Part;
use crate::checkpoint::Source;
use crate::mem::{GroupBits, Stored};
use crate::quant::{plain, small_float};
use crate::{Error, Result};

/// Inputs that share a scale in NVFP4.
const NVFP4: usize = 16;

/// A packed matrix `[rows, cols]`.
#[derive(Debug, Clone)]
pub(super) struct Floats {
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs.
    pub(super) cols: usize,
    /// The values.
    pub(super) values: Part,
    /// Their factors.
    pub(super) factors: Factors,
}

/// What small floats are multiplied with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Factors {
    /// A factor of every block of so many rows and columns.
    Blocks(Part, [usize; 2]),
    /// A scale of every 16 inputs; all divided by one number.
    Nvfp4(Part, Part),
}

impl Floats {
    /// Eight-bit floats whose factors are `scale`: one, one of every row, or one of every block of `block`.
    ///
    /// # Errors
    /// `Tensor` for another shape of either.
    pub(super) fn fp8(values: Part, scale: Part, block: [usize; 2]) -> Result<Self> {
        let [rows, cols] = values.matrix()?;
        scale.is_one_of(&[Stored::F32, Stored::F16, Stored::Bf16])?;
        let block = match (scale.elements, &scale.shape[..]) {
            (1, _) => [rows.max(1), cols.max(1)],
            (n, [_] | [_, 1]) if n == rows => [1, cols.max(1)],
            (_, [down, across]) if [*down, *across] == [rows.div_ceil(block[0]), cols.div_ceil(block[1])] => {
                block
            }
            _ => {
                let what = format!(
                    "shape {:?} of factors for [{rows}, {cols}]; one, one of each row, or one of each block of {} x {}",
                    scale.shape, block[0], block[1]
                );
                return Err(Error::tensor(&scale.name, what));
            }
        };
        Ok(Self { rows, cols, values, factors: Factors::Blocks(scale, block) })
    }

    /// NVFP4.
    ///
    /// # Errors
    /// `Tensor` for shapes that do not go together.
    pub(super) fn nvfp4(values: Part, scale: Part, global: Part) -> Result<Self> {
        let [rows, half] = values.matrix()?;
        values.is_one_of(&[Stored::U8])?;
        scale.is_one_of(&[Stored::F8E4m3])?;
        let cols = half.saturating_mul(2);
        if scale.shape != [rows, cols / NVFP4] || !cols.is_multiple_of(NVFP4) || global.elements != 1 {
            let what = format!(
                "shape {:?} of scales and {:?} of `{}` for [{rows}, {cols}]; [{rows}, {}] and one are expected",
                scale.shape,
                global.shape,
                global.name,
                cols / NVFP4
            );
            return Err(Error::tensor(&scale.name, what));
        }
        Ok(Self { rows, cols, values, factors: Factors::Nvfp4(scale, global) })
    }

    /// The tensors that it is made of.
    pub(super) fn parts(&self) -> Vec<&Part> {
        match &self.factors {
            Factors::Blocks(scale, _) => vec![&self.values, scale],
            Factors::Nvfp4(scale, global) => vec![&self.values, scale, global],
        }
    }

    /// What the matrix becomes.
    ///
    /// # Errors
    /// What reading raises.
    pub(super) fn target(&self, source: &dyn Source) -> Result<Stored> {
        let (bits, run) = match &self.factors {
            Factors::Blocks(_, [_, across]) if self.values.stored == Stored::F8E5m2 => {
                (GroupBits::E5m2, *across)
            }
            Factors::Blocks(_, [_, across]) => (GroupBits::E4m3, *across),
            Factors::Nvfp4(..) => (GroupBits::E2m1, NVFP4),
        };
        Ok(native::target(bits, self.cols, run, &self.scales(source)?).unwrap_or(Stored::F32))
    }

    /// The factors; NVFP4's divided by the number of all.
    fn scales(&self, source: &dyn Source) -> Result<Vec<f32>> {
        let (Factors::Blocks(scale, _) | Factors::Nvfp4(scale, _)) = &self.factors;
        let mut scales = read(source, scale)?;
        if let Factors::Nvfp4(_, global) = &self.factors {
            let global = read(source, global)?[0];
            scales.iter_mut().for_each(|scale| *scale /= global);
        }
        Ok(scales)
    }

    /// The matrix in the format that [`Floats::target`] said.
    ///
    /// # Errors
    /// `Tensor` for a code that is no number; what reading raises.
    pub(super) fn read(&self, source: &dyn Source, target: Stored) -> Result<Vec<u8>> {
        let Stored::Group(groups, _) = target else { return self.widened(source) };
        let (scales, codes) = (self.scales(source)?, source.bytes(&self.values.name)?);
        let (cols, shape) = (self.cols, (groups, self.rows, self.cols));
        match &self.factors {
            Factors::Blocks(_, [down, across]) => {
                let wide = cols.div_ceil(*across);
                let scale = |row: usize, group: usize| scales[row / down * wide + group];
                native::rows(&self.values.name, shape, scale, |row, col| codes[row * cols + col])
            }
            Factors::Nvfp4(..) => {
                let scale = |row: usize, group: usize| scales[row * (cols / NVFP4) + group];
                let code = |row: usize, col: usize| codes[(row * cols + col) / 2] >> (col % 2 * 4) & 15;
                native::rows(&self.values.name, shape, scale, code)
            }
        }
    }

    /// The values in f32: each times its factor, rounded once.
    fn widened(&self, source: &dyn Source) -> Result<Vec<u8>> {
        let cols = self.cols.max(1);
        let mut values = match &self.factors {
            Factors::Blocks(..) => read(source, &self.values)?,
            Factors::Nvfp4(..) => source
                .bytes(&self.values.name)?
                .iter()
                .flat_map(|byte| [byte & 15, byte >> 4])
                .map(|code| small_float::E2M1[usize::from(code)])
                .collect(),
        };
        self.are_numbers(&values)?;
        let (scales, [down, across]) = (self.scales(source)?, self.block());
        let wide = cols.div_ceil(across);
        self.are_factors(&scales, wide)?;
        for (row, values) in values.chunks_mut(cols).enumerate() {
            let scales = &scales[row / down * wide..];
            for (values, scale) in values.chunks_mut(across).zip(scales) {
                values.iter_mut().for_each(|value| *value *= scale);
            }
        }
        self.are_numbers(&values)?;
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    /// Rows and columns that share a factor.
    fn block(&self) -> [usize; 2] {
        match &self.factors {
            Factors::Blocks(_, block) => *block,
            Factors::Nvfp4(..) => [1, NVFP4],
        }
    }

    /// Refuses values that are none, by their place, as `native::rows` does.
    fn are_numbers(&self, values: &[f32]) -> Result<()> {
        let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        let (row, column) = (at / self.cols.max(1), at % self.cols.max(1));
        let what = format!("row {row}, column {column}: not a number; finite codes are expected");
        Err(Error::tensor(&self.values.name, what))
    }

    /// The same of factors, `wide` of which belong to the rows of a block.
    fn are_factors(&self, scales: &[f32], wide: usize) -> Result<()> {
        let Some(at) = scales.iter().position(|scale| !scale.is_finite()) else { return Ok(()) };
        let (Factors::Blocks(scale, _) | Factors::Nvfp4(scale, _)) = &self.factors;
        let [down, across] = self.block();
        let (row, column) = (at / wide.max(1) * down, at % wide.max(1) * across);
        let what =
            format!("a factor of {} at row {row}, column {column}; finite ones are expected", scales[at]);
        Err(Error::tensor(&scale.name, what))
    }
}

/// A tensor's elements, widened.
///
/// # Errors
/// What reading raises.
pub(super) fn read(source: &dyn Source, part: &Part) -> Result<Vec<f32>> {
    let mut values = vec![0.0; part.elements];
    plain::to_f32(part.stored, &source.bytes(&part.name)?, &mut values)?;
    Ok(values)
}
