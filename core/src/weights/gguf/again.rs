//! From GGUF to GGUF: names, metadata and row orders stay; rows are quantized anew where that is asked for.

use super::super::{HostMatrix, format_of};
use super::parts::{GgufOptions, Part, checked};
use crate::checkpoint::gguf::write::Body;
use crate::checkpoint::gguf::{Metadata, is_stated};
use crate::checkpoint::{ModelFiles, Source, TensorInfo, gguf_metadata};
use crate::mem::{Release, WeightFormat};
use crate::policy::{Resolved, Slot};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::io::Write;

/// What the file says and which tensors it has.
pub(super) fn plan(
    files: &ModelFiles,
    resolved: &[Resolved<'_>],
    options: &GgufOptions,
) -> Result<(Metadata, Vec<TensorInfo>, Vec<Part>)> {
    let source = files.source.as_ref();
    if let Some(one) =
        resolved.iter().find(|one| source.ready_format(&one.binding.role.to_string()).is_some())
    {
        let found = format!("{}, which has {} ready-made", files.path.display(), one.binding.role);
        return Err(Error::config("model", found, "the GGUF file that it was converted from"));
    }
    let metadata = gguf_metadata(files)?;
    let mixed = options.mixed(&metadata, source.tensors().iter().map(|tensor| tensor.name.as_str()))?;
    let mut asked: BTreeMap<&str, WeightFormat> = BTreeMap::new();
    for one in resolved {
        let is_table = one.binding.role.slot == Slot::TokenEmbed;
        for tensor in &one.tensors {
            let cols = tensor.shape.last().copied().unwrap_or(1);
            let of_mix = || mixed.as_ref().map(|mixed| mixed.format(&tensor.name, cols));
            let format = match one.binding.quantize {
                true => options.one_format().or_else(of_mix),
                false if is_table => options.embeddings.or_else(of_mix),
                false => None,
            };
            asked.extend(format.map(|format| (tensor.name.as_str(), format)));
        }
    }
    let (mut infos, mut parts) = (Vec::new(), Vec::new());
    for tensor in source.tensors().iter().filter(|tensor| !is_stated(&tensor.name)) {
        let format = asked.get(tensor.name.as_str()).copied();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let checked = format.map(|format| checked(&tensor.name, cols, format)).transpose()?;
        let (format, stored) =
            checked.map_or((None, tensor.stored), |(format, stored)| (Some(format), stored));
        infos.push(TensorInfo { stored, ..tensor.clone() });
        parts.push(Part::Copied(tensor.name.clone(), format));
    }
    Ok((metadata, infos, parts))
}

/// Writes a tensor, in another format where one is named; its bytes in the file at hand.
pub(super) fn write<W: Write>(
    source: &dyn Source,
    name: &str,
    format: Option<WeightFormat>,
    body: &mut Body<W>,
) -> Result<u64> {
    let bytes = source.bytes(name)?;
    let read = bytes.len() as u64;
    match (format, source.find(name)) {
        (Some(format), Some(info)) => {
            let cols = info.shape.last().copied().unwrap_or(1);
            let rows = info.elements() / cols.max(1);
            let (name, stored) = (name.to_string(), format_of(name, info.stored)?);
            let rows = HostMatrix { name, rows, cols, format: stored, parts: vec![bytes] };
            let release = |bytes: &[u8]| source.release_bytes(bytes);
            let rows = rows.into_format(format, Release::by(&release))?;
            body.tensor(&rows.name, rows.parts.iter().map(|part| part.as_ref()))?;
        }
        _ => body.tensor(name, [bytes.as_ref()])?,
    }
    source.release(name);
    Ok(read)
}
