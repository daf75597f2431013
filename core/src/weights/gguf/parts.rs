//! What a file is made of, and which formats it may have.

use super::mix::{GgufFormat, Mixed};
use crate::checkpoint::Source;
use crate::checkpoint::gguf::{Metadata, Tokenizer, holds};
use crate::mem::{Block, Float, Stored, WeightFormat};
use crate::policy::{ModelSpec, Resolved, RowOrder};
use crate::weights::{LoadOptions, Piece, pieces};
use crate::{Error, Result};
use std::ops::Range;

/// What to write.
#[derive(Debug, Clone, Default)]
pub struct GgufOptions {
    /// Format for matmuls whose binding allows it; none keeps what is stored. Columns may ask for another
    /// ([`WeightFormat::of_columns`]).
    pub quantize: Option<GgufFormat>,
    /// Format of the token table, as for matmuls; none keeps what is stored, but in a mix.
    pub embeddings: Option<WeightFormat>,
    /// The tokenizer ([`crate::text::Tokenizer::to_gguf`]), of models that are no GGUF file yet; none: token
    /// ids go in and out.
    pub tokenizer: Option<Tokenizer>,
}

/// Tensors that are made of one thing.
#[derive(Debug)]
pub(super) enum Part {
    /// A vector of values.
    Values(String, Vec<f32>),
    /// A tensor of the file at hand, in another format where one is named.
    Copied(String, Option<WeightFormat>),
    /// Tensors of an operand, whose rows lie in an order of their own.
    Operand { one: usize, order: RowOrder, tensors: Vec<FileTensor> },
}

/// A tensor that holds outputs of an operand.
#[derive(Debug)]
pub(super) struct FileTensor {
    pub name: String,
    pub format: WeightFormat,
    pub outputs: Range<usize>,
    pub order: RowOrder,
}

impl GgufOptions {
    /// The one format of all matmuls.
    pub(super) fn one_format(&self) -> Option<WeightFormat> {
        self.quantize.and_then(GgufFormat::one)
    }

    /// The mix that is asked for, for a file that will say this and have these tensors.
    pub(super) fn mixed<'n>(
        &self,
        metadata: &Metadata,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Option<Mixed>> {
        let Some(GgufFormat::Mix(mix)) = self.quantize else { return Ok(None) };
        Mixed::new(mix, metadata, &names.collect::<Vec<_>>()).map(Some)
    }
}

/// The formats that can be asked for.
fn formats() -> String {
    let blocks = Block::ALL.map(Block::name);
    let floats = [Float::F32, Float::F16, Float::Bf16].map(Float::name);
    floats.into_iter().chain(blocks).collect::<Vec<_>>().join(", ")
}

/// The type that GGUF has for a format.
fn type_of(format: WeightFormat) -> Option<Stored> {
    let stored = match format {
        WeightFormat::Plain(float) => float.into(),
        WeightFormat::Block(block) => Stored::Block(block),
        WeightFormat::W8A8 | WeightFormat::Group(_) => return None,
    };
    holds(stored).then_some(stored)
}

/// A format that is asked for under this name, where GGUF has a type for it.
pub(super) fn asked(field: &str, format: Option<WeightFormat>) -> Result<()> {
    match format.filter(|format| type_of(*format).is_none()) {
        Some(other) => {
            Err(Error::config(field, other, format!("a format that GGUF has a type for: {}", formats())))
        }
        None => Ok(()),
    }
}

/// The format in which rows of `cols` values are written where `format` is asked for, its type, and whether
/// they can be.
pub(super) fn checked(name: &str, cols: usize, format: WeightFormat) -> Result<(WeightFormat, Stored)> {
    let format = format.of_columns(cols);
    let Some(stored) = type_of(format) else {
        let what =
            format!("is stored as {format}, which GGUF has no type for; quantize to one of {}", formats());
        return Err(Error::tensor(name, what));
    };
    match format.block().filter(|block| !cols.is_multiple_of(block.values())) {
        Some(block) => {
            let what = format!("{cols} columns are no whole {format} blocks of {}", block.values());
            Err(Error::tensor(name, what))
        }
        None => Ok((format, stored)),
    }
}

/// The pieces of an operand; a vector is whole, whatever its matrix is divided into.
pub(super) fn pieces_of(
    source: &dyn Source,
    (spec, resolved): (&ModelSpec, &[Resolved<'_>]),
    one: &Resolved<'_>,
    load: LoadOptions,
) -> Result<Vec<Piece>> {
    match one.binding.role.is_vector() {
        true => Ok(vec![pieces::whole(source, spec, one, load)?]),
        false => pieces::pieces(source, spec, resolved, one, load),
    }
}
