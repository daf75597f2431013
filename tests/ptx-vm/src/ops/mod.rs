//! The instructions: one file per group, each with what it accepts (decoding) and what it does (execution).
//!
//! Decoding is strict: every part of an opcode must be understood, and what is left over is an error that
//! names it.

pub(crate) mod approx;
pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod bulk;
pub(crate) mod carry;
pub(crate) mod compare;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod flags;
pub(crate) mod float;
pub(crate) mod general;
pub(crate) mod half;
pub(crate) mod heap;
pub(crate) mod integer;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod pairs;
pub(crate) mod print;
pub(crate) mod reduce;
pub(crate) mod space;
pub(crate) mod video;
pub(crate) mod warp;
pub(crate) mod wgmma;
pub(crate) mod wmma;

use crate::Error;
use crate::code::{Op, Test};
use crate::lower::Lowering;
use crate::registers::{Lanewise, Slots};
use crate::run::{Done, Flow, Turn};
use crate::text::syntax::{Instruction, Operand};
use crate::text::types::Type;

/// An opcode's parts, taken one by one.
pub(crate) struct Variant<'a> {
    pub(crate) base: &'a str,
    parts: Vec<&'a str>,
}

impl<'a> Variant<'a> {
    pub(crate) fn new(opcode: &'a str) -> Self {
        let mut parts = opcode.split('.');
        Variant { base: parts.next().unwrap_or_default(), parts: parts.collect() }
    }

    /// Takes a part if it is there.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        let at = self.parts.iter().position(|p| *p == name);
        if let Some(at) = at {
            self.parts.remove(at);
        }
        at.is_some()
    }

    /// Takes the first part that is one of these.
    pub(crate) fn one_of(&mut self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|n| self.take(n))
    }

    /// Takes the next part if a function understands it.
    pub(crate) fn next<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = read(self.parts.first()?)?;
        self.parts.remove(0);
        Some(value)
    }

    /// Takes the last part as a type.
    pub(crate) fn last_type(&mut self) -> Option<Type> {
        let ty = Type::parse(self.parts.last()?)?;
        self.parts.pop();
        Some(ty)
    }

    /// What has not been taken.
    pub(crate) fn rest(&self) -> &[&'a str] {
        &self.parts
    }
}

/// What decoding works with.
pub(crate) struct Decoder<'l, 'a> {
    pub(crate) l: &'l mut Lowering<'a>,
    pub(crate) variant: Variant<'a>,
    pub(crate) operands: &'a [Operand],
    pub(crate) guard: Option<Test>,
}

/// The error for an operand that is not there.
impl<'a> Decoder<'_, 'a> {
    pub(crate) fn refuse<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        self.l.unsupported(what)
    }

    pub(crate) fn operand(&self, at: usize) -> Result<&'a Operand, Error> {
        match self.operands.get(at) {
            Some(o) => Ok(o),
            None => self.refuse(format!("operand {} is missing", at + 1)),
        }
    }

    pub(crate) fn count(&self, n: usize) -> Result<(), Error> {
        if self.operands.len() == n {
            Ok(())
        } else {
            self.refuse(format!("{} operands, {n} expected", self.operands.len()))
        }
    }

    pub(crate) fn ty(&mut self) -> Result<Type, Error> {
        match self.variant.last_type() {
            Some(ty) => Ok(ty),
            None => self.refuse("the opcode does not end in a type this machine knows"),
        }
    }

    /// An immediate integer.
    pub(crate) fn immediate(&self, at: usize) -> Result<u64, Error> {
        match self.operand(at)? {
            Operand::Integer(n) => Ok(*n),
            _ => self.refuse(format!("operand {} must be a literal integer", at + 1)),
        }
    }

    /// The opcode is understood when nothing is left of it.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        match self.variant.rest() {
            [] => Ok(()),
            rest => self.refuse(format!("`.{}` is unknown here", rest.join("."))),
        }
    }

    /// A lane-wise instruction with sources of the given types.
    pub(crate) fn lanewise(&mut self, f: Lanewise, d: Type, sources: &[Type]) -> Result<Op, Error> {
        self.finish()?;
        self.count(1 + sources.len())?;
        let slots = self.slots(d, sources)?;
        Ok(Op::Lanewise(f, slots))
    }

    /// Destination and sources; sources that are not there repeat the destination.
    pub(crate) fn slots(&mut self, d: Type, sources: &[Type]) -> Result<Slots, Error> {
        let operands = self.operands;
        let to = self.l.destination(self.operand(0)?, d)?;
        let mut slots = [to; 4];
        for (i, ty) in sources.iter().enumerate() {
            self.operand(i + 1)?;
            slots[i + 1] = self.l.source(&operands[i + 1], *ty)?;
        }
        Ok(slots)
    }
}

/// Turns an instruction of the text into one of the machine.
pub(crate) fn decode<'a>(l: &mut Lowering<'a>, i: &'a Instruction, guard: Option<Test>) -> Result<Op, Error> {
    let variant = Variant::new(&i.opcode);
    let base = variant.base;
    let mut d = Decoder { l, variant, operands: &i.operands, guard };
    match base {
        "ld" | "ldu" => data::load(&mut d),
        "st" => data::store(&mut d),
        "mov" => data::mov(&mut d),
        "prefetch" | "prefetchu" | "discard" | "applypriority" | "createpolicy" => data::hint(&mut d),
        "cvta" => space::cvta(&mut d),
        "mapa" => space::mapa(&mut d),
        "getctarank" => space::rank(&mut d),
        "isspacep" => space::isspacep(&mut d),
        "cvt" => convert::decode(&mut d),
        "setp" | "set" => compare::setp(&mut d),
        "selp" | "slct" => compare::selp(&mut d),
        "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "griddepcontrol" | "setmaxnreg"
        | "pmevent" => control::decode(&mut d),
        "shfl" => warp::shuffle(&mut d),
        "vote" => warp::vote(&mut d),
        "match" => warp::matching(&mut d),
        "redux" => warp::redux(&mut d),
        "activemask" => warp::activemask(&mut d),
        "elect" => warp::elect(&mut d),
        "atom" | "red" => atomic::decode(&mut d),
        "membar" | "fence" => atomic::fence(&mut d),
        "bar" | "barrier" => barrier::decode(&mut d),
        "mbarrier" => mbarrier::decode(&mut d),
        "cp" if d.variant.rest().contains(&"bulk") => bulk::decode(&mut d),
        "cp" => copy::decode(&mut d),
        "ldmatrix" | "stmatrix" | "movmatrix" => matrix::access(&mut d),
        "mma" => matrix::mma(&mut d),
        "wgmma" => wgmma::decode(&mut d),
        "wmma" => wmma::decode(&mut d),
        "tensormap" => bulk::tensormap(&mut d),
        "dp4a" | "dp2a" => video::dot(&mut d),
        "prmt" => integer::permute(&mut d),
        _ => arithmetic(&mut d),
    }
}

/// Arithmetic and logic, by type.
fn arithmetic(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if let Some(op) = pairs::decode(d) {
        return op;
    }
    let ty = d.variant.rest().last().and_then(|t| Type::parse(t));
    match ty {
        Some(Type::Pred) => compare::logic(d),
        Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => half::decode(d),
        Some(Type::F32 | Type::F64) => float::decode(d),
        Some(t) if t.is_integer() => integer::decode(d),
        _ => d.refuse("this opcode is unknown"),
    }
}

/// Executes an instruction other than a lane-wise one. `active` are the lanes whose guard holds, `group` all
/// that stand here.
pub(crate) fn execute(t: &mut Turn<'_, '_>, op: &Op, active: u32, group: u32) -> Done<Flow> {
    match op {
        // Control and collectives first: they matter even when no lane is active.
        Op::Branch(to) => return Ok(Flow::Branch(active, *to)),
        Op::Exit => return Ok(if active == 0 { Flow::Next } else { Flow::Exit(active) }),
        _ if active == 0 => return Ok(Flow::Next),
        _ => {}
    }
    match op {
        Op::Nop | Op::Branch(_) | Op::Exit => Ok(Flow::Next),
        Op::Lanewise(f, s) => {
            f(&mut t.warp.registers, s, active);
            Ok(Flow::Next)
        }
        Op::General(g) => {
            g.run(&mut t.warp.registers, active);
            Ok(Flow::Next)
        }
        Op::Compare(c) => compare::compare(&mut t.warp.registers, c, active),
        Op::Logic(c) => compare::execute_logic(&mut t.warp.registers, c, active),
        Op::Select(c) => compare::select(&mut t.warp.registers, c, active),
        Op::Clock(d, wide) => control::clock(t, *d, *wide, active),
        Op::CallTable(pointer, targets) => control::call(t, *pointer, targets, active),
        Op::BranchTable(index, targets) => control::table(t, *index, targets, active),
        Op::Trap(what) => {
            Err(crate::run::Stop::new(crate::FaultKind::Trap, *what).at(active.trailing_zeros()))
        }
        Op::Sleep => Ok(Flow::Yield),
        Op::Load(a) => data::execute_load(t, a, active),
        Op::Store(a) => data::execute_store(t, a, active),
        Op::Atomic(a) => atomic::execute(t, a, active),
        Op::Fence(scope) => atomic::execute_fence(t, *scope),
        Op::FenceAsync { shared, global } => atomic::execute_fence_async(t, *shared, *global),
        Op::FenceBarrierInit => mbarrier::execute_fence(t),
        Op::MapShared(m) => space::map(t, m, active),
        Op::IsSpace { p, a, space } => space::is_space(t, *p, *a, *space, active),
        Op::Shuffle(s) => warp::execute_shuffle(t, s, active, group),
        Op::Vote(v) => warp::execute_vote(t, v, active, group),
        Op::Match(m) => warp::execute_match(t, m, active, group),
        Op::Redux(r) => warp::execute_redux(t, r, active, group),
        Op::ActiveMask(d) => {
            t.warp.registers.put(*d, &[active; 32], active);
            Ok(Flow::Next)
        }
        Op::Elect { d, p, mask } => warp::execute_elect(t, *d, *p, *mask, active, group),
        Op::WarpBarrier(mask) => warp::execute_barrier(t, *mask, active, group),
        Op::Barrier(b) => barrier::execute(t, b, active, group),
        Op::ClusterArrive { release, aligned } => {
            barrier::cluster_arrive(t, *release, *aligned, active, group)
        }
        Op::ClusterWait { aligned } => barrier::cluster_wait(t, *aligned, active, group),
        Op::Mbarrier(m) => mbarrier::execute(t, m, active),
        Op::CopyAsync(c) => copy::execute(t, c, active),
        Op::CopyCommit => copy::commit(t, active),
        Op::CopyWait(keep) => copy::wait(t, *keep, active),
        Op::CopyArrive { address, counted } => copy::arrive(t, address, *counted, active),
        Op::Bulk(b) => bulk::execute(t, b, active),
        Op::BulkCommit => bulk::commit(t, active),
        Op::BulkWait { keep, read } => bulk::wait(t, *keep, *read, active),
        Op::LoadMatrix(m) => matrix::load(t, m, active, group),
        Op::StoreMatrix(m) => matrix::store(t, m, active, group),
        Op::MoveMatrix { d, a } => matrix::transpose(t, *d, *a, active, group),
        Op::Mma(m) => matrix::mma_warp(t, m, active, group),
        Op::Fragment(f) => wmma::execute(t, f, active, group),
        Op::FragmentMma(m) => wmma::execute_mma(t, m, active, group),
        Op::Wgmma(w) => wgmma::execute(t, w, active, group),
        Op::WgmmaFence => {
            t.warp.unfenced.clear();
            Ok(Flow::Next)
        }
        Op::IntoMma(f, slots) => {
            if active != 0 {
                f(&mut t.warp.registers, slots, active);
                t.warp.unfenced.insert(slots[0]);
            }
            Ok(Flow::Next)
        }
        Op::WgmmaCommit => wgmma::commit(t, active, group),
        Op::WgmmaWait(keep) => wgmma::wait(t, *keep, active, group),
        Op::GridWait => {
            t.warp.dependency_done = true;
            Ok(Flow::Next)
        }
        Op::Print(p) => print::execute(t, p, active),
        Op::Heap(call) => heap::execute(t, *call, active),
    }
}
