//! What exchanges compute, whatever carries the parts from rank to rank.

use crate::fate::Fate;
use engraft_core::backend::Board;
use engraft_core::numerics::tree_of_ranks;
use engraft_core::{Error, Result};
use std::ops::Range;

/// Most ranks of a group.
pub(crate) const MOST_RANKS: usize = 8;

/// What an exchange is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    /// A sum over ranks.
    #[default]
    Reduce = 1,
    /// The columns of all ranks.
    Gather = 2,
}

impl Kind {
    /// The kind as a word; none for another word.
    pub fn of_word(word: u32) -> Option<Self> {
        [Self::Reduce, Self::Gather].into_iter().find(|kind| *kind as u32 == word)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Reduce => "all_reduce",
            Self::Gather => "all_gather",
        }
    }
}

/// What a rank has sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part<'a> {
    /// For what.
    pub kind: Kind,
    /// Its values.
    pub values: &'a [f32],
}

/// Carries parts between ranks.
pub(crate) trait Carrier: Board {
    /// Whether the group still runs, and its size.
    fn fate(&self) -> &Fate;

    /// Values that a rank sends at once, at most; longer exchanges take several.
    fn most(&self) -> usize;

    /// Sends what `fill` pushes, waits until all ranks have sent their part, and hands all of them over, by
    /// rank.
    fn swap(
        &self,
        kind: Kind,
        fill: &mut dyn FnMut(&mut Vec<f32>),
        read: &mut dyn FnMut(&[Part<'_>]) -> Result<()>,
    ) -> Result<()>;
}

/// [`Board::all_reduce`](engraft_core::backend::Board::all_reduce) over a carrier.
pub(crate) fn all_reduce(carrier: &impl Carrier, x: &mut [f32], adds: bool) -> Result<()> {
    for x in x.chunks_mut(carrier.most()) {
        // Both closures see x, one after the other.
        let x = std::cell::RefCell::new(x);
        let mut fill = |to: &mut Vec<f32>| match adds {
            true => to.extend_from_slice(&x.borrow()),
            false => to.resize(x.borrow().len(), 0.0),
        };
        carrier
            .swap(Kind::Reduce, &mut fill, &mut |parts| reduce(carrier.fate(), parts, &mut x.borrow_mut()))?;
    }
    Ok(())
}

fn reduce(fate: &Fate, parts: &[Part<'_>], x: &mut [f32]) -> Result<()> {
    let first = parts.first().copied().unwrap_or_default();
    same_kinds(fate, parts)?;
    for (rank, part) in parts.iter().enumerate() {
        same_size(fate, rank, part.values.len(), first.values.len())?;
    }
    match parts.len() {
        1 => add::<1>(parts, x),
        2 => add::<2>(parts, x),
        4 => add::<4>(parts, x),
        _ => add::<8>(parts, x),
    }
    Ok(())
}

fn add<const N: usize>(parts: &[Part<'_>], x: &mut [f32]) {
    let parts: [&[f32]; N] = std::array::from_fn(|rank| &parts[rank].values[..x.len()]);
    for (i, x) in x.iter_mut().enumerate() {
        *x = tree_of_ranks::<N>(std::array::from_fn(|rank| parts[rank][i]));
    }
}

/// [`Board::all_gather`](engraft_core::backend::Board::all_gather) over a carrier.
pub(crate) fn all_gather(
    carrier: &impl Carrier,
    x: &mut [f32],
    cols: usize,
    columns: &[Range<usize>],
) -> Result<()> {
    if let Some(range) = columns.iter().find(|range| range.end > cols || range.start > range.end) {
        return Err(Error::internal(format!("columns {range:?} of {cols}")));
    }
    let widest = columns.iter().map(Range::len).max().unwrap_or(0).max(1);
    // Several rows at once, or a part of the columns of one.
    let (rows, width) = ((carrier.most() / widest).max(1), widest.min(carrier.most()));
    for x in x.chunks_mut(rows.saturating_mul(cols.max(1))) {
        for from in (0..widest).step_by(width) {
            let part = |range: &Range<usize>| {
                let start = range.end.min(range.start + from);
                start..range.end.min(start + width)
            };
            let columns: [Range<usize>; MOST_RANKS] =
                std::array::from_fn(|rank| columns.get(rank).map_or(0..0, part));
            gather(carrier, x, cols.max(1), &columns)?;
        }
    }
    Ok(())
}

fn gather(
    carrier: &impl Carrier,
    x: &mut [f32],
    cols: usize,
    columns: &[Range<usize>; MOST_RANKS],
) -> Result<()> {
    let (own, rows) = (carrier.rank(), x.len() / cols);
    let x = std::cell::RefCell::new(x);
    let mut fill = |to: &mut Vec<f32>| {
        let x = x.borrow();
        x.chunks_exact(cols).for_each(|row| to.extend_from_slice(&row[columns[own].clone()]));
    };
    carrier.swap(Kind::Gather, &mut fill, &mut |parts| {
        let (mut x, fate) = (x.borrow_mut(), carrier.fate());
        let first = parts.first().copied().unwrap_or_default();
        same_kinds(fate, parts)?;
        // Another rank that does not expect what rank 0 has sent is the one that is wrong.
        let (want, sent) = (rows * columns[0].len(), first.values.len());
        if want != sent {
            return wrong(fate, own, format!("expects {want} values of rank 0, which sent {sent}"));
        }
        for (rank, (part, range)) in parts.iter().zip(columns).enumerate() {
            same_size(fate, rank, part.values.len(), rows * range.len())?;
            if rank == own || range.is_empty() {
                continue;
            }
            for (row, part) in x.chunks_exact_mut(cols).zip(part.values.chunks_exact(range.len())) {
                row[range.clone()].copy_from_slice(part);
            }
        }
        Ok(())
    })
}

/// Refuses parts for another purpose than that of rank 0, which has the engine: their ranks run another step.
/// Before sizes, which are unlike where columns are.
fn same_kinds(fate: &Fate, parts: &[Part<'_>]) -> Result<()> {
    let want = parts.first().map_or(Kind::Reduce, |part| part.kind);
    match parts.iter().position(|part| part.kind != want) {
        None => Ok(()),
        Some(rank) => {
            let (got, want) = (parts[rank].kind.name(), want.name());
            wrong(fate, rank, format!("calls {got}, {want} expected"))
        }
    }
}

/// Refuses a part of another size than it has by rank 0.
fn same_size(fate: &Fate, rank: usize, got: usize, want: usize) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => wrong(fate, rank, format!("sent {got} values, {want} expected")),
    }
}

fn wrong(fate: &Fate, rank: usize, what: String) -> Result<()> {
    fate.fail(rank, &what);
    Err(fate.comm(rank, what))
}
