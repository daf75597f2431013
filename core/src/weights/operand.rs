//! One operand of one rank, however the checkpoint keeps it.
//!
//! From tensors: read, reorder, fuse, quantize, shard. Quantization comes before sharding, so the values of a
//! matmul do not depend on the degree; a shard boundary inside a group is refused. From a converted model:
//! taken as it is, or merged and sharded anew when it was sharded for another degree.

use super::{HostMatrix, LoadOptions, Own, Piece, merge, pieces};
use crate::checkpoint::{Source, TensorInfo};
use crate::mem::{Release, WeightFormat};
use crate::policy::{HeadSpec, ModelSpec, Part, Rank, Resolved, Role, Shares, Slot};
use crate::quant::plain;
use crate::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// Values at the start of a tensor that are looked at: a block of any format.
const CHECKED: usize = 256;

/// Outputs of an operand, before sharding.
pub(super) enum Whole<'a> {
    /// Made from tensors.
    Matrix(HostMatrix<'a>),
    /// What the ranks of a converted model have.
    Shards {
        /// Rank by rank.
        ranks: Vec<HostMatrix<'a>>,
        /// What they share, sharded by the leaves of sums; else outputs are, near-evenly.
        stored: Option<&'a Shares>,
    },
}

/// Reads a piece of a role's operand once for all ranks; `stored` is what those of a converted model share,
/// `heads` what [`of_heads`] gives for the operand.
pub(super) fn read<'a>(
    source: &'a dyn Source,
    (spec, stored): (&ModelSpec, Option<&'a Shares>),
    (one, heads): (&Resolved<'_>, Option<&HostMatrix<'_>>),
    piece: &Piece,
    options: LoadOptions,
) -> Result<Whole<'a>> {
    let role = one.binding.role;
    if let Some(ranks) = ready(source, spec, one, piece, options)? {
        let all = pieces::whole(source, spec, one, options)?;
        if !role.is_vector() || piece.outputs == all.outputs {
            return Ok(Whole::Shards { ranks, stored });
        }
        let rows = merged(&ranks, stored, spec, one, &all)?.into_f32()?;
        return Ok(Whole::Matrix(rows.take_outputs(std::slice::from_ref(&piece.outputs))?));
    }
    if let Some(all) = heads {
        return of_head(all, spec, &role, piece).map(Whole::Matrix);
    }
    let rows = fused(source, one, piece)?;
    // Row 0 of the operand is position 0, wherever the table puts it.
    let rows = match (role.slot, spec.stack_of(&role).embed.positions) {
        (Slot::PositionEmbed, Some(learned)) => {
            let count = rows.rows;
            rows.take_outputs(&[learned.offset..count])?
        }
        _ => rows,
    };
    let rows = match spec.block_of(&role).and_then(|block| Some((block.heads.heads, block.buckets?))) {
        Some((heads, buckets)) if role.slot == Slot::PositionBias => {
            let spread = buckets.by_distance(&rows.to_f32()?, heads);
            HostMatrix::of_f32(&role.to_string(), &spread).in_rows(heads)
        }
        _ => rows,
    };
    let rows = match (role.slot, role.part) {
        (Slot::FilterIn | Slot::FilterOut, Part::Weight) => rows.taps_apart(2)?,
        (Slot::Conv | Slot::LayerConv, Part::Weight) => rows.taps_apart(kernel_of(spec, &role))?,
        _ => rows,
    };
    let rows = as_used(spec, &role, rows)?;
    let rows = match spec.head {
        HeadSpec::Tokens { unit_rows: true, .. } if role.slot == Slot::Head => rows.unit_rows()?,
        _ => rows,
    };
    let rows = match role.is_vector() {
        // Of a head, or of the rows of one format.
        true if !piece.outputs.is_empty() && piece.outputs.len() < rows.outputs() => {
            rows.into_f32()?.take_outputs(std::slice::from_ref(&piece.outputs))?
        }
        true => rows.into_f32()?,
        false => requantized(rows, one, (piece, options), Release::by(&|bytes| source.release_bytes(bytes)))?,
    };
    Ok(Whole::Matrix(rows))
}

/// The values that a block computes with, where others are stored.
fn as_used<'a>(spec: &ModelSpec, role: &Role, rows: HostMatrix<'a>) -> Result<HostMatrix<'a>> {
    let factor = spec.block_of(role).and_then(|block| block.latent?.factor);
    let clip = spec.block_of(role).and_then(|block| block.altup?.clip);
    match (role.slot, factor) {
        (Slot::AltupCorrect, _) if clip.is_some() => rows.mapped(|v| clip.map_or(v, |c| v.clamp(-c, c))),
        (Slot::ActConstants, _) => rows.softplus_of_two(),
        (Slot::ExpertFactors, _) => Ok(rows.into_f32()?.in_one_column()),
        (Slot::LatentNorm, Some(factor)) => rows.times(factor),
        _ => Ok(rows),
    }
}

/// Taps of a convolution.
fn kernel_of(spec: &ModelSpec, role: &Role) -> usize {
    if let Some(conv) = spec.block_of(role).and_then(|block| block.conv) {
        return conv.kernel;
    }
    let stem = spec.stack_of(role).embed.stem.as_ref();
    stem.and_then(|stem| stem.convs.get(role.layer?)).map_or(1, |conv| conv.kernel)
}

/// What the ranks of a converted model have of a piece, in the format asked for; none where there are tensors
/// to make it from. Vectors are kept whole.
fn ready<'a>(
    source: &'a dyn Source,
    spec: &ModelSpec,
    one: &Resolved<'_>,
    piece: &Piece,
    options: LoadOptions,
) -> Result<Option<Vec<HostMatrix<'a>>>> {
    let role = one.binding.role;
    let name = if role.is_vector() { role.to_string() } else { piece.name.clone() };
    let mut names = vec![name.clone()];
    if source.ready_format(&name).is_none() {
        // Rows that were converted in unlike formats are asked for in one.
        let apart = pieces::by_format(source, spec, one, LoadOptions { quantize: None, ..options })?;
        let apart: Vec<_> = apart.into_iter().map(|piece| piece.name).collect();
        if !apart.is_empty() && apart.iter().all(|name| source.ready_format(name).is_some()) {
            names = apart;
        }
    }
    let mut ranks: Vec<Vec<HostMatrix<'a>>> = Vec::new();
    for part in &names {
        let Some(ready) = source.ready(part)? else { return Ok(None) };
        ranks.resize_with(ready.len(), Vec::new);
        for (rank, r) in ranks.iter_mut().zip(ready) {
            let (name, parts) = (name.clone(), vec![r.bytes]);
            rank.push(HostMatrix { name, rows: r.rows, cols: r.cols, format: r.format, parts });
        }
    }
    let one_of = |mut parts: Vec<HostMatrix<'a>>| {
        if parts.iter().any(|part| part.outputs() > 0) {
            parts.retain(|part| part.outputs() > 0);
        }
        let release = |bytes: &[u8]| source.release_bytes(bytes);
        requantized(HostMatrix::fuse(parts)?, one, (piece, options), Release::by(&release))
    };
    ranks.into_iter().map(one_of).collect::<Result<_>>().map(Some)
}

/// What all ranks of a converted model have of a piece as one.
fn merged(
    ranks: &[HostMatrix<'_>],
    stored: Option<&Shares>,
    spec: &ModelSpec,
    one: &Resolved<'_>,
    piece: &Piece,
) -> Result<HostMatrix<'static>> {
    match stored {
        Some(shares) => merge::by_leaves(ranks, (spec, shares), one, piece),
        None => merge::near_even(ranks, &one.binding, &piece.parts),
    }
}

/// A piece's sources as one matrix or vector, reordered and fused.
fn fused<'a>(source: &'a dyn Source, one: &Resolved<'_>, piece: &Piece) -> Result<HostMatrix<'a>> {
    let binding = &one.binding;
    let mut sources = Vec::with_capacity(piece.sources.len());
    let of_piece = one.tensors.iter().zip(&binding.sources).take(piece.sources.end).skip(piece.sources.start);
    for (tensor, from) in of_piece {
        let bytes = source.bytes(&tensor.name)?;
        has_numbers(tensor, &bytes)?;
        let mut rows = match (binding.role.slot, &tensor.shape[..]) {
            // All experts in one tensor: their rows one below the other.
            (Slot::ExpertUp | Slot::ExpertDown, [experts, rows, cols]) => {
                let shape = vec![experts.saturating_mul(*rows), *cols];
                HostMatrix::new(&TensorInfo { shape, ..(*tensor).clone() }, bytes, binding.role.part)?
            }
            // Their biases one after the other.
            (Slot::ExpertUp | Slot::ExpertDown, [_, _]) if binding.role.part == Part::Bias => {
                let shape = vec![tensor.elements()];
                HostMatrix::new(&TensorInfo { shape, ..(*tensor).clone() }, bytes, binding.role.part)?
            }
            _ => HostMatrix::new(tensor, bytes, binding.role.part)?,
        };
        if binding.transposed {
            let matrices = if let [matrices, _, _] = tensor.shape[..] { matrices } else { 1 };
            rows = rows.transposed(matrices)?;
        }
        sources.push(rows.reordered(from.order)?);
    }
    HostMatrix::fuse(sources)?.reordered(binding.order)
}

/// The matrix that keys and values of latent attention are made by, or a convolution of positions, of which
/// every piece has the rows of a head or a group: read, and decoded where it is packed, once for all of them.
/// None for other operands.
pub(super) fn of_heads<'a>(
    source: &'a dyn Source,
    one: &Resolved<'_>,
    first: Option<&Piece>,
) -> Result<Option<HostMatrix<'a>>> {
    let role = one.binding.role;
    let of_heads = matches!(role.slot, Slot::KeyUp | Slot::ValueUp | Slot::PositionConv);
    // A converted model has the pieces themselves.
    let converted = first.is_some_and(|piece| source.ready_format(&piece.name).is_some());
    if !of_heads || role.is_vector() || converted {
        return Ok(None);
    }
    if role.slot == Slot::PositionConv {
        return position_conv(source, one).map(Some);
    }
    let [tensor] = &one.tensors[..] else {
        return Err(Error::internal(format!("{role} is no matrix of one tensor")));
    };
    let bytes = source.bytes(&tensor.name)?;
    has_numbers(tensor, &bytes)?;
    // Matrices of heads lie one below the other.
    let shape = match tensor.shape[..] {
        [heads, rows, cols] => vec![heads * rows, cols],
        _ => tensor.shape.clone(),
    };
    HostMatrix::new(&TensorInfo { shape, ..(**tensor).clone() }, bytes, role.part).map(Some)
}

/// Taps `[outputs, kernel * columns]`, stored `[outputs, columns, kernel]`: as they are, or behind the length
/// that all values of a tap together have (`torch.nn.utils.weight_norm` over the last dimension).
fn position_conv<'a>(source: &'a dyn Source, one: &Resolved<'_>) -> Result<HostMatrix<'a>> {
    let (lengths, tensor) = match &one.tensors[..] {
        [taps] => (None, taps),
        [lengths, taps] => (Some(lengths), taps),
        _ => return Err(Error::internal(format!("{} of other than one or two tensors", one.binding.role))),
    };
    let bytes = source.bytes(&tensor.name)?;
    has_numbers(tensor, &bytes)?;
    let kernel = tensor.shape.last().copied().unwrap_or(0);
    let taps = HostMatrix::new(tensor, bytes, Part::Weight)?.taps_apart(kernel)?;
    match lengths {
        Some(lengths) => {
            let bytes = source.bytes(&lengths.name)?;
            taps.of_lengths(&HostMatrix::new(lengths, bytes, Part::Weight)?.to_f32()?)
        }
        None => Ok(taps),
    }
}

/// A head's keys, transposed, or its values; a group's rows of a convolution.
fn of_head(
    all: &HostMatrix<'_>,
    spec: &ModelSpec,
    role: &Role,
    piece: &Piece,
) -> Result<HostMatrix<'static>> {
    if role.slot == Slot::PositionConv {
        let rows = all.borrowed().take_outputs(std::slice::from_ref(&piece.outputs))?;
        return Ok(rows.owned());
    }
    let latent = role.layer.and_then(|layer| spec.blocks.get(layer)?.latent);
    let (Some(latent), Some(width)) = (latent, pieces::head_width(spec, role)) else {
        return Err(Error::internal(format!("{role} without heads")));
    };
    if latent.apart {
        return Ok(all.borrowed().take_outputs(std::slice::from_ref(&piece.outputs))?.owned());
    }
    let start = piece.outputs.start / width.max(1) * (latent.plain + latent.value);
    let (middle, end) = (start + latent.plain, start + latent.plain + latent.value);
    let own = if role.slot == Slot::KeyUp { start..middle } else { middle..end };
    let rows = all.borrowed().take_outputs(std::slice::from_ref(&own))?.owned();
    match (role.slot, rows.format) {
        (Slot::ValueUp, _) => Ok(rows),
        (_, WeightFormat::Plain(_)) => rows.transposed(1),
        // Blocks along the inputs cannot be turned.
        _ => rows.into_f32()?.transposed(1),
    }
}

/// Refuses a tensor that begins with nothing but NaN: a model of such weights samples its first token for
/// ever.
fn has_numbers(tensor: &TensorInfo, bytes: &[u8]) -> Result<()> {
    let count = tensor.elements().min(CHECKED);
    let Some(start) = tensor.stored.bytes(count).and_then(|len| bytes.get(..len)) else { return Ok(()) };
    let mut values = vec![0.0; count];
    plain::to_f32(tensor.stored, start, &mut values)?;
    if count > 0 && values.iter().all(|v| v.is_nan()) {
        return Err(Error::tensor(
            &tensor.name,
            format!("its first {count} values are NaN; numbers are expected"),
        ));
    }
    Ok(())
}

/// In the piece's format where the options ask for one and the binding allows it.
fn requantized<'a>(
    rows: HostMatrix<'a>,
    one: &Resolved<'_>,
    (piece, options): (&Piece, LoadOptions),
    release: Release<'_>,
) -> Result<HostMatrix<'a>> {
    match options.quantized(&one.binding) {
        Some(_) => rows.into_format(piece.format, release),
        None => Ok(rows),
    }
}

impl Whole<'_> {
    /// Bytes of the checkpoint that it was made from; of tensors those of `tensors`.
    pub(super) fn bytes_read(&self, one: &Resolved<'_>, tensors: Range<usize>) -> u64 {
        match self {
            Whole::Matrix(_) => {
                let read = one.tensors.get(tensors).unwrap_or_default();
                read.iter().map(|t| t.stored.bytes(t.elements()).unwrap_or(0) as u64).sum()
            }
            Whole::Shards { .. } if tensors.start > 0 => 0,
            Whole::Shards { ranks, .. } => ranks.iter().flat_map(|r| &r.parts).map(|p| p.len() as u64).sum(),
        }
    }

    /// What `rank` has of it: `own`.
    pub(super) fn of_rank(
        &self,
        (spec, shares): (&ModelSpec, &Shares),
        one: &Resolved<'_>,
        piece: &Piece,
        own: &Own,
        rank: Rank,
    ) -> Result<HostMatrix<'_>> {
        match self {
            Whole::Matrix(rows) => own.take(rows.borrowed()),
            // Another format may have other leaves.
            Whole::Shards { ranks, stored: Some(stored) }
                if ranks.len() == rank.world && *stored == shares =>
            {
                let rows = ranks.get(rank.index).ok_or_else(|| Error::internal("an operand of no rank"))?;
                let (outputs, cols) = own.size(piece.outputs.len(), rows.cols);
                // A matrix may have one row, as a vector has.
                let found = if one.binding.role.is_vector() { rows.cols } else { rows.rows };
                match (found, rows.cols) == (outputs, cols) {
                    true => Ok(rows.borrowed()),
                    false => Err(Error::tensor(
                        &rows.name,
                        format!(
                            "{} x {} of rank {}; {outputs} rows are expected",
                            rows.rows, rows.cols, rank.index
                        ),
                    )),
                }
            }
            Whole::Shards { ranks, stored } => own.take(merged(ranks, *stored, spec, one, piece)?),
        }
    }
}

impl HostMatrix<'_> {
    /// The same rows with bytes of their own.
    pub(super) fn owned(self) -> HostMatrix<'static> {
        let parts = self.parts.into_iter().map(|p| Cow::Owned(p.into_owned())).collect();
        HostMatrix { name: self.name, rows: self.rows, cols: self.cols, format: self.format, parts }
    }

    /// The same rows, their bytes borrowed.
    pub(super) fn borrowed(&self) -> HostMatrix<'_> {
        let parts = self.parts.iter().map(|p| Cow::Borrowed(p.as_ref())).collect();
        HostMatrix { name: self.name.clone(), rows: self.rows, cols: self.cols, format: self.format, parts }
    }
}
