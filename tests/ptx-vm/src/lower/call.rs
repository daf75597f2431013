//! Calls, inlined.

use super::{CALLS, Lowering, Place, Scope};
use crate::Error;
use crate::code::{Constant, Op, Test};
use crate::ops::print::Print;
use crate::text::syntax::{Instruction, Operand, Space, Variable};

impl<'a> Lowering<'a> {
    /// Lowers a call of `vprintf`, whose parameters lie in local memory.
    fn print(
        &mut self,
        results: &[Operand],
        arguments: &[Operand],
        guard: Option<Test>,
    ) -> Result<(), Error> {
        let ([format, values], [] | [_]) = (arguments, results) else {
            return self.unsupported(
                "`vprintf` takes a format and the address of its arguments, and gives one number",
            );
        };
        let mut at = |operand: &Operand| match operand {
            Operand::Name(name, 0) => match self.lookup(name)? {
                Some(Place { space: Space::Local, value: Constant::Bits(at) }) => Ok(at),
                _ => self.unsupported(format!("argument `{name}` is no `.param` variable")),
            },
            _ => self.unsupported("an argument that is no `.param` variable"),
        };
        let (format, arguments) = (at(format)?, at(values)?);
        let result = results.first().map(at).transpose()?;
        // The text of several blocks comes in the order in which they run.
        self.program.dependent = true;
        self.emit(guard, Op::Print(Box::new(Print { format, arguments, result })));
        Ok(())
    }

    /// Lowers a call: the function's body in place, its parameters bound to the caller's.
    pub(super) fn call(&mut self, i: &'a Instruction, guard: Option<Test>) -> Result<(), Error> {
        let (results, name, arguments): (&[Operand], _, &[Operand]) = match &i.operands[..] {
            [Operand::List(r), Operand::Name(f, 0), Operand::List(a)] => (r, f, a),
            [Operand::Name(f, 0), Operand::List(a)] => (&[], f, a),
            [Operand::Name(f, 0)] => (&[], f, &[]),
            _ => return self.unsupported("only direct calls with their arguments in parentheses"),
        };
        if name == "__assertfail" {
            self.emit(guard, Op::Trap("a device-side assertion failed"));
            return Ok(());
        }
        if name == "vprintf"
            && !self.functions.get(name).is_some_and(|&f| self.file.functions[f].body.is_some())
        {
            return self.print(results, arguments, guard);
        }
        let Some(&index) = self.functions.get(name) else {
            return self.unsupported(format!("no function `{name}`"));
        };
        let file = self.file;
        let function = &file.functions[index];
        let Some(body) = &function.body else {
            return self.unsupported(format!("function `{name}` has no body"));
        };
        if self.calls.contains(name) || self.calls.len() >= CALLS {
            return self.unsupported(format!(
                "`{name}` is recursive or more than {CALLS} calls deep; calls are inlined"
            ));
        }
        let formal: Vec<&Variable> = function.returns.iter().chain(&function.parameters).collect();
        if function.returns.len() != results.len() || function.parameters.len() != arguments.len() {
            return self.unsupported(format!(
                "`{name}` has {} results and {} parameters",
                function.returns.len(),
                function.parameters.len()
            ));
        }
        let mut scope = Scope { wall: true, ..Scope::default() };
        for (v, actual) in formal.iter().zip(results.iter().chain(arguments)) {
            let Operand::Name(actual, 0) = actual else {
                return self.unsupported("an argument that is no `.param` variable");
            };
            match self.lookup(actual)? {
                Some(place) if place.space == Space::Local => scope.variables.insert(v.name.clone(), place),
                _ => return self.unsupported(format!("argument `{actual}` is no `.param` variable")),
            };
        }
        let label = |l: &mut Self| {
            l.labels.push(u32::MAX);
            l.labels.len() as u32 - 1
        };
        let end = label(self);
        if let Some(t) = guard {
            self.emit(Some(Test { negated: !t.negated, ..t }), Op::Branch(end));
        }
        self.scopes.push(scope);
        self.returns.push(Some(end));
        self.calls.push(name.clone());
        self.items(body)?;
        self.calls.pop();
        self.returns.pop();
        self.scopes.pop();
        self.labels[end as usize] = self.program.code.len() as u32;
        Ok(())
    }
}
