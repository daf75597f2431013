//! `mbarrier`: arrivals, transaction bytes, phases. Source: PTX ISA 8.7, 9.7.13.15.
//!
//! The state lives next to the shared memory, whose bytes are marked: a plain write over them is a fault, and
//! so is any operation on bytes that are no mbarrier. A phase completes when its arrivals and its bytes are
//! all there; whoever sees it complete is ordered after everything that arrived.

use super::data::{addresses, aligned};
use super::space::{parse, resolve};
use super::{Decoder, Done, Flow};
use crate::code::{Address, Op, SHARED_START};
use crate::memory::clock::{Clock, Fenced};
use crate::memory::shadow::{How, Party};
use crate::registers::{Pred, Slot};
use crate::run::cluster::SharedPlace;
use crate::run::{Cluster, Stop, Turn, lanes_of};
use crate::text::syntax::{Operand, Space};
use crate::text::types::Type;
use crate::{Error, FaultKind};

/// Counts an mbarrier can hold (PTX ISA: 2^20 - 1).
const LIMIT: u32 = (1 << 20) - 1;

/// An mbarrier.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    expected: u32,
    pending: u32,
    bytes: i64,
    phase: u32,
    gathering: Clock,
    released: Clock,
    /// The warp that initialised it, and its count then.
    init: (u16, u32),
    /// Whether that warp has fenced since, for the asynchronous proxy.
    init_fenced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Init,
    Invalidate,
    /// Arrive; `drop` takes part no more in later phases.
    Arrive {
        drop: bool,
        expect: bool,
    },
    ExpectBytes,
    CompleteBytes,
    /// Wait for a parity, or for the phase of a token.
    Wait {
        parity: bool,
    },
    PendingCount,
}

/// An mbarrier instruction.
#[derive(Debug, Clone)]
pub(crate) struct Mbarrier {
    action: Action,
    address: Address,
    generic: bool,
    /// Count, bytes, parity or token.
    value: Option<(Slot, bool)>,
    /// Where the state token goes.
    token: Option<Slot>,
    pred: Option<Pred>,
    release: bool,
}

/// Decodes every `mbarrier` instruction.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    if ty != Type::Bits(64) {
        return d.refuse("mbarriers are .b64");
    }
    let names = [
        "init",
        "inval",
        "arrive_drop",
        "arrive",
        "expect_tx",
        "complete_tx",
        "test_wait",
        "try_wait",
        "pending_count",
    ];
    let Some(name) = d.variant.next(|p| names.iter().copied().find(|n| *n == p)) else {
        return d.refuse("this mbarrier operation is unknown");
    };
    let expect = d.variant.take("expect_tx");
    d.variant.take("noComplete");
    let parity = d.variant.take("parity");
    let order = super::data::hints(d).order;
    let space = d.variant.next(parse);
    d.finish()?;
    let action = match name {
        "init" => Action::Init,
        "inval" => Action::Invalidate,
        "arrive" => Action::Arrive { drop: false, expect },
        "arrive_drop" => Action::Arrive { drop: true, expect },
        "expect_tx" => Action::ExpectBytes,
        "complete_tx" => Action::CompleteBytes,
        "pending_count" => Action::PendingCount,
        _ => Action::Wait { parity },
    };
    let operands: &[Operand] = d.operands;
    let results =
        usize::from(matches!(action, Action::Arrive { .. } | Action::Wait { .. } | Action::PendingCount));
    let (mut token, mut pred) = (None, None);
    match action {
        Action::Arrive { .. } => token = Some(d.l.destination(d.operand(0)?, Type::Bits(64))?),
        Action::PendingCount => token = Some(d.l.destination(d.operand(0)?, Type::Bits(32))?),
        Action::Wait { .. } => pred = Some(d.l.pred(d.operand(0)?)?),
        _ => {}
    }
    if action == Action::PendingCount {
        let state = d.l.source(d.operand(1)?, Type::Bits(64))?;
        let address = Address { base: state, wide: true, offset: 0 };
        return Ok(Op::Mbarrier(Box::new(Mbarrier {
            action,
            address,
            generic: false,
            value: None,
            token,
            pred,
            release: false,
        })));
    }
    let (address, named) = d.l.address(d.operand(results)?)?;
    let value = match operands.get(results + 1) {
        None if matches!(action, Action::Invalidate | Action::Arrive { expect: false, .. }) => None,
        None => return d.refuse("an operand is missing"),
        Some(o) => {
            let wide = action == Action::Wait { parity: false };
            Some((d.l.source(o, if wide { Type::Bits(64) } else { Type::Bits(32) })?, wide))
        }
    };
    let generic = space.is_none() && named.is_none();
    let release = order != super::data::Order::Relaxed;
    Ok(Op::Mbarrier(Box::new(Mbarrier { action, address, generic, value, token, pred, release })))
}

/// `red.async` to an mbarrier's neighbour is not supported.
pub(crate) fn red_async(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.refuse("`red.async` is not supported")
}

/// The place of an mbarrier operand.
pub(crate) fn place(t: &Turn<'_, '_>, address: u64, generic: bool) -> Done<SharedPlace> {
    let address = match (generic, resolve(address)) {
        (false, _) => address,
        (true, (Space::Cluster, inner)) => inner,
        _ => {
            return Err(Stop::new(
                FaultKind::OutOfBounds,
                format!("an mbarrier at {address:#x}, which is not shared memory"),
            ));
        }
    };
    aligned(address, 8)?;
    t.cluster.place(t.warp.rank, address)
}

fn missing(at: SharedPlace) -> Stop {
    Stop::new(FaultKind::Barrier, format!("there is no initialised mbarrier at shared offset {}", at.offset))
}

/// Checks that an mbarrier is there and that its start is ordered before this use.
pub(crate) fn visit(t: &mut Turn<'_, '_>, at: SharedPlace, lane: usize) -> Done {
    if !t.cluster.mbarriers.contains_key(&(at.rank, at.offset)) {
        t.cluster.bounds(at, 8)?;
        return Err(missing(at));
    }
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: lane as u8,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    t.cluster.access(at, 8, How { strong: true, ..How::READ }, &me, t.grid.options)?;
    Ok(())
}

/// The same for an mbarrier that asynchronous copies will report to, which must see that it was initialised.
pub(crate) fn visit_async(t: &mut Turn<'_, '_>, at: SharedPlace, lane: usize) -> Done {
    visit(t, at, lane)?;
    let Some(state) = t.cluster.mbarriers.get(&(at.rank, at.offset)) else { return Err(missing(at)) };
    let (warp, count) = state.init;
    if state.init_fenced || t.warp.clock.shows_async(Fenced::Shared, t.cluster.id, warp, count) {
        return Ok(());
    }
    let detail = format!(
        "an asynchronous copy that reports to the mbarrier at shared offset {}, which warp {warp} initialised without \
         `fence.mbarrier_init` or `fence.proxy.async` behind it",
        at.offset
    );
    Err(Stop::new(FaultKind::MissingFence, detail))
}

/// Executes `fence.mbarrier_init`: what the warp has initialised is seen by asynchronous copies.
pub(crate) fn execute_fence(t: &mut Turn<'_, '_>) -> Done<Flow> {
    let own = t.warp.id;
    t.cluster.mbarriers.values_mut().filter(|s| s.init.0 == own).for_each(|s| s.init_fenced = true);
    Ok(Flow::Next)
}

/// Ends the phase if nothing is missing.
fn advance(cluster: &mut Cluster, at: SharedPlace) {
    if let Some(s) = cluster.mbarriers.get_mut(&(at.rank, at.offset))
        && s.pending == 0
        && s.bytes == 0
    {
        s.phase = s.phase.wrapping_add(1);
        s.pending = s.expected;
        s.released = s.gathering.clone();
        cluster.progress += 1;
    }
}

/// Bytes of an asynchronous copy have landed.
pub(crate) fn complete_bytes(cluster: &mut Cluster, at: SharedPlace, bytes: u32, clock: &Clock) -> Done {
    let Some(s) = cluster.mbarriers.get_mut(&(at.rank, at.offset)) else { return Err(missing(at)) };
    s.bytes -= i64::from(bytes);
    s.gathering.join(clock);
    if s.bytes < -i64::from(LIMIT) {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!("the mbarrier at shared offset {} counts {} bytes", at.offset, s.bytes),
        ));
    }
    advance(cluster, at);
    Ok(())
}

/// A thread (or its copies) arrives.
pub(crate) fn arrive(
    t: &mut Turn<'_, '_>,
    at: SharedPlace,
    count: u32,
    bytes: u32,
    release: bool,
) -> Done<u64> {
    let Some(s) = t.cluster.mbarriers.get_mut(&(at.rank, at.offset)) else { return Err(missing(at)) };
    let token = u64::from(s.phase) | u64::from(s.pending) << 32;
    s.bytes += i64::from(bytes);
    if s.bytes > i64::from(LIMIT) {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!(
                "the mbarrier at shared offset {} expects {} bytes, {LIMIT} are possible",
                at.offset, s.bytes
            ),
        ));
    }
    if count > s.pending {
        let detail = format!(
            "{count} arrivals at the mbarrier at shared offset {}, which waits for {} of {}",
            at.offset, s.pending, s.expected
        );
        return Err(Stop::new(FaultKind::Barrier, detail));
    }
    s.pending -= count;
    if release {
        s.gathering.join(&t.warp.clock);
        t.warp.clock.tick(t.warp.id);
    }
    t.cluster.progress += 1;
    advance(t.cluster, at);
    Ok(token)
}

/// A cp.async arrival that counts for itself: one more arrival is expected in this phase.
pub(crate) fn expect_arrival(t: &mut Turn<'_, '_>, at: SharedPlace) -> Done {
    let Some(s) = t.cluster.mbarriers.get_mut(&(at.rank, at.offset)) else { return Err(missing(at)) };
    s.pending += 1;
    Ok(())
}

/// Executes an mbarrier instruction.
pub(crate) fn execute(t: &mut Turn<'_, '_>, m: &Mbarrier, active: u32) -> Done<Flow> {
    let at = addresses(&t.warp.registers, &m.address);
    let mut flow = Flow::Next;
    for lane in lanes_of(active) {
        let value = match m.value {
            None => 1,
            Some((s, true)) => t.warp.registers.wide(s)[lane],
            Some((s, false)) => u64::from(t.warp.registers.row(s)[lane]),
        };
        if m.action == Action::PendingCount {
            if let Some(d) = m.token {
                t.warp.registers.row_mut(d)[lane] = (at[lane] >> 32) as u32;
            }
            continue;
        }
        let complete = place(t, at[lane], m.generic)
            .and_then(|p| one(t, m, p, value, lane))
            .map_err(|s| s.at(lane as u32))?;
        if !complete {
            t.grid.looks += 1;
            flow = Flow::Yield;
        }
    }
    Ok(flow)
}

/// One lane's action; false for a wait in vain.
fn one(t: &mut Turn<'_, '_>, m: &Mbarrier, at: SharedPlace, value: u64, lane: usize) -> Done<bool> {
    if m.action == Action::Init {
        init(t, at, value as u32, lane)?;
        return Ok(true);
    }
    visit(t, at, lane)?;
    match m.action {
        Action::Invalidate => {
            t.cluster.mbarriers.remove(&(at.rank, at.offset));
            mark(t.cluster, at, false);
        }
        Action::Arrive { drop, expect } => {
            let (count, bytes) = if expect { (1, value as u32) } else { (value as u32, 0) };
            if drop && let Some(s) = t.cluster.mbarriers.get_mut(&(at.rank, at.offset)) {
                s.expected = s.expected.saturating_sub(count);
            }
            let token = arrive(t, at, count, bytes, m.release)?;
            if let Some(d) = m.token {
                t.warp.registers.wide_mut(d)[lane] = token;
            }
        }
        Action::ExpectBytes | Action::CompleteBytes => {
            let Some(s) = t.cluster.mbarriers.get_mut(&(at.rank, at.offset)) else { return Err(missing(at)) };
            s.bytes += if m.action == Action::ExpectBytes { value as i64 } else { -(value as i64) };
            t.cluster.progress += 1;
            if m.action == Action::CompleteBytes {
                advance(t.cluster, at);
            }
        }
        Action::Wait { parity } => {
            let Some(s) = t.cluster.mbarriers.get(&(at.rank, at.offset)) else { return Err(missing(at)) };
            let done = if parity { u64::from(s.phase & 1) != value & 1 } else { s.phase != value as u32 };
            if let Some(p) = m.pred {
                t.warp.registers.put_pred(p, if done { !0 } else { 0 }, 1 << lane);
            }
            if done {
                t.warp.clock.join(&s.released);
            }
            return Ok(done);
        }
        Action::Init | Action::PendingCount => {}
    }
    Ok(true)
}

fn init(t: &mut Turn<'_, '_>, at: SharedPlace, count: u32, lane: usize) -> Done {
    if count == 0 || count > LIMIT {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!("an mbarrier for {count} arrivals; 1 to {LIMIT} are possible"),
        ));
    }
    if t.cluster.mbarriers.contains_key(&(at.rank, at.offset)) {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!("the mbarrier at shared offset {} is initialised twice", at.offset),
        ));
    }
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: lane as u8,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    t.cluster.access(at, 8, How::WRITE, &me, t.grid.options)?;
    mark(t.cluster, at, true);
    let init = (t.warp.id, t.warp.clock.now(t.warp.id));
    let state = State { expected: count, pending: count, init, ..State::default() };
    t.cluster.mbarriers.insert((at.rank, at.offset), state);
    t.cluster.progress += 1;
    Ok(())
}

/// Marks or clears the bytes of an mbarrier.
fn mark(cluster: &mut Cluster, at: SharedPlace, on: bool) {
    let first = (at.offset - SHARED_START) as usize;
    for byte in [first, first + 4] {
        let cell = cluster.word(at.rank, byte);
        cell.init = if on { cell.init | 0xf0 } else { cell.init & 0x0f };
    }
}
