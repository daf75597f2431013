//! Statements at run time: frames of variables, loops, macros, output.
//!
//! A frame knows the one around it by its number. Macros and loops keep the number of the frame that they
//! were defined in; they never leave it, because containers and namespaces hold plain data only.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Body, Constant, For, Node, Post, Program, Stmt, Target};
use super::budget::{Budget, Res, fail};
use super::call::Args;
use super::value::{Function, Items, Loop, Macro, Sink, Value, undefined};
use super::{filters, methods, print};

/// Levels of the evaluator's own recursion.
const MAX_DEPTH: usize = 200;

const FUNCTIONS: [(&str, Function); 5] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
];

/// How a body ended.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

struct Frame {
    variables: Vec<(Arc<str>, Value)>,
    around: Option<usize>,
}

/// One rendering.
pub(super) struct Run<'t> {
    program: &'t Program,
    pub constants: Vec<Value>,
    pub budget: Rc<Budget>,
    pub now: Option<i64>,
    frames: Vec<Frame>,
    /// The innermost frame.
    frame: usize,
    out: Sink,
    depth: usize,
}

impl<'t> Run<'t> {
    /// Prepares a rendering with these variables.
    pub fn new(
        program: &'t Program,
        variables: Vec<(Arc<str>, Value)>,
        budget: &Rc<Budget>,
        now: Option<i64>,
    ) -> Res<Self> {
        let constant = |c: &Constant| {
            Ok(match c {
                Constant::Str(text) => methods::string(text, budget)?,
                Constant::Int(n) => Value::Int(*n),
                Constant::Float(x) => Value::Float(*x),
            })
        };
        Ok(Run {
            program,
            constants: program.constants.iter().map(constant).collect::<Res<_>>()?,
            budget: budget.clone(),
            now,
            frames: vec![Frame { variables, around: None }],
            frame: 0,
            out: Sink::new(budget)?,
            depth: 0,
        })
    }

    /// Renders the template.
    pub fn finish(mut self) -> Res<String> {
        self.body(&self.program.body)?;
        Ok(self.out.into_text())
    }

    /// Runs `inner` one level deeper.
    pub fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        if self.depth >= MAX_DEPTH {
            return fail(format!("recursion of more than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// The value of a variable.
    pub fn lookup(&mut self, name: &str) -> Res<Value> {
        let mut at = Some(self.frame);
        while let Some(frame) = at {
            let Frame { variables, around } = &self.frames[frame];
            self.budget.work(1 + variables.len() / 8)?;
            if let Some((_, value)) = variables.iter().find(|(n, _)| &**n == name) {
                return Ok(value.clone());
            }
            at = *around;
        }
        let function = FUNCTIONS.into_iter().find(|(n, _)| *n == name).map(|(_, f)| f);
        match function.filter(|f| *f != Function::StrftimeNow || self.now.is_some()) {
            Some(function) => Ok(Value::Function(function)),
            None => undefined(&["'", name, "' is undefined"], &self.budget),
        }
    }

    fn store(&mut self, name: &Arc<str>, value: Value) -> Res<()> {
        let variables = &mut self.frames[self.frame].variables;
        self.budget.work(1 + variables.len() / 8)?;
        match variables.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => variables.push((name.clone(), value)),
        }
        Ok(())
    }

    /// Runs `inner` with a new frame inside of `around`.
    fn framed<T>(&mut self, around: usize, inner: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        let before = self.frame;
        self.frames.push(Frame { variables: Vec::new(), around: Some(around) });
        self.frame = self.frames.len() - 1;
        let result = inner(self);
        self.frames.pop();
        self.frame = before;
        result
    }

    /// The text that `inner` writes.
    fn rendered(&mut self, inner: impl FnOnce(&mut Self) -> Res<()>) -> Res<Value> {
        let outer = std::mem::replace(&mut self.out, Sink::new(&self.budget)?);
        let result = inner(self);
        let text = std::mem::replace(&mut self.out, outer);
        result.map(|()| text.value())
    }

    fn body(&mut self, body: &'t Body) -> Res<Flow> {
        for node in body {
            self.budget.work(1)?;
            let flow = self.statement(node).map_err(|e| e.at(node.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, node: &'t Node) -> Res<Flow> {
        match &node.stmt {
            Stmt::Text(at) => self.out.push(self.constants[*at].str().unwrap_or_default())?,
            Stmt::Print(expr) => {
                let value = self.eval(expr)?;
                print::show(&value, &mut self.out)?;
            }
            Stmt::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test)?.truth() {
                        return self.deeper(|run| run.body(body));
                    }
                }
                return self.deeper(|run| run.body(otherwise));
            }
            Stmt::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            Stmt::Macro(index) => {
                let def = Macro { index: *index, frame: self.frame };
                self.store(&self.program.macros[*index].name, Value::Macro(def))?;
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
            block => return self.deeper(|run| run.block(block)),
        }
        Ok(Flow::Next)
    }

    /// Statements with a body in a frame of its own.
    fn block(&mut self, stmt: &'t Stmt) -> Res<Flow> {
        let here = self.frame;
        match stmt {
            Stmt::For(index) => {
                let def = &self.program.loops[*index];
                let items = self.eval(&def.items)?;
                self.run_loop(*index, &items, 1, here)?;
            }
            Stmt::SetBlock(target, posts, body) => {
                let mut text = self.rendered(|run| run.framed(here, |run| run.body(body).map(drop)))?;
                text = self.filtered(text, posts)?;
                self.assign(target, text)?;
            }
            Stmt::Filter(posts, body) => {
                let text = self.rendered(|run| run.framed(here, |run| run.body(body).map(drop)))?;
                let text = self.filtered(text, posts)?;
                print::show(&text, &mut self.out)?;
            }
            Stmt::With(variables, body) => {
                let mut values = Vec::new();
                for (_, expr) in variables {
                    values.push(self.eval(expr)?);
                }
                return self.framed(here, |run| {
                    for ((target, _), value) in variables.iter().zip(values) {
                        run.assign(target, value)?;
                    }
                    run.body(body)
                });
            }
            Stmt::Call(index, expr) => {
                let caller = Value::Macro(Macro { index: *index, frame: here });
                let text = self.call_block(expr, caller)?;
                print::show(&text, &mut self.out)?;
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn filtered(&mut self, mut value: Value, posts: &'t [Post]) -> Res<Value> {
        for post in posts {
            value = self.post(value, post)?;
        }
        Ok(value)
    }

    fn assign(&mut self, target: &Target, value: Value) -> Res<()> {
        match target {
            Target::Name(name) => self.store(name, value),
            Target::Field(name, field) => match self.lookup(name)? {
                Value::Space(space) => space.set(field, value),
                other => fail(format!("fields of a {} cannot be set; a namespace's can", other.kind())),
            },
            Target::Tuple(targets) => {
                let values = filters::iterate(&value, &self.budget)?;
                if values.items.len() != targets.len() {
                    return fail(format!("{} values for {} names", values.items.len(), targets.len()));
                }
                targets.iter().zip(&values.items).try_for_each(|(t, v)| self.assign(t, v.clone()))
            }
        }
    }

    /// Runs a loop's body for each item that passes its condition.
    fn run_loop(&mut self, index: usize, items: &Value, depth: usize, around: usize) -> Res<()> {
        let def: &'t For = &self.program.loops[index];
        let all = filters::iterate(items, &self.budget)?;
        let mut kept = Items::new(&self.budget)?;
        for item in &all.items {
            let passes = match &def.test {
                None => true,
                Some(test) => self.framed(around, |run| {
                    run.assign(&def.target, item.clone())?;
                    Ok(run.eval(test)?.truth())
                })?,
            };
            if passes {
                kept.push(item.clone())?;
            }
        }
        let state = self.loop_over(kept, depth, def.recursive.then_some(index), around);
        let name: Arc<str> = "loop".into();
        for (at, item) in state.items.items.iter().enumerate() {
            state.index.set(at);
            let flow = self.framed(around, |run| {
                run.store(&name, Value::Loop(state.clone()))?;
                run.assign(&def.target, item.clone())?;
                run.body(&def.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        if state.items.items.is_empty() {
            self.framed(around, |run| run.body(&def.otherwise).map(drop))?;
        }
        Ok(())
    }

    /// `loop(items)` of a recursive loop.
    pub fn recurse(&mut self, state: &Loop, items: &Value) -> Res<Value> {
        let Some(index) = state.recursive else { return fail("the loop is not marked as recursive") };
        let (depth, around) = (state.depth + 1, state.frame);
        self.deeper(|run| run.rendered(|run| run.run_loop(index, items, depth, around)))
    }

    /// The text of a macro.
    pub fn call_macro(&mut self, called: Macro, mut args: Args) -> Res<Value> {
        let def = &self.program.macros[called.index];
        self.deeper(|run| {
            run.rendered(|run| {
                run.framed(called.frame, |run| {
                    for (name, default) in &def.params {
                        // An argument is looked for among all that have names.
                        run.budget.work(1 + args.len() / 8)?;
                        let value = match (args.take(name), default) {
                            (Some(value), _) => value,
                            (None, Some(default)) => run.eval(default)?,
                            (None, None) => undefined(&["'", name, "' is undefined"], &run.budget)?,
                        };
                        run.store(name, value)?;
                    }
                    if let Some(caller) = args.take_named("caller") {
                        run.store(&"caller".into(), caller)?;
                    }
                    args.end().map_err(|e| e.of("macro", &def.name))?;
                    run.body(&def.body).map(drop)
                })
            })
        })
    }

    fn call_block(&mut self, expr: &'t super::ast::Expr, caller: Value) -> Res<Value> {
        let super::ast::Expr::Post(base, posts) = expr else { return fail("`call` needs a call") };
        let Some((Post::Call(arguments), before)) = posts.split_last() else {
            return fail("`call` needs a call");
        };
        let callee = self.eval(base)?;
        let callee = self.filtered(callee, before)?;
        let mut args = self.arguments(arguments)?;
        args.name("caller", caller);
        self.call(&callee, args)
    }
}
