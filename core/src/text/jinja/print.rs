//! Values as text: `str`, `repr` and `json.dumps` of Python.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::value::{Dict, Sink, Text, Value};

/// Steps that the shortest spelling of a float takes.
const FLOAT_STEPS: usize = 16;

/// What is wrong with an undefined value.
pub(super) fn undefined(what: &Text) -> String {
    what.text.clone()
}

/// Writes `str(value)`.
pub(super) fn show(value: &Value, out: &mut Sink) -> Res<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(text) => out.push(&text.text),
        other => repr(other, out),
    }
}

/// `str(value)`.
pub(super) fn text(value: &Value, budget: &Rc<Budget>) -> Res<Value> {
    if let Value::Str(_) = value {
        return Ok(value.clone());
    }
    let mut out = Sink::new(budget)?;
    show(value, &mut out)?;
    Ok(out.value())
}

/// Writes `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut Sink) -> Res<()> {
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(n) => out.push(&n.to_string()),
        Value::Float(x) => {
            out.budget().work(FLOAT_STEPS)?;
            out.push(&float(*x))
        }
        Value::Str(text) => quoted(&text.text, out),
        Value::List(list) => {
            out.push("[")?;
            listed(&list.items, out)?;
            out.push("]")
        }
        Value::Tuple(list) => {
            out.push("(")?;
            listed(&list.items, out)?;
            out.push(if list.items.len() == 1 { ",)" } else { ")" })
        }
        Value::Dict(dict) => {
            out.push("{")?;
            for (i, (key, value)) in dict.entries.iter().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(key, out)?;
                out.push(": ")?;
                repr(value, out)?;
            }
            out.push("}")
        }
        Value::Space(space) => {
            out.push("<Namespace {")?;
            for (i, (name, value)) in space.fields.borrow().entries.iter().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(name, out)?;
                out.push(": ")?;
                repr(value, out)?;
            }
            out.push("}>")
        }
        other => out.push(&format!("<{}>", other.kind())),
    }
}

fn listed(items: &[Value], out: &mut Sink) -> Res<()> {
    for (i, item) in items.iter().enumerate() {
        out.push(if i > 0 { ", " } else { "" })?;
        repr(item, out)?;
    }
    Ok(())
}

/// A string in the quotes that Python would take.
fn quoted(text: &str, out: &mut Sink) -> Res<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => {
                out.push("\\")?;
                out.char(c)?;
            }
            c if c.is_control() || (c.is_whitespace() && c != ' ') => match u32::from(c) {
                code @ 0..=0xFF => hex("\\x", code, 2, out)?,
                code => hex("\\u", code, 4, out)?,
            },
            c => out.char(c)?,
        }
    }
    out.char(quote)
}

/// Writes `code` in `digits` hexadecimal digits.
fn hex(prefix: &str, code: u32, digits: u32, out: &mut Sink) -> Res<()> {
    out.push(prefix)?;
    let digit = |at: u32| char::from_digit((code >> (4 * at)) & 15, 16).unwrap_or('0');
    (0..digits).rev().try_for_each(|at| out.char(digit(at)))
}

/// Python's shortest spelling of a float.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let short = format!("{x:e}");
    let (mantissa, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        e if (-4..16).contains(&e) => {
            let plain = format!("{x}");
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        e => format!("{mantissa}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
    }
}

/// How `tojson` writes.
pub(super) struct Json {
    pub ascii: bool,
    /// Blanks per level; none for one line.
    pub indent: Option<String>,
    pub comma: String,
    pub colon: String,
    pub sorted: bool,
}

impl Json {
    /// Writes `value`, `level` levels deep.
    pub fn write(&self, value: &Value, level: usize, out: &mut Sink) -> Res<()> {
        match value {
            Value::None => out.push("null"),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
            Value::Float(x) if x.is_nan() => out.push("NaN"),
            Value::Float(x) if x.is_infinite() => out.push(if *x > 0.0 { "Infinity" } else { "-Infinity" }),
            Value::Int(_) | Value::Float(_) => repr(value, out),
            Value::Str(text) => self.string(&text.text, out),
            Value::List(list) | Value::Tuple(list) => {
                self.block(['[', ']'], list.items.len(), level, out, |i, out| {
                    self.write(&list.items[i], level + 1, out)
                })
            }
            Value::Dict(dict) => self.dict(dict, level, out),
            Value::Undefined(what) => fail(format!("{}: it cannot be JSON", undefined(what))),
            other => fail(format!("a {} cannot be JSON", other.kind())),
        }
    }

    fn dict(&self, dict: &Dict, level: usize, out: &mut Sink) -> Res<()> {
        let mut order: Vec<usize> = (0..dict.entries.len()).collect();
        if self.sorted {
            // Keys may be alike up to their ends.
            let bytes: usize = dict.entries.iter().map(|(key, _)| 64 + key.str().map_or(0, str::len)).sum();
            let times = usize::BITS - order.len().leading_zeros();
            out.budget().touch(bytes.saturating_mul(times as usize))?;
            order.sort_by(|&a, &b| dict.entries[a].0.str().cmp(&dict.entries[b].0.str()));
        }
        self.block(['{', '}'], order.len(), level, out, |i, out| {
            let (key, value) = &dict.entries[order[i]];
            match key {
                Value::Str(name) => self.string(&name.text, out)?,
                Value::Tuple(_) => return fail("a key of JSON cannot be a tuple"),
                other => {
                    out.push("\"")?;
                    self.write(other, level, out)?;
                    out.push("\"")?;
                }
            }
            out.push(&self.colon)?;
            self.write(value, level + 1, out)
        })
    }

    fn block(
        &self,
        [open, close]: [char; 2],
        len: usize,
        level: usize,
        out: &mut Sink,
        mut item: impl FnMut(usize, &mut Sink) -> Res<()>,
    ) -> Res<()> {
        out.char(open)?;
        for i in 0..len {
            if i > 0 {
                out.push(&self.comma)?;
            }
            self.line(level + 1, out)?;
            item(i, out)?;
        }
        if len > 0 {
            self.line(level, out)?;
        }
        out.char(close)
    }

    fn line(&self, level: usize, out: &mut Sink) -> Res<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.push("\n")?;
        (0..level).try_for_each(|_| out.push(indent))
    }

    fn string(&self, text: &str, out: &mut Sink) -> Res<()> {
        out.char('"')?;
        for c in text.chars() {
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\u{8}' => out.push("\\b")?,
                '\u{c}' => out.push("\\f")?,
                c if u32::from(c) < 0x20 || (self.ascii && !matches!(c, ' '..='~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        hex("\\u", u32::from(*unit), 4, out)?;
                    }
                }
                c => out.char(c)?,
            }
        }
        out.char('"')
    }
}
