//! Filters, without those that call filters and tests of their own ([`super::select`]).

use std::rc::Rc;

pub(super) use super::access::attribute_of;
use super::budget::{Budget, Res, fail};
use super::call::Args;
pub(super) use super::sequence::{iterate, join};
use super::value::{Entries, Items, Sink, Value, undefined};
use super::{methods, ops, percent, print};

/// Bytes of `tojson`'s indentation and separators.
const MOST_JSON: usize = 64;

/// Filters that call filters or tests on every item.
pub(super) const SELECTING: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];

/// The names that [`apply`] knows.
pub(super) const NAMES: [&str; 46] = [
    "abs",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "max",
    "min",
    "pprint",
    "replace",
    "reverse",
    "round",
    "safe",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "attr",
    "xmlattr",
    "filesizeformat",
];

/// `value | name(args)`.
pub(super) fn apply(name: &str, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    budget.touch(value.str().map_or(0, str::len) + args.bytes())?;
    let result = match name {
        "d" | "default" => return default(value, args),
        "join" => {
            let separator = match args.take("d") {
                None | Some(Value::None) => methods::string("", budget)?,
                Some(other) => print::text(&other, budget)?,
            };
            let separator = separator.str().unwrap_or_default();
            if let Some(attribute) = args.take("attribute") {
                let picked = each(value, budget, |item| attribute_of(item, &attribute, budget))?;
                return join(&picked, separator, budget);
            }
            join(value, separator, budget)
        }
        "batch" => return batch(value, args, budget),
        "slice" => return columns(value, args, budget),
        "sort" | "unique" | "min" | "max" | "groupby" | "sum" | "dictsort" => {
            return super::sorting::apply(name, value, args, budget);
        }
        "indent" => return indent(value, args, budget),
        "tojson" => return to_json(value, args, budget),
        "round" => return round(value, args, budget),
        "truncate" => return truncate(value, args, budget),
        "int" | "float" => return number(name, value, args, budget),
        "format" => return format(value, args, budget),
        "replace" | "trim" | "center" => return of_text(name, value, args, budget),
        "attr" => {
            let wanted = args.need("name")?;
            attribute_of(value, &wanted, budget)
        }
        "abs" => ops::sign(value.float().is_some_and(|x| x < 0.0), value),
        "first" | "last" => outermost(name == "first", value, budget),
        "length" | "count" => length(value),
        "list" => Ok(Value::List(iterate(value, budget)?)),
        "items" => match value {
            Value::Dict(dict) => methods::pairs(dict, budget),
            Value::Undefined(_) => Ok(Items::new(budget)?.list()),
            other => fail(format!("`items` needs a dict, not a {}", other.kind())),
        },
        "reverse" => {
            let backwards = [Value::None, Value::None, Value::Int(-1)];
            match value {
                Value::Str(_) => ops::slice(value, backwards, budget),
                other => ops::slice(&Value::List(iterate(other, budget)?), backwards, budget),
            }
        }
        _ => on_text(name, value, budget),
    };
    args.end()?;
    result
}

/// Filters that make one string of another.
fn on_text(name: &str, value: &Value, budget: &Rc<Budget>) -> Res<Value> {
    let text = print::text(value, budget)?;
    let text = text.str().unwrap_or_default();
    budget.scan(2 * text.len())?;
    match name {
        "string" | "safe" => methods::string(text, budget),
        "upper" | "lower" => methods::call(&methods::string(text, budget)?, name, Args::default(), budget),
        "capitalize" => methods::capitalize(text, budget),
        "title" => methods::title(text, budget, |c| c.is_whitespace() || "-([{<".contains(c)),
        "e" | "escape" | "forceescape" => escape(text, budget),
        "wordcount" => {
            budget.scan(2 * text.len())?;
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "pprint" => {
            let mut out = Sink::new(budget)?;
            print::repr(value, &mut out)?;
            Ok(out.value())
        }
        "striptags" => strip_tags(text, budget),
        "urlencode" => {
            let mut out = Sink::new(budget)?;
            for byte in text.bytes() {
                match byte {
                    b if b.is_ascii_alphanumeric() || b"-_.~/".contains(&b) => out.char(char::from(b))?,
                    b => {
                        out.char('%')?;
                        for half in [b >> 4, b & 15] {
                            let digit = char::from_digit(u32::from(half), 16).unwrap_or('0');
                            out.char(digit.to_ascii_uppercase())?;
                        }
                    }
                }
            }
            Ok(out.value())
        }
        _ => fail(format!("filter `{name}` is not known")),
    }
}

fn escape(text: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    for c in text.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            c => out.char(c)?,
        }
    }
    Ok(out.value())
}

/// Without what stands in angle brackets, blanks run together.
fn strip_tags(text: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut bare = Sink::new(budget)?;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let Some(end) = rest[at..].find('>') else { break };
        bare.push(&rest[..at])?;
        rest = &rest[at + end + 1..];
    }
    bare.push(rest)?;
    let mut out = Sink::new(budget)?;
    for (i, word) in bare.text().split_whitespace().enumerate() {
        out.push(if i > 0 { " " } else { "" })?;
        out.push(word)?;
    }
    Ok(out.value())
}

/// A list of what `call` makes of every item.
fn each(value: &Value, budget: &Rc<Budget>, mut call: impl FnMut(&Value) -> Res<Value>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    for item in &iterate(value, budget)?.items {
        out.push(call(item)?)?;
    }
    Ok(out.list())
}

/// The first item, or the last; of a string, the character.
fn outermost(first: bool, value: &Value, budget: &Rc<Budget>) -> Res<Value> {
    let found = match value.str() {
        Some(text) => {
            let c = if first { text.chars().next() } else { text.chars().next_back() };
            c.map(|c| methods::string(c.encode_utf8(&mut [0; 4]), budget)).transpose()?
        }
        None => {
            let list = iterate(value, budget)?;
            let item = if first { list.items.first() } else { list.items.last() };
            item.cloned()
        }
    };
    found.map_or_else(|| undefined(&["the sequence is empty"], budget), Ok)
}

fn default(value: &Value, mut args: Args) -> Res<Value> {
    let instead = args.take("default_value");
    let falsy = args.take("boolean").is_some_and(|v| v.truth());
    args.end()?;
    match value {
        Value::Undefined(_) => {}
        other if falsy && !other.truth() => {}
        other => return Ok(other.clone()),
    }
    match instead {
        Some(value) => Ok(value),
        None => fail("`default` needs a value"),
    }
}

fn length(value: &Value) -> Res<Value> {
    Ok(Value::Int(match value {
        Value::Undefined(_) => 0,
        Value::Str(text) => text.text.chars().count() as i128,
        Value::List(list) | Value::Tuple(list) => list.items.len() as i128,
        Value::Dict(dict) => dict.entries.len() as i128,
        other => return fail(format!("a {} has no length", other.kind())),
    }))
}

/// A whole number from 1 that an argument gives.
fn positive(value: &Value, what: &str) -> Res<usize> {
    match value.int().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0) {
        Some(n) => Ok(n),
        None => fail(format!("`{what}` needs a whole number from 1")),
    }
}

fn batch(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let size = positive(&args.need("linecount")?, "batch")?;
    let fill = args.take("fill_with").filter(|v| !matches!(v, Value::None));
    args.end()?;
    let mut out = Items::new(budget)?;
    for part in iterate(value, budget)?.items.chunks(size) {
        let mut row = Items::new(budget)?;
        row.extend(part)?;
        if let Some(fill) = &fill {
            (part.len()..size).try_for_each(|_| row.push(fill.clone()))?;
        }
        out.push(row.list())?;
    }
    Ok(out.list())
}

fn columns(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let count = positive(&args.need("slices")?, "slice")?;
    let fill = args.take("fill_with").filter(|v| !matches!(v, Value::None));
    args.end()?;
    let list = iterate(value, budget)?;
    let (each, larger) = (list.items.len() / count, list.items.len() % count);
    let mut out = Items::new(budget)?;
    let mut from = 0;
    for column in 0..count {
        let to = from + each + usize::from(column < larger);
        let mut part = Items::new(budget)?;
        part.extend(&list.items[from..to])?;
        if let Some(fill) = fill.as_ref().filter(|_| larger > 0 && column >= larger) {
            part.push(fill.clone())?;
        }
        out.push(part.list())?;
        from = to;
    }
    Ok(out.list())
}

fn indent(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let width = args.take("width").unwrap_or(Value::Int(4));
    let first = args.take("first").is_some_and(|v| v.truth());
    let blank = args.take("blank").is_some_and(|v| v.truth());
    args.end()?;
    let text = print::text(value, budget)?;
    let mut prefix = Sink::new(budget)?;
    match width.str() {
        Some(text) => prefix.push(text)?,
        None => prefix.fill(' ', usize::try_from(width.int().unwrap_or(4).max(0)).unwrap_or(usize::MAX))?,
    }
    let mut out = Sink::new(budget)?;
    for (i, line) in text.str().unwrap_or_default().split('\n').enumerate() {
        out.push(if i > 0 { "\n" } else { "" })?;
        let indents = if i == 0 { first } else { blank || !line.is_empty() };
        out.push(if indents { prefix.text() } else { "" })?;
        out.push(line)?;
    }
    Ok(out.value())
}

/// As `json.dumps` of Python's caller: no escapes for HTML, keys in their order.
fn to_json(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let ascii = args.take("ensure_ascii").is_some_and(|v| v.truth());
    let indent = match args.take("indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) if text.text.len() <= MOST_JSON => Some(text.text.clone()),
        Some(other) => match other.int() {
            Some(n) if n <= MOST_JSON as i128 => Some(" ".repeat(usize::try_from(n.max(0)).unwrap_or(0))),
            _ => {
                return fail(format!("`indent` of `tojson` is a whole number or a string up to {MOST_JSON}"));
            }
        },
    };
    let (mut comma, mut colon) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(Value::Tuple(pair) | Value::List(pair)) = args.take("separators") {
        match pair.items.iter().map(Value::str).collect::<Option<Vec<_>>>().as_deref() {
            Some([a, b]) if a.len().max(b.len()) <= MOST_JSON => {
                (comma, colon) = ((*a).to_owned(), (*b).to_owned())
            }
            _ => return fail("`separators` of `tojson` are two short strings"),
        }
    }
    let sorted = args.take("sort_keys").is_some_and(|v| v.truth());
    args.end()?;
    let mut out = Sink::new(budget)?;
    print::Json { ascii, indent, comma, colon, sorted }.write(value, 0, &mut out)?;
    Ok(out.value())
}

fn round(value: &Value, mut args: Args, budget: &Budget) -> Res<Value> {
    let precision = args.take("precision").and_then(|v| v.int()).unwrap_or(0);
    let method = args.take("method");
    args.end()?;
    let Some(x) = value.float() else { return fail(format!("a {} cannot be rounded", value.kind())) };
    let scale = 10f64.powi(i32::try_from(precision.clamp(-300, 300)).unwrap_or(0));
    match method.as_ref().map_or(Some("common"), Value::str) {
        Some("common") if value.int().is_some() && precision >= 0 => Ok(value.clone()),
        Some("common") if precision >= 0 => {
            let digits = usize::try_from(precision.min(300)).unwrap_or(0);
            let text = format!("{x:.digits$}");
            // Digits are written and read.
            budget.work(2 * text.len())?;
            Ok(Value::Float(text.parse().unwrap_or(x)))
        }
        Some("common") => Ok(Value::Float((x * scale).round() / scale)),
        Some("ceil") => Ok(Value::Float((x * scale).ceil() / scale)),
        Some("floor") => Ok(Value::Float((x * scale).floor() / scale)),
        _ => fail("methods of `round` are common, ceil and floor"),
    }
}

fn truncate(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let length = args.take("length").and_then(|v| v.int()).unwrap_or(255);
    let kill = args.take("killwords").is_some_and(|v| v.truth());
    let end = args.take("end").unwrap_or(methods::string("...", budget)?);
    let leeway = args.take("leeway").and_then(|v| v.int()).unwrap_or(5);
    args.end()?;
    let (text, end) = (print::text(value, budget)?, print::text(&end, budget)?);
    let (text, end) = (text.str().unwrap_or_default(), end.str().unwrap_or_default());
    budget.scan(text.len())?;
    if (text.chars().count() as i128) <= length.saturating_add(leeway) {
        return methods::string(text, budget);
    }
    let keep = usize::try_from(length.saturating_sub(end.chars().count() as i128)).unwrap_or(0);
    let kept = text.char_indices().nth(keep).map_or(text, |(at, _)| &text[..at]);
    let kept = if kill { kept } else { kept.rsplit_once(' ').map_or(kept, |(words, _)| words) };
    let mut out = Sink::new(budget)?;
    out.push(kept)?;
    out.push(end)?;
    Ok(out.value())
}

fn number(name: &str, value: &Value, mut args: Args, budget: &Budget) -> Res<Value> {
    budget.scan(2 * value.str().map_or(0, str::len))?;
    let default = args.take("default");
    let base = args.take("base").and_then(|v| v.int()).and_then(|n| u32::try_from(n).ok()).unwrap_or(10);
    args.end()?;
    let text = value.str().map(str::trim);
    if name == "float" {
        let found = value.float().or_else(|| text?.parse().ok());
        return Ok(found.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)));
    }
    let whole = |x: f64| x.is_finite().then_some(x.trunc() as i128);
    let radix = if (2..=36).contains(&base) { base } else { 10 };
    let prefix = match radix {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let bare = text.map(|t| t.strip_prefix(prefix).unwrap_or(t));
    let parsed = bare.and_then(|t| i128::from_str_radix(t, radix).ok().or_else(|| whole(t.parse().ok()?)));
    let found = value.int().or_else(|| whole(value.float()?)).or(parsed);
    Ok(found.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

fn format(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let text = print::text(value, budget)?;
    let text = text.str().unwrap_or_default();
    if args.count() == 0 && !args.is_empty() {
        let mut by_name = Entries::new(budget)?;
        for (name, value) in args.all_named() {
            by_name.set(methods::string(&name, budget)?, value)?;
        }
        return percent::format(text, &by_name.value(), budget);
    }
    let mut values = Items::new(budget)?;
    while args.count() > 0 {
        values.push(args.need("value")?)?;
    }
    args.end()?;
    percent::format(text, &values.tuple(), budget)
}

/// Filters that are methods of the value's text.
fn of_text(name: &str, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let text = print::text(value, budget)?;
    if name == "trim" {
        return methods::strip(text.str().unwrap_or_default(), "strip", args, budget);
    }
    if name == "center" {
        let width = args.take("width").unwrap_or(Value::Int(80));
        args.end()?;
        return methods::call(&text, "center", Args::new(vec![width], Vec::new()), budget);
    }
    let (old, new) = (print::text(&args.need("old")?, budget)?, print::text(&args.need("new")?, budget)?);
    let most = args.take("count").and_then(|v| v.int()).unwrap_or(-1);
    args.end()?;
    let [text, old, new] = [&text, &old, &new].map(|v| v.str().unwrap_or_default());
    methods::replace(text, old, new, most, budget)
}
