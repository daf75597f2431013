//! From the syntax tree to [`Code`]: names become slots, labels become indices, calls are inlined.
//!
//! Each kernel is lowered by itself. A call of a `.func` lowers the function's body in place, with fresh
//! registers and with its parameters bound to the caller's, so the machine knows no stack; recursion is
//! refused. Device-function parameters and
//! `.local` variables share one area of local memory per thread, each with its own place.

mod call;
mod functions;
mod source;

pub(crate) use functions::{Functions, Shape};
use std::collections::HashMap;
use std::sync::Arc;

use crate::Error;
use crate::code::{Address, Code, Constant, Op, Program, SHARED_START, Special, Test, special};
use crate::ops;
use crate::registers::{Pred, Slot};
use crate::text::syntax::{File, Function, Instruction, Item, Loc, Operand, Space, Variable};
use crate::text::types::Type;

/// Instructions of one kernel, calls inlined.
const LENGTH: usize = 1 << 20;
/// Calls inside calls.
const CALLS: usize = 32;
/// Shared or local memory a kernel may declare.
const BYTES: u64 = 1 << 24;

/// A declared register.
#[derive(Debug, Clone, Copy)]
enum Register {
    Value(Slot, Type),
    Pred(Pred),
}

/// Where a variable is.
#[derive(Debug, Clone, Copy)]
struct Place {
    space: Space,
    value: Constant,
}

#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<String, Register>,
    variables: HashMap<String, Place>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, &'a [String]>,
    prototypes: HashMap<String, &'a Function>,
    /// Names outside this scope are not visible (a function's body).
    wall: bool,
}

/// The state of lowering one kernel.
pub(crate) struct Lowering<'a> {
    file: &'a File,
    functions: &'a Functions,
    globals: &'a HashMap<String, usize>,
    pub(crate) program: Program,
    scopes: Vec<Scope<'a>>,
    constants: HashMap<(Constant, bool), Slot>,
    /// Index of each label once it is known.
    labels: Vec<u32>,
    /// Where `ret` goes: a label inside a function, none in the kernel.
    returns: Vec<Option<u32>>,
    calls: Vec<String>,
    /// Errors of instructions, when all of them are wanted.
    collected: Option<Vec<Error>>,
    /// The instruction being lowered.
    line: u32,
    text: String,
    /// What each `.loc` says.
    sources: HashMap<Loc, Option<Arc<str>>>,
}

/// What cannot be lowered in a kernel: every instruction, not only the first.
pub(crate) fn refusals(
    file: &File,
    entry: &Function,
    functions: &Functions,
    globals: &HashMap<String, usize>,
) -> Vec<Error> {
    let mut l = Lowering::new(file, entry, functions, globals);
    l.collected = Some(Vec::new());
    let fatal = l.run(entry).err();
    l.collected.unwrap_or_default().into_iter().chain(fatal).collect()
}

/// Lowers a kernel. `functions` and `globals` give the indices of the file's functions and of the module's
/// variables.
pub(crate) fn kernel(
    file: &File,
    entry: &Function,
    functions: &Functions,
    globals: &HashMap<String, usize>,
) -> Result<(Program, Vec<crate::Parameter>), Error> {
    let mut l = Lowering::new(file, entry, functions, globals);
    let parameters = l.run(entry)?;
    Ok((l.program, parameters))
}

impl<'a> Lowering<'a> {
    fn new(
        file: &'a File,
        entry: &Function,
        functions: &'a Functions,
        globals: &'a HashMap<String, usize>,
    ) -> Self {
        Lowering {
            file,
            functions,
            globals,
            program: Program { shared_end: SHARED_START, shared_align: 16, ..Program::default() },
            scopes: vec![Scope::default()],
            constants: HashMap::new(),
            labels: Vec::new(),
            returns: vec![None],
            calls: vec![entry.name.clone()],
            collected: None,
            line: entry.line,
            text: entry.name.clone(),
            sources: HashMap::new(),
        }
    }

    fn run(&mut self, entry: &'a Function) -> Result<Vec<crate::Parameter>, Error> {
        let l = self;
        let mut parameters = Vec::new();
        let mut end = 0u64;
        for v in &entry.parameters {
            let offset = end.next_multiple_of(u64::from(v.align.max(1)));
            end = offset + v.bytes();
            if end > 32764 {
                return Err(Error::Syntax {
                    line: v.line,
                    what: format!("`{}` ends at byte {end} of the parameters, 32764 allowed", v.name),
                });
            }
            l.bind(&v.name, Place { space: Space::Param, value: Constant::Bits(offset) });
            parameters.push(crate::Parameter {
                name: v.name.clone(),
                offset: offset as u32,
                bytes: v.bytes() as u32,
            });
        }
        l.program.parameter_bytes = end as u32;
        l.items(entry.body.as_deref().unwrap_or(&[]))?;
        l.emit(None, Op::Exit);
        l.finish()?;
        l.program.watch_mma();
        Ok(parameters)
    }

    /// An error that names the current instruction.
    pub(crate) fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::Unsupported { line: self.line, text: self.text.clone(), what: what.into() })
    }

    fn bind(&mut self, name: &str, place: Place) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.variables.insert(name.into(), place);
        }
    }

    fn emit(&mut self, guard: Option<Test>, op: Op) {
        self.program.code.push(Code { guard, op, line: self.program.lines.len().saturating_sub(1) as u32 });
    }

    fn units(&mut self, wide: bool) -> Slot {
        let slot = Slot(self.program.units);
        self.program.units += 1 + u32::from(wide);
        slot
    }

    /// A register without a name.
    pub(crate) fn scratch(&mut self, wide: bool) -> Slot {
        self.units(wide)
    }

    fn new_pred(&mut self) -> Pred {
        self.program.preds += 1;
        Pred(self.program.preds - 1)
    }

    fn find<T>(&self, get: impl Fn(&Scope<'a>) -> Option<T>) -> Option<T> {
        for scope in self.scopes.iter().rev() {
            if let Some(x) = get(scope) {
                return Some(x);
            }
            if scope.wall {
                break;
            }
        }
        None
    }

    fn items(&mut self, items: &'a [Item]) -> Result<(), Error> {
        for item in items {
            match item {
                Item::Label(name, line) => {
                    let id = self.labels.len() as u32;
                    self.labels.push(u32::MAX);
                    let scope = self.scopes.last_mut();
                    if scope.is_some_and(|s| s.labels.insert(name.clone(), id).is_some()) {
                        return Err(Error::Syntax {
                            line: *line,
                            what: format!("label `{name}` stands twice"),
                        });
                    }
                }
                Item::Targets(name, list) => {
                    if let Some(s) = self.scopes.last_mut() {
                        s.tables.insert(name.clone(), list);
                    }
                }
                Item::Prototype(name, function) => {
                    if let Some(s) = self.scopes.last_mut() {
                        s.prototypes.insert(name.clone(), function);
                    }
                }
                _ => {}
            }
        }
        for item in items {
            match item {
                Item::Label(name, _) => {
                    if let Some(id) = self.scopes.last().and_then(|s| s.labels.get(name)) {
                        self.labels[*id as usize] = self.program.code.len() as u32;
                    }
                }
                Item::Scope(inner) => {
                    self.scopes.push(Scope::default());
                    self.items(inner)?;
                    self.scopes.pop();
                }
                Item::Registers { ty, names, line } => self.registers(*ty, names, *line)?,
                Item::Variable(v) => self.variable(v)?,
                Item::Targets(..) | Item::Prototype(..) => {}
                Item::Instruction(i) => match (self.instruction(i), &mut self.collected) {
                    (Err(e), Some(list)) => list.push(e),
                    (result, _) => result?,
                },
            }
            if self.program.code.len() > LENGTH || self.program.units > 1 << 18 {
                return self.unsupported(format!(
                    "the kernel has more than {LENGTH} instructions or 2^18 registers"
                ));
            }
        }
        Ok(())
    }

    fn registers(&mut self, ty: Type, names: &[(String, Option<u32>)], line: u32) -> Result<(), Error> {
        if ty.bits() > 64 {
            return Err(Error::Unsupported {
                line,
                text: ".reg .b128".into(),
                what: "128-bit registers".into(),
            });
        }
        for (name, count) in names {
            let one = |l: &mut Self, name: String| {
                let register = if ty == Type::Pred {
                    Register::Pred(l.new_pred())
                } else {
                    Register::Value(l.units(ty.bits() > 32), ty)
                };
                if let Some(s) = l.scopes.last_mut() {
                    s.registers.insert(name, register);
                }
            };
            match count {
                None => one(self, name.clone()),
                Some(n) => (0..*n).for_each(|i| one(self, format!("{name}{i}"))),
            }
        }
        Ok(())
    }

    fn variable(&mut self, v: &Variable) -> Result<(), Error> {
        let place = self.place_variable(v)?;
        self.bind(&v.name, place);
        Ok(())
    }

    fn place_variable(&mut self, v: &Variable) -> Result<Place, Error> {
        let large = || Error::Syntax {
            line: v.line,
            what: format!("`{}` needs {} bytes, 2^24 allowed", v.name, v.bytes()),
        };
        let end = if v.space == Space::Shared {
            &mut self.program.shared_end
        } else {
            &mut self.program.local_bytes
        };
        let at = u64::from(end.next_multiple_of(v.align.max(1)));
        let space = match v.space {
            Space::Shared if v.elements.is_none() => {
                self.program.dynamic = Some(self.program.dynamic.unwrap_or(16).max(v.align));
                return Ok(Place { space: Space::Shared, value: Constant::Dynamic(0) });
            }
            Space::Shared => Space::Shared,
            Space::Local | Space::Param => Space::Local,
            _ => {
                return Err(Error::Syntax {
                    line: v.line,
                    what: format!("`{}`: this space cannot be declared in a body", v.name),
                });
            }
        };
        let next = at.checked_add(v.bytes()).filter(|&n| n <= BYTES).ok_or_else(large)?;
        *end = next as u32;
        if space == Space::Shared {
            self.program.shared_align = self.program.shared_align.max(v.align);
        }
        Ok(Place { space, value: Constant::Bits(at) })
    }

    /// The variable of that name: in a scope, or in the file.
    fn lookup(&mut self, name: &str) -> Result<Option<Place>, Error> {
        if let Some(place) = self.find(|s| s.variables.get(name).copied()) {
            return Ok(Some(place));
        }
        if let Some(place) =
            self.scopes.first().and_then(|s| s.variables.get(name)).filter(|p| p.space == Space::Shared)
        {
            return Ok(Some(*place));
        }
        if let Some(&index) = self.globals.get(name) {
            return Ok(Some(Place { space: Space::Global, value: Constant::Global(index, 0) }));
        }
        let file = self.file;
        let Some(v) = file.variables.iter().find(|v| v.name == name && v.space == Space::Shared) else {
            return Ok(None);
        };
        let place = self.place_variable(v)?;
        self.scopes[0].variables.insert(name.into(), place);
        Ok(Some(place))
    }

    /// The slot that holds a constant.
    pub(crate) fn constant(&mut self, value: Constant, wide: bool) -> Slot {
        if let Some(&slot) = self.constants.get(&(value, wide)) {
            return slot;
        }
        let slot = self.units(wide);
        self.constants.insert((value, wide), slot);
        slot
    }

    fn register(&self, name: &str) -> Option<Register> {
        self.find(|s| s.registers.get(name).copied())
    }

    /// A source operand of a type. A register must have at least the type's width (`exact`: exactly, counting
    /// 8 and 16 bits as one width).
    pub(crate) fn source(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Error> {
        let wide = ty.bits() > 32;
        let bits = match operand {
            Operand::Name(name, offset) => {
                match self.register(name) {
                    Some(Register::Value(slot, declared)) if *offset == 0 => {
                        if (declared.bits() > 32) != wide {
                            return self.unsupported(format!(
                                "`{name}` has {} bits, the instruction wants {}",
                                declared.bits(),
                                ty.bits()
                            ));
                        }
                        return Ok(slot);
                    }
                    Some(_) => return self.unsupported(format!("`{name}` is a predicate or has an offset")),
                    None => {}
                }
                if let Some(special) = special(name) {
                    self.program.workspace |= matches!(special, Special::Environment(_));
                    return Ok(self.constant(Constant::Special(special), wide));
                }
                if name == "WARP_SZ" {
                    return Ok(self.constant(Constant::Bits(32), wide));
                }
                let value = match (self.lookup(name)?, self.functions.get(name)) {
                    (Some(place), _) => place.value,
                    (None, Some(index)) => Constant::Bits(self.functions.address(index)),
                    _ => return self.unsupported(format!("nothing is called `{name}`")),
                };
                return Ok(self.constant(add(value, *offset), wide));
            }
            Operand::Integer(n) => match ty {
                Type::F32 | Type::F64 => {
                    return self.unsupported("an integer literal where a floating-point one belongs");
                }
                _ => *n,
            },
            Operand::F32(b) if ty == Type::F64 => f64::from(f32::from_bits(*b)).to_bits(),
            Operand::F32(b) => u64::from(*b),
            Operand::F64(b) if ty == Type::F32 => u64::from((f64::from_bits(*b) as f32).to_bits()),
            Operand::F64(b) => *b,
            _ => return self.unsupported("this operand cannot be a value"),
        };
        let bits = match ty.bits() {
            64 => bits,
            n => bits & ((1 << n) - 1),
        };
        Ok(self.constant(Constant::Bits(bits), wide))
    }

    /// Width of the register an operand names, if it is one.
    pub(crate) fn width(&self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Name(name, _) => match self.register(name) {
                Some(Register::Value(_, ty)) => Some(ty.bits()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A source whose register may be wider than the type (`st`, `cvt`): slot and whether it has 64 bits.
    pub(crate) fn source_any(&mut self, operand: &Operand, ty: Type) -> Result<(Slot, bool), Error> {
        match self.width(operand) {
            Some(64) => Ok((self.source(operand, Type::Bits(64))?, true)),
            Some(_) if ty.bits() <= 32 => Ok((self.source(operand, Type::Bits(32))?, false)),
            _ => Ok((self.source(operand, ty)?, ty.bits() > 32)),
        }
    }

    /// A destination of a type; `_` is a register that is not read.
    pub(crate) fn destination(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Error> {
        let wide = ty.bits() > 32;
        match operand {
            Operand::Name(name, 0) if name == "_" => Ok(self.units(wide)),
            Operand::Name(name, 0) => match self.register(name) {
                Some(Register::Value(slot, declared)) if (declared.bits() > 32) == wide => Ok(slot),
                Some(Register::Value(_, declared)) => self.unsupported(format!(
                    "`{name}` has {} bits, the result {}",
                    declared.bits(),
                    ty.bits()
                )),
                _ => self.unsupported(format!("`{name}` is no register for a result")),
            },
            _ => self.unsupported("the result needs a register"),
        }
    }

    /// A destination whose register may be wider than the type (`ld`, `cvt`).
    pub(crate) fn destination_any(&mut self, operand: &Operand, ty: Type) -> Result<(Slot, bool), Error> {
        let wide = self.width(operand).unwrap_or(ty.bits()) > 32;
        let ty = if wide { Type::Bits(64) } else { Type::Bits(32) };
        Ok((self.destination(operand, ty)?, wide))
    }

    /// A predicate that is written.
    pub(crate) fn pred(&mut self, operand: &Operand) -> Result<Pred, Error> {
        match operand {
            Operand::Name(name, 0) if name == "_" => Ok(self.new_pred()),
            Operand::Name(name, 0) => match self.register(name) {
                Some(Register::Pred(p)) => Ok(p),
                _ => self.unsupported(format!("`{name}` is no predicate")),
            },
            _ => self.unsupported("a predicate is needed here"),
        }
    }

    /// A predicate that is read, perhaps negated, or a literal 0 or 1.
    pub(crate) fn test(&mut self, operand: &Operand) -> Result<Test, Error> {
        match operand {
            Operand::Not(inner) => {
                let t = self.test(inner)?;
                Ok(Test { negated: !t.negated, ..t })
            }
            // A predicate that is not written is false.
            Operand::Integer(n) => Ok(Test { pred: self.new_pred(), negated: *n != 0 }),
            _ => Ok(Test { pred: self.pred(operand)?, negated: false }),
        }
    }

    /// The parts of `{a, b}`, or the operand itself.
    pub(crate) fn parts<'b>(&self, operand: &'b Operand) -> &'b [Operand] {
        match operand {
            Operand::Vector(list) => list,
            other => std::slice::from_ref(other),
        }
    }

    pub(crate) fn sources(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Slot>, Error> {
        self.parts(operand).iter().map(|o| self.source(o, ty)).collect()
    }

    pub(crate) fn destinations(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Slot>, Error> {
        self.parts(operand).iter().map(|o| self.destination(o, ty)).collect()
    }

    /// `[base+offset]`, with the space of the variable when the base is one.
    pub(crate) fn address(&mut self, operand: &Operand) -> Result<(Address, Option<Space>), Error> {
        let Operand::Address { base, offset, .. } = operand else {
            return self.unsupported("an address in brackets is needed here");
        };
        match &**base {
            Operand::Name(name, _) => {
                if let Some(Register::Value(slot, ty)) = self.register(name) {
                    return Ok((Address { base: slot, wide: ty.bits() > 32, offset: *offset }, None));
                }
                let Some(place) = self.lookup(name)? else {
                    return self.unsupported(format!("nothing is called `{name}`"));
                };
                let base = self.constant(add(place.value, *offset), true);
                Ok((Address { base, wide: true, offset: 0 }, Some(place.space)))
            }
            Operand::Integer(n) => {
                let base = self.constant(Constant::Bits(n.wrapping_add_signed(*offset)), true);
                Ok((Address { base, wide: true, offset: 0 }, None))
            }
            _ => self.unsupported("this is no address"),
        }
    }

    /// The label a name stands for.
    pub(crate) fn label(&mut self, name: &str) -> Result<u32, Error> {
        match self.find(|s| s.labels.get(name).copied()) {
            Some(id) => Ok(id),
            None => self.unsupported(format!("no label `{name}`")),
        }
    }

    /// The labels of a `.branchtargets` list.
    pub(crate) fn table(&mut self, name: &str) -> Result<Box<[u32]>, Error> {
        match self.find(|s| s.tables.get(name).copied()) {
            Some(list) => list.iter().map(|n| self.label(n)).collect(),
            None => self.unsupported(format!("no branch targets `{name}`")),
        }
    }

    /// What `ret` becomes here.
    pub(crate) fn return_op(&self) -> Op {
        match self.returns.last() {
            Some(Some(label)) => Op::Branch(*label),
            _ => Op::Exit,
        }
    }

    /// Emits an extra instruction under the current line (an instruction that becomes several).
    pub(crate) fn extra(&mut self, guard: Option<Test>, op: Op) {
        self.emit(guard, op);
    }

    fn instruction(&mut self, i: &'a Instruction) -> Result<(), Error> {
        self.line = i.line;
        self.text.clone_from(&i.text);
        let source = i.loc.and_then(|loc| self.source_of(loc));
        self.program.lines.push(crate::fault::Instruction { line: i.line, text: i.text.clone(), source });
        let guard = match &i.guard {
            None => None,
            Some((name, negated)) => {
                Some(Test { pred: self.pred(&Operand::Name(name.clone(), 0))?, negated: *negated })
            }
        };
        let base = i.opcode.split('.').next().unwrap_or_default();
        if base == "call" {
            return self.call(i, guard);
        }
        let op = ops::decode(self, i, guard)?;
        self.emit(guard, op);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let labels = std::mem::take(&mut self.labels);
        let mut code = std::mem::take(&mut self.program.code);
        for c in &mut code {
            match &mut c.op {
                Op::Branch(to) => *to = labels[*to as usize],
                Op::BranchTable(_, list) => list.iter_mut().for_each(|to| *to = labels[*to as usize]),
                Op::CallTable(_, list) => {
                    let to = list.iter_mut().filter(|t| t.refused.is_none()).map(|t| &mut t.to);
                    to.for_each(|to| *to = labels[*to as usize]);
                }
                _ => {}
            }
        }
        self.program.code = code;
        self.program.constants =
            self.constants.iter().map(|(&(value, wide), &slot)| (slot, value, wide)).collect();
        self.program.constants.sort_by_key(|c| c.0.0);
        Ok(())
    }
}

fn add(value: Constant, offset: i64) -> Constant {
    match value {
        Constant::Bits(n) => Constant::Bits(n.wrapping_add_signed(offset)),
        Constant::Global(g, o) => Constant::Global(g, o.wrapping_add(offset)),
        Constant::Dynamic(o) => Constant::Dynamic(o.wrapping_add(offset)),
        Constant::Special(_) => value,
    }
}
