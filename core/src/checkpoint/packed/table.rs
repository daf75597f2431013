//! bitsandbytes' matrices of 4-bit codes: `table[code] * absmax` of so many consecutive values of the matrix,
//! row after row. What `absmax` is stored as, codes of a table of 256 or plain floats, the state says.
//!
//! Where the table is that of NF4 and rows are whole blocks, they become groups of NF4, else f32.

use super::part::{Part, part};
use super::{floats, native};
use crate::checkpoint::{Source, json};
use crate::mem::{GroupBits, Stored};
use crate::quant::small_float::NF4;
use crate::{Error, Result};
use serde_json::Value;

/// Endings of the state's name after that of the weight: the name of the table.
pub(super) const STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];
/// Longest state.
const MAX_STATE: usize = 1 << 16;

/// A packed matrix `[rows, cols]`.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs.
    pub(super) cols: usize,
    codes: Part,
    state: Part,
    map: Part,
    absmax: Part,
    /// Values that share an `absmax`.
    block: usize,
    nested: Option<Nested>,
}

/// What codes of `absmax` mean: `table[code] * absmax + offset`.
#[derive(Debug, Clone)]
struct Nested {
    map: Part,
    absmax: Part,
    block: usize,
    offset: f32,
}

impl Table {
    /// The matrix of `name`, as the tensor `state` describes it.
    ///
    /// # Errors
    /// `Tensor`, naming what is missing or does not go with the rest.
    pub(super) fn new(source: &dyn Source, name: &str, state: Part) -> Result<Self> {
        let json = json::object(&state.name, &source.bytes(&state.name)?, MAX_STATE)?;
        let bad = |what: String| Error::tensor(&state.name, what);
        let size = |field: &str| match json.get(field).and_then(Value::as_u64) {
            Some(n) if n > 0 => Ok(n as usize),
            _ => Err(bad(format!("{field} is {}; a positive number is expected", json[field]))),
        };
        let dims = json.get("shape").and_then(Value::as_array).map(Vec::as_slice);
        let dims = dims.map(|dims| dims.iter().map(Value::as_u64).collect::<Vec<_>>());
        let Some([Some(rows), Some(cols)]) = dims.as_deref() else {
            return Err(bad(format!("shape is {}; two numbers are expected", json["shape"])));
        };
        let (rows, cols) = (*rows as usize, *cols as usize);
        let of = |ending: &str| part(source, &format!("{name}.{ending}"));
        let (codes, map, absmax) = (part(source, name)?, of("quant_map")?, of("absmax")?);
        let bytes = codes.stored.bytes(codes.elements);
        let all = rows.checked_mul(cols).filter(|n| Some(n.div_ceil(2)) == bytes);
        let all = all.ok_or_else(|| {
            Error::tensor(name, format!("{} bytes of codes for [{rows}, {cols}]", bytes.unwrap_or(0)))
        })?;
        let block = size("blocksize")?;
        sized(&map, 16)?;
        sized(&absmax, all.div_ceil(block))?;
        let nested = match json.get("nested_blocksize").filter(|value| !value.is_null()) {
            None => None,
            Some(_) => {
                let block = size("nested_blocksize")?;
                let (map, scales) = (of("nested_quant_map")?, of("nested_absmax")?);
                sized(&map, 256)?;
                sized(&scales, absmax.elements.div_ceil(block))?;
                if absmax.stored != Stored::U8 {
                    return Err(Error::tensor(&absmax.name, format!("element type {}; u8", absmax.stored)));
                }
                let offset = json.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32;
                Some(Nested { map, absmax: scales, block, offset })
            }
        };
        Ok(Self { rows, cols, codes, state, map, absmax, block, nested })
    }

    /// The tensors that it is made of.
    pub(super) fn parts(&self) -> Vec<&Part> {
        let nested = self.nested.iter().flat_map(|nested| [&nested.map, &nested.absmax]);
        [&self.codes, &self.state, &self.map, &self.absmax].into_iter().chain(nested).collect()
    }

    /// What the matrix becomes.
    ///
    /// # Errors
    /// What reading raises.
    pub(super) fn target(&self, source: &dyn Source) -> Result<Stored> {
        if !self.cols.is_multiple_of(self.block) || floats::read(source, &self.map)? != NF4 {
            return Ok(Stored::F32);
        }
        let target = native::target(GroupBits::Nf4, self.cols, self.block, &self.absmax(source)?);
        Ok(target.unwrap_or(Stored::F32))
    }

    /// The largest values of all blocks.
    fn absmax(&self, source: &dyn Source) -> Result<Vec<f32>> {
        match &self.nested {
            None => floats::read(source, &self.absmax),
            Some(nested) => {
                let (map, scales) =
                    (floats::read(source, &nested.map)?, floats::read(source, &nested.absmax)?);
                let codes = source.bytes(&self.absmax.name)?;
                let value = |(i, code): (usize, &u8)| {
                    map[usize::from(*code)] * scales[i / nested.block] + nested.offset
                };
                Ok(codes.iter().enumerate().map(value).collect())
            }
        }
    }

    /// The matrix in the format that [`Table::target`] said.
    ///
    /// # Errors
    /// What reading raises.
    pub(super) fn read(&self, source: &dyn Source, target: Stored) -> Result<Vec<u8>> {
        let absmax = self.absmax(source)?;
        if let Stored::Group(groups, _) = target {
            let (codes, cols, wide) = (source.bytes(&self.codes.name)?, self.cols, self.cols / self.block);
            let shape = (groups, self.rows, cols);
            // The first of two values is the high nibble.
            let code = |row: usize, col: usize| codes[(row * cols + col) / 2] >> ((col + 1) % 2 * 4) & 15;
            return native::rows(&self.codes.name, shape, |row, group| absmax[row * wide + group], code);
        }
        let map = floats::read(source, &self.map)?;
        let codes = source.bytes(&self.codes.name)?;
        let codes = codes.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(self.rows * self.cols);
        let value = |(i, code): (usize, u8)| map[usize::from(code)] * absmax[i / self.block];
        Ok(codes.enumerate().map(value).flat_map(f32::to_le_bytes).collect())
    }
}

fn sized(part: &Part, want: usize) -> Result<()> {
    match part.elements == want {
        true => Ok(()),
        false => Err(Error::tensor(&part.name, format!("{} elements; {want} are expected", part.elements))),
    }
}
