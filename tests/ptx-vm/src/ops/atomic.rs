//! `atom`, `red`, fences. Source: PTX ISA 8.7, 9.7.13.
//!
//! The lanes of a warp take their turns in ascending order. A relaxed atomic publishes only what a fence
//! before it covered, so a missing fence before a flag is found as a race at the reader; reading through any
//! atomic counts as acquiring.

use super::data::{self, Hints, Order};
use super::reduce::Reduction;
use super::space::{parse, resolve};
use super::{Decoder, Done, Flow, flags};
use crate::code::{Address, Op};
use crate::memory::clock::Fenced;
use crate::memory::flag::Scope;
use crate::memory::shadow::{How, Party};
use crate::registers::Slot;
use crate::run::{Stop, Turn, lanes_of};
use crate::text::syntax::Space;
use crate::{Error, FaultKind};

/// `atom` and `red`.
#[derive(Debug, Clone)]
pub(crate) struct Atomic {
    space: Space,
    address: Address,
    reduction: Reduction,
    /// Old values go here; empty for `red`.
    d: Vec<Slot>,
    b: Vec<Slot>,
    c: Option<Slot>,
    order: Order,
    scope: Scope,
}

/// Decodes `atom` and `red`.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let red = d.variant.base == "red";
    if d.variant.rest().contains(&"async") {
        return super::mbarrier::red_async(d);
    }
    let ty = d.ty()?;
    let Hints { order, scope, policy } = data::hints(d);
    let order = if order == Order::Weak { Order::Relaxed } else { order };
    d.variant.take("noftz");
    let vector = d.variant.one_of(&["v2", "v4", "v8"]);
    let space = d.variant.next(parse).unwrap_or(Space::Generic);
    let Some(name) =
        d.variant.one_of(&["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"])
    else {
        return d.refuse("this atomic operation is unknown");
    };
    // `atom.global.add`: the space may stand before or after the order.
    let space = d.variant.next(parse).unwrap_or(space);
    let Some(reduction) = Reduction::parse(name, ty) else {
        return d.refuse(format!("`{name}` does not exist for this type"));
    };
    d.finish()?;
    let sources = if name == "cas" { 2 } else { 1 };
    let first = usize::from(!red);
    d.count(first + 1 + sources + usize::from(policy))?;
    let operands = d.operands;
    let (address, named) = d.l.address(&operands[first])?;
    let space = match (space, named) {
        (Space::Generic, Some(named)) => named,
        _ => space,
    };
    let to = if red { Vec::new() } else { d.l.destinations(&operands[0], ty)? };
    let b = d.l.sources(&operands[first + 1], ty)?;
    if vector.map_or(1, |v| (v.as_bytes()[1] - b'0') as usize) != b.len() || (!red && to.len() != b.len()) {
        return d.refuse("the number of registers is not that of the elements");
    }
    let c = if sources == 2 { Some(d.l.source(&operands[first + 2], ty)?) } else { None };
    d.l.program.orders_blocks = true;
    d.l.program.dependent = true;
    Ok(Op::Atomic(Box::new(Atomic { space, address, reduction, d: to, b, c, order, scope })))
}

/// Executes `atom` and `red`.
pub(crate) fn execute(t: &mut Turn<'_, '_>, a: &Atomic, active: u32) -> Done<Flow> {
    let at = data::addresses(&t.warp.registers, &a.address);
    let width = a.reduction.bytes() as usize;
    t.grid.begin_moving();
    for lane in lanes_of(active) {
        one(t, a, at[lane], width, lane).map_err(|s| s.at(lane as u32))?;
    }
    Ok(Flow::Next)
}

fn one(t: &mut Turn<'_, '_>, a: &Atomic, address: u64, width: usize, lane: usize) -> Done {
    data::aligned(address, (width * a.b.len()) as u64)?;
    let (space, base) = if a.space == Space::Generic { resolve(address) } else { (a.space, address) };
    for (i, &b) in a.b.iter().enumerate() {
        let address = base + (i * width) as u64;
        let wide = width == 8;
        let read = |s: Slot| {
            if wide { t.warp.registers.wide(s)[lane] } else { u64::from(t.warp.registers.row(s)[lane]) }
        };
        let truncated = |x: u64| if width == 2 { x & 0xffff } else { x };
        let (b, c) = (truncated(read(b)), a.c.map_or(0, |c| truncated(read(c))));
        let update = |bytes: &mut [u8]| {
            let old = data::little(bytes);
            let new = a.reduction.apply(old, b, c);
            bytes.copy_from_slice(&new.to_le_bytes()[..width]);
            (old, old != new)
        };
        let me = Party {
            cluster: t.cluster.id,
            warp: t.warp.id,
            lane: lane as u8,
            line: t.grid.line,
            clock: &t.warp.clock,
        };
        let (old, changed) = match space {
            Space::Global => {
                if !t.grid.launch.pending.is_empty() && !t.warp.dependency_done {
                    t.grid.not_pending(address, width as u64)?;
                }
                let found = t.grid.locate(address, width as u64, true)?;
                t.grid.moved(address, width, false);
                t.grid.moved(address, width, true);
                t.grid.written(found, width, lane as u8)?;
                t.grid.touch(found, width, How { scope: a.scope, ..How::ATOMIC }, &me)?;
                let mut bytes = [0; 8];
                t.grid.load(found, &mut bytes[..width]);
                let result = update(&mut bytes[..width]);
                t.grid.save(found, &bytes[..width]);
                flags::acquire_global(t, address, a.scope);
                if !result.1 {
                    flags::look(t, address, &result.0.to_le_bytes()[..width]);
                }
                flags::release_global(t, address, a.order, a.scope);
                result
            }
            Space::Shared | Space::Cluster => {
                let place = t.cluster.place(t.warp.rank, address)?;
                // The read half is checked first: an atomic on memory that nothing has written is a mistake
                // too.
                t.cluster.access(place, width, How { strong: true, ..How::READ }, &me, t.grid.options)?;
                let start = t.cluster.access(place, width, How::ATOMIC, &me, t.grid.options)?;
                let result = update(t.cluster.bytes(place.rank, start, width));
                flags::acquire_shared(t, place);
                flags::release_shared(t, place, a.order);
                result
            }
            _ => return Err(Stop::new(FaultKind::Operand, format!("an atomic on {space:?} memory"))),
        };
        if changed {
            t.cluster.progress += 1;
        }
        if let Some(&d) = a.d.get(i) {
            if wide {
                t.warp.registers.wide_mut(d)[lane] = old;
            } else {
                t.warp.registers.row_mut(d)[lane] = old as u32;
            }
        }
    }
    Ok(())
}

/// Decodes `fence` and `membar`.
pub(crate) fn fence(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let base = d.variant.base;
    let proxy = d.variant.rest().iter().any(|p| p.starts_with("proxy") || p.starts_with("mbarrier_init"));
    if proxy {
        // Data is in one memory for all proxies; that an asynchronous read has its fence is known by clocks.
        let has = |start: &str| d.variant.rest().iter().any(|p| p.starts_with(start));
        let (with_async, barrier_init) = (has("async"), has("mbarrier_init"));
        // Without a space it is about all of them.
        let (shared, global) = (has("shared"), has("global") || has("async.global"));
        let all = !shared && !global;
        let known = [
            "proxy",
            "async",
            "async::generic",
            "async.global",
            "alias",
            "tensormap",
            "tensormap::generic",
            "mbarrier_init",
        ];
        let more = [
            "acquire",
            "release",
            "cluster",
            "cta",
            "gpu",
            "sys",
            "global",
            "shared::cta",
            "shared::cluster",
            "sync_restrict::shared::cta",
            "sync_restrict::shared::cluster",
        ];
        known.iter().chain(&more).for_each(|p| {
            d.variant.take(p);
        });
        d.finish()?;
        return Ok(match (with_async, barrier_init) {
            (true, _) => Op::FenceAsync { shared: shared || all, global: global || all },
            (_, true) => Op::FenceBarrierInit,
            _ => Op::Fence(None),
        });
    }
    let scope = match base {
        "membar" => d.variant.one_of(&["cta", "gl", "sys"]).and_then(Scope::parse),
        _ => d.variant.one_of(&["sc", "acq_rel", "acquire", "release"]).and(None),
    };
    let named = d.variant.one_of(&["cta", "cluster", "gpu", "sys"]).and_then(Scope::parse).or(scope);
    d.finish()?;
    d.l.program.orders_blocks = true;
    d.l.program.dependent = true;
    // Without a scope a fence is about everything.
    Ok(Op::Fence(Some(named.unwrap_or(Scope::System))))
}

/// Executes a fence between the plain and the asynchronous proxy.
pub(crate) fn execute_fence_async(t: &mut Turn<'_, '_>, shared: bool, global: bool) -> Done<Flow> {
    for (is_about, space) in [(shared, Fenced::Shared), (global, Fenced::Global)] {
        if is_about {
            t.warp.clock.fence_async(space);
        }
    }
    Ok(Flow::Next)
}

/// Executes a fence; one between proxies has no scope.
pub(crate) fn execute_fence(t: &mut Turn<'_, '_>, scope: Option<Scope>) -> Done<Flow> {
    if let Some(scope) = scope {
        flags::fence(t.warp, scope);
    }
    Ok(Flow::Next)
}
