//! Operators, with Python's meaning.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::Operator;
use super::budget::{Budget, Res, fail};
pub(super) use super::value::equal;
use super::value::{Items, Sink, Value, numeric};
use super::{percent, print};

/// How `a` and `b` stand to one another; not at all where one is not a number (NaN), so that none of `<`,
/// `<=`, `>` and `>=` holds.
pub(super) fn compare(a: &Value, b: &Value, budget: &Budget) -> Res<Option<Ordering>> {
    ordering(a, b, false, budget)
}

/// How `a` and `b` stand to one another when they are sorted. This order is total: what is not a number
/// stands behind all numbers. Python leaves open where it goes.
pub(super) fn order(a: &Value, b: &Value, budget: &Budget) -> Res<Ordering> {
    Ok(ordering(a, b, true, budget)?.unwrap_or(Ordering::Equal))
}

fn ordering(a: &Value, b: &Value, total: bool, budget: &Budget) -> Res<Option<Ordering>> {
    budget.work(1)?;
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            budget.touch(a.text.len().min(b.text.len()))?;
            return Ok(Some(a.text.cmp(&b.text)));
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if equal(a, b, budget)? {
                    continue;
                }
                match ordering(a, b, total, budget)? {
                    // Two that are not numbers.
                    Some(Ordering::Equal) => {}
                    found => return Ok(found),
                }
            }
            return Ok(Some(a.items.len().cmp(&b.items.len())));
        }
        _ => {}
    }
    match (numeric(a, b), a.float(), b.float()) {
        (None, Some(x), Some(y)) => Ok(total.then(|| x.is_nan().cmp(&y.is_nan()))),
        (None, ..) => fail(format!("`{}` and `{}` cannot be ordered", a.kind(), b.kind())),
        (found, ..) => Ok(found),
    }
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value, budget: &Budget) -> Res<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget.scan(text.text.len() + 2 * part.text.len())?;
            Ok(text.text.contains(&part.text))
        }
        (Value::List(list) | Value::Tuple(list), _) => {
            for known in &list.items {
                if equal(known, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Dict(dict), _) => Ok(dict.get(item)?.is_some()),
        (Value::Undefined(_), _) => Ok(false),
        _ => fail(format!("`{}` in `{}` is not possible", item.kind(), container.kind())),
    }
}

/// An arithmetic operator.
pub(super) fn binary(operator: Operator, a: &Value, b: &Value, budget: &Rc<Budget>) -> Res<Value> {
    budget.work(1)?;
    if let (Value::Undefined(name), _) | (_, Value::Undefined(name)) = (a, b) {
        return fail(print::undefined(name));
    }
    match (operator, a, b) {
        (Operator::Add, Value::Str(x), Value::Str(y)) => {
            let mut out = Sink::new(budget)?;
            out.push(&x.text)?;
            out.push(&y.text)?;
            Ok(out.value())
        }
        (Operator::Add, Value::List(x), Value::List(y)) => {
            let mut out = Items::new(budget)?;
            out.extend(x.items.iter().chain(&y.items))?;
            Ok(out.list())
        }
        (Operator::Add, Value::Tuple(x), Value::Tuple(y)) => {
            let mut out = Items::new(budget)?;
            out.extend(x.items.iter().chain(&y.items))?;
            Ok(out.tuple())
        }
        (Operator::Rem, Value::Str(format), _) => percent::format(&format.text, b, budget),
        (Operator::Mul, Value::Str(_) | Value::List(_) | Value::Tuple(_), Value::Int(_) | Value::Bool(_)) => {
            repeat(a, b.int().unwrap_or(0), budget)
        }
        (Operator::Mul, Value::Int(_) | Value::Bool(_), Value::Str(_) | Value::List(_) | Value::Tuple(_)) => {
            repeat(b, a.int().unwrap_or(0), budget)
        }
        _ => numbers(operator, a, b),
    }
}

fn repeat(value: &Value, times: i128, budget: &Rc<Budget>) -> Res<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Str(text) => {
            let mut out = Sink::new(budget)?;
            if !text.text.is_empty() {
                for _ in 0..times {
                    out.push(&text.text)?;
                }
            }
            Ok(out.value())
        }
        Value::List(list) | Value::Tuple(list) => {
            let mut out = Items::new(budget)?;
            if !list.items.is_empty() {
                for _ in 0..times {
                    out.extend(&list.items)?;
                }
            }
            Ok(if matches!(value, Value::List(_)) { out.list() } else { out.tuple() })
        }
        _ => Ok(value.clone()),
    }
}

fn numbers(operator: Operator, a: &Value, b: &Value) -> Res<Value> {
    let name = match operator {
        Operator::Add => "+",
        Operator::Sub => "-",
        Operator::Mul => "*",
        Operator::Div => "/",
        Operator::FloorDiv => "//",
        Operator::Rem => "%",
        Operator::Pow => "**",
    };
    let divides = matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Rem);
    let (Some(x), Some(y)) = (a.float(), b.float()) else {
        return fail(format!("`{}` {name} `{}` is not possible", a.kind(), b.kind()));
    };
    if divides && y == 0.0 {
        return fail("division by zero");
    }
    let whole = match (a.int(), b.int()) {
        (Some(a), Some(b)) if operator != Operator::Div && (operator != Operator::Pow || b >= 0) => {
            Some((a, b))
        }
        _ => None,
    };
    let Some((m, n)) = whole else {
        return Ok(Value::Float(match operator {
            Operator::Add => x + y,
            Operator::Sub => x - y,
            Operator::Mul => x * y,
            Operator::Div => x / y,
            Operator::FloorDiv => (x / y).floor(),
            Operator::Rem => x - y * (x / y).floor(),
            Operator::Pow => x.powf(y),
        }));
    };
    let result = match operator {
        Operator::Add => m.checked_add(n),
        Operator::Sub => m.checked_sub(n),
        Operator::Mul => m.checked_mul(n),
        Operator::Div | Operator::FloorDiv => floor_div(m, n),
        Operator::Rem => floor_div(m, n).and_then(|q| m.checked_sub(q.checked_mul(n)?)),
        Operator::Pow => u32::try_from(n).ok().and_then(|n| m.checked_pow(n)),
    };
    match result {
        Some(n) => Ok(Value::Int(n)),
        None => fail(format!("{m} {name} {n} does not fit 128 bits")),
    }
}

fn floor_div(a: i128, b: i128) -> Option<i128> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    if rest != 0 && (rest < 0) != (b < 0) { quotient.checked_sub(1) } else { Some(quotient) }
}

/// `-a` or `+a`.
pub(super) fn sign(minus: bool, value: &Value) -> Res<Value> {
    match value {
        Value::Float(x) => Ok(Value::Float(if minus { -x } else { *x })),
        Value::Undefined(name) => fail(print::undefined(name)),
        other => match other.int().and_then(|n| if minus { n.checked_neg() } else { Some(n) }) {
            Some(n) => Ok(Value::Int(n)),
            None => fail(format!("a {} has no sign", other.kind())),
        },
    }
}

/// `value[start:stop:step]` of a string, list or tuple; each part is a whole number or none.
pub(super) fn slice(value: &Value, parts: [Value; 3], budget: &Rc<Budget>) -> Res<Value> {
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        *bound = match part {
            Value::None => None,
            other => match other.int() {
                Some(n) => Some(n),
                None => return fail(format!("a slice needs whole numbers, not {}", other.kind())),
            },
        };
    }
    let [start, stop, step] = bounds;
    let step = step.unwrap_or(1);
    if step == 0 {
        return fail("a slice cannot have step 0");
    }
    match value {
        Value::Str(text) => {
            budget.scan(2 * text.text.len())?;
            let count = text.text.chars().count();
            let _held = budget.hold(count * std::mem::size_of::<char>())?;
            let mut out = Sink::new(budget)?;
            let mut chars: Vec<char> = Vec::with_capacity(count);
            chars.extend(text.text.chars());
            for at in picked(chars.len(), start, stop, step) {
                out.char(chars[at])?;
            }
            Ok(out.value())
        }
        Value::List(list) | Value::Tuple(list) => {
            let mut out = Items::new(budget)?;
            for at in picked(list.items.len(), start, stop, step) {
                out.push(list.items[at].clone())?;
            }
            Ok(if matches!(value, Value::List(_)) { out.list() } else { out.tuple() })
        }
        Value::Undefined(name) => fail(print::undefined(name)),
        other => fail(format!("a {} has no slices", other.kind())),
    }
}

/// The indices of a slice of `len` items.
fn picked(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let len = len as i128;
    // Bounds of what an index may be: one before the first is a stop when going down.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(n) if n < 0 => n.saturating_add(len).clamp(low, high),
        Some(n) => n.clamp(low, high),
    };
    let (first, last) = if step > 0 {
        (place(start, low), place(stop, high))
    } else {
        (place(start, high), place(stop, low))
    };
    let mut at = first;
    std::iter::from_fn(move || {
        if (step > 0 && at >= last) || (step < 0 && at <= last) {
            return None;
        }
        let now = usize::try_from(at).ok();
        at = at.saturating_add(step);
        now
    })
}
