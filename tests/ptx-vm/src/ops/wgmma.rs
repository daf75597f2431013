//! `wgmma`: asynchronous matmuls of four warps. The arithmetic is in [`crate::matrix`]. Source: PTX ISA 8.7,
//! 9.7.15.
//!
//! An issued matmul is only noted, and its operands in shared memory are marked as being read. It is carried
//! out when all four warps of the group wait for it: accumulators read before that are still the old ones,
//! and shared memory overwritten before that is a missing wait.
//!
//! Who reads, in the eyes of the race checks, is a party of its own per warp group, beyond the warps and the
//! copy engine; it counts groups of matmuls. The bytes must have been written in an order that the issuing
//! warps know of, and a later writer must have been ordered after any one of the four warps, once it has
//! waited. The first warp checks every byte, the others the corners of the operands: whoever has not waited
//! for a copy has not waited for any of it.

use super::warp::whole as together;
use super::{Decoder, Done, Flow};
use crate::code::{Op, SHARED_BITS, Test};
use crate::matrix::{Major, Side, Wgmma as Spec, WgmmaA, WgmmaError};
use crate::memory::shadow::{How, Party, TOGETHER};
use crate::registers::Slot;
use crate::run::cluster::Mark;
use crate::run::warp::Wait;
use crate::run::{Cluster, Grid, Stop, Turn, Warp};
use crate::text::syntax::Operand;
use crate::text::types::Type;
use crate::{Error, FaultKind, Row};

/// `wgmma.mma_async`.
#[derive(Debug, Clone)]
pub(crate) struct Wgmma {
    spec: Spec,
    d: Vec<Slot>,
    a: Source,
    b: Slot,
    scale_d: Test,
}

#[derive(Debug, Clone)]
enum Source {
    Registers(Vec<Slot>),
    Shared(Slot),
}

impl Wgmma {
    /// Its registers: sums, and operand a where that is in registers.
    pub(crate) fn registers(&self) -> Vec<Slot> {
        let a: &[Slot] = if let Source::Registers(slots) = &self.a { slots } else { &[] };
        [&self.d, a].concat()
    }
}

/// A matmul that has been issued by a warp.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    spec: Spec,
    d: Vec<Slot>,
    a: Result<u64, Vec<Slot>>,
    b: u64,
    scale_d: bool,
    group: u32,
    line: u32,
}

impl Pending {
    /// Line index of the instruction that issued it.
    pub(crate) fn line(&self) -> u32 {
        self.line
    }
}

/// Decodes the `wgmma` instructions.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    for part in ["sync", "aligned"] {
        if !d.variant.take(part) {
            return d.refuse(format!("`.{part}` is missing"));
        }
    }
    match d.variant.one_of(&["fence", "commit_group", "wait_group"]) {
        None => {}
        Some("wait_group") => {
            d.finish()?;
            d.count(1)?;
            let keep = d.immediate(0)?;
            return match u32::try_from(keep) {
                Ok(keep) if keep < 8 => Ok(Op::WgmmaWait(keep)),
                _ => d.refuse(format!("{keep} groups, 0 to 7 may stay in flight")),
            };
        }
        Some(what) => {
            d.finish()?;
            d.count(0)?;
            return Ok(if what == "fence" { Op::WgmmaFence } else { Op::WgmmaCommit });
        }
    }
    let mut spec = match Spec::parse(d.variant.rest()) {
        Ok(spec) => spec,
        Err(what) => return d.refuse(what),
    };
    let operands = d.operands;
    let to = d.l.destinations(d.operand(0)?, Type::Bits(32))?;
    let a = match d.operand(1)? {
        Operand::Vector(parts) => {
            let slots = d.l.sources(&operands[1], Type::Bits(32))?;
            if parts.len() != 4 {
                return d.refuse("operand a takes four registers");
            }
            Source::Registers(slots)
        }
        o => Source::Shared(d.l.source(o, Type::Bits(64))?),
    };
    let b = d.l.source(d.operand(2)?, Type::Bits(64))?;
    let scale_d = d.l.test(d.operand(3)?)?;
    let mut next = 4;
    let mut sign = |d: &Decoder<'_, '_>| -> Result<bool, Error> {
        next += 1;
        match d.operand(next - 1)? {
            Operand::Integer(1) => Ok(false),
            Operand::Integer(u64::MAX) => Ok(true),
            _ => d.refuse("a scale is 1 or -1"),
        }
    };
    if !spec.a.is_integer() {
        (spec.negate_a, spec.negate_b) = (sign(d)?, sign(d)?);
    }
    let major = |d: &Decoder<'_, '_>, at: usize| match d.immediate(at)? {
        0 => Ok(Major::K),
        1 => Ok(Major::Mn),
        _ => d.refuse("a transposition is 0 or 1"),
    };
    if spec.a.bits() == 16 {
        if matches!(a, Source::Shared(_)) {
            spec.a_major = major(d, next)?;
            next += 1;
        }
        spec.b_major = major(d, next)?;
        next += 1;
    }
    d.count(next)?;
    if to.len() != spec.d_registers() || !spec.is_valid() {
        return d.refuse(format!("{} registers for d, {} expected", to.len(), spec.d_registers()));
    }
    Ok(Op::Wgmma(Box::new(Wgmma { spec, d: to, a, b, scale_d })))
}

/// Executes the issue.
pub(crate) fn execute(t: &mut Turn<'_, '_>, w: &Wgmma, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let per_block = t.grid.warps_per_block;
    if t.warp.live() != !0 || u32::from(t.warp.index) / 4 * 4 + 4 > per_block {
        return Err(Stop::new(
            FaultKind::Divergence,
            format!("`wgmma` needs four whole warps; the block has {per_block} warps"),
        ));
    }
    if !t.warp.unfenced.is_empty() && w.registers().iter().any(|slot| t.warp.unfenced.contains(slot)) {
        let detail = "registers of the wgmma were written after the last `wgmma.fence`";
        return Err(Stop::new(FaultKind::MissingFence, detail));
    }
    let r = &t.warp.registers;
    let same = |s: Slot, what: &str| {
        let row = r.wide(s);
        match row.iter().position(|x| *x != row[0]) {
            None => Ok(row[0]),
            Some(lane) => {
                Err(Stop::new(FaultKind::Operand, format!("lanes give different descriptors for {what}"))
                    .at(lane as u32))
            }
        }
    };
    let b = same(w.b, "b")?;
    let a = match &w.a {
        Source::Shared(s) => Ok(same(*s, "a")?),
        Source::Registers(slots) => Err(slots.clone()),
    };
    let scale = super::compare::truth(r, w.scale_d);
    if scale != 0 && scale != !0 {
        return Err(Stop::new(FaultKind::Operand, format!("lanes disagree about scale-d ({scale:#010x})")));
    }
    let pending = Pending {
        spec: w.spec,
        d: w.d.clone(),
        a,
        b,
        scale_d: scale != 0,
        group: t.warp.wgmma_groups,
        line: t.grid.line,
    };
    check(t, &pending)?;
    t.warp.wgmmas.push(pending);
    Ok(Flow::Next)
}

/// The party that reads for the warp group of a warp.
fn reader(cluster: &Cluster, w: &Warp) -> u16 {
    cluster.engine_warp + 1 + u16::from(w.rank) * 8 + u16::from(w.index / 4)
}

/// Checks the bytes a matmul will read; the first warp of the group marks them.
fn check(t: &mut Turn<'_, '_>, p: &Pending) -> Done {
    let reader = reader(t.cluster, t.warp);
    let mut clock = t.warp.clock.clone();
    // Its groups are counted from 1: a count of 0 is none.
    clock.raise_to(reader, p.group + 1);
    let me = Party { cluster: t.cluster.id, warp: reader, lane: TOGETHER, line: t.grid.line, clock: &clock };
    let leader = t.warp.index.is_multiple_of(4);
    let mut chunks = Vec::new();
    visit(p, &mut |side, address| {
        chunks.push((side, address));
        Ok(())
    })?;
    let last = chunks.len().saturating_sub(1);
    for (i, &(side, address)) in chunks.iter().enumerate() {
        let corner = i == 0 || i == last || chunks[i - 1].0 != side || chunks[i + 1].0 != side;
        if !leader && !corner {
            continue;
        }
        let place = t.cluster.place(t.warp.rank, u64::from(address) & ((1 << SHARED_BITS) - 1))?;
        let mark = if leader { Mark::ReadBegins } else { Mark::None };
        let read = t.cluster.access_and_mark(place, 16, How::READ, mark, &me, t.grid.options);
        let named = |stop: Stop| {
            let detail = format!("operand {side:?} of the wgmma: {}", stop.reason().detail);
            stop.saying(detail)
        };
        read.map_err(named)?;
        if let Some(stop) = t.cluster.noted.pop() {
            t.cluster.noted.push(named(stop));
            return Ok(());
        }
    }
    Ok(())
}

fn convert(e: WgmmaError<Stop>) -> Stop {
    match e {
        WgmmaError::Operand(what) => Stop::new(FaultKind::Operand, what),
        WgmmaError::Read(stop) => stop,
    }
}

/// The addresses of a matmul's operands in shared memory, 16 bytes each.
#[inline(always)]
fn visit(p: &Pending, each: &mut dyn FnMut(Side, u32) -> Done) -> Done {
    if let Ok(a) = p.a {
        p.spec.addresses(Side::A, a, &mut |address| each(Side::A, address)).map_err(convert)?;
    }
    p.spec.addresses(Side::B, p.b, &mut |address| each(Side::B, address)).map_err(convert)
}

/// `wgmma.commit_group`.
pub(crate) fn commit(t: &mut Turn<'_, '_>, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    t.warp.wgmma_groups += 1;
    Ok(Flow::Next)
}

/// `wgmma.wait_group`.
pub(crate) fn wait(t: &mut Turn<'_, '_>, keep: u32, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    if due(t.warp, keep) == 0 {
        return Ok(Flow::Next);
    }
    t.warp.wait = Wait::Wgmma(keep);
    Ok(Flow::Wait)
}

/// Matmuls that must be done when so many groups may stay in flight.
fn due(w: &Warp, keep: u32) -> usize {
    w.wgmmas.iter().take_while(|p| u64::from(p.group) + u64::from(keep) < u64::from(w.wgmma_groups)).count()
}

/// Carries out the matmuls that all four warps of a group wait for. The error names the warp to blame.
pub(crate) fn settle(
    grid: &mut Grid<'_>,
    cluster: &mut Cluster,
    warps: &mut [Warp],
) -> Result<(), (usize, Stop)> {
    let per_block = grid.warps_per_block as usize;
    for base in (0..warps.len()).filter(|i| (i % per_block).is_multiple_of(4)) {
        let Some(four) = warps.get_mut(base..base + 4) else { continue };
        let keeps: Vec<u32> =
            four.iter().filter_map(|w| if let Wait::Wgmma(k) = w.wait { Some(k) } else { None }).collect();
        if keeps.len() < 4 {
            continue;
        }
        let count = due(&four[0], keeps[0]);
        if four.iter().zip(&keeps).any(|(w, &k)| due(w, k) != count) {
            return Err((
                base,
                Stop::new(FaultKind::Divergence, "the four warps of a group wait for different wgmmas"),
            ));
        }
        let ready: Vec<Vec<Pending>> = four.iter_mut().map(|w| w.wgmmas.drain(..count).collect()).collect();
        let [first, second, third, fourth] = &ready[..] else { continue };
        for (((a, b), c), d) in first.iter().zip(second).zip(third).zip(fourth) {
            multiply(grid, cluster, four, [a, b, c, d]).map_err(|s| (base, s))?;
        }
        let reader = reader(cluster, &four[0]);
        let last = first.last().map_or(0, |p| p.group + 1);
        for w in four.iter_mut() {
            w.clock.raise_to(reader, last);
            w.wait = Wait::Nothing;
        }
        cluster.progress += 1;
    }
    Ok(())
}

fn multiply(grid: &Grid<'_>, cluster: &mut Cluster, four: &mut [Warp], of: [&Pending; 4]) -> Done {
    let p = of[0];
    let differs = |o: &&Pending| {
        (o.b, o.line, o.scale_d, o.group) != (p.b, p.line, p.scale_d, p.group)
            || o.a.as_ref().ok() != p.a.as_ref().ok()
    };
    if of.iter().any(differs) {
        return Err(Stop::new(FaultKind::Divergence, "the four warps of a group issue different wgmmas"));
    }
    let rows =
        |w: &Warp, slots: &[Slot]| -> Vec<Row> { slots.iter().map(|&s| *w.registers.row(s)).collect() };
    let mut d: Vec<Vec<Row>> = four.iter().zip(of).map(|(w, o)| rows(w, &o.d)).collect();
    let a: Vec<Vec<Row>> =
        four.iter().zip(of).map(|(w, o)| o.a.as_ref().err().map_or_else(Vec::new, |s| rows(w, s))).collect();
    let source = match &p.a {
        Ok(bits) => WgmmaA::Shared(*bits),
        Err(_) => WgmmaA::Registers(std::array::from_fn(|i| &a[i][..])),
    };
    let rank = four[0].rank;
    let mut read = |address: u32, out: &mut [u8]| -> Done {
        let place = cluster.place(rank, u64::from(address) & ((1 << SHARED_BITS) - 1))?;
        cluster.mark_flight(place, out.len(), false, false);
        let start = cluster.bounds(place, out.len())?;
        out.copy_from_slice(cluster.bytes(rank, start, out.len()));
        Ok(())
    };
    let [d0, d1, d2, d3] = &mut d[..] else { return Ok(()) };
    p.spec.run([d0, d1, d2, d3], source, p.b, p.scale_d, grid.summation, &mut read).map_err(convert)?;
    for ((w, o), rows) in four.iter_mut().zip(of).zip(&d) {
        o.d.iter().zip(rows).for_each(|(&s, row)| w.registers.put(s, row, !0));
    }
    Ok(())
}
