//! Moving data: `mov`, `ld`, `st`. Source: PTX ISA 8.7, 9.7.9.

use super::space::{parse, resolve};
use super::{Decoder, Done, Flow, flags};
use crate::code::{Address, Op};
use crate::memory::flag::Scope;
use crate::memory::shadow::How;
use crate::registers::{Lanewise, Registers, Slot, lanes};
use crate::run::{Stop, Turn, lanes_of};
use crate::text::syntax::{Operand, Space};
use crate::text::types::Type;
use crate::{Error, FaultKind};

/// How an access takes part in synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Weak,
    /// Strong, without ordering by itself (`.volatile`, `.relaxed`).
    Relaxed,
    Acquire,
    Release,
    Both,
}

/// A weak access, of which the scope does not matter.
pub(crate) const WEAK: (Order, Scope) = (Order::Weak, Scope::System);

impl Order {
    pub(crate) fn strong(self) -> bool {
        self != Order::Weak
    }
}

/// `ld` and `st`.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    space: Space,
    address: Address,
    /// One register per element, and whether it has 64 bits.
    registers: Vec<(Slot, bool)>,
    /// Bytes of an element.
    bytes: u32,
    /// Sign-extend loaded elements.
    signed: bool,
    /// Bits of the destination registers.
    own: u32,
    order: Order,
    scope: Scope,
}

/// Copies a few bytes: the widths of accesses are moves of registers and no calls.
#[inline(always)]
pub(crate) fn copy_few(to: &mut [u8], from: &[u8]) {
    macro_rules! of {
        ($($n:literal)*) => {
            match to.len() {
                $($n => {
                    if let (Some(to), Some(from)) = (to.first_chunk_mut::<$n>(), from.first_chunk::<$n>()) {
                        *to = *from;
                    }
                })*
                _ => to.copy_from_slice(from),
            }
        };
    }
    of!(4 16 8 2 1);
}

/// The first 8 bytes of a slice as an integer, zero-extended.
#[inline(always)]
pub(crate) fn little(bytes: &[u8]) -> u64 {
    match bytes.len() {
        1 => u64::from(bytes[0]),
        2 => u64::from(u16::from_le_bytes([bytes[0], bytes[1]])),
        4 => u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        _ => {
            let mut all = [0; 8];
            let n = bytes.len().min(8);
            all[..n].copy_from_slice(&bytes[..n]);
            u64::from_le_bytes(all)
        }
    }
}

/// What an opcode says besides its operation.
pub(crate) struct Hints {
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// A cache policy operand follows.
    pub(crate) policy: bool,
}

/// Takes scopes, orders and cache hints. Without a scope `.volatile` is about the system, an atomic about
/// the device.
pub(crate) fn hints(d: &mut Decoder<'_, '_>) -> Hints {
    let mut order = Order::Weak;
    let everywhere = ["volatile", "mmio"].iter().any(|name| d.variant.rest().contains(name));
    for (name, value) in [
        ("weak", Order::Weak),
        ("volatile", Order::Relaxed),
        ("relaxed", Order::Relaxed),
        ("mmio", Order::Relaxed),
        ("acquire", Order::Acquire),
        ("release", Order::Release),
        ("acq_rel", Order::Both),
    ] {
        if d.variant.take(name) {
            order = value;
        }
    }
    let named = d.variant.one_of(&["cta", "cluster", "gpu", "sys"]).and_then(Scope::parse);
    let scope = named.unwrap_or(if everywhere { Scope::System } else { Scope::Device });
    for name in
        ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "L1::evict_normal", "L1::evict_unchanged"]
    {
        d.variant.take(name);
    }
    for name in [
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::evict_first",
        "L2::evict_last",
        "L2::evict_normal",
    ] {
        d.variant.take(name);
    }
    for name in ["L2::64B", "L2::128B", "L2::256B"] {
        d.variant.take(name);
    }
    Hints { order, scope, policy: d.variant.take("L2::cache_hint") }
}

fn access(d: &mut Decoder<'_, '_>, load: bool) -> Result<Op, Error> {
    let ty = d.ty()?;
    d.variant.take("const::cta");
    let Hints { order, scope, policy } = hints(d);
    let mut space = d.variant.next(parse).unwrap_or(Space::Generic);
    let lanes = d.variant.one_of(&["v2", "v4", "v8"]);
    d.finish()?;
    if ty == Type::Pred || ty.bits() == 128 {
        return d.refuse("this type cannot be loaded or stored");
    }
    d.count(2 + usize::from(policy))?;
    let (at, value) = if load { (1, 0) } else { (0, 1) };
    let operands = d.operands;
    let (address, named) = d.l.address(&operands[at])?;
    // A device function's parameters live in local memory.
    if space == Space::Param && named == Some(Space::Local) {
        space = Space::Local;
    }
    if let Some(named) = named
        && space != Space::Generic
        && !matches!((space, named), (Space::Const, Space::Global) | (Space::Cluster, Space::Shared))
        && space != named
    {
        return d.refuse(format!("the variable lives in {named:?} memory, not in {space:?} memory"));
    }
    if space == Space::Generic
        && let Some(named) = named
    {
        space = named;
    }
    let parts = d.l.parts(&operands[value]);
    let expected = lanes.map_or(1, |v| (v.as_bytes()[1] - b'0') as usize);
    if parts.len() != expected || matches!(operands[value], Operand::Vector(_)) != lanes.is_some() {
        return d.refuse(format!("{} registers for {expected} elements", parts.len()));
    }
    let mut registers = Vec::new();
    for part in parts {
        registers.push(if load { d.l.destination_any(part, ty)? } else { d.l.source_any(part, ty)? });
    }
    let own = parts.iter().find_map(|p| d.l.width(p)).unwrap_or(ty.bits()).max(ty.bits());
    if order.strong() {
        d.l.program.orders_blocks = true;
        d.l.program.dependent = true;
    }
    let access =
        Access { space, address, registers, bytes: ty.bytes(), signed: ty.is_signed(), own, order, scope };
    Ok(if load { Op::Load(Box::new(access)) } else { Op::Store(Box::new(access)) })
}

/// Decodes `ld`.
pub(crate) fn load(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    access(d, true)
}

/// Decodes `st`.
pub(crate) fn store(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    access(d, false)
}

/// Cache hints do nothing here; a policy register gets a value.
pub(crate) fn hint(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if d.variant.base == "createpolicy" {
        let to = d.l.destination(d.operand(0)?, Type::Bits(64))?;
        let zero = d.l.constant(crate::code::Constant::Bits(0), true);
        return Ok(Op::Lanewise(super::integer::copy(true), [to, zero, zero, zero]));
    }
    if d.variant.take("tensormap") {
        return Ok(Op::Nop);
    }
    d.l.address(d.operand(0)?)?;
    Ok(Op::Nop)
}

/// The address of each lane.
#[inline]
pub(crate) fn addresses(r: &Registers, a: &Address) -> [u64; 32] {
    let mut out = [0; 32];
    if a.wide {
        let row = r.wide(a.base);
        for i in 0..32 {
            out[i] = row[i].wrapping_add_signed(a.offset);
        }
    } else {
        let row = r.row(a.base);
        for i in 0..32 {
            out[i] = u64::from(row[i].wrapping_add(a.offset as u32));
        }
    }
    out
}

/// Refuses addresses that are not a multiple of the width.
#[inline]
pub(crate) fn aligned(address: u64, bytes: u64) -> Done {
    if bytes.is_power_of_two() && address & (bytes - 1) == 0 {
        return Ok(());
    }
    Err(Stop::new(FaultKind::Misaligned, format!("address {address:#x} for an access of {bytes} bytes")))
}

#[inline]
pub(crate) fn fetch(
    t: &mut Turn<'_, '_>,
    (order, scope): (Order, Scope),
    space: Space,
    address: u64,
    lane: usize,
    out: &mut [u8],
) -> Done {
    let n = out.len();
    match space {
        Space::Generic => {
            let (space, address) = resolve(address);
            fetch(t, (order, scope), space, address, lane, out)
        }
        Space::Global | Space::Const => {
            if !t.grid.launch.pending.is_empty() && !t.warp.dependency_done {
                t.grid.not_pending(address, n as u64)?;
            }
            let found = t.grid.locate(address, n as u64, false)?;
            t.grid.moved(address, n, false);
            t.grid.written(found, n, lane as u8)?;
            let me = crate::memory::shadow::Party {
                cluster: t.cluster.id,
                warp: t.warp.id,
                lane: lane as u8,
                line: t.grid.line,
                clock: &t.warp.clock,
            };
            t.grid.touch(found, n, How { write: false, strong: order.strong(), scope }, &me)?;
            t.grid.load(found, out);
            if order.strong() {
                flags::acquire_global(t, address, scope);
                flags::look(t, address, out);
            }
            Ok(())
        }
        Space::Shared | Space::Cluster => {
            let place = t.cluster.place(t.warp.rank, address)?;
            let me = crate::memory::shadow::Party {
                cluster: t.cluster.id,
                warp: t.warp.id,
                lane: lane as u8,
                line: t.grid.line,
                clock: &t.warp.clock,
            };
            let how = How { write: false, strong: order.strong(), scope };
            let start = t.cluster.access(place, n, how, &me, t.grid.options)?;
            copy_few(out, t.cluster.bytes(place.rank, start, n));
            if order.strong() {
                flags::acquire_shared(t, place);
            }
            Ok(())
        }
        Space::Local => {
            let at = local(t, address, n, lane)?;
            out.copy_from_slice(&t.warp.local[at..at + n]);
            Ok(())
        }
        Space::Param => {
            let params = &t.grid.launch.params;
            let range = usize::try_from(address).ok().and_then(|at| params.get(at..at.checked_add(n)?));
            match range {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    Ok(())
                }
                None => Err(Stop::new(
                    FaultKind::OutOfBounds,
                    format!("{n} bytes at offset {address} of {} bytes of parameters", params.len()),
                )),
            }
        }
    }
}

/// Reads bytes at a generic address, checked as a load of one lane is.
pub(crate) fn fetch_bytes(t: &mut Turn<'_, '_>, address: u64, lane: usize, out: &mut [u8]) -> Done {
    aligned(address, out.len() as u64)?;
    let (space, inner) = resolve(address);
    fetch(t, WEAK, space, inner, lane, out)
}

/// The place of a lane's local bytes among the warp's.
pub(crate) fn local(t: &Turn<'_, '_>, address: u64, n: usize, lane: usize) -> Done<usize> {
    let size = t.warp.local_bytes as usize;
    match usize::try_from(address).ok().filter(|a| a.checked_add(n).is_some_and(|end| end <= size)) {
        Some(at) => Ok(lane * size + at),
        None => Err(Stop::new(
            FaultKind::OutOfBounds,
            format!("{n} bytes at local address {address:#x} of {size} bytes per thread"),
        )),
    }
}

#[inline]
pub(crate) fn put(
    t: &mut Turn<'_, '_>,
    (order, scope): (Order, Scope),
    space: Space,
    address: u64,
    lane: usize,
    data: &[u8],
) -> Done {
    let n = data.len();
    let how = How { write: true, strong: order.strong(), scope };
    match space {
        Space::Generic => {
            let (space, address) = resolve(address);
            put(t, (order, scope), space, address, lane, data)
        }
        Space::Global => {
            if !t.grid.launch.pending.is_empty() && !t.warp.dependency_done {
                t.grid.not_pending(address, n as u64)?;
            }
            let found = t.grid.locate(address, n as u64, true)?;
            t.grid.moved(address, n, true);
            let me = crate::memory::shadow::Party {
                cluster: t.cluster.id,
                warp: t.warp.id,
                lane: lane as u8,
                line: t.grid.line,
                clock: &t.warp.clock,
            };
            let noted = t.grid.noted.len();
            t.grid.touch(found, n, how, &me)?;
            if t.grid.noted.len() > noted {
                let mut there = [0; 64];
                t.grid.load(found, &mut there[..n]);
                forgive(&mut t.grid.noted, t.grid.options, there[..n] == *data);
            }
            if order.strong() {
                flags::release_global(t, address, order, scope);
            }
            t.grid.save(found, data);
            t.cluster.progress += 1;
            Ok(())
        }
        Space::Shared | Space::Cluster => {
            let place = t.cluster.place(t.warp.rank, address)?;
            let me = crate::memory::shadow::Party {
                cluster: t.cluster.id,
                warp: t.warp.id,
                lane: lane as u8,
                line: t.grid.line,
                clock: &t.warp.clock,
            };
            let noted = t.cluster.noted.len();
            let start = t.cluster.access(place, n, how, &me, t.grid.options)?;
            if t.cluster.noted.len() > noted {
                let equal = t.cluster.bytes(place.rank, start, n) == data;
                forgive(&mut t.cluster.noted, t.grid.options, equal);
            }
            if order.strong() {
                flags::release_shared(t, place, order);
            }
            copy_few(t.cluster.bytes(place.rank, start, n), data);
            t.cluster.progress += 1;
            Ok(())
        }
        Space::Local => {
            let at = local(t, address, n, lane)?;
            t.warp.local[at..at + n].copy_from_slice(data);
            Ok(())
        }
        Space::Const | Space::Param => {
            Err(Stop::new(FaultKind::ReadOnly, format!("a store to {space:?} memory")))
        }
    }
}

/// Takes back a race of two stores of the same bytes, where that is wanted.
#[cold]
pub(crate) fn forgive(noted: &mut Vec<Stop>, options: &crate::Options, equal: bool) {
    if equal && !options.equal_stores && noted.last().is_some_and(|s| s.reason().both_write) {
        noted.pop();
    }
}

/// Notes that a lane's access did not take place.
#[cold]
pub(crate) fn note(t: &mut Turn<'_, '_>, stop: Stop, lane: usize) {
    t.grid.noted.push(stop.at(lane as u32));
}

/// Executes `ld`.
pub(crate) fn execute_load(t: &mut Turn<'_, '_>, a: &Access, active: u32) -> Done<Flow> {
    let at = addresses(&t.warp.registers, &a.address);
    let size = a.bytes as usize;
    let total = size * a.registers.len();
    t.grid.begin_moving();
    for lane in lanes_of(active) {
        let mut buffer = [0u8; 64];
        let data = &mut buffer[..total];
        let read = aligned(at[lane], total as u64)
            .and_then(|()| fetch(t, (a.order, a.scope), a.space, at[lane], lane, data));
        if let Err(stop) = read {
            note(t, stop, lane);
        }
        for (part, &(slot, wide)) in data.chunks_exact(size).zip(&a.registers) {
            let mut value = little(part);
            if a.signed {
                let shift = 64 - 8 * a.bytes;
                value = ((value << shift) as i64 >> shift) as u64;
                if a.own < 64 {
                    value &= (1 << a.own) - 1;
                }
            }
            if wide {
                t.warp.registers.wide_mut(slot)[lane] = value;
            } else {
                t.warp.registers.row_mut(slot)[lane] = value as u32;
            }
        }
    }
    Ok(Flow::Next)
}

/// Executes `st`.
pub(crate) fn execute_store(t: &mut Turn<'_, '_>, a: &Access, active: u32) -> Done<Flow> {
    let at = addresses(&t.warp.registers, &a.address);
    let size = a.bytes as usize;
    let total = size * a.registers.len();
    t.grid.begin_moving();
    for lane in lanes_of(active) {
        let mut buffer = [0u8; 64];
        for (part, &(slot, wide)) in buffer.chunks_exact_mut(size).zip(&a.registers) {
            let r = &t.warp.registers;
            let value = if wide { r.wide(slot)[lane] } else { u64::from(r.row(slot)[lane]) };
            copy_few(part, &value.to_le_bytes()[..size]);
        }
        let written = aligned(at[lane], total as u64)
            .and_then(|()| put(t, (a.order, a.scope), a.space, at[lane], lane, &buffer[..total]));
        if let Err(stop) = written {
            note(t, stop, lane);
        }
    }
    Ok(Flow::Next)
}

/// Decodes `mov`: copies, packs, unpacks, clocks.
pub(crate) fn mov(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if d.variant.rest().last() == Some(&"pred") {
        return super::compare::logic(d);
    }
    let ty = d.ty()?;
    d.finish()?;
    d.count(2)?;
    let operands = d.operands;
    match (&operands[0], &operands[1]) {
        (to, Operand::Vector(parts)) => {
            let to = d.l.destination(to, ty)?;
            let slots = parts
                .iter()
                .map(|p| d.l.source(p, Type::Bits(ty.bits() / parts.len() as u32)))
                .collect::<Result<Vec<_>, _>>()?;
            pack(d, ty, to, &slots)
        }
        (Operand::Vector(parts), from) => {
            let from = d.l.source(from, ty)?;
            let part = Type::Bits(ty.bits() / parts.len().max(1) as u32);
            let slots = parts.iter().map(|p| d.l.destination(p, part)).collect::<Result<Vec<_>, _>>()?;
            unpack(d, ty, &slots, from)
        }
        (to, Operand::Name(name, 0))
            if matches!(
                &name[..],
                "%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo"
            ) =>
        {
            let wide = ty.bits() == 64;
            d.l.program.dependent = true;
            Ok(Op::Clock(d.l.destination(to, ty)?, wide))
        }
        (to, from) => {
            let to = d.l.destination(to, ty)?;
            let from = d.l.source(from, ty)?;
            Ok(Op::Lanewise(super::integer::copy(ty.bits() > 32), [to, from, from, from]))
        }
    }
}

fn pack(d: &mut Decoder<'_, '_>, ty: Type, to: Slot, parts: &[Slot]) -> Result<Op, Error> {
    let halves: Lanewise = lanes!(|a: u32, b: u32| -> u32 { a & 0xffff | b << 16 });
    let words: Lanewise = lanes!(|a: u32, b: u32| -> u64 { u64::from(a) | u64::from(b) << 32 });
    match (ty.bits(), parts) {
        (32, &[a, b]) => Ok(Op::Lanewise(halves, [to, a, b, b])),
        (64, &[a, b]) => Ok(Op::Lanewise(words, [to, a, b, b])),
        (64, &[a, b, c, e]) => {
            let (low, high) = (d.l.scratch(false), d.l.scratch(false));
            d.l.extra(d.guard, Op::Lanewise(halves, [low, a, b, b]));
            d.l.extra(d.guard, Op::Lanewise(halves, [high, c, e, e]));
            Ok(Op::Lanewise(words, [to, low, high, high]))
        }
        (32, &[a, b, c, e]) => {
            let bytes: Lanewise = lanes!(|a: u32, b: u32| -> u32 { a & 0xff | (b & 0xff) << 8 });
            let (low, high) = (d.l.scratch(false), d.l.scratch(false));
            d.l.extra(d.guard, Op::Lanewise(bytes, [low, a, b, b]));
            d.l.extra(d.guard, Op::Lanewise(bytes, [high, c, e, e]));
            Ok(Op::Lanewise(halves, [to, low, high, high]))
        }
        (16, &[a, b]) => {
            Ok(Op::Lanewise(lanes!(|a: u32, b: u32| -> u32 { a & 0xff | (b & 0xff) << 8 }), [to, a, b, b]))
        }
        _ => d.refuse("this vector cannot be packed"),
    }
}

fn unpack(d: &mut Decoder<'_, '_>, ty: Type, parts: &[Slot], from: Slot) -> Result<Op, Error> {
    let functions: &[Lanewise] = match (ty.bits(), parts.len()) {
        (16, 2) => &[lanes!(|a: u32| -> u32 { a & 0xff }), lanes!(|a: u32| -> u32 { a >> 8 & 0xff })],
        (32, 2) => &[lanes!(|a: u32| -> u32 { a & 0xffff }), lanes!(|a: u32| -> u32 { a >> 16 })],
        (64, 2) => &[lanes!(|a: u64| -> u32 { a as u32 }), lanes!(|a: u64| -> u32 { (a >> 32) as u32 })],
        (32, 4) => &[
            lanes!(|a: u32| -> u32 { a & 0xff }),
            lanes!(|a: u32| -> u32 { a >> 8 & 0xff }),
            lanes!(|a: u32| -> u32 { a >> 16 & 0xff }),
            lanes!(|a: u32| -> u32 { a >> 24 }),
        ],
        (64, 4) => &[
            lanes!(|a: u64| -> u32 { (a & 0xffff) as u32 }),
            lanes!(|a: u64| -> u32 { (a >> 16 & 0xffff) as u32 }),
            lanes!(|a: u64| -> u32 { (a >> 32 & 0xffff) as u32 }),
            lanes!(|a: u64| -> u32 { (a >> 48) as u32 }),
        ],
        _ => return d.refuse("this vector cannot be unpacked"),
    };
    let last = functions.len() - 1;
    for i in 0..last {
        d.l.extra(d.guard, Op::Lanewise(functions[i], [parts[i], from, from, from]));
    }
    Ok(Op::Lanewise(functions[last], [parts[last], from, from, from]))
}
