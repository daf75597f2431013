//! Bulk copies and tensor copies: `cp.async.bulk`, `cp.async.bulk.tensor`, their reductions, groups and
//! prefetches. Source: PTX ISA 8.7, 9.7.9.25.4 and 5.

use super::data::addresses;
use super::reduce::Reduction;
use super::space::{parse, resolve};
use super::{Decoder, Done, Flow};
use crate::code::{Address, Op};
use crate::registers::Slot;
use crate::run::cluster::SharedPlace;
use crate::run::flight::{self, Flight, Run};
use crate::run::{Stop, Turn, lanes_of};
use crate::tensor::{self, DataType, TensorMap};
use crate::text::syntax::{Operand, Space};
use crate::text::types::Type;
use crate::{Error, FaultKind};

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Global to shared, counted on an mbarrier.
    Load,
    /// Shared to global, in a bulk group.
    Store,
    /// Shared to another block's shared memory, counted on its mbarrier.
    Share,
}

/// A bulk or tensor copy.
#[derive(Debug, Clone)]
pub(crate) struct Bulk {
    way: Way,
    shared: Address,
    /// The other side: global memory, or the source of a `Share`.
    other: Address,
    /// Coordinates when the other side is a tensor map.
    tensor: Option<Vec<Slot>>,
    size: Option<Slot>,
    barrier: Option<Address>,
    multicast: Option<Slot>,
    /// Name of the operation, and the elements' type when no tensor map gives it.
    reduction: Option<(&'static str, Option<Type>)>,
}

/// `tensormap.*` would change a map in memory.
pub(crate) fn tensormap(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.refuse("tensor maps cannot be changed by a kernel here")
}

/// Decodes `cp.async.bulk*` and `cp.reduce.async.bulk*`.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.variant.take("async");
    d.variant.take("bulk");
    if d.variant.take("commit_group") {
        d.finish()?;
        return Ok(Op::BulkCommit);
    }
    if d.variant.take("wait_group") {
        let read = d.variant.take("read");
        d.finish()?;
        return Ok(Op::BulkWait { keep: d.immediate(0)? as u32, read });
    }
    let reducing = d.variant.take("reduce");
    let prefetch = d.variant.take("prefetch");
    let tensor = d.variant.take("tensor");
    let rank = d.variant.one_of(&["1d", "2d", "3d", "4d", "5d"]).map(|r| usize::from(r.as_bytes()[0] - b'0'));
    if tensor != rank.is_some() {
        return d.refuse("`.tensor` goes with .1d to .5d");
    }
    if prefetch {
        return Ok(Op::Nop);
    }
    let policy = d.variant.take("L2::cache_hint");
    d.variant.take("tile");
    let multicast = d.variant.take("multicast::cluster");
    let group = d.variant.take("bulk_group");
    let counted = d.variant.take("mbarrier::complete_tx::bytes");
    d.variant.take("noftz");
    let (Some(to), Some(from)) = (d.variant.next(parse), d.variant.next(parse)) else {
        return d.refuse("two spaces are needed");
    };
    let way = match (to, from) {
        (Space::Cluster | Space::Shared, Space::Global) if counted => Way::Load,
        (Space::Global, Space::Shared) if group => Way::Store,
        (Space::Cluster, Space::Shared) if counted => Way::Share,
        _ => return d.refuse("this direction is unknown, or not with this way of completion"),
    };
    let mut reduction = None;
    if reducing {
        let Some(name) = d.variant.one_of(&["add", "min", "max", "inc", "dec", "and", "or", "xor"]) else {
            return d.refuse("this reduction is unknown");
        };
        let element = if tensor { None } else { Some(d.ty()?) };
        if way != Way::Store || element.is_some_and(|e| Reduction::parse(name, e).is_none()) {
            return d.refuse("this reduction does not exist for the type or the direction");
        }
        d.l.program.dependent = true;
        reduction = Some((name, element));
    }
    d.finish()?;
    let _ = policy;
    operands(d, way, rank, multicast, reduction)
}

fn operands(
    d: &mut Decoder<'_, '_>,
    way: Way,
    rank: Option<usize>,
    multicast: bool,
    reduction: Option<(&'static str, Option<Type>)>,
) -> Result<Op, Error> {
    let (shared_at, other_at) = if way == Way::Store { (1, 0) } else { (0, 1) };
    let (shared, _) = d.l.address(d.operand(shared_at)?)?;
    let other_operand = d.operand(other_at)?;
    let (other, named) = d.l.address(other_operand)?;
    let mut next = 2;
    let coordinates = match (rank, other_operand) {
        (Some(n), Operand::Address { coordinates, .. }) if coordinates.len() == n => {
            let mut slots = Vec::new();
            for c in coordinates {
                slots.push(d.l.source(c, Type::Signed(32))?);
            }
            if named == Some(Space::Param) {
                return d.refuse("a tensor map needs a generic address");
            }
            Some(slots)
        }
        (Some(n), _) => return d.refuse(format!("{n} coordinates are needed")),
        (None, _) => None,
    };
    let mut size = None;
    if rank.is_none() {
        size = Some(d.l.source(d.operand(next)?, Type::Unsigned(32))?);
        next += 1;
    }
    let mut barrier = None;
    if way != Way::Store {
        barrier = Some(d.l.address(d.operand(next)?)?.0);
        next += 1;
    }
    let multicast = match multicast {
        true => Some(d.l.source(d.operand(next)?, Type::Bits(16))?),
        false => None,
    };
    Ok(Op::Bulk(Box::new(Bulk {
        way,
        shared,
        other,
        tensor: coordinates,
        size,
        barrier,
        multicast,
        reduction,
    })))
}

/// Executes the issue of a bulk copy, lane by lane.
pub(crate) fn execute(t: &mut Turn<'_, '_>, b: &Bulk, active: u32) -> Done<Flow> {
    for lane in lanes_of(active) {
        issue(t, b, lane).map_err(|s| s.at(lane as u32))?;
    }
    Ok(Flow::Next)
}

fn operand_fault(what: impl ToString) -> Stop {
    Stop::new(FaultKind::Operand, what.to_string())
}

fn issue(t: &mut Turn<'_, '_>, b: &Bulk, lane: usize) -> Done {
    let at = |a: &Address| addresses(&t.warp.registers, a)[lane];
    let (shared, other) = (at(&b.shared), at(&b.other));
    let barrier = match &b.barrier {
        Some(a) => Some(t.cluster.place(t.warp.rank, at(a))?),
        None => None,
    };
    let place = t.cluster.place(t.warp.rank, shared)?;
    let ranks = match b.multicast {
        None => vec![place.rank],
        Some(s) => {
            let mask = t.warp.registers.row(s)[lane] as u16;
            let ranks =
                tensor::bulk::multicast(mask, t.cluster.blocks.len() as u32).map_err(operand_fault)?;
            ranks.into_iter().map(|r| r as u8).collect()
        }
    };
    if b.way == Way::Load && barrier.is_some_and(|p| p.rank != place.rank) {
        return Err(operand_fault("the mbarrier of a load must lie in the block that receives the data"));
    }
    let mut element = b.reduction.and_then(|r| r.1);
    for rank in ranks {
        let place = SharedPlace { rank, offset: place.offset };
        let (runs, bytes) = match &b.tensor {
            Some(coordinates) => {
                let map = read_map(t, other)?;
                let list: Vec<i32> =
                    coordinates.iter().map(|&c| t.warp.registers.row(c)[lane] as i32).collect();
                if b.reduction.is_some() {
                    element = Some(
                        element_of(map.data_type)
                            .ok_or_else(|| operand_fault("the map's type has no reductions"))?,
                    );
                }
                (tensor_runs(&map, &list, b.way, place)?, map.box_bytes())
            }
            None => {
                let size = b.size.map_or(0, |s| t.warp.registers.row(s)[lane]);
                tensor::bulk::check(shared, other, size.into())
                    .map_err(|what| Stop::new(FaultKind::Misaligned, what))?;
                (vec![plain_run(t, b.way, place, other, size)?], size)
            }
        };
        let signal = match barrier {
            Some(p) => {
                let p = if b.multicast.is_some() { SharedPlace { rank, offset: p.offset } } else { p };
                super::mbarrier::visit_async(t, p, lane)?;
                Some((p, bytes))
            }
            None => None,
        };
        let reduction = match b.reduction.zip(element) {
            None => None,
            Some(((name, _), e)) => match Reduction::parse(name, e) {
                None => return Err(operand_fault(format!("`{name}` does not exist for the map's type"))),
                some => some,
            },
        };
        let flight = Flight {
            runs,
            signal,
            group: (b.way == Way::Store).then(|| t.warp.bulk_groups[lane]),
            warp: t.warp.id,
            lane: lane as u8,
            line: t.grid.line,
            clock: t.warp.clock.clone(),
            reduction,
            taken: None,
        };
        flight::issue(t.grid, t.cluster, flight, t.warp.dependency_done)?;
    }
    Ok(())
}

fn plain_run(t: &Turn<'_, '_>, way: Way, place: SharedPlace, other: u64, bytes: u32) -> Done<Run> {
    Ok(match way {
        Way::Load => Run::Load { from: other, to: place, bytes },
        Way::Store => Run::Store { from: place, to: other, bytes },
        Way::Share => Run::Share { from: t.cluster.place(t.warp.rank, other)?, to: place, bytes },
    })
}

fn tensor_runs(map: &TensorMap, coordinates: &[i32], way: Way, place: SharedPlace) -> Done<Vec<Run>> {
    let list = map.runs(coordinates, place.offset).map_err(operand_fault)?;
    let (element, size) = (map.fill_element(), map.data_type.bytes() as usize);
    let pattern = std::array::from_fn(|i| element[i % size]);
    let runs = list.into_iter().filter_map(|r| {
        let shared = SharedPlace { rank: place.rank, offset: r.shared };
        match (way, r.global) {
            (Way::Store, None) => None,
            (Way::Store, Some(to)) => Some(Run::Store { from: shared, to, bytes: r.bytes }),
            (_, Some(from)) => Some(Run::Load { from, to: shared, bytes: r.bytes }),
            (_, None) => Some(Run::Fill { to: shared, bytes: r.bytes, pattern }),
        }
    });
    Ok(runs.collect())
}

/// The type of a map's elements in a reduction; bits for the logical operations are the unsigned integers'
/// own.
fn element_of(ty: DataType) -> Option<Type> {
    Some(match ty {
        DataType::U32 => Type::Unsigned(32),
        DataType::S32 => Type::Signed(32),
        DataType::U64 => Type::Unsigned(64),
        DataType::S64 => Type::Signed(64),
        DataType::F16 => Type::F16,
        DataType::Bf16 => Type::Bf16,
        DataType::F32 | DataType::F32Flush => Type::F32,
        DataType::F64 => Type::F64,
        _ => return None,
    })
}

/// The tensor map at a generic address: a kernel parameter, constant or global memory.
fn read_map(t: &mut Turn<'_, '_>, address: u64) -> Done<TensorMap> {
    super::data::aligned(address, 64)?;
    let mut bytes = [0; tensor::map::BYTES];
    match resolve(address) {
        (Space::Param, at) => {
            let params = &t.grid.launch.params;
            let found = usize::try_from(at).ok().and_then(|at| params.get(at..at + bytes.len()));
            let found = found.ok_or_else(|| {
                Stop::new(FaultKind::OutOfBounds, format!("a tensor map at offset {at} of the parameters"))
            })?;
            bytes.copy_from_slice(found);
        }
        (Space::Global, at) => {
            let found = t.grid.locate(at, bytes.len() as u64, false)?;
            t.grid.load(found, &mut bytes);
        }
        (space, _) => return Err(operand_fault(format!("a tensor map in {space:?} memory"))),
    }
    TensorMap::decode(&bytes).map_err(operand_fault)
}

/// `cp.async.bulk.commit_group`.
pub(crate) fn commit(t: &mut Turn<'_, '_>, active: u32) -> Done<Flow> {
    lanes_of(active).for_each(|l| t.warp.bulk_groups[l] += 1);
    Ok(Flow::Next)
}

/// `cp.async.bulk.wait_group`: with `.read` the sources are free afterwards, without it the data has been
/// written.
pub(crate) fn wait(t: &mut Turn<'_, '_>, keep: u32, read: bool, active: u32) -> Done<Flow> {
    let groups = t.warp.bulk_groups;
    let id = t.warp.id;
    let due = |f: &Flight| {
        let lane = usize::from(f.lane);
        f.warp == id
            && active >> lane & 1 != 0
            && f.group.is_some_and(|g| u64::from(g) + u64::from(keep) < u64::from(groups[lane]))
    };
    let (ready, rest): (Vec<_>, Vec<_>) =
        std::mem::take(&mut t.cluster.flights).into_iter().partition(|f| due(f));
    t.cluster.flights = rest;
    for mut f in ready {
        let lane = u32::from(f.lane);
        if read {
            flight::take(t.cluster, &mut f).map_err(|s| s.at(lane))?;
            t.cluster.flights.push(f);
        } else {
            flight::land(t.grid, t.cluster, f, Some(&t.warp.clock)).map_err(|s| s.at(lane))?;
        }
    }
    Ok(Flow::Next)
}
