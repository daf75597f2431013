//! Addresses between spaces: `cvta`, `mapa`, `getctarank`, `isspacep`. Source: PTX ISA 8.7, 9.7.9.

use super::{Decoder, Done, Flow};
use crate::Error;
use crate::code::{LOCAL_WINDOW, Op, PARAM_WINDOW, SHARED_BITS, SHARED_WINDOW, WINDOW};
use crate::registers::{Lanewise, Pred, Slot, lanes};
use crate::run::{Stop, Turn, lanes_of};
use crate::text::syntax::{Operand, Space};
use crate::text::types::Type;

/// The space an opcode part names.
pub(crate) fn parse(part: &str) -> Option<Space> {
    Some(match part {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::Cluster,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

/// Decodes `cvta.space` and `cvta.to.space`.
pub(crate) fn cvta(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let to = d.variant.take("to");
    let Some(space) = d.variant.next(parse) else { return d.refuse("a space is missing") };
    if ty.bits() != 64 {
        return d.refuse("addresses have 64 bits");
    }
    let f: Lanewise = match (space, to) {
        (Space::Shared | Space::Cluster, true) => lanes!(|a: u64| -> u64 { a.wrapping_sub(SHARED_WINDOW) }),
        (Space::Shared | Space::Cluster, false) => lanes!(|a: u64| -> u64 { a.wrapping_add(SHARED_WINDOW) }),
        (Space::Local, true) => lanes!(|a: u64| -> u64 { a.wrapping_sub(LOCAL_WINDOW) }),
        (Space::Local, false) => lanes!(|a: u64| -> u64 { a.wrapping_add(LOCAL_WINDOW) }),
        (Space::Param, true) => lanes!(|a: u64| -> u64 { a.wrapping_sub(PARAM_WINDOW) }),
        (Space::Param, false) => lanes!(|a: u64| -> u64 { a.wrapping_add(PARAM_WINDOW) }),
        _ => super::integer::copy(true),
    };
    d.lanewise(f, ty, &[ty])
}

/// `mapa`, and `getctarank` without a rank.
#[derive(Debug, Clone)]
pub(crate) struct MapShared {
    d: Slot,
    a: Slot,
    wide: bool,
    /// Bytes to add for generic addresses.
    window: u64,
    rank: Option<Slot>,
}

/// Decodes `mapa`.
pub(crate) fn mapa(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let window = if d.variant.take("shared::cluster") { 0 } else { SHARED_WINDOW };
    d.finish()?;
    d.count(3)?;
    let operands = d.operands;
    let to = d.l.destination(&operands[0], ty)?;
    let (a, rank) = (d.l.source(&operands[1], ty)?, d.l.source(&operands[2], Type::Unsigned(32))?);
    Ok(Op::MapShared(Box::new(MapShared { d: to, a, wide: ty.bits() == 64, window, rank: Some(rank) })))
}

/// Decodes `getctarank`.
pub(crate) fn rank(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let window = if d.variant.take("shared::cluster") { 0 } else { SHARED_WINDOW };
    d.finish()?;
    d.count(2)?;
    let to = d.l.destination(d.operand(0)?, Type::Unsigned(32))?;
    let a = d.l.source(d.operand(1)?, ty)?;
    Ok(Op::MapShared(Box::new(MapShared { d: to, a, wide: ty.bits() == 64, window, rank: None })))
}

/// Executes `mapa` and `getctarank`.
pub(crate) fn map(t: &mut Turn<'_, '_>, m: &MapShared, active: u32) -> Done<Flow> {
    for lane in lanes_of(active) {
        let r = &mut t.warp.registers;
        let a = if m.wide { r.wide(m.a)[lane] } else { u64::from(r.row(m.a)[lane]) }.wrapping_sub(m.window);
        let place = t.cluster.place(t.warp.rank, a).map_err(|s| s.at(lane as u32))?;
        let Some(rank) = m.rank else {
            r.row_mut(m.d)[lane] = u32::from(place.rank);
            continue;
        };
        let rank = r.row(rank)[lane];
        if rank as usize >= t.cluster.blocks.len() {
            let detail = format!("rank {rank} in a cluster of {} blocks", t.cluster.blocks.len());
            return Err(Stop::new(crate::FaultKind::Operand, detail).at(lane as u32));
        }
        let mapped = (u64::from(rank) + 1) << SHARED_BITS | u64::from(place.offset);
        if m.wide {
            r.wide_mut(m.d)[lane] = mapped.wrapping_add(m.window);
        } else {
            r.row_mut(m.d)[lane] = mapped as u32;
        }
    }
    Ok(Flow::Next)
}

/// The space a generic address lies in, and the address in that space.
#[inline]
pub(crate) fn resolve(address: u64) -> (Space, u64) {
    match address {
        a if a >= LOCAL_WINDOW + WINDOW => (Space::Global, a),
        a if a >= LOCAL_WINDOW => (Space::Local, a - LOCAL_WINDOW),
        a if a >= PARAM_WINDOW => (Space::Param, a - PARAM_WINDOW),
        a if a >= SHARED_WINDOW => (Space::Cluster, a - SHARED_WINDOW),
        a => (Space::Global, a),
    }
}

/// Decodes `isspacep`.
pub(crate) fn isspacep(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let Some(space) = d.variant.next(parse) else { return d.refuse("a space is missing") };
    d.finish()?;
    d.count(2)?;
    let operands: &[Operand] = d.operands;
    Ok(Op::IsSpace { p: d.l.pred(&operands[0])?, a: d.l.source(&operands[1], Type::Unsigned(64))?, space })
}

/// Executes `isspacep`. Constant memory lies among the global addresses and is distinguished by its
/// allocation.
pub(crate) fn is_space(t: &mut Turn<'_, '_>, p: Pred, a: Slot, space: Space, active: u32) -> Done<Flow> {
    let mut m = 0;
    for lane in lanes_of(active) {
        let address = t.warp.registers.wide(a)[lane];
        let (found, inner) = resolve(address);
        let memory = t.grid.memory.get();
        let constant = || memory.find(address, 1).is_some_and(|i| memory.at(i).constant);
        let own = || t.cluster.place(t.warp.rank, inner).is_ok_and(|p| p.rank == t.warp.rank);
        let yes = match space {
            Space::Const => found == Space::Global && constant(),
            Space::Shared => found == Space::Cluster && own(),
            s => found == s,
        };
        m |= u32::from(yes) << lane;
    }
    t.warp.registers.put_pred(p, m, active);
    Ok(Flow::Next)
}
