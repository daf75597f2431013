//! `cp.async`: copies of 4, 8 or 16 bytes per lane, in groups. Source: PTX ISA 8.7, 9.7.9.25.3.
//!
//! The data moves when the lane waits for its group, not before: until then the destination is marked, and
//! touching it is a missing wait.

use super::data::{addresses, aligned};
use super::mbarrier;
use super::{Decoder, Done, Flow};
use crate::code::{Address, Op};
use crate::memory::shadow::{How, LINE, Party};
use crate::registers::Slot;
use crate::run::cluster::{Mark, SharedPlace};
use crate::run::warp::{PendingArrival, PendingCopy};
use crate::run::{Cluster, Stop, Turn, lanes_of};
use crate::text::syntax::Operand;
use crate::text::types::Type;
use crate::{Error, Options};

/// `cp.async`.
#[derive(Debug, Clone)]
pub(crate) struct CopyAsync {
    to: Address,
    from: Address,
    size: u32,
    /// Bytes to copy; the rest is zero.
    bytes: Option<Slot>,
    /// Lanes for which the source is ignored.
    ignore: Option<crate::code::Test>,
}

/// Decodes `cp.async` and its waits.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if !d.variant.take("async") {
        return d.refuse("this copy is unknown");
    }
    if d.variant.take("commit_group") {
        d.finish()?;
        return Ok(Op::CopyCommit);
    }
    if d.variant.take("wait_all") {
        d.finish()?;
        return Ok(Op::CopyWait(None));
    }
    if d.variant.take("wait_group") {
        d.finish()?;
        return Ok(Op::CopyWait(Some(d.immediate(0)? as u32)));
    }
    if d.variant.take("mbarrier") {
        d.variant.take("arrive");
        let counted = !d.variant.take("noinc");
        d.variant.take("shared");
        d.variant.take("shared::cta");
        d.variant.take("b64");
        d.finish()?;
        let (address, _) = d.l.address(d.operand(0)?)?;
        return Ok(Op::CopyArrive { address, counted });
    }
    let policy = super::data::hints(d).policy;
    let shared = d.variant.take("shared") || d.variant.take("shared::cta");
    let global = d.variant.take("global");
    d.finish()?;
    if !shared || !global {
        return d.refuse("`cp.async` copies from global to shared memory");
    }
    let (to, _) = d.l.address(d.operand(0)?)?;
    let (from, _) = d.l.address(d.operand(1)?)?;
    let size = d.immediate(2)? as u32;
    if ![4, 8, 16].contains(&size) {
        return d.refuse(format!("a copy of {size} bytes; 4, 8 and 16 are possible"));
    }
    let (mut bytes, mut ignore) = (None, None);
    if d.operands.len() - usize::from(policy) == 4 {
        let operand = d.operand(3)?;
        match operand {
            Operand::Integer(_) => bytes = Some(d.l.source(operand, Type::Unsigned(32))?),
            o if d.l.width(o).is_some() => bytes = Some(d.l.source(o, Type::Unsigned(32))?),
            o => ignore = Some(d.l.test(o)?),
        }
    }
    Ok(Op::CopyAsync(Box::new(CopyAsync { to, from, size, bytes, ignore })))
}

/// Executes the issue.
pub(crate) fn execute(t: &mut Turn<'_, '_>, c: &CopyAsync, active: u32) -> Done<Flow> {
    let (to, from) = (addresses(&t.warp.registers, &c.to), addresses(&t.warp.registers, &c.from));
    let ignored = c.ignore.map_or(0, |i| super::compare::truth(&t.warp.registers, i));
    t.grid.begin_moving();
    t.warp.copies.reserve(32);
    for lane in lanes_of(active) {
        let mut bytes = c.bytes.map_or(c.size, |s| t.warp.registers.row(s)[lane]);
        if ignored >> lane & 1 != 0 {
            bytes = 0;
        }
        issue(t, to[lane], from[lane], bytes, c.size, lane).map_err(|s| s.at(lane as u32))?;
    }
    Ok(Flow::Next)
}

#[inline(always)]
fn issue(t: &mut Turn<'_, '_>, to: u64, from: u64, bytes: u32, size: u32, lane: usize) -> Done {
    if bytes > size {
        return Err(Stop::new(
            crate::FaultKind::Operand,
            format!("{bytes} source bytes in a copy of {size}"),
        ));
    }
    aligned(to, size.into())?;
    aligned(from, size.into())?;
    let place = t.cluster.place(t.warp.rank, to)?;
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: lane as u8,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    if bytes > 0 {
        if !t.warp.dependency_done {
            t.grid.not_pending(from, bytes.into())?;
        }
        let found = t.grid.locate(from, bytes.into(), false)?;
        t.grid.moved(from, bytes as usize, false);
        t.grid.written(found, bytes as usize, lane as u8)?;
        t.grid.touch(found, bytes as usize, How::READ, &me)?;
    }
    writes(t.cluster, place, size as usize, Mark::WriteBegins, &me, t.grid.options)?;
    let group = t.warp.copy_groups[lane];
    t.warp.copy_serial += 1;
    let serial = t.warp.copy_serial;
    let (bytes, size) = (bytes as u8, size as u8);
    t.warp.copies.push(PendingCopy { lane: lane as u8, group, from, to: place.offset, bytes, size, serial });
    Ok(())
}

/// The checks of the destination: mostly one line.
#[inline(always)]
fn writes(
    cluster: &mut Cluster,
    place: SharedPlace,
    size: usize,
    mark: Mark,
    me: &Party<'_>,
    options: &Options,
) -> Done<usize> {
    match size {
        LINE => cluster.copy_line(place, mark, me, options),
        _ => cluster.access_and_mark(place, size, How::WRITE, mark, me, options),
    }
}

/// `cp.async.commit_group`.
pub(crate) fn commit(t: &mut Turn<'_, '_>, active: u32) -> Done<Flow> {
    lanes_of(active).for_each(|l| t.warp.copy_groups[l] += 1);
    Ok(Flow::Next)
}

/// `cp.async.wait_group` and `cp.async.wait_all`.
pub(crate) fn wait(t: &mut Turn<'_, '_>, keep: Option<u32>, active: u32) -> Done<Flow> {
    let groups = t.warp.copy_groups;
    land(t, |c| {
        let mine = active >> c.lane & 1 != 0;
        mine && keep
            .is_none_or(|k| u64::from(c.group) + u64::from(k) < u64::from(groups[usize::from(c.lane)]))
    })?;
    Ok(Flow::Next)
}

/// Carries out the copies that a condition picks.
fn land(t: &mut Turn<'_, '_>, pick: impl Fn(&PendingCopy) -> bool) -> Done {
    if t.warp.copies.is_empty() {
        return Ok(());
    }
    let mut copies = std::mem::take(&mut t.warp.copies);
    for c in copies.iter().filter(|c| pick(c)) {
        land_one(t, c).map_err(|s| s.at(c.lane.into()))?;
    }
    copies.retain(|c| !pick(c));
    t.warp.copies = copies;
    Ok(())
}

#[inline(always)]
fn land_one(t: &mut Turn<'_, '_>, c: &PendingCopy) -> Done {
    let place = SharedPlace { rank: t.warp.rank, offset: c.to };
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: c.lane,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    let (size, n) = (usize::from(c.size), usize::from(c.bytes));
    let start = writes(t.cluster, place, size, Mark::WriteEnds, &me, t.grid.options)?;
    t.cluster.progress += 1;
    if n == LINE {
        let found = t.grid.locate(c.from, LINE as u64, false)?;
        t.grid.load_line(found, t.cluster.bytes(place.rank, start, LINE));
        return Ok(());
    }
    let out = t.cluster.bytes(place.rank, start, size);
    if n > 0 {
        let found = t.grid.locate(c.from, n as u64, false)?;
        t.grid.load(found, &mut out[..n]);
    }
    if n < size {
        out[n..].fill(0);
    }
    Ok(())
}

/// `cp.async.mbarrier.arrive`: the arrival happens when the lane's earlier copies have landed.
pub(crate) fn arrive(t: &mut Turn<'_, '_>, address: &Address, counted: bool, active: u32) -> Done<Flow> {
    let at = addresses(&t.warp.registers, address);
    for lane in lanes_of(active) {
        let place = mbarrier::place(t, at[lane], false).map_err(|s| s.at(lane as u32))?;
        mbarrier::visit(t, place, lane).map_err(|s| s.at(lane as u32))?;
        if counted {
            mbarrier::expect_arrival(t, place)?;
        }
        let serial = t.warp.copy_serial;
        t.warp.arrivals.push(PendingArrival { lane: lane as u8, barrier: place, serial });
    }
    Ok(Flow::Next)
}

/// Lets the arrivals of the warp's oldest such instruction happen.
pub(crate) fn land_arrival(t: &mut Turn<'_, '_>) -> Done {
    let Some(first) = t.warp.arrivals.first().copied() else { return Ok(()) };
    let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut t.warp.arrivals)
        .into_iter()
        .partition(|a| a.serial == first.serial && a.barrier == first.barrier);
    t.warp.arrivals = later;
    for a in now {
        land(t, |c| c.lane == a.lane && c.serial <= a.serial)?;
        mbarrier::arrive(t, a.barrier, 1, 0, true).map_err(|s| s.at(a.lane.into()))?;
    }
    Ok(())
}
