//! Values of a template.
//!
//! Containers hold plain data only: no namespace, no loop, no macro. So a value is a tree without a way back
//! to itself, at most [`MAX_DEPTH`] high, and printing, comparing and dropping it need a bounded stack. A
//! tree may share its parts; whoever walks it pays for each visit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::budget::{Budget, OVERHEAD, Res, fail};

/// Most containers inside one another. JSON that is read has at most 128.
pub(super) const MAX_DEPTH: usize = 130;
/// Bytes that one value of a list counts.
const ITEM: usize = std::mem::size_of::<Value>();

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Nothing was found; the text says what was looked for.
    Undefined(Option<Rc<str>>),
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

impl Drop for Text {
    fn drop(&mut self) {
        self.budget.give(self.text.len() + OVERHEAD);
    }
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
        self.budget.give(self.items.len() * ITEM + OVERHEAD);
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
        self.budget.give(self.entries.len() * 2 * ITEM + OVERHEAD);
    }
}

/// Variables that a template may change wherever it is (`namespace`).
#[derive(Debug)]
pub(super) struct Space {
    /// Names are strings.
    pub fields: RefCell<Vec<(Value, Value)>>,
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
        budget.take(OVERHEAD)?;
        Ok(Sink(Text { text: String::new(), budget: budget.clone() }))
    }

    pub fn push(&mut self, text: &str) -> Res<()> {
        self.0.budget.touch(text.len())?;
        self.0.budget.take(text.len())?;
        self.0.text.push_str(text);
        Ok(())
    }

    pub fn char(&mut self, c: char) -> Res<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// `c` again and again.
    pub fn fill(&mut self, c: char, times: usize) -> Res<()> {
        let bytes = times.saturating_mul(c.len_utf8());
        self.0.budget.touch(bytes)?;
        self.0.budget.take(bytes)?;
        self.0.text.extend(std::iter::repeat_n(c, times));
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
        self.0.budget.give(text.len());
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
        budget.take(OVERHEAD)?;
        Ok(Items { list: List { items: Vec::new(), depth: 1, budget: budget.clone() } })
    }

    pub fn push(&mut self, value: Value) -> Res<()> {
        value.plain()?;
        self.list.depth = self.list.depth.max(deeper(&value)?);
        self.list.budget.work(1)?;
        self.list.budget.take(ITEM)?;
        self.list.items.push(value);
        Ok(())
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
        budget.take(OVERHEAD)?;
        Ok(Entries { dict: Dict { entries: Vec::new(), depth: 1, budget: budget.clone() } })
    }

    /// Adds an entry whose key is new.
    pub fn push(&mut self, key: Value, value: Value) -> Res<()> {
        value.plain()?;
        self.dict.depth = self.dict.depth.max(deeper(&value)?).max(deeper(&key)?);
        self.dict.budget.work(1)?;
        self.dict.budget.take(2 * ITEM)?;
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
        _ => match (a.int(), b.int(), a.float(), b.float()) {
            (Some(a), Some(b), ..) => a == b,
            (.., Some(a), Some(b)) => a == b,
            _ => false,
        },
    })
}

/// `text` as a value.
pub(super) fn string(text: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    out.push(text)?;
    Ok(out.value())
}
