//! A pickle machine that builds values and runs nothing.
//!
//! It knows the opcodes that `torch.save` and Python's pickler write for data (protocols 2 to 5) and the
//! constructors of [`super::value::global`]; everything else is refused by name. "Calling" a constructor only
//! records what it would make, so no order of opcodes can do more than fill the arena.
//!
//! Memory is bounded by the pickle's length: the stack, the memo and the arena each have a limit that follows
//! from it. Nothing recurses. Source: the comments of CPython's `pickletools.py`.

use super::value::{Global, Node, Rebuild, StorageRef, Tensor, Value, global};
use crate::checkpoint::safetensors::MAX_RANK;

/// Largest pickle; the tensors' bytes are not in it.
pub(super) const MAX_PICKLE: u64 = 256 << 20;
/// Most values on the stack: picklers write long lists in batches of a thousand.
const MAX_STACK: usize = 1 << 16;
/// Most marks open at once.
const MAX_MARKS: usize = 1 << 10;
/// Longest name of a module, a class or a storage.
const MAX_NAME: usize = 512;
const ADVICE: &str = "a checkpoint may hold tensors, numbers, text and containers of them. Only convert it to safetensors with the \
                      program that wrote it if you trust the file";

/// A pickle that has been read.
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
    /// What the pickle is.
    pub root: Value,
    /// Bytes that it took.
    pub used: usize,
}

/// Reads one pickle from the front of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle<'_>, String> {
    let mut machine = Machine {
        bytes,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        nodes: Vec::new(),
        opcodes: 0,
        tensors: 0,
    };
    let root = machine.run().map_err(|what| format!("pickle, byte {}: {what}", machine.at))?;
    Ok(Pickle { bytes, nodes: machine.nodes, root, used: machine.at })
}

impl<'a> Pickle<'a> {
    /// The text of a value.
    pub(super) fn text(&self, value: Value) -> Option<&'a str> {
        text(self.bytes, value)
    }

    /// The arena.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Bytes of the pickle.
    pub(super) fn size(&self) -> usize {
        self.used
    }

    /// A value of the arena.
    pub(super) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(n) => self.nodes.get(n as usize),
            _ => None,
        }
    }

    /// The pairs of a dictionary.
    pub(super) fn map(&self, value: Value) -> Option<&[(Value, Value)]> {
        let node = match self.node(value)? {
            Node::Object(Some(inside)) => self.nodes.get(*inside as usize)?,
            other => other,
        };
        match node {
            Node::Map(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The value under a text key; of several the last, as in Python.
    pub(super) fn get(&self, map: Value, key: &str) -> Option<Value> {
        self.map(map)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, v)| *v)
    }

    /// The elements of a list or tuple.
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match (value, self.node(value)) {
            (Value::Unit, _) => Some(&[]),
            (_, Some(Node::Tuple(all))) => Some(all),
            (_, Some(Node::List(all))) => Some(all),
            _ => None,
        }
    }
}

fn text(bytes: &[u8], value: Value) -> Option<&str> {
    match value {
        Value::Text(start, len) => {
            std::str::from_utf8(bytes.get(start as usize..(start + len) as usize)?).ok()
        }
        _ => None,
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
    nodes: Vec<Node>,
    opcodes: usize,
    tensors: usize,
}

type Step<T = ()> = Result<T, String>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Step<Value> {
        if self.bytes.len() as u64 > MAX_PICKLE {
            return Err(format!("{} bytes long; at most {MAX_PICKLE} are allowed", self.bytes.len()));
        }
        loop {
            let op = self.take(1)?[0];
            self.opcodes += 1;
            if op == b'.' {
                return self.pop();
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Step {
        match op {
            0x80 => match self.take(1)?[0] {
                0..=5 => Ok(()),
                n => Err(format!("protocol {n}; 0 to 5 are known")),
            },
            0x95 => self.take(8).map(drop),
            b'(' => self.mark(),
            b'0' => self.pop().map(drop),
            b'1' => self.pop_mark().map(drop),
            b'2' => self.top().and_then(|top| self.push(top)),
            b'N' => self.push(Value::Nothing),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' => self.number(4).and_then(|n| self.push(Value::Int(i64::from(n as u32 as i32)))),
            b'K' => self.number(1).and_then(|n| self.push(Value::Int(n as i64))),
            b'M' => self.number(2).and_then(|n| self.push(Value::Int(n as i64))),
            0x8a => self.long(1),
            0x8b => self.long(4),
            b'G' => self
                .take(8)
                .map(|b| f64::from_be_bytes(b.try_into().unwrap_or_default()))
                .and_then(|f| self.push(Value::Float(f))),
            b'X' | b'T' => self.text(4, op == b'X'),
            0x8c | b'U' => self.text(1, op == 0x8c),
            0x8d => self.text(8, true),
            b'B' => self.raw(4),
            b'C' => self.raw(1),
            0x8e | 0x96 => self.raw(8),
            b')' => self.push(Value::Unit),
            b']' => self.make(Node::List(Vec::new())),
            b'}' => self.make(Node::Map(Vec::new())),
            0x8f => self.make(Node::List(Vec::new())),
            b't' => self.pop_mark().and_then(|all| self.tuple(all)),
            0x85..=0x87 => self.pop_many(usize::from(op - 0x84)).and_then(|all| self.tuple(all)),
            b'l' | 0x91 => self.pop_mark().and_then(|all| self.make(Node::List(all))),
            b'd' => self.pop_mark().and_then(pairs).and_then(|all| self.make(Node::Map(all))),
            b'a' => self.pop().and_then(|one| self.append(vec![one])),
            b'e' | 0x90 => self.pop_mark().and_then(|all| self.append(all)),
            b's' => self.pop_many(2).and_then(pairs).and_then(|all| self.set(all)),
            b'u' => self.pop_mark().and_then(pairs).and_then(|all| self.set(all)),
            b'c' => self.named_by_lines(),
            0x93 => self.named_by_stack(),
            b'Q' => self.persistent(),
            b'R' | 0x81 => self.call(),
            b'b' => self.build(),
            b'q' => self.number(1).and_then(|n| self.memoize(n)),
            b'r' => self.number(4).and_then(|n| self.memoize(n)),
            0x94 => self.memoize(self.memo.len() as u64),
            b'h' => self.number(1).and_then(|n| self.recall(n)),
            b'j' => self.number(4).and_then(|n| self.recall(n)),
            op => Err(format!("opcode {op:#04x} is not allowed; {ADVICE}")),
        }
    }

    fn take(&mut self, n: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(format!("truncated: {n} bytes are needed, {} are left", self.bytes.len() - self.at));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Step<u64> {
        Ok(self.take(width)?.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    fn span(&mut self, width: usize) -> Step<(u32, u32)> {
        let n = self.number(width)?;
        let n = usize::try_from(n).map_err(|_| format!("truncated: {n} bytes are needed"))?;
        let start = self.at;
        self.take(n)?;
        // MAX_PICKLE is below 2^32.
        Ok((start as u32, n as u32))
    }

    fn text(&mut self, width: usize, must_be_utf8: bool) -> Step {
        let (start, len) = self.span(width)?;
        let value = Value::Text(start, len);
        match text(self.bytes, value) {
            Some(_) => self.push(value),
            None if must_be_utf8 => Err("text is not UTF-8".into()),
            None => self.push(Value::Bytes(start, len)),
        }
    }

    fn raw(&mut self, width: usize) -> Step {
        let (start, len) = self.span(width)?;
        self.push(Value::Bytes(start, len))
    }

    /// A whole number of any length, little-endian, two's complement; beyond 64 bits its bytes are kept.
    fn long(&mut self, width: usize) -> Step {
        let (start, len) = self.span(width)?;
        let bytes = &self.bytes[start as usize..(start + len) as usize];
        if bytes.len() > 8 {
            return self.push(Value::Bytes(start, len));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(all)))
    }

    fn push(&mut self, value: Value) -> Step {
        if self.stack.len() == MAX_STACK {
            return Err(format!("more than {MAX_STACK} values on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Step<Value> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => Err("a value is missing on the stack".into()),
        }
    }

    fn pop(&mut self) -> Step<Value> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, n: usize) -> Step<Vec<Value>> {
        match self.stack.len().checked_sub(n) {
            Some(from) if from >= self.floor() => Ok(self.stack.split_off(from)),
            _ => Err("values are missing on the stack".into()),
        }
    }

    fn mark(&mut self) -> Step {
        if self.marks.len() == MAX_MARKS {
            return Err(format!("more than {MAX_MARKS} marks are open"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let from = self.marks.pop().ok_or("a mark is missing on the stack")?;
        Ok(self.stack.split_off(from))
    }

    fn make(&mut self, node: Node) -> Step {
        // What real picklers write takes more for a container: opcode, memo place, content, and what uses it.
        let most = self.bytes.len() / 8 + 64;
        if self.nodes.len() >= most {
            return Err(format!("more than {most} containers in {} bytes", self.bytes.len()));
        }
        self.nodes.push(node);
        self.push(Value::Node(self.nodes.len() as u32 - 1))
    }

    fn tuple(&mut self, all: Vec<Value>) -> Step {
        if all.is_empty() { self.push(Value::Unit) } else { self.make(Node::Tuple(all.into())) }
    }

    fn append(&mut self, mut more: Vec<Value>) -> Step {
        match self.top()? {
            Value::Node(n) => match &mut self.nodes[n as usize] {
                Node::List(all) => {
                    all.append(&mut more);
                    Ok(())
                }
                _ => Err("elements are appended to what is no list".into()),
            },
            // Sets and lists made by constructors that are not kept.
            Value::Nothing => Ok(()),
            _ => Err("elements are appended to what is no list".into()),
        }
    }

    fn set(&mut self, mut more: Vec<(Value, Value)>) -> Step {
        match self.top()? {
            Value::Node(n) => match &mut self.nodes[n as usize] {
                Node::Map(all) => {
                    all.append(&mut more);
                    Ok(())
                }
                _ => Err("pairs are put into what is no dictionary".into()),
            },
            Value::Nothing => Ok(()),
            _ => Err("pairs are put into what is no dictionary".into()),
        }
    }

    fn memoize(&mut self, place: u64) -> Step {
        let top = self.top()?;
        // Picklers count places up; one opcode at least has come before each.
        if place as usize > self.opcodes {
            return Err(format!("memo place {place} after {} opcodes", self.opcodes));
        }
        let place = place as usize;
        if place >= self.memo.len() {
            self.memo.resize(place + 1, Value::Nothing);
        }
        self.memo[place] = top;
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Step {
        match self.memo.get(place as usize) {
            Some(value) => self.push(*value),
            None => Err(format!("memo place {place} is empty")),
        }
    }

    fn named_by_lines(&mut self) -> Step {
        let mut line = || {
            let rest = &self.bytes[self.at..];
            let end = rest.iter().take(MAX_NAME).position(|b| *b == b'\n');
            let end =
                end.ok_or(if rest.len() < MAX_NAME { "truncated in a name" } else { "a name does not end" })?;
            self.at += end + 1;
            std::str::from_utf8(&rest[..end]).map_err(|_| "a name is not UTF-8")
        };
        let (module, name) = (line()?, line()?);
        self.named(module, name)
    }

    fn named_by_stack(&mut self) -> Step {
        let two = self.pop_many(2)?;
        match (text(self.bytes, two[0]), text(self.bytes, two[1])) {
            (Some(module), Some(name)) => self.named(module, name),
            _ => Err("a name is not text".into()),
        }
    }

    fn named(&mut self, module: &str, name: &str) -> Step {
        match global(module, name) {
            Some(global) => self.push(Value::Global(global)),
            None => {
                let full: String = format!("{module}.{name}").chars().take(MAX_NAME).collect();
                Err(format!("names `{full}`, which is not allowed; {ADVICE}"))
            }
        }
    }

    fn args(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Unit => Some(&[]),
            Value::Node(n) => match &self.nodes[n as usize] {
                Node::Tuple(all) => Some(all),
                Node::List(all) => Some(all),
                _ => None,
            },
            _ => None,
        }
    }

    /// `("storage", class, key, place, count, ...)` becomes a storage.
    fn persistent(&mut self) -> Step {
        let id = self.pop()?;
        let storage = match self.args(id) {
            Some(
                &[kind, Value::Global(Global::Storage(stored)), key, _, Value::Int(count), ref rest @ ..],
            ) if text(self.bytes, kind) == Some("storage") => {
                if rest.first().is_some_and(|view| *view != Value::Nothing) {
                    return Err("a storage that is a view of another storage is not supported".into());
                }
                let key = text(self.bytes, key).filter(|k| k.len() <= MAX_NAME);
                let count = u64::try_from(count).map_err(|_| format!("a storage of {count} elements"))?;
                key.map(|key| StorageRef { key: key.to_owned(), stored, count })
            }
            _ => None,
        };
        match storage {
            Some(storage) => self.make(Node::Storage(Box::new(storage))),
            None => Err("a persistent id that is no storage".into()),
        }
    }

    fn call(&mut self) -> Step {
        let args = self.pop()?;
        let callee = self.pop()?;
        let Value::Global(callee) = callee else {
            return Err("a call of what is no known constructor".into());
        };
        self.make_by(callee, args)
    }

    fn make_by(&mut self, callee: Global, args: Value) -> Step {
        let first = self.args(args).ok_or("arguments that are no tuple")?.first().copied();
        match callee {
            Global::Tensor(how) => {
                let tensor = self.tensor(how, args)?;
                self.tensors += 1;
                let most = self.bytes.len() / 32 + 16;
                if self.tensors > most {
                    return Err(format!("more than {most} tensors in {} bytes", self.bytes.len()));
                }
                self.make(Node::Tensor(Box::new(tensor)))
            }
            Global::Parameter => self.push(first.unwrap_or(Value::Nothing)),
            Global::Typed => match self.args(args) {
                Some(
                    &[Value::Global(inner @ (Global::Tensor(_) | Global::Parameter)), _, inner_args, ..],
                ) => self.make_by(inner, inner_args),
                _ => Err("a typed tensor without a known constructor".into()),
            },
            // `OrderedDict(pairs)` is written by no pickler; its items follow as SETITEMS.
            Global::Map => self.make(Node::Map(Vec::new())),
            Global::Namespace => self.make(Node::Object(None)),
            // The argument itself: a copy could be asked for again and again.
            Global::Sequence => self.push(first.filter(|f| self.args(*f).is_some()).unwrap_or(Value::Unit)),
            Global::Inert | Global::Dtype(_) | Global::Storage(_) => self.push(Value::Nothing),
        }
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks, dtype?)`.
    fn tensor(&self, how: Rebuild, args: Value) -> Step<Tensor> {
        let args = self.args(args).unwrap_or_default();
        let &[Value::Node(storage), Value::Int(offset), shape, strides, ref rest @ ..] = args else {
            return Err("a tensor needs a storage, an offset, a shape and strides".into());
        };
        let Node::Storage(storage) = &self.nodes[storage as usize] else {
            return Err("a tensor on what is no storage".into());
        };
        let (stored, count) = match (how, rest.get(2), storage.stored) {
            (Rebuild::Plain, _, Some(stored)) => (stored, storage.count),
            (Rebuild::WithDtype, Some(Value::Global(Global::Dtype(stored))), None) => {
                (*stored, storage.count / stored.bytes(1).unwrap_or(1) as u64)
            }
            _ => return Err("a tensor without an element type".into()),
        };
        let sizes = |value: Value| -> Step<Vec<u64>> {
            let all = self.args(value).ok_or("a shape or strides that are no tuple")?;
            if all.len() > MAX_RANK {
                return Err(format!("a tensor of {} dimensions; at most {MAX_RANK} are allowed", all.len()));
            }
            let size = |v: &Value| match v {
                Value::Int(n) if *n >= 0 => Ok(*n as u64),
                _ => Err("a shape or strides with a negative number".to_string()),
            };
            all.iter().map(size).collect()
        };
        let (shape, strides) = (sizes(shape)?, sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor of {} dimensions with {} strides", shape.len(), strides.len()));
        }
        let dims: Result<Vec<usize>, _> = shape.iter().map(|n| usize::try_from(*n)).collect();
        let offset = u64::try_from(offset).map_err(|_| "a negative offset")?;
        let shape = dims.map_err(|_| "a shape beyond this machine's sizes")?;
        Ok(Tensor { key: storage.key.clone(), stored, count, offset, shape, strides })
    }

    /// State of an object: a namespace is its dictionary; of anything else (the `_metadata` of an ordered
    /// dictionary, say) state is dropped.
    fn build(&mut self) -> Step {
        let state = self.pop()?;
        if let (Value::Node(object), Value::Node(state)) = (self.top()?, state)
            && let Node::Object(inside) = &mut self.nodes[object as usize]
        {
            *inside = Some(state);
        }
        Ok(())
    }
}

fn pairs(all: Vec<Value>) -> Step<Vec<(Value, Value)>> {
    let (pairs, rest) = all.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("a key without a value".into());
    }
    Ok(pairs.iter().map(|[k, v]| (*k, *v)).collect())
}
