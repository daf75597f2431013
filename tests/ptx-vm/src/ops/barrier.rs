//! Barriers of a block and of a cluster. Source: PTX ISA 8.7, `bar`, `barrier`, `barrier.cluster`.
//!
//! Arrivals are counted per warp, as the hardware counts them. Without a number of threads a barrier is for
//! all warps of the block that have not ended.

use super::{Decoder, Done, Flow};
use crate::code::{Op, Test};
use crate::registers::{Pred, Slot};
use crate::run::cluster::BlockBarrier;
use crate::run::warp::Wait;
use crate::run::{Cluster, Stop, Turn, Warp};
use crate::text::types::Type;
use crate::{Barriers, Error, FaultKind};

/// How a `bar.red` combines the threads' predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combine {
    Count,
    And,
    Or,
}

/// Where a `bar.red` leaves its result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    combine: Combine,
    d: Option<Slot>,
    p: Option<Pred>,
    lanes: u32,
}

/// `bar.sync`, `bar.arrive`, `bar.red`.
#[derive(Debug, Clone)]
pub(crate) struct Barrier {
    id: Slot,
    threads: Option<Slot>,
    arrive: bool,
    /// All lanes of the warp must be here.
    aligned: bool,
    reduction: Option<(Combine, Option<Slot>, Option<Pred>, Test)>,
}

/// Decodes `bar`, `barrier` and `barrier.cluster`.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.variant.take("cta");
    if d.variant.take("warp") {
        if !d.variant.take("sync") {
            return d.refuse("`bar.warp.sync` is the only variant");
        }
        d.finish()?;
        d.count(1)?;
        return Ok(Op::WarpBarrier(d.l.source(d.operand(0)?, Type::Bits(32))?));
    }
    if d.variant.take("cluster") {
        return cluster(d);
    }
    // `bar` is `barrier` with `.aligned`.
    let aligned = d.variant.take("aligned") || d.variant.base == "bar";
    let u32_ = Type::Unsigned(32);
    let operands = d.operands;
    let Some(what) = d.variant.one_of(&["sync", "arrive", "red"]) else {
        return d.refuse("`.sync`, `.arrive` or `.red` is missing");
    };
    if what != "red" {
        d.finish()?;
        if operands.is_empty() || operands.len() > 2 || (what == "arrive" && operands.len() != 2) {
            return d.refuse("a barrier and perhaps a number of threads are the operands");
        }
        let id = d.l.source(&operands[0], u32_)?;
        let threads = match operands.get(1) {
            Some(o) => Some(d.l.source(o, u32_)?),
            None => None,
        };
        return Ok(Op::Barrier(Box::new(Barrier {
            id,
            threads,
            arrive: what == "arrive",
            aligned,
            reduction: None,
        })));
    }
    let ty = d.ty()?;
    let combine = match d.variant.one_of(&["popc", "and", "or"]) {
        Some("popc") => Combine::Count,
        Some("and") => Combine::And,
        Some(_) => Combine::Or,
        None => return d.refuse("`.popc`, `.and` or `.or` is missing"),
    };
    d.finish()?;
    if operands.len() != 3 && operands.len() != 4 {
        return d.refuse("three or four operands");
    }
    let (to, p) = match ty {
        Type::Pred => (None, Some(d.l.pred(&operands[0])?)),
        _ => (Some(d.l.destination(&operands[0], ty)?), None),
    };
    let id = d.l.source(&operands[1], u32_)?;
    let threads = if operands.len() == 4 { Some(d.l.source(&operands[2], u32_)?) } else { None };
    let test = d.l.test(&operands[operands.len() - 1])?;
    Ok(Op::Barrier(Box::new(Barrier {
        id,
        threads,
        arrive: false,
        aligned,
        reduction: Some((combine, to, p, test)),
    })))
}

fn cluster(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let arrive = d.variant.one_of(&["arrive", "wait"]);
    let release = !d.variant.take("relaxed");
    d.variant.take("release");
    d.variant.take("acquire");
    let aligned = d.variant.take("aligned");
    d.finish()?;
    d.count(0)?;
    match arrive {
        Some("arrive") => Ok(Op::ClusterArrive { release, aligned }),
        Some(_) => Ok(Op::ClusterWait { aligned }),
        None => d.refuse("`barrier.cluster` has .arrive and .wait"),
    }
}

fn uniform(t: &Turn<'_, '_>, s: Slot, active: u32, what: &str) -> Done<u32> {
    let row = t.warp.registers.row(s);
    let first = active.trailing_zeros() as usize;
    if crate::run::lanes_of(active).any(|l| row[l] != row[first]) {
        return Err(Stop::new(FaultKind::Divergence, format!("the lanes of a warp give different {what}"))
            .at(first as u32));
    }
    Ok(row[first])
}

/// Whether all lanes of the warp are at a barrier with `.aligned`: false when some are still to come.
fn together(t: &Turn<'_, '_>, active: u32, group: u32) -> Done<bool> {
    if !super::warp::aligned(t, active, group)? {
        return Ok(false);
    }
    let ended = t.warp.lanes & !active;
    if ended != 0 && t.grid.options.barriers != Barriers::Ended {
        let detail = format!(
            "lanes {ended:#010x} of the warp have ended or went around this barrier: with `.aligned` all lanes of a warp \
             must execute it"
        );
        return Err(Stop::new(FaultKind::Divergence, detail).at(active.trailing_zeros()));
    }
    Ok(true)
}

/// The same for a cluster's barrier, where lanes come together with or without `.aligned`.
fn cluster_lanes(t: &Turn<'_, '_>, aligned: bool, active: u32, group: u32) -> Done<bool> {
    if aligned { together(t, active, group) } else { Ok(active == t.warp.live()) }
}

/// Executes an arrival at a block's barrier.
pub(crate) fn execute(t: &mut Turn<'_, '_>, b: &Barrier, active: u32, group: u32) -> Done<Flow> {
    if b.aligned && !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    if !b.aligned && active != t.warp.live() {
        // Arrivals count per warp: the lanes come together first.
        if group & !active != 0 {
            let detail = format!("lanes {:#010x} do not take part in the barrier", group & !active);
            return Err(Stop::new(FaultKind::Divergence, detail));
        }
        return Ok(Flow::Missing);
    }
    let id = uniform(t, b.id, active, "barriers")?;
    if id > 15 {
        return Err(Stop::new(FaultKind::Barrier, format!("barrier {id}; there are 0 to 15")));
    }
    let expected = match b.threads {
        Some(s) => Some(uniform(t, s, active, "numbers of threads")?),
        None => None,
    };
    if expected.is_some_and(|n| n == 0 || n % 32 != 0) {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!("a barrier for {} threads, which is no multiple of 32", expected.unwrap_or(0)),
        ));
    }
    let block = &mut t.cluster.blocks[usize::from(t.warp.rank)];
    let barrier = &mut block.barriers[id as usize];
    if barrier.arrived != 0 && barrier.expected != expected {
        let detail =
            format!("barrier {id} is used for {:?} and for {expected:?} threads at once", barrier.expected);
        return Err(Stop::new(FaultKind::Barrier, detail));
    }
    barrier.expected = expected;
    let me = 1 << t.warp.index;
    if barrier.arrived & me != 0 {
        return Err(Stop::new(
            FaultKind::Barrier,
            format!("the warp arrives twice at barrier {id} before it completes"),
        ));
    }
    barrier.arrived |= me;
    barrier.clock.join(&t.warp.clock);
    barrier.dependency_done |= t.warp.dependency_done;
    t.warp.clock.tick(t.warp.id);
    t.cluster.progress += 1;
    if let Some((combine, d, p, test)) = b.reduction {
        let yes = super::compare::truth(&t.warp.registers, test) & active;
        barrier.votes.0 += yes.count_ones();
        barrier.votes.1 += active.count_ones();
        t.warp.reduction = Some(Outcome { combine, d, p, lanes: active });
    }
    block.barriers_used |= 1 << id;
    if b.arrive {
        return Ok(Flow::Next);
    }
    block.barriers[id as usize].waiting |= me;
    t.warp.wait = Wait::Barrier(id as u8);
    Ok(Flow::Wait)
}

/// Completes the barriers that have all their arrivals. The error names the warp to blame. `everybody`: warps
/// that have ended are missed at barriers that name no number of threads.
pub(crate) fn settle(
    cluster: &mut Cluster,
    warps: &mut [Warp],
    everybody: bool,
) -> Result<(), (usize, Stop)> {
    let blocks = cluster.blocks.len();
    for rank in 0..blocks {
        let block = &mut cluster.blocks[rank];
        let per = warps.len() / blocks;
        let mut left = block.barriers_used;
        while left != 0 {
            let id = left.trailing_zeros() as usize;
            left &= left - 1;
            let barrier = &mut block.barriers[id];
            let arrived = barrier.arrived.count_ones();
            let complete = match barrier.expected {
                None => barrier.arrived & block.live == block.live,
                Some(n) if arrived * 32 > n => {
                    let w = rank * per + barrier.arrived.trailing_zeros() as usize;
                    return Err((
                        w,
                        Stop::new(
                            FaultKind::Barrier,
                            format!("{arrived} warps arrive at barrier {id} for {n} threads"),
                        ),
                    ));
                }
                Some(n) => arrived * 32 == n,
            };
            if !complete {
                continue;
            }
            let absent = per as u32 - arrived;
            if everybody && barrier.expected.is_none() && absent > 0 {
                let w = rank * per + barrier.arrived.trailing_zeros() as usize;
                let detail = format!("{absent} of {per} warps have ended and do not come to barrier {id}");
                return Err((w, Stop::new(FaultKind::Divergence, detail)));
            }
            let done = std::mem::take(barrier);
            block.barriers_used &= !(1 << id);
            cluster.progress += 1;
            for w in &mut warps[rank * per..(rank + 1) * per] {
                if done.waiting >> w.index & 1 != 0 {
                    release(w, &done);
                }
            }
        }
    }
    settle_cluster(cluster, warps);
    Ok(())
}

fn release(w: &mut Warp, done: &BlockBarrier) {
    w.wait = Wait::Nothing;
    w.clock.join(&done.clock);
    w.dependency_done |= done.dependency_done;
    if let Some(o) = w.reduction.take() {
        let (yes, all) = done.votes;
        let verdict = if o.combine == Combine::And { yes == all } else { yes != 0 };
        if let Some(d) = o.d {
            w.registers.put(d, &[yes; 32], o.lanes);
        }
        if let Some(p) = o.p {
            w.registers.put_pred(p, if verdict { !0 } else { 0 }, o.lanes);
        }
    }
}

/// `barrier.cluster.arrive`.
pub(crate) fn cluster_arrive(
    t: &mut Turn<'_, '_>,
    release: bool,
    aligned: bool,
    active: u32,
    group: u32,
) -> Done<Flow> {
    if !cluster_lanes(t, aligned, active, group)? {
        return Ok(Flow::Missing);
    }
    if t.warp.cluster_phase.is_some() {
        return Err(Stop::new(
            FaultKind::Barrier,
            "a second `barrier.cluster.arrive` without a wait between",
        ));
    }
    let b = &mut t.cluster.barrier;
    b.arrived[usize::from(t.warp.id)] = true;
    t.warp.cluster_phase = Some(b.phase);
    if release {
        b.gathering.join(&t.warp.clock);
        t.warp.clock.tick(t.warp.id);
    }
    t.cluster.progress += 1;
    Ok(Flow::Next)
}

/// `barrier.cluster.wait`.
pub(crate) fn cluster_wait(t: &mut Turn<'_, '_>, aligned: bool, active: u32, group: u32) -> Done<Flow> {
    if !cluster_lanes(t, aligned, active, group)? {
        return Ok(Flow::Missing);
    }
    let Some(phase) = t.warp.cluster_phase.take() else {
        return Err(Stop::new(FaultKind::Barrier, "`barrier.cluster.wait` without an arrival"));
    };
    t.warp.wait = Wait::Cluster(phase);
    Ok(Flow::Wait)
}

fn settle_cluster(cluster: &mut Cluster, warps: &mut [Warp]) {
    let b = &mut cluster.barrier;
    if b.arrived.iter().any(|&a| a) && warps.iter().all(|w| w.done || b.arrived[usize::from(w.id)]) {
        b.arrived.fill(false);
        b.phase += 1;
        let gathered = std::mem::take(&mut b.gathering);
        b.released.join(&gathered);
        cluster.progress += 1;
    }
    for w in warps {
        if let Wait::Cluster(phase) = w.wait
            && cluster.barrier.phase > phase
        {
            w.wait = Wait::Nothing;
            w.clock.join(&cluster.barrier.released);
        }
    }
}
