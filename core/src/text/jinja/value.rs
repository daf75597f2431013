//! Values of a template.
//!
//! Containers hold plain data only: no namespace, no loop, no macro. So a value is a tree without a way back
//! to itself, at most [`MAX_DEPTH`] high, and printing, comparing and dropping it need a bounded stack. A
//! tree may share its parts; whoever walks it pays for each visit.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::budget::{Budget, OVERHEAD, Res, fail};
use super::lexer::MOST_NAME;

/// Most containers inside one another. JSON that is read has at most 128.
pub(super) const MAX_DEPTH: usize = 130;
/// Most fields of a namespace.
const MAX_FIELDS: usize = 10_000;

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Nothing was found; the text says what was looked for.
    Undefined(Rc<Text>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<Text>),
    List(Rc<List>),
    Tuple(Rc<List>),
    Dict(Rc<Dict>),
    Space(Rc<Space>),
    Loop(Rc<Loop>),
    Macro(Macro),
    Function(Function),
    Method(Rc<(Value, Arc<str>)>),
}

/// Functions that every template has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// A macro and the frame that it was defined in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Macro {
    /// Into the program's macros.
    pub index: usize,
    /// Into the frames.
    pub frame: usize,
}

/// A string.
#[derive(Debug)]
pub(super) struct Text {
    pub text: String,
    budget: Rc<Budget>,
}

impl Text {
    /// Makes room for `more` bytes.
    fn grow(&mut self, more: usize) -> Res<()> {
        let (len, room) = (self.text.len(), self.text.capacity());
        let Some(wanted) = larger(len, room, more, 16) else { return Ok(()) };
        self.budget.take(wanted)?;
        self.text.reserve_exact(wanted - len);
        self.budget.give(room);
        Ok(())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.budget.give(self.text.capacity() + OVERHEAD);
    }
}

/// The room that `len` things and `more` need, unless there is `room` enough: at least half as much again, so
/// that all the moves together cost no more than the things do. Old and new room are both granted while the
/// things move.
fn larger(len: usize, room: usize, more: usize, least: usize) -> Option<usize> {
    let needed = len.saturating_add(more);
    (needed > room).then(|| needed.max(room + room / 2).max(least))
}

/// Makes room for one more.
fn grow<T>(items: &mut Vec<T>, budget: &Budget) -> Res<()> {
    let (len, room, size) = (items.len(), items.capacity(), std::mem::size_of::<T>());
    let Some(wanted) = larger(len, room, 1, 2) else { return Ok(()) };
    budget.take(wanted.saturating_mul(size))?;
    items.reserve_exact(wanted - len);
    budget.give(room * size);
    Ok(())
}

/// Items of a list or a tuple.
#[derive(Debug)]
pub(super) struct List {
    pub items: Vec<Value>,
    depth: usize,
    budget: Rc<Budget>,
}

impl Drop for List {
    fn drop(&mut self) {
        self.budget.give(self.items.capacity() * std::mem::size_of::<Value>() + OVERHEAD);
    }
}

/// Keys and values in the order of insertion.
#[derive(Debug)]
pub(super) struct Dict {
    pub entries: Vec<(Value, Value)>,
    depth: usize,
    budget: Rc<Budget>,
}

impl Drop for Dict {
    fn drop(&mut self) {
        self.budget.give(self.entries.capacity() * std::mem::size_of::<(Value, Value)>() + OVERHEAD);
    }
}

/// Variables that a template may change wherever it is (`namespace`).
#[derive(Debug)]
pub(super) struct Space {
    /// Names are strings.
    pub fields: RefCell<Dict>,
}

impl Space {
    /// An empty one.
    pub fn new(budget: &Rc<Budget>) -> Res<Rc<Self>> {
        Ok(Rc::new(Space { fields: RefCell::new(Entries::new(budget)?.dict) }))
    }

    /// Sets a field; its value is plain, so that no namespace leads to itself.
    pub fn set(&self, name: &str, value: Value) -> Res<()> {
        value.plain()?;
        if name.len() > MOST_NAME {
            return fail(format!("a field of {} bytes in its name; {MOST_NAME} are allowed", name.len()));
        }
        let mut fields = self.fields.borrow_mut();
        let budget = fields.budget.clone();
        budget.work(1 + fields.entries.len() / 8)?;
        let known = fields.entries.iter().position(|(known, _)| known.str() == Some(name));
        match known {
            Some(at) => fields.entries[at].1 = value,
            None if fields.entries.len() >= MAX_FIELDS => {
                return fail(format!("a namespace of more than {MAX_FIELDS} fields"));
            }
            None => {
                let name = string(name, &budget)?;
                grow(&mut fields.entries, &budget)?;
                fields.entries.push((name, value));
            }
        }
        Ok(())
    }
}

/// A running loop.
#[derive(Debug)]
pub(super) struct Loop {
    pub items: Rc<List>,
    pub index: Cell<usize>,
    /// From 1.
    pub depth: usize,
    /// Into the program's loops, if it is recursive.
    pub recursive: Option<usize>,
    /// The frame around it.
    pub frame: usize,
    /// The arguments that `changed` saw last.
    pub seen: RefCell<Option<Value>>,
}

impl Value {
    /// What Python calls the type.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Space(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

    /// The string, if it is one.
    pub fn str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(&s.text),
            _ => None,
        }
    }

    /// A whole number; booleans count.
    pub fn int(&self) -> Option<i128> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    /// A number as a float.
    pub fn float(&self) -> Option<f64> {
        match self {
            Value::Float(x) => Some(*x),
            other => other.int().map(|n| n as f64),
        }
    }

    /// Python's truth.
    pub fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Str(s) => !s.text.is_empty(),
            Value::List(l) | Value::Tuple(l) => !l.items.is_empty(),
            Value::Dict(d) => !d.entries.is_empty(),
            _ => true,
        }
    }

    /// Containers inside one another.
    fn depth(&self) -> usize {
        match self {
            Value::List(l) | Value::Tuple(l) => l.depth,
            Value::Dict(d) => d.depth,
            _ => 0,
        }
    }

    /// Refuses what only variables may hold.
    pub fn plain(&self) -> Res<()> {
        match self {
            Value::Space(_) | Value::Loop(_) | Value::Macro(_) | Value::Function(_) | Value::Method(_) => {
                fail(format!("a {} inside a list, a dictionary or a namespace is not supported", self.kind()))
            }
            _ => Ok(()),
        }
    }
}

/// A string that grows within the budget.
#[derive(Debug)]
pub(super) struct Sink(Text);

impl Sink {
    /// An empty one.
    pub fn new(budget: &Rc<Budget>) -> Res<Self> {
        budget.work(2)?;
        budget.take(OVERHEAD)?;
        Ok(Sink(Text { text: String::new(), budget: budget.clone() }))
    }

    pub fn push(&mut self, text: &str) -> Res<()> {
        self.0.budget.touch(text.len())?;
        self.0.grow(text.len())?;
        self.0.text.push_str(text);
        Ok(())
    }

    /// One character, which counts as half a step, or as one if it has several bytes.
    pub fn char(&mut self, c: char) -> Res<()> {
        let (before, more) = (self.0.text.len(), c.len_utf8());
        if before / 2 != (before + more) / 2 {
            self.0.budget.work(1)?;
        }
        self.0.grow(more)?;
        self.0.text.push(c);
        Ok(())
    }

    /// `c` again and again.
    pub fn fill(&mut self, c: char, times: usize) -> Res<()> {
        const BLOCK: usize = 64;
        let bytes = times.saturating_mul(c.len_utf8());
        self.0.budget.touch(bytes)?;
        self.0.grow(bytes)?;
        let block = String::from(c).repeat(times.min(BLOCK));
        for _ in 0..times / BLOCK {
            self.0.text.push_str(&block);
        }
        self.0.text.push_str(&block[..(times % BLOCK) * c.len_utf8()]);
        Ok(())
    }

    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// What it grows within.
    pub fn budget(&self) -> Rc<Budget> {
        self.0.budget.clone()
    }

    /// The finished string as a value.
    pub fn value(self) -> Value {
        Value::Str(Rc::new(self.0))
    }

    /// The finished string.
    pub fn into_text(mut self) -> String {
        let text = std::mem::take(&mut self.0.text);
        self.0.budget.give(text.capacity());
        text
    }
}

/// A list that grows within the budget.
#[derive(Debug)]
pub(super) struct Items {
    list: List,
}

impl Items {
    /// An empty one.
    pub fn new(budget: &Rc<Budget>) -> Res<Self> {
        budget.work(3)?;
        budget.take(OVERHEAD)?;
        Ok(Items { list: List { items: Vec::new(), depth: 1, budget: budget.clone() } })
    }

    pub fn push(&mut self, value: Value) -> Res<()> {
        value.plain()?;
        self.list.depth = self.list.depth.max(deeper(&value)?);
        self.list.budget.work(1)?;
        grow(&mut self.list.items, &self.list.budget)?;
        self.list.items.push(value);
        Ok(())
    }

    /// Turns the order round.
    pub fn reverse(&mut self) {
        self.list.items.reverse();
    }

    pub fn extend<'a>(&mut self, values: impl IntoIterator<Item = &'a Value>) -> Res<()> {
        values.into_iter().try_for_each(|v| self.push(v.clone()))
    }

    pub fn rc(self) -> Rc<List> {
        Rc::new(self.list)
    }

    pub fn list(self) -> Value {
        Value::List(self.rc())
    }

    pub fn tuple(self) -> Value {
        Value::Tuple(self.rc())
    }
}

/// A dictionary that grows within the budget.
#[derive(Debug)]
pub(super) struct Entries {
    dict: Dict,
}

impl Entries {
    /// An empty one.
    pub fn new(budget: &Rc<Budget>) -> Res<Self> {
        budget.work(3)?;
        budget.take(OVERHEAD)?;
        Ok(Entries { dict: Dict { entries: Vec::new(), depth: 1, budget: budget.clone() } })
    }

    /// Adds an entry whose key is new.
    pub fn push(&mut self, key: Value, value: Value) -> Res<()> {
        value.plain()?;
        self.dict.depth = self.dict.depth.max(deeper(&value)?).max(deeper(&key)?);
        self.dict.budget.work(1)?;
        grow(&mut self.dict.entries, &self.dict.budget)?;
        self.dict.entries.push((key, value));
        Ok(())
    }

    /// Adds an entry, or replaces the value of its key.
    pub fn set(&mut self, key: Value, value: Value) -> Res<()> {
        if matches!(key, Value::List(_) | Value::Dict(_)) {
            return fail(format!("a {} cannot be a key", key.kind()));
        }
        match self.dict.find(&key)? {
            None => self.push(key, value),
            Some(at) => {
                value.plain()?;
                self.dict.depth = self.dict.depth.max(deeper(&value)?);
                self.dict.entries[at].1 = value;
                Ok(())
            }
        }
    }

    pub fn value(self) -> Value {
        Value::Dict(Rc::new(self.dict))
    }
}

fn deeper(value: &Value) -> Res<usize> {
    match value.depth() + 1 {
        depth if depth > MAX_DEPTH => fail(format!("more than {MAX_DEPTH} lists inside one another")),
        depth => Ok(depth),
    }
}

impl Dict {
    fn find(&self, key: &Value) -> Res<Option<usize>> {
        for (at, (known, _)) in self.entries.iter().enumerate() {
            if at % 8 == 0 {
                self.budget.work(1)?;
            }
            if equal(known, key, &self.budget)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The value of a key.
    pub fn get(&self, key: &Value) -> Res<Option<Value>> {
        Ok(self.find(key)?.map(|at| self.entries[at].1.clone()))
    }

    /// The value of a key that is a string.
    pub fn field(&self, name: &str) -> Res<Option<Value>> {
        self.budget.work(1 + self.entries.len() * (8 + name.len() / 2) / 64)?;
        let found = self.entries.iter().find(|(key, _)| key.str() == Some(name));
        Ok(found.map(|(_, value)| value.clone()))
    }
}

/// `a == b`.
pub(super) fn equal(a: &Value, b: &Value, budget: &Budget) -> Res<bool> {
    budget.work(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            budget.touch(a.text.len().min(b.text.len()))?;
            a.text == b.text
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                match b.get(key)? {
                    Some(other) if equal(value, &other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Space(a), Value::Space(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        _ => numeric(a, b) == Some(Ordering::Equal),
    })
}

/// How two numbers stand to one another, exactly: as floats, 2**53 and 2**53 + 1 would be equal, and an order
/// of three such numbers none. None for other values, and for what is not a number (NaN).
pub(super) fn numeric(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Float(x), Value::Float(y)) => x.partial_cmp(y),
        (Value::Float(x), _) => whole_and_float(b.int()?, *x).map(Ordering::reverse),
        (_, Value::Float(y)) => whole_and_float(a.int()?, *y),
        _ => Some(a.int()?.cmp(&b.int()?)),
    }
}

fn whole_and_float(n: i128, x: f64) -> Option<Ordering> {
    // The first whole number that is too large.
    let end = -(i128::MIN as f64);
    if x >= end {
        return Some(Ordering::Less);
    }
    if x < -end {
        return Some(Ordering::Greater);
    }
    let rest = 0.0_f64.partial_cmp(&x.fract())?;
    Some(n.cmp(&(x.trunc() as i128)).then(rest))
}

/// What is not there; the parts together say what was looked for.
pub(super) fn undefined(parts: &[&str], budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    out.0.grow(parts.iter().map(|part| part.len()).sum())?;
    parts.iter().try_for_each(|part| out.push(part))?;
    Ok(Value::Undefined(Rc::new(out.0)))
}

/// `text` as a value.
pub(super) fn string(text: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    out.push(text)?;
    Ok(out.value())
}
