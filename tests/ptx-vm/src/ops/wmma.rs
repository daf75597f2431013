//! `wmma.load`, `wmma.store`, `wmma.mma`. Which lane holds what, and the arithmetic, are in
//! [`crate::matrix::wmma`]; here are the operands and the memory.

use super::data::{WEAK, addresses, aligned, fetch, put};
use super::space::parse;
use super::warp::whole as together;
use super::{Decoder, Done, Flow};
use crate::Error;
use crate::Row;
use crate::code::{Address, Op};
use crate::matrix::BitOp;
use crate::matrix::wmma::{Matrix, REGISTERS, Shape, Wmma};
use crate::registers::Slot;
use crate::run::{Stop, Turn};
use crate::text::syntax::Space;
use crate::text::types::Type;

/// What address and stride must be a multiple of, in bytes.
const ALIGNMENT: u64 = 16;

/// `wmma.load` and `wmma.store`.
#[derive(Debug, Clone)]
pub(crate) struct FragmentAccess {
    matrix: Matrix,
    shape: Shape,
    space: Space,
    address: Address,
    /// Elements from row to row, or from column to column; none when they lie close together.
    stride: Option<Slot>,
    /// Rows are contiguous, not columns.
    by_rows: bool,
    registers: Vec<Slot>,
    load: bool,
}

/// `wmma.mma`.
#[derive(Debug, Clone)]
pub(crate) struct FragmentMma {
    wmma: Wmma,
    d: Vec<Slot>,
    a: Vec<Slot>,
    b: Vec<Slot>,
    c: Vec<Slot>,
}

fn register(matrix: Matrix) -> Type {
    Type::Bits(if matrix.bits() == 64 { 64 } else { 32 })
}

/// Decodes `wmma`.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let Some(kind) = d.variant.one_of(&["load", "store", "mma"]) else {
        return d.refuse("`wmma` is .load, .store or .mma");
    };
    if !(d.variant.take("sync") && d.variant.take("aligned")) {
        return d.refuse("`.sync.aligned` is missing");
    }
    if kind == "mma" { mma(d) } else { access(d, kind == "load") }
}

fn access(d: &mut Decoder<'_, '_>, load: bool) -> Result<Op, Error> {
    let letters: &[&str] = if load { &["a", "b", "c"] } else { &["d"] };
    let letter = d.variant.one_of(letters);
    let layout = d.variant.one_of(&["row", "col"]);
    let (Some(letter), Some(layout)) = (letter, layout) else {
        return d.refuse(format!("one of .{} and .row or .col are needed", letters.join(", .")));
    };
    let Some(shape) = d.variant.next(Shape::parse) else {
        return d.refuse(
            "the shape is none of m16n16k16, m8n32k16, m32n8k16, m16n16k8, m8n8k4, m8n8k32, m8n8k128",
        );
    };
    let space = d.variant.next(parse);
    let [ty] = d.variant.rest() else { return d.refuse("one type is needed behind the shape") };
    let Some(matrix) = Matrix::parse(letter, ty, &shape) else {
        return d.refuse(format!("matrix {letter} of this shape has no elements of type `{ty}`"));
    };
    let by_rows = layout == "row";
    if !matrix.can_lie(by_rows) {
        return d.refuse(format!("elements of type `{ty}` of matrix {letter} cannot lie by .{layout}"));
    }
    let operands = d.operands;
    if !(2..=3).contains(&operands.len()) {
        return d.refuse(format!("{} operands, 2 or 3 expected", operands.len()));
    }
    let (value, at) = if load { (0, 1) } else { (1, 0) };
    let registers = if load {
        d.l.destinations(&operands[value], register(matrix))?
    } else {
        d.l.sources(&operands[value], register(matrix))?
    };
    if registers.len() != matrix.registers(&shape) {
        let wanted = matrix.registers(&shape);
        return d.refuse(format!("{} registers for the fragment, it has {wanted}", registers.len()));
    }
    let (address, named) = d.l.address(&operands[at])?;
    let stride = operands.get(2).map(|o| d.l.source(o, Type::Unsigned(32))).transpose()?;
    let space = space.or(named).unwrap_or(Space::Generic);
    let access = FragmentAccess { matrix, shape, space, address, stride, by_rows, registers, load };
    Ok(Op::Fragment(Box::new(access)))
}

fn mma(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let popc = d.variant.take("popc");
    let bit_op = d.variant.one_of(&["xor", "and"]).filter(|_| popc).and_then(BitOp::parse);
    let layouts = (d.variant.next(layout), d.variant.next(layout));
    let (Some(shape), (Some(a_rows), Some(b_rows))) = (d.variant.next(Shape::parse), layouts) else {
        return d.refuse("the layouts of a and b and a shape that is known are needed");
    };
    let saturate = d.variant.take("satfinite");
    let wmma = match Wmma::parse(shape, d.variant.rest(), saturate, bit_op) {
        Ok(wmma) => wmma,
        Err(what) => return d.refuse(what),
    };
    if !Matrix::A(wmma.a).can_lie(a_rows) || !Matrix::B(wmma.b).can_lie(b_rows) {
        return d.refuse("elements smaller than a byte lie by .row in a and by .col in b");
    }
    d.count(4)?;
    let operands = d.operands;
    let kinds = [Matrix::C(wmma.d), Matrix::A(wmma.a), Matrix::B(wmma.b), Matrix::C(wmma.c)];
    let mut lists = Vec::new();
    for (at, (operand, kind)) in operands.iter().zip(kinds).enumerate() {
        let list = match at {
            0 => d.l.destinations(operand, register(kind))?,
            _ => d.l.sources(operand, register(kind))?,
        };
        if list.len() != kind.registers(&shape) {
            let wanted = kind.registers(&shape);
            return d.refuse(format!("{} registers for operand {}, it has {wanted}", list.len(), at + 1));
        }
        lists.push(list);
    }
    let mut next = lists.into_iter().map(Some);
    let mut take = || next.next().flatten().unwrap_or_default();
    Ok(Op::FragmentMma(Box::new(FragmentMma { wmma, d: take(), a: take(), b: take(), c: take() })))
}

/// Whether a matrix lies by rows.
fn layout(part: &str) -> Option<bool> {
    matches!(part, "row" | "col").then_some(part == "row")
}

/// Whether the lanes are together; an error when some of them are gone.
fn ready(t: &mut Turn<'_, '_>, active: u32, group: u32) -> Done<bool> {
    if !together(t, active, group)? {
        return Ok(false);
    }
    if t.warp.live() != !0 {
        let detail =
            format!("`wmma` by a warp whose lanes {:#010x} have ended or never were", !t.warp.live());
        return Err(Stop::new(crate::FaultKind::Divergence, detail));
    }
    Ok(true)
}

/// The value that all lanes hold.
fn uniform(row: impl Iterator<Item = u64>, what: &str) -> Done<u64> {
    let mut row = row.enumerate();
    let first = row.next().map_or(0, |(_, value)| value);
    match row.find(|(_, value)| *value != first) {
        None => Ok(first),
        Some((lane, other)) => {
            let detail =
                format!("lane 0 gives the {what} {first:#x}, lane {lane} {other:#x}: all must agree");
            Err(Stop::new(crate::FaultKind::Operand, detail).at(lane as u32))
        }
    }
}

/// Executes `wmma.load` and `wmma.store`.
#[cold]
pub(crate) fn execute(t: &mut Turn<'_, '_>, f: &FragmentAccess, active: u32, group: u32) -> Done<Flow> {
    if !ready(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let (rows, columns) = f.matrix.size(&f.shape);
    let bits = f.matrix.bits() as u64;
    let base = uniform(addresses(&t.warp.registers, &f.address).into_iter(), "address")?;
    let stride = match f.stride {
        Some(slot) => uniform(t.warp.registers.row(slot).iter().map(|&x| u64::from(x)), "stride")?,
        None => (if f.by_rows { columns } else { rows }) as u64,
    };
    aligned(base, ALIGNMENT).and_then(|()| aligned(stride * bits, 8 * ALIGNMENT)).map_err(|stop| {
        let bytes = (stride * bits) as f64 / 8.0;
        let detail =
            format!("address {base:#x} and stride of {bytes} bytes: both must be multiples of {ALIGNMENT}");
        stop.saying(detail)
    })?;
    let whole = WholeAccess { f, base, stride, bits };
    t.grid.begin_moving();
    for (register, &slot) in f.registers.iter().enumerate() {
        for lane in 0..32 {
            if let Err(stop) = whole.register(t, register, slot, lane) {
                super::data::note(t, stop, lane);
            }
        }
    }
    Ok(Flow::Next)
}

/// An access with the values of its operands.
struct WholeAccess<'f> {
    f: &'f FragmentAccess,
    base: u64,
    stride: u64,
    /// Of an element.
    bits: u64,
}

impl WholeAccess<'_> {
    fn address(&self, register: usize, lane: usize, i: usize) -> u64 {
        let (row, column) = self.f.matrix.place(&self.f.shape, register, lane, i);
        let (far, near) = if self.f.by_rows { (row, column) } else { (column, row) };
        let elements = (far as u64).wrapping_mul(self.stride).wrapping_add(near as u64);
        self.base.wrapping_add(elements.wrapping_mul(self.bits) / 8)
    }

    /// Loads or stores one register of one lane, in one access where its elements are neighbours.
    fn register(&self, t: &mut Turn<'_, '_>, register: usize, slot: Slot, lane: usize) -> Done {
        // Elements smaller than a byte are neighbours, and a register begins with a byte.
        let (count, size) = match self.bits {
            bits @ 8.. => (self.f.matrix.per_register(), bits as usize / 8),
            _ => (1, 4),
        };
        let first = self.address(register, lane, 0);
        let close = (1..count).all(|i| self.address(register, lane, i) == first + (i * size) as u64);
        let step = if close { count } else { 1 };
        let mut data = [0; 8];
        if !self.f.load {
            let r = &t.warp.registers;
            let value = if size == 8 { r.wide(slot)[lane] } else { u64::from(r.row(slot)[lane]) };
            data = value.to_le_bytes();
        }
        for i in (0..count).step_by(step) {
            let (at, part) = (self.address(register, lane, i), i * size..(i + step) * size);
            if self.f.load {
                fetch(t, WEAK, self.f.space, at, lane, &mut data[part])?;
            } else {
                put(t, WEAK, self.f.space, at, lane, &data[part])?;
            }
        }
        if self.f.load {
            let value = u64::from_le_bytes(data);
            if size == 8 {
                t.warp.registers.wide_mut(slot)[lane] = value;
            } else {
                t.warp.registers.row_mut(slot)[lane] = value as u32;
            }
        }
        Ok(())
    }
}

/// Executes `wmma.mma`.
#[cold]
pub(crate) fn execute_mma(t: &mut Turn<'_, '_>, p: &FragmentMma, active: u32, group: u32) -> Done<Flow> {
    if !ready(t, active, group)? {
        return Ok(Flow::Missing);
    }
    let r = &mut t.warp.registers;
    if register(Matrix::C(p.wmma.d)) == Type::Bits(64) {
        let get = |slots: &[Slot]| -> Vec<[u64; 32]> { slots.iter().map(|&s| *r.wide(s)).collect() };
        let (a, b, c) = (get(&p.a), get(&p.b), get(&p.c));
        let mut out = c.clone();
        p.wmma.run_f64(&mut out, &a, &b, &c);
        p.d.iter().zip(&out).for_each(|(&s, row)| r.put_wide(s, row, active));
        return Ok(Flow::Next);
    }
    let list = |slots: &[Slot]| -> Vec<&Row> { slots.iter().map(|&s| r.row(s)).collect() };
    let (a, b, c) = (list(&p.a), list(&p.b), list(&p.c));
    let mut out = [[0; 32]; REGISTERS];
    p.wmma.run(&mut out[..p.d.len()], &a, &b, &c, t.grid.summation);
    p.d.iter().zip(&out).for_each(|(&s, row)| r.put(s, row, active));
    Ok(Flow::Next)
}
