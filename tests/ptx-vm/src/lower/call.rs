//! Calls, inlined. An indirect call becomes a table of every function that its pointer can hold, each inlined
//! behind it.

use super::functions::Shape;
use super::{CALLS, Lowering, Place, Scope};
use crate::Error;
use crate::code::{Constant, Op, Test};
use crate::ops::control::CallTarget;
use crate::ops::heap::HeapCall;
use crate::ops::print::Print;
use crate::text::syntax::{Instruction, Operand, Space, Variable};

/// Results and arguments of a call.
#[derive(Clone, Copy)]
struct Actual<'a> {
    results: &'a [Operand],
    arguments: &'a [Operand],
}

impl<'a> Lowering<'a> {
    /// Lowers a call: the function's body in place, its parameters bound to the caller's.
    pub(super) fn call(&mut self, i: &'a Instruction, guard: Option<Test>) -> Result<(), Error> {
        let (results, rest): (&[Operand], _) = match &i.operands[..] {
            [Operand::List(r), rest @ ..] => (r, rest),
            rest => (&[], rest),
        };
        let (name, arguments, label): (_, &[Operand], _) = match rest {
            [Operand::Name(f, 0)] => (f, &[], None),
            [Operand::Name(f, 0), Operand::List(a)] => (f, a, None),
            [Operand::Name(f, 0), Operand::Name(p, 0)] => (f, &[], Some(p)),
            [Operand::Name(f, 0), Operand::List(a), Operand::Name(p, 0)] => (f, a, Some(p)),
            _ => return self.unsupported("a call has a function, its arguments in parentheses, a prototype"),
        };
        let actual = Actual { results, arguments };
        if self.register(name).is_some() {
            let Some(label) = label else {
                return self.unsupported("an indirect call needs `.callprototype` or `.calltargets`");
            };
            return self.indirect(name, actual, label, guard);
        }
        if name == "__assertfail" {
            self.emit(guard, Op::Trap("a device-side assertion failed"));
            return Ok(());
        }
        if name == "vprintf" && !self.context.functions.has_body(self.context.file, name) {
            return self.print(actual, guard);
        }
        let Some(index) = self.context.functions.get(name) else {
            return self.unsupported(format!("no function `{name}`"));
        };
        if matches!(name.as_str(), "malloc" | "free") && self.context.file.functions[index].body.is_none() {
            return self.heap(index, actual, guard);
        }
        // By its own name, whatever alias calls it.
        let own = &self.context.file.functions[index].name;
        if self.calls.contains(own) || self.calls.len() >= CALLS {
            return self.unsupported(format!(
                "`{own}` is recursive or more than {CALLS} calls deep; calls are inlined"
            ));
        }
        let end = self.new_label();
        self.skip_unless(guard, end);
        self.inline(index, actual, end)?;
        self.labels[end as usize] = self.program.code.len() as u32;
        Ok(())
    }

    fn new_label(&mut self) -> u32 {
        self.labels.push(u32::MAX);
        self.labels.len() as u32 - 1
    }

    /// Lanes whose guard does not hold go around what follows.
    fn skip_unless(&mut self, guard: Option<Test>, end: u32) {
        if let Some(t) = guard {
            self.emit(Some(Test { negated: !t.negated, ..t }), Op::Branch(end));
        }
    }

    /// The body of a function, which returns to a label.
    fn inline(&mut self, index: usize, actual: Actual<'_>, end: u32) -> Result<(), Error> {
        let file = self.context.file;
        let function = &file.functions[index];
        let name = &function.name;
        let Some(body) = &function.body else {
            return self.unsupported(format!("function `{name}` has no body"));
        };
        self.spend((function.returns.len() + function.parameters.len()) as u64)?;
        let formal: Vec<&Variable> = function.returns.iter().chain(&function.parameters).collect();
        if function.returns.len() != actual.results.len()
            || function.parameters.len() != actual.arguments.len()
        {
            return self.unsupported(format!(
                "`{name}` has {} results and {} parameters",
                function.returns.len(),
                function.parameters.len()
            ));
        }
        let mut scope = Scope { wall: true, ..Scope::default() };
        for (v, actual) in formal.iter().zip(actual.results.iter().chain(actual.arguments)) {
            let place = self.parameter(actual)?;
            scope.variables.insert(v.name.clone(), place);
        }
        self.scopes.push(scope);
        self.returns.push(Some(end));
        self.calls.push(name.clone());
        self.items(body)?;
        self.calls.pop();
        self.returns.pop();
        self.scopes.pop();
        Ok(())
    }

    /// The place of a `.param` variable that a call names.
    fn parameter(&mut self, actual: &Operand) -> Result<Place, Error> {
        let Operand::Name(actual, 0) = actual else {
            return self.unsupported("an argument that is no `.param` variable");
        };
        match self.lookup(actual)? {
            Some(place) if place.space == Space::Local => Ok(place),
            _ => self.unsupported(format!("argument `{actual}` is no `.param` variable")),
        }
    }

    /// Lowers a call through a register: lanes go to the function that their pointer holds.
    fn indirect(
        &mut self,
        pointer: &str,
        actual: Actual<'_>,
        label: &str,
        guard: Option<Test>,
    ) -> Result<(), Error> {
        let slot = self.source(&Operand::Name(pointer.into(), 0), crate::text::types::Type::Bits(64))?;
        let (candidates, wanted) = self.candidates(label)?;
        let given = (actual.results.len(), actual.arguments.len());
        if wanted.as_ref().is_some_and(|shape| shape.counts() != given) {
            return self.unsupported(format!(
                "{} results and {} arguments are not those of prototype `{label}`",
                given.0, given.1
            ));
        }
        let end = self.new_label();
        self.skip_unless(guard, end);
        let at = self.program.code.len();
        self.emit(None, Op::Nop);
        let mut targets = Vec::new();
        for index in candidates {
            let function = &self.context.file.functions[index];
            self.spend(1 + (function.returns.len() + function.parameters.len()) as u64)?;
            let refused = self.refused(index, given, wanted.as_ref(), label);
            let mut target = CallTarget { address: self.context.functions.address(index), to: 0, refused };
            if target.refused.is_none() {
                target.to = self.new_label();
                self.labels[target.to as usize] = self.program.code.len() as u32;
                self.inline(index, actual, end)?;
                self.emit(None, Op::Branch(end));
            }
            targets.push(target);
        }
        self.program.code[at].op = Op::CallTable(slot, targets.into());
        self.labels[end as usize] = self.program.code.len() as u32;
        Ok(())
    }

    /// Why an indirect call cannot call a function, if it cannot.
    fn refused(
        &self,
        index: usize,
        given: (usize, usize),
        wanted: Option<&Shape>,
        label: &str,
    ) -> Option<Box<str>> {
        let function = &self.context.file.functions[index];
        let (name, own) = (&function.name, Shape::of(function));
        let why = match wanted {
            _ if self.calls.contains(name) || self.calls.len() >= CALLS => {
                format!("is recursive or more than {CALLS} calls deep; calls are inlined")
            }
            Some(wanted) if *wanted != own => format!("has {own}, prototype `{label}` has {wanted}"),
            None if own.counts() != given => {
                format!("has {own}, the call {} parameters and {} results", given.1, given.0)
            }
            _ => return None,
        };
        Some(format!("function `{name}` {why}").into())
    }

    /// The functions that an indirect call with this label can reach, and the shape that it says they have.
    fn candidates(&mut self, label: &str) -> Result<(Vec<usize>, Option<Shape>), Error> {
        if let Some(prototype) = self.find(|s| s.prototypes.get(label).copied()) {
            return Ok((self.context.functions.taken().to_vec(), Some(Shape::of(prototype))));
        }
        let Some(names) = self.find(|s| s.tables.get(label).copied()) else {
            return self.unsupported(format!("no prototype and no call targets `{label}`"));
        };
        let index = |name: &String| match self.context.functions.get(name) {
            Some(index) => Ok(index),
            None => self.unsupported(format!("call target `{name}` is no function")),
        };
        Ok((names.iter().map(index).collect::<Result<_, _>>()?, None))
    }

    /// Lowers a call of `vprintf`, whose parameters lie in local memory.
    fn print(&mut self, actual: Actual<'_>, guard: Option<Test>) -> Result<(), Error> {
        let ([format, values], [] | [_]) = (actual.arguments, actual.results) else {
            return self.unsupported(
                "`vprintf` takes a format and the address of its arguments, and gives one number",
            );
        };
        let (format, arguments) = (self.local_parameter(format)?, self.local_parameter(values)?);
        let result = actual.results.first().map(|r| self.local_parameter(r)).transpose()?;
        // The text of several blocks comes in the order in which they run.
        self.program.dependent = true;
        self.emit(guard, Op::Print(Box::new(Print { format, arguments, result })));
        Ok(())
    }

    /// Lowers a call of `malloc` or `free` that no text defines.
    fn heap(&mut self, index: usize, actual: Actual<'_>, guard: Option<Test>) -> Result<(), Error> {
        let file = self.context.file;
        let function = &file.functions[index];
        let (returns, shape) = (usize::from(function.name == "malloc"), Shape::of(function));
        let wanted = Shape { returns: vec![8; returns], parameters: vec![8] };
        if shape != wanted {
            return self
                .unsupported(format!("`{}` is declared with {shape}, it has {wanted}", function.name));
        }
        let call = match (actual.results, actual.arguments) {
            ([result], [bytes]) if returns == 1 => {
                let (bytes, result) = (self.local_parameter(bytes)?, self.local_parameter(result)?);
                HeapCall::Allocate { bytes, result }
            }
            ([], [pointer]) if returns == 0 => HeapCall::Free { pointer: self.local_parameter(pointer)? },
            _ => return self.unsupported(format!("`{}` has {wanted}", function.name)),
        };
        // Whether there is room for a block depends on what the others have taken.
        (self.program.heap, self.program.dependent) = (true, true);
        self.emit(guard, Op::Heap(call));
        Ok(())
    }

    /// The offset in local memory of a `.param` variable that a call names.
    fn local_parameter(&mut self, operand: &Operand) -> Result<u64, Error> {
        match self.parameter(operand)?.value {
            Constant::Bits(at) => Ok(at),
            _ => self.unsupported("an argument that is no `.param` variable"),
        }
    }
}
