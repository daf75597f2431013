//! From the syntax tree to [`Code`]: names become slots, labels become indices, calls are inlined.
//!
//! Each kernel is lowered by itself. A call of a `.func` lowers the function's body in place, with fresh
//! registers and with its parameters bound to the caller's, so the machine knows no stack; recursion is
//! refused. Device-function parameters and
//! `.local` variables share one area of local memory per thread, each with its own place.

mod call;
mod context;
mod functions;
mod operand;
mod source;

pub(crate) use context::Context;
pub(crate) use functions::{Functions, Shape};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Error;
use crate::code::{Code, Constant, Op, Program, SHARED_START, Test};
use crate::ops;
use crate::registers::{Pred, Slot};
use crate::text::syntax::{Function, Instruction, Item, Loc, Operand, Space, Variable};
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
    context: &'a Context<'a>,
    pub(crate) program: Program,
    scopes: Vec<Scope<'a>>,
    constants: HashMap<(Constant, bool), Slot>,
    /// Index of each label once it is known.
    labels: Vec<u32>,
    /// Where `ret` goes: a label inside a function, none in the kernel.
    returns: Vec<Option<u32>>,
    calls: Vec<String>,
    /// Errors of instructions, when all of them are wanted.
    collected: Option<Refusals>,
    /// The instruction being lowered.
    line: u32,
    text: Arc<str>,
    /// What each `.loc` says.
    sources: HashMap<Loc, Option<Arc<str>>>,
    /// A limit is passed: nothing that follows is lowered.
    full: bool,
}

/// Instructions that cannot be lowered.
#[derive(Default)]
struct Refusals {
    errors: Vec<Error>,
    /// Where they stand in the tree.
    seen: HashSet<*const Instruction>,
}

impl Refusals {
    fn note(&mut self, i: &Instruction, error: Error) {
        if self.seen.insert(std::ptr::from_ref(i)) {
            self.errors.push(error);
        }
    }
}

/// What cannot be lowered in a kernel: every instruction, not only the first, and each once, however often
/// the function that it stands in is inlined.
pub(crate) fn refusals<'a>(context: &'a Context<'a>, entry: &'a Function) -> Vec<Error> {
    let mut l = Lowering::new(context, entry);
    l.collected = Some(Refusals::default());
    let fatal = l.run(entry).err();
    l.collected.unwrap_or_default().errors.into_iter().chain(fatal).collect()
}

/// Lowers a kernel.
pub(crate) fn kernel<'a>(
    context: &'a Context<'a>,
    entry: &'a Function,
) -> Result<(Program, Vec<crate::Parameter>), Error> {
    let mut l = Lowering::new(context, entry);
    let parameters = l.run(entry)?;
    Ok((l.program, parameters))
}

impl<'a> Lowering<'a> {
    fn new(context: &'a Context<'a>, entry: &Function) -> Self {
        Lowering {
            context,
            program: Program { shared_end: SHARED_START, shared_align: 16, ..Program::default() },
            scopes: vec![Scope::default()],
            constants: HashMap::new(),
            labels: Vec::new(),
            returns: vec![None],
            calls: vec![entry.name.clone()],
            collected: None,
            line: entry.line,
            text: entry.name.as_str().into(),
            sources: HashMap::new(),
            full: false,
        }
    }

    /// Counts what a text's kernels come to.
    fn spend(&mut self, work: u64) -> Result<(), Error> {
        self.context.spend(work).or_else(|what| {
            self.full = true;
            self.unsupported(what)
        })
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
        Err(Error::Unsupported { line: self.line, text: self.text.to_string(), what: what.into() })
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
            self.spend(1)?;
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
                    // What has no end ends for good.
                    (Err(e), Some(refused)) if !self.full => refused.note(i, e),
                    (result, _) => result?,
                },
            }
            if self.program.code.len() > LENGTH || self.program.units.max(self.program.preds) > 1 << 18 {
                self.full = true;
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
            self.spend(count.unwrap_or(1).into())?;
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
        if let Some(index) = self.context.global(name) {
            return Ok(Some(Place { space: Space::Global, value: Constant::Global(index, 0) }));
        }
        let Some(v) = self.context.shared(name) else { return Ok(None) };
        let place = self.place_variable(v)?;
        self.scopes[0].variables.insert(name.into(), place);
        Ok(Some(place))
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
        self.text = Arc::clone(&i.text);
        let source = i.loc.and_then(|loc| self.source_of(loc));
        self.program.lines.push(crate::fault::Instruction {
            line: i.line,
            text: Arc::clone(&i.text),
            source,
        });
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
