//! Bulk copies in flight.
//!
//! A bulk copy is checked when it is issued and its bytes are marked; it is carried out ("lands") at the
//! latest moment that the program allows: copies that report to an mbarrier when nothing else can go on,
//! copies of a bulk group when their thread waits for the group. Until then every access to the marked bytes
//! is a missing wait.

use super::{Cluster, Done, Grid};
use crate::memory::clock::Clock;
use crate::memory::shadow::{How, Party};
use crate::ops::reduce::Reduction;
use crate::run::cluster::{Mark, SharedPlace};

/// One contiguous piece of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Run {
    Load {
        from: u64,
        to: SharedPlace,
        bytes: u32,
    },
    /// Outside a tensor: the pattern, again and again.
    Fill {
        to: SharedPlace,
        bytes: u32,
        pattern: [u8; 16],
    },
    /// The bytes go from the flight's buffer at that position to global memory.
    Store {
        from: SharedPlace,
        to: u64,
        bytes: u32,
    },
    Share {
        from: SharedPlace,
        to: SharedPlace,
        bytes: u32,
    },
}

/// A bulk copy that has been issued.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub(crate) runs: Vec<Run>,
    /// The mbarrier that counts the bytes.
    pub(crate) signal: Option<(SharedPlace, u32)>,
    /// The bulk group of the issuing lane.
    pub(crate) group: Option<u32>,
    pub(crate) warp: u16,
    pub(crate) lane: u8,
    /// Line index of the instruction.
    pub(crate) line: u32,
    /// What the issuer was ordered after.
    pub(crate) clock: Clock,
    pub(crate) reduction: Option<Reduction>,
    /// The source of a store, once it has been read.
    pub(crate) taken: Option<Vec<u8>>,
}

/// Checks a copy at its issue and marks its bytes.
pub(crate) fn issue(
    grid: &mut Grid<'_>,
    cluster: &mut Cluster,
    flight: Flight,
    dependency_done: bool,
) -> Done {
    grid.begin_moving();
    let clock = flight.clock.clone();
    let me =
        Party { cluster: cluster.id, warp: flight.warp, lane: flight.lane, line: flight.line, clock: &clock };
    for run in &flight.runs {
        match *run {
            Run::Load { from, to, bytes } => {
                source(grid, from, bytes, &me, dependency_done)?;
                cluster.access_and_mark(
                    to,
                    bytes as usize,
                    How::WRITE,
                    Mark::WriteBegins,
                    &me,
                    grid.options,
                )?;
            }
            Run::Fill { to, bytes, .. } => {
                cluster.access_and_mark(
                    to,
                    bytes as usize,
                    How::WRITE,
                    Mark::WriteBegins,
                    &me,
                    grid.options,
                )?;
            }
            Run::Store { from, to, bytes } => {
                cluster.access_and_mark(
                    from,
                    bytes as usize,
                    How::READ,
                    Mark::ReadBegins,
                    &me,
                    grid.options,
                )?;
                if !dependency_done {
                    grid.not_pending(to, bytes.into())?;
                }
                let found = grid.locate(to, bytes.into(), true)?;
                if flight.reduction.is_some() {
                    grid.shown_async(found, bytes as usize, &me)?;
                }
            }
            Run::Share { from, to, bytes } => {
                cluster.access_and_mark(
                    from,
                    bytes as usize,
                    How::READ,
                    Mark::ReadBegins,
                    &me,
                    grid.options,
                )?;
                cluster.access_and_mark(
                    to,
                    bytes as usize,
                    How::WRITE,
                    Mark::WriteBegins,
                    &me,
                    grid.options,
                )?;
            }
        }
    }
    cluster.flights.push(flight);
    Ok(())
}

fn source(grid: &mut Grid<'_>, from: u64, bytes: u32, me: &Party<'_>, dependency_done: bool) -> Done {
    if !dependency_done {
        grid.not_pending(from, bytes.into())?;
    }
    let found = grid.locate(from, bytes.into(), false)?;
    grid.moved(from, bytes as usize, false);
    grid.written(found, bytes as usize, me.lane)?;
    grid.touch(found, bytes as usize, How::READ, me)?;
    grid.shown_async(found, bytes as usize, me)
}

/// Reads the sources of a store and frees them.
pub(crate) fn take(cluster: &mut Cluster, flight: &mut Flight) -> Done {
    if flight.taken.is_some() {
        return Ok(());
    }
    let mut data = Vec::new();
    for run in &flight.runs {
        if let Run::Store { from, bytes, .. } = *run {
            cluster.mark_flight(from, bytes as usize, false, false);
            let start = cluster.bounds(from, bytes as usize)?;
            data.extend_from_slice(cluster.bytes(from.rank, start, bytes as usize));
        }
    }
    flight.taken = Some(data);
    Ok(())
}

/// Carries a copy out. `clock` is what its effects are ordered after: the issuer's own for copies of a group.
pub(crate) fn land(
    grid: &mut Grid<'_>,
    cluster: &mut Cluster,
    mut flight: Flight,
    waiter: Option<&Clock>,
) -> Done {
    grid.begin_moving();
    take(cluster, &mut flight)?;
    let engine = cluster.engine_warp;
    cluster.engine.tick(engine);
    cluster.engine.fence_async_of(engine);
    let mut clock = flight.clock.clone();
    clock.join(&cluster.engine);
    let (warp, lane, clock_of) = match waiter {
        Some(c) => (flight.warp, flight.lane, c),
        None => (engine, 0, &clock),
    };
    let me = Party { cluster: cluster.id, warp, lane, line: flight.line, clock: clock_of };
    let data = flight.taken.take().unwrap_or_default();
    let mut at = 0;
    for run in &flight.runs {
        match *run {
            Run::Load { from, to, bytes } => {
                let found = grid.locate(from, bytes.into(), false)?;
                let start = cluster.access_and_mark(
                    to,
                    bytes as usize,
                    How::WRITE,
                    Mark::WriteEnds,
                    &me,
                    grid.options,
                )?;
                grid.load(found, cluster.bytes(to.rank, start, bytes as usize));
            }
            Run::Fill { to, bytes, pattern } => {
                cluster.mark_flight(to, bytes as usize, true, false);
                let start = cluster.access(to, bytes as usize, How::WRITE, &me, grid.options)?;
                cluster
                    .bytes(to.rank, start, bytes as usize)
                    .iter_mut()
                    .zip(pattern.iter().cycle())
                    .for_each(|(b, p)| *b = *p);
            }
            Run::Store { to, bytes, .. } => {
                store(grid, to, &data[at..at + bytes as usize], flight.reduction, &me)?;
                at += bytes as usize;
            }
            Run::Share { from, to, bytes } => {
                cluster.mark_flight(from, bytes as usize, false, false);
                cluster.mark_flight(to, bytes as usize, true, false);
                let start = cluster.bounds(from, bytes as usize)?;
                let data = cluster.bytes(from.rank, start, bytes as usize).to_vec();
                let start = cluster.access(to, bytes as usize, How::WRITE, &me, grid.options)?;
                cluster.bytes(to.rank, start, bytes as usize).copy_from_slice(&data);
            }
        }
    }
    cluster.progress += 1;
    if let Some((at, bytes)) = flight.signal {
        crate::ops::mbarrier::complete_bytes(cluster, at, bytes, &clock)?;
    }
    Ok(())
}

fn store(grid: &mut Grid<'_>, to: u64, data: &[u8], reduction: Option<Reduction>, me: &Party<'_>) -> Done {
    let found = grid.locate(to, data.len() as u64, true)?;
    grid.moved(to, data.len(), true);
    match reduction {
        None => {
            grid.touch(found, data.len(), How::WRITE, me)?;
            grid.wrote_async(found, data.len());
            grid.save(found, data);
        }
        Some(r) => {
            grid.moved(to, data.len(), false);
            grid.written(found, data.len(), me.lane)?;
            grid.touch(found, data.len(), How::ATOMIC, me)?;
            grid.wrote_async(found, data.len());
            let mut out = vec![0; data.len()];
            grid.load(found, &mut out);
            let width = r.bytes() as usize;
            for (o, d) in out.chunks_exact_mut(width).zip(data.chunks_exact(width)) {
                let value = r.apply(crate::ops::data::little(o), crate::ops::data::little(d), 0);
                o.copy_from_slice(&value.to_le_bytes()[..width]);
            }
            grid.save(found, &out);
        }
    }
    Ok(())
}
