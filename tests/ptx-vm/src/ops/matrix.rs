//! `ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`. The arithmetic is in [`crate::matrix`]; here are the
//! operands and the memory. Source: PTX ISA 8.7, 9.7.14.

use super::data::{addresses, aligned};
use super::space::parse;
use super::warp::whole as together;
use super::{Decoder, Done, Flow};
use crate::Error;
use crate::Row;
use crate::code::{Address, Op, SHARED_BITS, SHARED_WINDOW};
use crate::matrix::mma::MOST;
use crate::matrix::{Accumulator, Mma, tile};
use crate::memory::shadow::{How, Party, TOGETHER};
use crate::registers::Slot;
use crate::run::{Cluster, Stop, Turn};
use crate::text::syntax::Space;
use crate::text::types::Type;

/// `ldmatrix` and `stmatrix` of one, two or four matrices.
#[derive(Debug, Clone)]
pub(crate) struct MatrixAccess {
    address: Address,
    registers: Vec<Slot>,
    transpose: bool,
    generic: bool,
}

/// Decodes `ldmatrix`, `stmatrix` and `movmatrix`.
pub(crate) fn access(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let plain =
        d.variant.take("sync") && d.variant.take("aligned") && d.variant.take("m8n8") && ty == Type::Bits(16);
    let transpose = d.variant.take("trans");
    if !plain {
        return d.refuse("only .sync.aligned.m8n8 of .b16");
    }
    let b32 = Type::Bits(32);
    if d.variant.base == "movmatrix" {
        d.finish()?;
        d.count(2)?;
        if !transpose {
            return d.refuse("`.trans` is missing");
        }
        return Ok(Op::MoveMatrix {
            d: d.l.destination(d.operand(0)?, b32)?,
            a: d.l.source(d.operand(1)?, b32)?,
        });
    }
    let Some(count) = d.variant.one_of(&["x1", "x2", "x4"]) else {
        return d.refuse("`.x1`, `.x2` or `.x4` is missing");
    };
    let space = d.variant.next(parse);
    d.finish()?;
    d.count(2)?;
    let load = d.variant.base == "ldmatrix";
    let (value, at) = if load { (0, 1) } else { (1, 0) };
    let operands = d.operands;
    let registers =
        if load { d.l.destinations(&operands[value], b32)? } else { d.l.sources(&operands[value], b32)? };
    if registers.len() != usize::from(count.as_bytes()[1] - b'0') {
        return d.refuse(format!("{} registers for .{count}", registers.len()));
    }
    let (address, named) = d.l.address(&operands[at])?;
    let m =
        Box::new(MatrixAccess { address, registers, transpose, generic: space.is_none() && named.is_none() });
    Ok(if load { Op::LoadMatrix(m) } else { Op::StoreMatrix(m) })
}

/// The address of each row of each matrix, and the lane that gave it.
#[inline(always)]
fn row_at(
    cluster: &Cluster,
    rank: u8,
    m: &MatrixAccess,
    at: &[u64; 32],
    matrix: usize,
    row: usize,
) -> Done<(crate::run::cluster::SharedPlace, u32)> {
    let lane = tile::address_lane(matrix, row);
    let address = match (m.generic, super::space::resolve(at[lane])) {
        (false, _) => at[lane],
        (true, (Space::Cluster, inner)) => inner,
        _ => {
            return Err(Stop::new(
                crate::FaultKind::OutOfBounds,
                format!("{:#x} is not in shared memory", at[lane]),
            )
            .at(lane as u32));
        }
    };
    aligned(address, tile::ROW_ALIGNMENT.into()).map_err(|s| s.at(lane as u32))?;
    Ok((cluster.place(rank, address).map_err(|s| s.at(lane as u32))?, lane as u32))
}

/// The offsets of a matrix's rows, if all of them lie in the memory of the own block.
#[inline(always)]
fn own_rows(m: &MatrixAccess, at: &[u64; 32], matrix: usize) -> Option<[u32; 8]> {
    let first = tile::address_lane(matrix, 0);
    let window = if m.generic { SHARED_WINDOW } else { 0 };
    let (mut offsets, mut above) = ([0; 8], 0);
    for (offset, &address) in offsets.iter_mut().zip(&at[first..first + 8]) {
        let inner = address.wrapping_sub(window);
        above |= inner >> SHARED_BITS;
        *offset = inner as u32;
    }
    (above == 0).then_some(offsets)
}

/// Executes `ldmatrix`.
pub(crate) fn load(t: &mut Turn<'_, '_>, m: &MatrixAccess, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let at = addresses(&t.warp.registers, &m.address);
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: TOGETHER,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    for (i, &slot) in m.registers.iter().enumerate() {
        let mut tile = [[0; 16]; 8];
        let read = match own_rows(m, &at, i) {
            Some(offsets) => t.cluster.read_lines(t.warp.rank, &offsets, &mut tile, &me, t.grid.options),
            None => 0,
        };
        // Rows in other blocks, words with histories of their own, and faults, which are found again and
        // explained.
        for (r, bytes) in tile.iter_mut().enumerate().skip(read) {
            let (place, lane) = row_at(t.cluster, t.warp.rank, m, &at, i, r)?;
            let start =
                t.cluster.access(place, 16, How::READ, &me, t.grid.options).map_err(|s| s.at(lane))?;
            bytes.copy_from_slice(t.cluster.bytes(place.rank, start, 16));
        }
        t.warp.registers.put(slot, &tile::load(&tile, m.transpose), active);
    }
    Ok(Flow::Next)
}

/// Executes `stmatrix`.
pub(crate) fn store(t: &mut Turn<'_, '_>, m: &MatrixAccess, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let at = addresses(&t.warp.registers, &m.address);
    for (i, &slot) in m.registers.iter().enumerate() {
        let rows = tile::store(t.warp.registers.row(slot), m.transpose);
        for (r, bytes) in rows.iter().enumerate() {
            let (place, lane) = row_at(t.cluster, t.warp.rank, m, &at, i, r)?;
            let me = Party {
                cluster: t.cluster.id,
                warp: t.warp.id,
                lane: lane as u8,
                line: t.grid.line,
                clock: &t.warp.clock,
            };
            let noted = t.cluster.noted.len();
            let start =
                t.cluster.access(place, 16, How::WRITE, &me, t.grid.options).map_err(|s| s.at(lane))?;
            if t.cluster.noted.len() > noted {
                let equal = t.cluster.bytes(place.rank, start, 16) == bytes;
                super::data::forgive(&mut t.cluster.noted, t.grid.options, equal);
            }
            t.cluster.bytes(place.rank, start, 16).copy_from_slice(bytes);
            t.cluster.progress += 1;
        }
    }
    Ok(Flow::Next)
}

/// Executes `movmatrix`.
pub(crate) fn transpose(t: &mut Turn<'_, '_>, d: Slot, a: Slot, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let row = tile::transposed(t.warp.registers.row(a));
    t.warp.registers.put(d, &row, active);
    Ok(Flow::Next)
}

/// `mma.sync`.
#[derive(Debug, Clone)]
pub(crate) struct WarpMma {
    mma: Mma,
    d: Vec<Slot>,
    a: Vec<Slot>,
    b: Vec<Slot>,
    c: Vec<Slot>,
}

/// Decodes `mma.sync`.
pub(crate) fn mma(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let mma = match Mma::parse(d.variant.rest()) {
        Ok(mma) => mma,
        Err(what) => return d.refuse(what),
    };
    d.count(4)?;
    let (ab, cd) = if mma.accumulator == Accumulator::F64 {
        (Type::F64, Type::F64)
    } else {
        (Type::Bits(32), Type::Bits(32))
    };
    let operands = d.operands;
    let to = d.l.destinations(&operands[0], cd)?;
    let a = d.l.sources(&operands[1], ab)?;
    let b = d.l.sources(&operands[2], ab)?;
    let c = d.l.sources(&operands[3], cd)?;
    let (na, nb, nc) = (mma.a_registers(), mma.b_registers(), mma.c_registers());
    if to.len() != nc || c.len() != nc || a.len() != na || b.len() != nb {
        return d.refuse(format!("the shape takes {na} registers for a, {nb} for b and {nc} for c and d"));
    }
    Ok(Op::Mma(Box::new(WarpMma { mma, d: to, a, b, c })))
}

/// Executes `mma.sync`.
pub(crate) fn mma_warp(t: &mut Turn<'_, '_>, p: &WarpMma, active: u32, group: u32) -> Done<Flow> {
    if !together(t, active, group)? {
        return Ok(Flow::Missing);
    }
    if t.warp.live() != !0 {
        let detail = format!("`mma` by a warp whose lanes {:#010x} have ended or never were", !t.warp.live());
        return Err(Stop::new(crate::FaultKind::Divergence, detail));
    }
    let r = &mut t.warp.registers;
    if p.mma.accumulator == Accumulator::F64 {
        let get = |slots: &[Slot]| -> Vec<[u64; 32]> { slots.iter().map(|&s| *r.wide(s)).collect() };
        let (a, b, c) = (get(&p.a), get(&p.b), get(&p.c));
        let mut out = c.clone();
        p.mma.run_f64(&mut out, &a, &b, &c);
        p.d.iter().zip(&out).for_each(|(&s, row)| r.put_wide(s, row, active));
        return Ok(Flow::Next);
    }
    let list = |slots: &[Slot]| -> [&Row; MOST] {
        std::array::from_fn(|i| r.row(slots.get(i).copied().unwrap_or(slots[0])))
    };
    let (a, b, c) = (list(&p.a), list(&p.b), list(&p.c));
    let mut out = [[0; 32]; MOST];
    let (na, nb, nc) = (p.a.len(), p.b.len(), p.c.len());
    p.mma.run_rows(&mut out[..p.d.len()], &a[..na], &b[..nb], &c[..nc], t.grid.summation);
    p.d.iter().zip(&out).for_each(|(&s, row)| r.put(s, row, active));
    Ok(Flow::Next)
}
