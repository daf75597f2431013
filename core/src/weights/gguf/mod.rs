//! Writes a model as a GGUF file: from a folder in Hugging Face's names, and from another GGUF file.
//!
//! A plan comes first, from headers alone: what the file will say and which tensors it will have. Its reader
//! is asked what model that is (`plan.rs`); where it is another than the one at hand (a window that GGUF's
//! architecture has no word for, say), the plan is refused by name, before anything is written. Then operands
//! are read as the loader reads them, so that a file quantized on its way holds the bits that
//! [`LoadOptions::quantize`] gives, and written one after the other, rows in the order that the reader takes
//! them in. From GGUF to GGUF (`again.rs`) names and metadata stay.

mod again;
mod mix;
mod parts;
mod plan;
mod words;

pub use mix::{GgufFormat, Mix};
pub use parts::GgufOptions;

use super::convert::Converted;
use super::{HostMatrix, LoadOptions, Own, operand, shares_of, stored_shares};
use crate::checkpoint::gguf::write::{Body, Outline};
use crate::checkpoint::gguf::{Metadata, Value, file_type};
use crate::checkpoint::{Layout, ModelFiles, TensorInfo};
use crate::config::ModelConfig;
use crate::mem::{Release, Stored};
use crate::policy::{Catalog, ModelSpec, Rank, Registry, Resolved, RowOrder};
use crate::{Error, Result};
use parts::{FileTensor, Part, asked, pieces_of};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::ops::Range;
use std::path::Path;

/// A file to be written, as far as headers say it.
#[derive(Debug)]
pub struct GgufPlan<'f> {
    files: &'f ModelFiles,
    load: LoadOptions,
    /// The model as it is at hand.
    spec: ModelSpec,
    resolved: Vec<Resolved<'f>>,
    outline: Outline,
    parts: Vec<Part>,
}

/// Plans the file of a model whose policy is chosen from `registry`. Nothing but headers is read.
///
/// # Errors
/// `Config` for a format, an architecture or a word of the model that GGUF does not have, `Tensor` for one
/// that has no name or no whole blocks there; those of choosing and resolving a policy.
pub fn plan_gguf<'f>(
    files: &'f ModelFiles,
    registry: &Registry,
    options: &GgufOptions,
) -> Result<GgufPlan<'f>> {
    asked("quantize", options.one_format())?;
    asked("token-embedding-type", options.embeddings)?;
    let config = ModelConfig::new(files.config.clone())?;
    let catalog = Catalog::new(files.source.tensors());
    let policy = registry.choose(&config, catalog)?;
    let spec = policy.spec(&config, catalog)?;
    let resolved = crate::policy::resolve(policy.as_ref(), &spec, &config, catalog)?;
    let load = LoadOptions { quantize: options.one_format(), ..LoadOptions::default() };
    let (mut metadata, infos, parts) = match files.layout {
        Layout::Gguf => again::plan(files, &resolved, options)?,
        Layout::HuggingFace => {
            plan::Planning { files, registry, spec: &spec, resolved: &resolved, load, options }
                .plan(&config)?
        }
    };
    say_types(&mut metadata, &infos, options);
    let mut outline = Outline::new();
    let key = "general.alignment";
    if let Some(bytes) = metadata.u64(key)?.and_then(|bytes| u32::try_from(bytes).ok()) {
        outline.align(bytes)?;
    }
    metadata.iter().filter(|(other, _)| *other != key).for_each(|(key, value)| outline.pair(key, value));
    for info in &infos {
        outline.tensor(&info.name, &info.shape, info.stored)?;
    }
    Ok(GgufPlan { files, load, spec, resolved, outline, parts })
}

/// Says which type most of the matrices' values have, or which mix of types the matrices are.
fn say_types(metadata: &mut Metadata, infos: &[TensorInfo], options: &GgufOptions) {
    let mut values: BTreeMap<u32, usize> = BTreeMap::new();
    for info in infos.iter().filter(|info| info.shape.len() > 1) {
        if let Some(number) = file_type(info.stored) {
            *values.entry(number).or_default() += info.elements();
        }
    }
    let most = values.into_iter().max_by_key(|(_, values)| *values).map(|(number, _)| number);
    let number = match options.quantize {
        Some(GgufFormat::Mix(mix)) => Some(mix.file_type()),
        _ => most,
    };
    if let Some(number) = number {
        metadata.insert("general.file_type".into(), Value::U32(number));
    }
    if infos.iter().any(|info| matches!(info.stored, Stored::Block(_))) {
        metadata.insert("general.quantization_version".into(), Value::U32(2));
    }
}

impl GgufPlan<'_> {
    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.outline.file_bytes()
    }

    /// Writes the file; memory holds one operand at a time. `progress` is called with bytes read so far and
    /// in all.
    ///
    /// # Errors
    /// What reading and writing raise.
    pub fn write(self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
        let (source, bytes) = (self.files.source.as_ref(), self.outline.file_bytes());
        let file = File::create(path).map_err(|e| Error::io(path, e))?;
        let Self { spec, resolved, load, .. } = &self;
        let shares = shares_of(source, spec, resolved, *load)?;
        let stored = stored_shares(source, spec, resolved, *load)?;
        let mut body = self.outline.clone().begin(&path.display().to_string(), BufWriter::new(file))?;
        let (mut done, mut operands, total) = (0, 0, source.total_bytes());
        for part in &self.parts {
            operands += 1;
            match part {
                Part::Values(name, values) => {
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    body.tensor(name, [&bytes[..]])?;
                }
                Part::Copied(name, format) => {
                    done += again::write(source, name, *format, &mut body)?;
                }
                Part::Operand { one, order, tensors } => {
                    let one = &resolved[*one];
                    let mut pieces = Vec::new();
                    for piece in pieces_of(source, (spec, resolved), one, *load)? {
                        let whole =
                            operand::read(source, (spec, stored.as_ref()), (one, None), &piece, *load)?;
                        let rank = Rank::new(0, 1)?;
                        let own = Own::of(spec, &shares, &one.binding.role, &piece.outputs, rank)?;
                        let own = own.ok_or_else(|| Error::internal("one rank has all outputs"))?;
                        let rows = whole.of_rank((spec, &shares), one, &piece, &own, rank)?;
                        pieces.push((piece.outputs, rows.owned()));
                    }
                    write_rows(&pieces, *order, tensors, &mut body)?;
                    one.tensors.iter().for_each(|tensor| source.release(&tensor.name));
                    source.release_ready(&one.binding.role.to_string());
                    done += one
                        .tensors
                        .iter()
                        .map(|t| t.stored.bytes(t.elements()).unwrap_or(0) as u64)
                        .sum::<u64>();
                }
            }
            progress(done.min(total), total);
        }
        body.finish()?;
        Ok(Converted { operands, bytes })
    }
}

/// Writes the tensors of an operand that is there in pieces.
fn write_rows(
    pieces: &[(Range<usize>, HostMatrix<'static>)],
    order: RowOrder,
    tensors: &[FileTensor],
    body: &mut Body<BufWriter<File>>,
) -> Result<()> {
    let whole = match pieces {
        [(outputs, rows)] if order != RowOrder::Plain => {
            vec![(outputs.clone(), rows.borrowed().in_file_order(order)?)]
        }
        all => all.iter().map(|(outputs, rows)| (outputs.clone(), rows.borrowed())).collect(),
    };
    for tensor in tensors {
        let covers = |outputs: &Range<usize>| {
            outputs.start <= tensor.outputs.start && tensor.outputs.end <= outputs.end
        };
        let Some((outputs, rows)) = whole.iter().find(|(outputs, _)| covers(outputs)) else {
            return Err(Error::internal(format!("{} is in several pieces", tensor.name)));
        };
        let mut rows = rows.borrowed();
        // Of a matrix of one row the outputs are no elements.
        if *outputs != tensor.outputs {
            let own = tensor.outputs.start - outputs.start..tensor.outputs.end - outputs.start;
            rows = rows.take_outputs(&[own])?;
        }
        let rows = rows.into_format(tensor.format, Release::default())?.in_file_order(tensor.order)?;
        body.tensor(&tensor.name, rows.parts.iter().map(|part| part.as_ref()))?;
    }
    Ok(())
}
