//! Attributes and items of values.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::value::{Loop, Value, undefined};
use super::{methods, print};

fn missing(value: &Value, name: &str, budget: &Rc<Budget>) -> Res<Value> {
    let end = name.char_indices().nth(60).map_or(name.len(), |(at, _)| at);
    undefined(&["'", value.kind(), " object' has no attribute '", &name[..end], "'"], budget)
}

/// `value.name`.
pub(super) fn attribute(value: &Value, name: &str, budget: &Rc<Budget>) -> Res<Value> {
    budget.work(1)?;
    let found = match value {
        Value::Undefined(what) => return fail(print::undefined(what)),
        Value::Space(space) => space.fields.borrow().field(name)?,
        Value::Loop(state) => of_loop(state, name, budget)?,
        // A method goes before an entry of its name, as in Python; `value['items']` asks for the entry first.
        _ if methods::known(value, name) => Some(Value::Method(Rc::new((value.clone(), name.into())))),
        Value::Dict(dict) => dict.field(name)?,
        _ => None,
    };
    found.map_or_else(|| missing(value, name, budget), Ok)
}

/// `value[key]`.
pub(super) fn item(value: &Value, key: &Value, budget: &Rc<Budget>) -> Res<Value> {
    budget.work(1)?;
    let at = |len: usize| {
        let n = key.int()?;
        usize::try_from(if n < 0 { n.checked_add(len as i128)? } else { n }).ok()
    };
    let found = match value {
        Value::Undefined(what) => return fail(print::undefined(what)),
        Value::Dict(dict) if !matches!(key, Value::List(_) | Value::Dict(_)) => dict.get(key)?,
        Value::List(list) | Value::Tuple(list) => {
            at(list.items.len()).and_then(|at| list.items.get(at)).cloned()
        }
        Value::Str(text) if key.int().is_some() => {
            let n = key.int().unwrap_or(0);
            let far = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX).saturating_add(1);
            budget.scan(far.saturating_mul(4).min(text.text.len()))?;
            let nth = |n: i128| usize::try_from(n).ok();
            let c = match n < 0 {
                true => nth(-1 - n.max(i128::MIN + 1)).and_then(|n| text.text.chars().rev().nth(n)),
                false => nth(n).and_then(|n| text.text.chars().nth(n)),
            };
            c.map(|c| methods::string(c.encode_utf8(&mut [0; 4]), budget)).transpose()?
        }
        _ => None,
    };
    match (found, key.str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name))
            if methods::known(value, name) || matches!(value, Value::Space(_) | Value::Loop(_)) =>
        {
            attribute(value, name, budget)
        }
        (None, Some(name)) => missing(value, name, budget),
        (None, None) => missing(value, "that", budget),
    }
}

fn of_loop(state: &Loop, name: &str, budget: &Rc<Budget>) -> Res<Option<Value>> {
    let (index, len) = (state.index.get(), state.items.items.len());
    let nearby = |at: Option<usize>| match at.and_then(|at| state.items.items.get(at)) {
        Some(item) => Ok(item.clone()),
        None => undefined(&["there is no such item in the loop"], budget),
    };
    budget.work(1)?;
    Ok(Some(match name {
        "index" => Value::Int(index as i128 + 1),
        "index0" => Value::Int(index as i128),
        "revindex" => Value::Int((len - index) as i128),
        "revindex0" => Value::Int((len - index) as i128 - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => Value::Int(len as i128),
        "depth" => Value::Int(state.depth as i128),
        "depth0" => Value::Int(state.depth as i128 - 1),
        "previtem" => nearby(index.checked_sub(1))?,
        "nextitem" => nearby(Some(index + 1))?,
        _ => return Ok(None),
    }))
}

/// `a.b.0` of an item, or an item by a number.
pub(super) fn attribute_of(value: &Value, path: &Value, budget: &Rc<Budget>) -> Res<Value> {
    budget.scan(2 * path.str().map_or(0, str::len))?;
    let Some(path) = path.str() else { return item(value, path, budget) };
    let mut found = value.clone();
    for part in path.split('.') {
        found = match part.parse::<i128>() {
            Ok(number) => match item(&found, &Value::Int(number), budget)? {
                Value::Undefined(_) => item(&found, &methods::string(part, budget)?, budget)?,
                value => value,
            },
            Err(_) => item(&found, &methods::string(part, budget)?, budget)?,
        };
    }
    Ok(found)
}
