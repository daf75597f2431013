//! The way back from shards to the whole operand.

use super::shard::within;
use super::{HostMatrix, Piece, rank_rows};
use crate::mem::WeightFormat;
use crate::policy::{Binding, ModelSpec, Part, Rank, Resolved, Shard, Shares};
use crate::{Error, Result};

/// Joins what all ranks have of an operand by the leaves of sums; a key/value group that several ranks have
/// comes from the last of them.
pub(super) fn by_leaves(
    shards: &[HostMatrix<'_>],
    (spec, shares): (&ModelSpec, &Shares),
    one: &Resolved<'_>,
    piece: &Piece,
) -> Result<HostMatrix<'static>> {
    let (role, rank) = (one.binding.role, Rank::new(0, shards.len())?);
    if shares.leaves(&role).is_some() && role.part == Part::Weight {
        let some: Vec<HostMatrix<'_>> =
            shards.iter().filter(|s| s.cols > 0).map(HostMatrix::borrowed).collect();
        let first = some.first().ok_or_else(|| Error::internal("an operand of no rank"))?;
        alike(&some, first)?;
        return columns(&some, first);
    }
    let Some(first) = shards.iter().find(|s| s.rows * s.cols > 0) else {
        return Err(Error::internal("an operand of no rank"));
    };
    if shares.outputs(spec, &role, rank).is_none() {
        return Ok(owned(first, first.rows, first.cols, first.joined().into_owned()));
    }
    let vector = role.is_vector();
    let size = match (vector, first.format) {
        (true, WeightFormat::Plain(dtype)) => dtype.bytes(),
        _ => first.format.bytes(1, first.cols),
    };
    let count = piece.outputs.len();
    let mut bytes = vec![0; count * size];
    for (index, shard) in shards.iter().enumerate() {
        let from = shard.joined();
        let mut start = 0;
        let ranges = shares.outputs(spec, &role, Rank { index, ..rank }).unwrap_or_default();
        for range in within(&ranges, &piece.outputs) {
            let end = start + range.len() * size;
            let to = bytes.get_mut(range.start * size..range.end * size);
            let (Some(part), Some(to)) = (from.get(start..end), to) else { return Err(short(first, index)) };
            to.copy_from_slice(part);
            start = end;
        }
        if start != from.len() {
            return Err(short(first, index));
        }
    }
    let (rows, cols) = if vector { (1, count) } else { (count, first.cols) };
    Ok(owned(first, rows, cols, bytes))
}

/// Joins what all ranks have of an operand whose outputs are sharded near-evenly, as the first version did;
/// `parts` are the rows of its parts in the whole.
pub(super) fn near_even(
    shards: &[HostMatrix<'_>],
    binding: &Binding,
    parts: &[usize],
) -> Result<HostMatrix<'static>> {
    let Some(first) = shards.first() else { return Err(Error::internal("an operand of no rank")) };
    alike(shards, first)?;
    match binding.shard {
        Shard::Replicated => Ok(owned(first, first.rows, first.cols, first.joined().into_owned())),
        Shard::Rows { .. } if binding.role.part == Part::Bias => {
            Ok(owned(first, first.rows, first.cols, first.joined().into_owned()))
        }
        Shard::Columns { unit } => outputs(shards, binding.role.is_vector(), parts, unit),
        Shard::Vocab => outputs(shards, binding.role.is_vector(), parts, 1),
        Shard::Rows { .. } => columns(shards, first),
    }
}

fn alike(shards: &[HostMatrix<'_>], first: &HostMatrix<'_>) -> Result<()> {
    match shards.iter().find(|s| s.format != first.format) {
        None => Ok(()),
        Some(other) => {
            let what = format!("is {} on one rank and {} on another", first.format, other.format);
            Err(Error::tensor(&first.name, what))
        }
    }
}

fn owned(like: &HostMatrix<'_>, rows: usize, cols: usize, bytes: Vec<u8>) -> HostMatrix<'static> {
    HostMatrix { name: like.name.clone(), rows, cols, format: like.format, parts: vec![bytes.into()] }
}

/// Part by part, each rank's rows (of a vector: elements).
fn outputs(
    shards: &[HostMatrix<'_>],
    vector: bool,
    parts: &[usize],
    unit: usize,
) -> Result<HostMatrix<'static>> {
    let Some(first) = shards.first() else { return Err(Error::internal("an operand of no rank")) };
    let size = match (vector, first.format) {
        (true, WeightFormat::Plain(dtype)) => dtype.bytes(),
        _ => first.format.bytes(1, first.cols),
    };
    let whole: Vec<_> = shards.iter().map(|s| s.joined()).collect();
    let mut starts = vec![0; shards.len()];
    let mut bytes = Vec::with_capacity(whole.iter().map(|w| w.len()).sum());
    for part in parts {
        for (rank, from) in whole.iter().enumerate() {
            let count = rank_rows(*part, unit, rank, shards.len()).len() * size;
            let piece = from.get(starts[rank]..starts[rank] + count);
            bytes.extend_from_slice(piece.ok_or_else(|| short(first, rank))?);
            starts[rank] += count;
        }
    }
    if let Some(rank) = whole.iter().zip(&starts).position(|(w, s)| w.len() != *s) {
        return Err(short(first, rank));
    }
    let count: usize = parts.iter().sum();
    let (rows, cols) = if vector { (1, count) } else { (count, first.cols) };
    Ok(owned(first, rows, cols, bytes))
}

fn short(like: &HostMatrix<'_>, rank: usize) -> Error {
    Error::tensor(&like.name, format!("rank {rank} has rows of another model's shape"))
}

/// Row by row, each rank's columns.
fn columns(shards: &[HostMatrix<'_>], first: &HostMatrix<'_>) -> Result<HostMatrix<'static>> {
    let head = match first.format {
        // A row in one group has its scale in front once.
        WeightFormat::Group(g) if g.size == 0 => g.head(),
        _ => 0,
    };
    let cols: usize = shards.iter().map(|s| s.cols).sum();
    let whole: Vec<_> = shards.iter().map(|s| s.joined()).collect();
    let mut bytes = Vec::with_capacity(first.format.bytes(first.rows, cols));
    for row in 0..first.rows {
        for (i, (shard, from)) in shards.iter().zip(&whole).enumerate() {
            let size = shard.format.bytes(1, shard.cols);
            let Some(raw) = from.get(row * size..(row + 1) * size).filter(|_| shard.rows == first.rows)
            else {
                return Err(short(first, i));
            };
            let lead = first.format.bytes(1, first.cols);
            if i > 0 && raw[..head] != whole[0][row * lead..row * lead + head] {
                let what =
                    format!("row {row} was quantized on each rank by itself; convert the original instead");
                return Err(Error::tensor(&first.name, what));
            }
            bytes.extend_from_slice(if i == 0 { raw } else { &raw[head..] });
        }
    }
    let odd = |s: &HostMatrix<'_>| match s.format {
        WeightFormat::Group(g) if g.size > 0 => !s.cols.is_multiple_of(g.size as usize),
        WeightFormat::Group(g) => !s.cols.is_multiple_of(g.bits.per_bytes()),
        _ => false,
    };
    if shards[..shards.len() - 1].iter().any(odd) {
        let what = format!("{} columns end within a group of {}", first.cols, first.format);
        return Err(Error::tensor(&first.name, what));
    }
    Ok(owned(first, first.rows, cols, bytes))
}
