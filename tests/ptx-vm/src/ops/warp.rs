//! Instructions that the lanes of a warp execute together: `shfl`, `vote`, `match`, `redux`, `activemask`,
//! `elect`,
//! `bar.warp.sync`. Source: PTX ISA 8.7, 9.7.9 and 9.7.13.
//!
//! Each names the lanes it is for. A lane that calls but is not named, or is named and cannot come, is the
//! fault
//! *divergence*; named lanes that are elsewhere are waited for; lanes that have ended are not.

use super::reduce::{Reduction, What};
use super::{Decoder, Done, Flow};
use crate::Error;
use crate::code::{Op, Test};
use crate::registers::{Pred, Slot};
use crate::run::{Stop, Turn, lanes_of};
use crate::text::syntax::Operand;
use crate::text::types::Type;
use crate::{FaultKind, Row};

/// What the lanes that hold a mask operand mean together.
pub(crate) enum Gathered {
    /// Sets of lanes that act together: the named lanes that are here.
    Sets(Vec<u32>),
    /// Named lanes are elsewhere: wait for them.
    Missing,
}

/// Groups the calling lanes by their mask and checks that all named lanes are here.
pub(crate) fn gather(t: &Turn<'_, '_>, masks: &Row, active: u32, group: u32) -> Done<Gathered> {
    let live = t.warp.live();
    let mut left = active;
    let mut sets = Vec::new();
    while left != 0 {
        let lane = left.trailing_zeros();
        let named = masks[lane as usize];
        if named >> lane & 1 == 0 {
            let detail = format!("lane {lane} calls a collective whose mask {named:#010x} leaves it out");
            return Err(Stop::new(FaultKind::Divergence, detail).at(lane));
        }
        let same = lanes_of(left).filter(|&l| masks[l] == named).fold(0, |m, l| m | 1 << l);
        if same & !named != 0 {
            let outside = (same & !named).trailing_zeros();
            let detail = format!("lane {outside} calls a collective whose mask {named:#010x} leaves it out");
            return Err(Stop::new(FaultKind::Divergence, detail).at(outside));
        }
        let need = named & live;
        if need & group & !active != 0 {
            let detail = format!(
                "the mask {named:#010x} names lanes {:#010x}, whose guard is false",
                need & group & !active
            );
            return Err(Stop::new(FaultKind::Divergence, detail).at(lane));
        }
        if need & !active != 0 {
            return Ok(Gathered::Missing);
        }
        if need & !same != 0 {
            let detail =
                format!("lanes {:#010x} are named by {named:#010x} but call with other masks", need & !same);
            return Err(Stop::new(FaultKind::Divergence, detail).at(lane));
        }
        sets.push(same);
        left &= !same;
    }
    Ok(Gathered::Sets(sets))
}

/// For `.aligned` instructions: all live lanes of the warp must be here. False: wait for them.
pub(crate) fn aligned(t: &Turn<'_, '_>, active: u32, group: u32) -> Done<bool> {
    let live = t.warp.live();
    if group & !active != 0 {
        let detail = format!(
            "all lanes of a warp must execute this together; the guard is false for lanes {:#010x}",
            group & !active
        );
        return Err(Stop::new(FaultKind::Divergence, detail).at((group & !active).trailing_zeros()));
    }
    Ok(active == live)
}

/// The same for an instruction that no lane of the warp may miss, not even one that has ended.
#[inline]
pub(crate) fn whole(t: &Turn<'_, '_>, active: u32, group: u32) -> Done<bool> {
    let here = aligned(t, active, group)?;
    let ended = t.warp.lanes & !active;
    if here && ended != 0 {
        let detail =
            format!("all lanes of a warp must execute this together; lanes {ended:#010x} have ended");
        return Err(Stop::new(FaultKind::Divergence, detail).at(active.trailing_zeros()));
    }
    Ok(here)
}

/// The sets, or back to wait.
macro_rules! sets {
    ($t:expr, $mask:expr, $active:expr, $group:expr) => {{
        let masks = *$t.warp.registers.row($mask);
        match gather($t, &masks, $active, $group)? {
            Gathered::Sets(sets) => sets,
            Gathered::Missing => return Ok(Flow::Missing),
        }
    }};
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `shfl.sync`.
#[derive(Debug, Clone)]
pub(crate) struct Shuffle {
    mode: Mode,
    d: Slot,
    p: Option<Pred>,
    a: Slot,
    b: Slot,
    c: Slot,
    mask: Slot,
}

/// What a lane gets from a lane that does not take part: nothing sensible.
const FOREIGN: u32 = 0x7fba_dbad;

/// Decodes `shfl.sync`.
pub(crate) fn shuffle(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.ty()?;
    if !d.variant.take("sync") {
        return d.refuse("`.sync` is missing");
    }
    let mode = match d.variant.one_of(&["up", "down", "bfly", "idx"]) {
        Some("up") => Mode::Up,
        Some("down") => Mode::Down,
        Some("bfly") => Mode::Butterfly,
        Some(_) => Mode::Index,
        None => return d.refuse("a shuffle mode is missing"),
    };
    d.finish()?;
    d.count(5)?;
    let operands = d.operands;
    let b32 = Type::Bits(32);
    let (to, p) = match &operands[0] {
        Operand::Pair(r, p) => (d.l.destination(r, b32)?, Some(d.l.pred(p)?)),
        o => (d.l.destination(o, b32)?, None),
    };
    let mut s = [to; 4];
    for i in 0..4 {
        s[i] = d.l.source(&operands[i + 1], b32)?;
    }
    Ok(Op::Shuffle(Box::new(Shuffle { mode, d: to, p, a: s[0], b: s[1], c: s[2], mask: s[3] })))
}

/// Executes `shfl.sync`.
pub(crate) fn execute_shuffle(t: &mut Turn<'_, '_>, s: &Shuffle, active: u32, group: u32) -> Done<Flow> {
    let sets = sets!(t, s.mask, active, group);
    let r = &mut t.warp.registers;
    let (a, b, c) = (*r.row(s.a), *r.row(s.b), *r.row(s.c));
    let (mut out, mut inside) = ([0; 32], 0u32);
    for set in sets {
        for lane in lanes_of(set) {
            let (bval, clamp, segment) = (b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31);
            let l = lane as u32;
            let max = (l & segment) | (clamp & !segment);
            let min = l & segment;
            let (j, ok) = match s.mode {
                Mode::Up => (l.wrapping_sub(bval), l as i32 - bval as i32 >= max as i32),
                Mode::Down => (l + bval, l + bval <= max),
                Mode::Butterfly => (l ^ bval, l ^ bval <= max),
                Mode::Index => {
                    let j = min | (bval & !segment);
                    (j, j <= max)
                }
            };
            let j = if ok { j } else { l };
            inside |= u32::from(ok) << lane;
            out[lane] = if set >> j & 1 != 0 { a[j as usize] } else { FOREIGN };
        }
    }
    r.put(s.d, &out, active);
    if let Some(p) = s.p {
        r.put_pred(p, inside, active);
    }
    Ok(Flow::Next)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    All,
    Any,
    Uniform,
    Ballot,
}

/// `vote.sync`.
#[derive(Debug, Clone)]
pub(crate) struct Vote {
    poll: Poll,
    d: Option<Slot>,
    p: Option<Pred>,
    a: Test,
    mask: Slot,
}

/// Decodes `vote.sync`.
pub(crate) fn vote(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    if !d.variant.take("sync") {
        return d.refuse("`.sync` is missing");
    }
    let poll = match d.variant.one_of(&["all", "any", "uni", "ballot"]) {
        Some("all") => Poll::All,
        Some("any") => Poll::Any,
        Some("uni") => Poll::Uniform,
        Some(_) => Poll::Ballot,
        None => return d.refuse("a vote mode is missing"),
    };
    d.finish()?;
    d.count(3)?;
    let operands = d.operands;
    if (poll == Poll::Ballot) != (ty == Type::Bits(32)) {
        return d.refuse("a ballot is .b32, the other votes are .pred");
    }
    let (to, p) = match poll {
        Poll::Ballot => (Some(d.l.destination(&operands[0], ty)?), None),
        _ => (None, Some(d.l.pred(&operands[0])?)),
    };
    let a = d.l.test(&operands[1])?;
    let mask = d.l.source(&operands[2], Type::Bits(32))?;
    Ok(Op::Vote(Box::new(Vote { poll, d: to, p, a, mask })))
}

/// Executes `vote.sync`.
pub(crate) fn execute_vote(t: &mut Turn<'_, '_>, v: &Vote, active: u32, group: u32) -> Done<Flow> {
    let sets = sets!(t, v.mask, active, group);
    let r = &mut t.warp.registers;
    let yes = super::compare::truth(r, v.a);
    for set in sets {
        let m = yes & set;
        let verdict = match v.poll {
            Poll::All => m == set,
            Poll::Any => m != 0,
            Poll::Uniform => m == set || m == 0,
            Poll::Ballot => false,
        };
        if let Some(d) = v.d {
            r.put(d, &[m; 32], set);
        }
        if let Some(p) = v.p {
            r.put_pred(p, if verdict { !0 } else { 0 }, set);
        }
    }
    Ok(Flow::Next)
}

/// `match.sync`.
#[derive(Debug, Clone)]
pub(crate) struct Match {
    all: bool,
    d: Slot,
    p: Option<Pred>,
    a: Slot,
    wide: bool,
    mask: Slot,
}

/// Decodes `match.any.sync` and `match.all.sync`.
pub(crate) fn matching(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let all = d.variant.one_of(&["all", "any"]);
    if !d.variant.take("sync") || all.is_none() {
        return d.refuse("`match` needs .any or .all and .sync");
    }
    d.finish()?;
    d.count(3)?;
    let operands = d.operands;
    let b32 = Type::Bits(32);
    let (to, p) = match &operands[0] {
        Operand::Pair(r, p) => (d.l.destination(r, b32)?, Some(d.l.pred(p)?)),
        o => (d.l.destination(o, b32)?, None),
    };
    let a = d.l.source(&operands[1], ty)?;
    let mask = d.l.source(&operands[2], b32)?;
    Ok(Op::Match(Box::new(Match { all: all == Some("all"), d: to, p, a, wide: ty.bits() == 64, mask })))
}

/// Executes `match.sync`.
pub(crate) fn execute_match(t: &mut Turn<'_, '_>, m: &Match, active: u32, group: u32) -> Done<Flow> {
    let sets = sets!(t, m.mask, active, group);
    let r = &mut t.warp.registers;
    let values: [u64; 32] = if m.wide { *r.wide(m.a) } else { r.row(m.a).map(u64::from) };
    for set in sets {
        let equal =
            |lane: usize| lanes_of(set).filter(|&l| values[l] == values[lane]).fold(0u32, |s, l| s | 1 << l);
        let mut out = [0; 32];
        let mut verdict = 0;
        for lane in lanes_of(set) {
            let same = equal(lane);
            out[lane] = if !m.all || same == set { same } else { 0 };
            verdict |= u32::from(same == set) << lane;
        }
        r.put(m.d, &out, set);
        if let Some(p) = m.p {
            r.put_pred(p, verdict, set);
        }
    }
    Ok(Flow::Next)
}

/// `redux.sync`.
#[derive(Debug, Clone)]
pub(crate) struct Redux {
    reduction: Reduction,
    /// Magnitudes are compared.
    abs: bool,
    d: Slot,
    a: Slot,
    mask: Slot,
}

/// Decodes `redux.sync`.
pub(crate) fn redux(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    if !d.variant.take("sync") {
        return d.refuse("`.sync` is missing");
    }
    let abs = d.variant.take("abs");
    d.variant.take("NaN");
    let Some(name) = d.variant.one_of(&["add", "min", "max", "and", "or", "xor"]) else {
        return d.refuse("this reduction is unknown");
    };
    let Some(reduction) =
        Reduction::parse(name, ty).filter(|r| ty.bits() == 32 && !(ty == Type::F32 && r.what == What::Add))
    else {
        return d.refuse("this reduction does not exist for the type");
    };
    d.finish()?;
    d.count(3)?;
    let operands = d.operands;
    let to = d.l.destination(&operands[0], ty)?;
    let a = d.l.source(&operands[1], ty)?;
    let mask = d.l.source(&operands[2], Type::Bits(32))?;
    Ok(Op::Redux(Box::new(Redux { reduction, abs, d: to, a, mask })))
}

/// Executes `redux.sync`.
pub(crate) fn execute_redux(t: &mut Turn<'_, '_>, x: &Redux, active: u32, group: u32) -> Done<Flow> {
    let sets = sets!(t, x.mask, active, group);
    let r = &mut t.warp.registers;
    let a = r.row(x.a).map(|v| if x.abs { v & 0x7fff_ffff } else { v });
    for set in sets {
        let first = set.trailing_zeros() as usize;
        let all =
            lanes_of(set & (set - 1)).fold(u64::from(a[first]), |s, l| x.reduction.apply(s, a[l].into(), 0));
        r.put(x.d, &[all as u32; 32], set);
    }
    Ok(Flow::Next)
}

/// Decodes `activemask`.
pub(crate) fn activemask(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    d.finish()?;
    d.count(1)?;
    Ok(Op::ActiveMask(d.l.destination(d.operand(0)?, ty)?))
}

/// Decodes `elect.sync d|p, mask`.
pub(crate) fn elect(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if !d.variant.take("sync") {
        return d.refuse("`.sync` is missing");
    }
    d.finish()?;
    d.count(2)?;
    let operands = d.operands;
    let Operand::Pair(r, p) = &operands[0] else {
        return d.refuse("`elect.sync` gives a register and a predicate");
    };
    let (to, p) = (d.l.destination(r, Type::Bits(32))?, d.l.pred(p)?);
    Ok(Op::Elect { d: to, p, mask: d.l.source(&operands[1], Type::Bits(32))? })
}

/// Executes `elect.sync`: the lowest lane wins (the manual leaves it open).
pub(crate) fn execute_elect(
    t: &mut Turn<'_, '_>,
    d: Slot,
    p: Pred,
    mask: Slot,
    active: u32,
    group: u32,
) -> Done<Flow> {
    for set in sets!(t, mask, active, group) {
        let leader = set.trailing_zeros();
        t.warp.registers.put(d, &[leader; 32], set);
        t.warp.registers.put_pred(p, 1 << leader, set);
    }
    Ok(Flow::Next)
}

/// Executes `bar.warp.sync`: orders the memory accesses of the warp's lanes.
pub(crate) fn execute_barrier(t: &mut Turn<'_, '_>, mask: Slot, active: u32, group: u32) -> Done<Flow> {
    let _ = sets!(t, mask, active, group);
    t.warp.clock.tick(t.warp.id);
    Ok(Flow::Next)
}
