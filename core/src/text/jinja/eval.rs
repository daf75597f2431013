//! Expressions at run time.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Arguments, Comparison, Expr, Post};
use super::budget::{Fail, Res, fail};
use super::call::Args;
use super::render::Run;
use super::value::{Entries, Function, Items, Loop, Sink, Space, Value, undefined};
use super::{access, checks, filters, methods, ops, print, select};
use crate::text::clock;

/// Longest `range`, as in Python's sandbox.
const MAX_RANGE: i128 = 100_000;
/// Bytes of a format of `strftime_now`: a field of five bytes may become 255.
const MOST_FORMAT: usize = 256;
/// Characters of an error that a template raises.
const MOST_RAISED: usize = 2000;

impl<'t> Run<'t> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Res<Value> {
        self.budget.work(1)?;
        match expr {
            Expr::Const(at) => Ok(self.constants[*at].clone()),
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Name(name) => self.lookup(name),
            Expr::Post(base, posts) => self.deeper(|run| run.posts(base, posts)),
            _ => self.deeper(|run| run.compound(expr)),
        }
    }

    fn compound(&mut self, expr: &'t Expr) -> Res<Value> {
        match expr {
            Expr::List(items) => Ok(self.items(items)?.list()),
            Expr::Tuple(items) => Ok(self.items(items)?.tuple()),
            Expr::Dict(entries) => self.dict(entries),
            Expr::Not(inner) => Ok(Value::Bool(!self.eval(inner)?.truth())),
            Expr::Sign(minus, inner) => ops::sign(*minus, &self.eval(inner)?),
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, operand) in rest {
                    let operand = self.eval(operand)?;
                    value = ops::binary(*operator, &value, &operand, &self.budget)?;
                }
                Ok(value)
            }
            Expr::And(all) => self.until(all, false),
            Expr::Or(all) => self.until(all, true),
            Expr::Concat(all) => {
                let mut out = Sink::new(&self.budget)?;
                for part in all {
                    print::show(&self.eval(part)?, &mut out)?;
                }
                Ok(out.value())
            }
            Expr::Compare(first, rest) => self.compare(first, rest),
            Expr::If(parts) => {
                let (then, test, otherwise) = &**parts;
                match (self.eval(test)?.truth(), otherwise) {
                    (true, _) => self.eval(then),
                    (false, Some(otherwise)) => self.eval(otherwise),
                    (false, None) => undefined(&["the condition has no `else`"], &self.budget),
                }
            }
            other => self.eval(other),
        }
    }

    fn items(&mut self, exprs: &'t [Expr]) -> Res<Items> {
        let mut out = Items::new(&self.budget)?;
        for expr in exprs {
            let value = self.eval(expr)?;
            out.push(value)?;
        }
        Ok(out)
    }

    fn dict(&mut self, entries: &'t [(Expr, Expr)]) -> Res<Value> {
        let mut out = Entries::new(&self.budget)?;
        for (key, value) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            out.set(key, value)?;
        }
        Ok(out.value())
    }

    /// The first value whose truth is `stop`, or the last.
    fn until(&mut self, all: &'t [Expr], stop: bool) -> Res<Value> {
        let mut value = Value::None;
        for expr in all {
            value = self.eval(expr)?;
            if value.truth() == stop {
                break;
            }
        }
        Ok(value)
    }

    fn compare(&mut self, first: &'t Expr, rest: &'t [(Comparison, Expr)]) -> Res<Value> {
        let mut left = self.eval(first)?;
        for (how, expr) in rest {
            let right = self.eval(expr)?;
            let budget = &self.budget;
            let holds = match how {
                Comparison::Equal => ops::equal(&left, &right, budget)?,
                Comparison::NotEqual => !ops::equal(&left, &right, budget)?,
                Comparison::Less => ops::compare(&left, &right, budget)?.is_some_and(Ordering::is_lt),
                Comparison::LessEqual => ops::compare(&left, &right, budget)?.is_some_and(Ordering::is_le),
                Comparison::Greater => ops::compare(&left, &right, budget)?.is_some_and(Ordering::is_gt),
                Comparison::GreaterEqual => ops::compare(&left, &right, budget)?.is_some_and(Ordering::is_ge),
                Comparison::In => ops::contains(&right, &left, budget)?,
                Comparison::NotIn => !ops::contains(&right, &left, budget)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn posts(&mut self, base: &'t Expr, posts: &'t [Post]) -> Res<Value> {
        let mut value = match (base, posts.first()) {
            // `is defined` and `default` may ask for what is not there; so may all others, as long as it is
            // not used.
            (Expr::Name(name), _) => self.lookup(name)?,
            _ => self.eval(base)?,
        };
        for post in posts {
            value = self.post(value, post)?;
        }
        Ok(value)
    }

    /// One step of a chain.
    pub(super) fn post(&mut self, value: Value, post: &'t Post) -> Res<Value> {
        self.budget.work(1)?;
        match post {
            Post::Attr(name) => match &value {
                Value::Loop(_) if matches!(&**name, "cycle" | "changed") => {
                    Ok(Value::Method(Rc::new((value, name.clone()))))
                }
                _ => access::attribute(&value, name, &self.budget),
            },
            Post::Item(key) => {
                let key = self.eval(key)?;
                access::item(&value, &key, &self.budget)
            }
            Post::Slice(parts) => {
                let mut bounds = [Value::None, Value::None, Value::None];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    if let Some(part) = part {
                        *bound = self.eval(part)?;
                    }
                }
                ops::slice(&value, bounds, &self.budget)
            }
            Post::Call(arguments) => {
                let args = self.arguments(arguments)?;
                self.call(&value, args)
            }
            Post::Filter(name, arguments) => {
                let args = self.arguments(arguments)?;
                select::filter(name, &value, args, &self.budget).map_err(|e| e.of("filter", name))
            }
            Post::Test(name, arguments, negated) => {
                let args = self.arguments(arguments)?;
                let holds = checks::apply(name, &value, args, &self.budget)?;
                Ok(Value::Bool(holds != *negated))
            }
        }
    }

    pub(super) fn arguments(&mut self, arguments: &'t Arguments) -> Res<Args> {
        let mut positional = Vec::with_capacity(arguments.positional.len());
        for expr in &arguments.positional {
            positional.push(self.eval(expr)?);
        }
        let mut named = Vec::with_capacity(arguments.named.len());
        for (name, expr) in &arguments.named {
            named.push((name.clone(), self.eval(expr)?));
        }
        Ok(Args::new(positional, named))
    }

    /// `value(args)`.
    pub(super) fn call(&mut self, value: &Value, mut args: Args) -> Res<Value> {
        match value {
            Value::Macro(def) => self.call_macro(*def, args),
            Value::Loop(state) => {
                let items = args.need("iterable")?;
                args.end()?;
                self.recurse(state, &items)
            }
            Value::Method(method) => match &**method {
                (Value::Loop(state), name) => self.loop_method(state, name, &args),
                (owner, name) => {
                    methods::call(owner, name, args, &self.budget).map_err(|e| e.of("method", name))
                }
            },
            Value::Function(function) => self.function(*function, args),
            Value::Undefined(what) => fail(print::undefined(what)),
            other => fail(format!("a {} cannot be called", other.kind())),
        }
    }

    fn loop_method(&mut self, state: &Loop, name: &str, args: &Args) -> Res<Value> {
        if name == "cycle" {
            let count = args.count().max(1);
            return match args.nth(state.index.get() % count) {
                Some(value) => Ok(value),
                None => fail("`cycle` needs values"),
            };
        }
        let mut now = Items::new(&self.budget)?;
        (0..args.count()).try_for_each(|at| args.nth(at).map_or(Ok(()), |v| now.push(v)))?;
        let now = now.tuple();
        let same = match &*state.seen.borrow() {
            Some(before) => ops::equal(before, &now, &self.budget)?,
            None => false,
        };
        state.seen.replace(Some(now));
        Ok(Value::Bool(!same))
    }

    fn function(&mut self, function: Function, mut args: Args) -> Res<Value> {
        match function {
            Function::Range => self.range(args),
            Function::Dict => {
                let first = args.take("");
                let mut out = Entries::new(&self.budget)?;
                match &first {
                    None => {}
                    Some(Value::Dict(dict)) => {
                        for (key, value) in &dict.entries {
                            out.push(key.clone(), value.clone())?;
                        }
                    }
                    Some(pairs) => {
                        for pair in &filters::iterate(pairs, &self.budget)?.items {
                            let pair = filters::iterate(pair, &self.budget)?;
                            let [key, value] = pair.items.as_slice() else {
                                return fail("`dict` needs pairs");
                            };
                            out.set(key.clone(), value.clone())?;
                        }
                    }
                }
                for (name, value) in self.only_named(args)? {
                    out.set(methods::string(&name, &self.budget)?, value)?;
                }
                Ok(out.value())
            }
            Function::Namespace => {
                let space = Space::new(&self.budget)?;
                if let Some(Value::Dict(dict)) = args.take("") {
                    for (key, value) in &dict.entries {
                        space.set(key.str().unwrap_or_default(), value.clone())?;
                    }
                }
                for (name, value) in self.only_named(args)? {
                    space.set(&name, value)?;
                }
                Ok(Value::Space(space))
            }
            Function::RaiseException => {
                let text = print::text(&args.need("message")?, &self.budget)?;
                fail(text.str().unwrap_or_default().chars().take(MOST_RAISED).collect::<String>())
            }
            Function::StrftimeNow => self.strftime(args),
        }
    }

    fn strftime(&self, mut args: Args) -> Res<Value> {
        let format = args.need("format")?;
        args.end()?;
        let Some(now) = self.now else { return fail("strftime_now: no clock") };
        let format = format.str().unwrap_or_default();
        if format.len() > MOST_FORMAT {
            let found = format.len();
            return fail(format!("strftime_now: a format of {found} bytes; {MOST_FORMAT} are allowed"));
        }
        self.budget.work(4 * format.len())?;
        let text = clock::strftime(format, now).map_err(|e| Fail::new(e.to_string()))?;
        methods::string(&text, &self.budget)
    }

    fn only_named(&self, args: Args) -> Res<Vec<(Arc<str>, Value)>> {
        if args.count() > 0 {
            return fail("one argument without a name is possible here");
        }
        Ok(args.all_named())
    }

    fn range(&mut self, mut args: Args) -> Res<Value> {
        let whole = |v: Option<Value>| match v {
            None => Ok(None),
            Some(v) => v.int().map(Some).ok_or_else(|| Fail::new("`range` needs whole numbers")),
        };
        let (first, second, step) =
            (whole(args.take("start"))?, whole(args.take("stop"))?, whole(args.take("step"))?);
        args.end()?;
        let (start, stop) = match (first, second) {
            (Some(start), Some(stop)) => (start, stop),
            (Some(stop), None) => (0, stop),
            _ => return fail("`range` needs its end"),
        };
        let step = step.unwrap_or(1);
        let mut out = Items::new(&self.budget)?;
        let mut at = start;
        let mut count = 0;
        while step != 0 && ((step > 0 && at < stop) || (step < 0 && at > stop)) {
            count += 1;
            if count > MAX_RANGE {
                return fail(format!("a range of more than {MAX_RANGE} numbers"));
            }
            out.push(Value::Int(at))?;
            at = at.saturating_add(step);
        }
        if step == 0 { fail("`range` with step 0") } else { Ok(out.list()) }
    }

    /// A new loop over `items`.
    pub(super) fn loop_over(
        &self,
        items: Items,
        depth: usize,
        recursive: Option<usize>,
        frame: usize,
    ) -> Rc<Loop> {
        Rc::new(Loop {
            items: items.rc(),
            index: Cell::new(0),
            depth,
            recursive,
            frame,
            seen: RefCell::new(None),
        })
    }
}
