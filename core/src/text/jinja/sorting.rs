//! Filters that order, group and add up.

use std::cmp::Ordering;
use std::rc::Rc;

use super::access::attribute_of;
use super::ast::Operator;
use super::budget::{Budget, Held, Res, fail};
use super::call::Args;
use super::sequence::iterate;
use super::value::{Dict, Items, Value};
use super::{methods, ops};

/// Items behind what they are ordered by.
type Keyed = Vec<(Value, Value)>;

/// What a filter of this file does to `value`.
pub(super) fn apply(name: &str, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    match name {
        "sum" => {
            let attribute = args.take("attribute").filter(|v| !matches!(v, Value::None));
            let mut total = args.take("start").unwrap_or(Value::Int(0));
            args.end()?;
            for item in &iterate(value, budget)?.items {
                let item = match &attribute {
                    Some(path) => attribute_of(item, path, budget)?,
                    None => item.clone(),
                };
                total = ops::binary(Operator::Add, &total, &item, budget)?;
            }
            Ok(total)
        }
        "sort" => {
            let reverse = args.take("reverse").is_some_and(|v| v.truth());
            let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
            let attribute = args.take("attribute");
            args.end()?;
            let (mut keyed, _held) = keys(value, attribute.as_ref(), cased, budget)?;
            order(&mut keyed, reverse, budget)?;
            values(keyed, budget)
        }
        "dictsort" => {
            let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
            let by = args.take("by");
            let reverse = args.take("reverse").is_some_and(|v| v.truth());
            args.end()?;
            let part = usize::from(by.as_ref().and_then(Value::str) == Some("value"));
            let pairs = methods::pairs(entries(value)?, budget)?;
            let (mut keyed, _held) = keys(&pairs, Some(&Value::Int(part as i128)), cased, budget)?;
            order(&mut keyed, reverse, budget)?;
            values(keyed, budget)
        }
        "min" | "max" => extreme(name == "min", value, args, budget),
        "unique" => unique(value, args, budget),
        _ => group(value, args, budget),
    }
}

fn extreme(least: bool, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
    let attribute = args.take("attribute");
    args.end()?;
    let wanted = if least { Ordering::Less } else { Ordering::Greater };
    let mut best: Option<(Value, Value)> = None;
    let (keyed, _held) = keys(value, attribute.as_ref(), cased, budget)?;
    for (key, item) in keyed {
        let better = match &best {
            None => true,
            Some((old, _)) => ops::order(&key, old, budget)? == wanted,
        };
        best = if better { Some((key, item)) } else { best };
    }
    Ok(best.map_or_else(|| Value::Undefined(Some("the sequence is empty".into())), |(_, item)| item))
}

fn unique(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
    let attribute = args.take("attribute");
    args.end()?;
    let mut seen: Vec<Value> = Vec::new();
    let mut out = Items::new(budget)?;
    let (keyed, _held) = keys(value, attribute.as_ref(), cased, budget)?;
    for (key, item) in keyed {
        let mut known = false;
        for old in &seen {
            known = ops::equal(old, &key, budget)?;
            if known {
                break;
            }
        }
        if !known {
            seen.push(key);
            out.push(item)?;
        }
    }
    Ok(out.list())
}

fn group(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let attribute = args.need("attribute")?;
    let default = args.take("default");
    let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
    args.end()?;
    let (mut keyed, _held) = keys(value, Some(&attribute), cased, budget)?;
    for (key, _) in &mut keyed {
        if let (Value::Undefined(_), Some(default)) = (&*key, &default) {
            *key = default.clone();
        }
    }
    order(&mut keyed, false, budget)?;
    let mut out = Items::new(budget)?;
    let mut rest = keyed.as_slice();
    while let Some((key, first)) = rest.first() {
        let mut members = Items::new(budget)?;
        let mut count = 0;
        for (other, item) in rest {
            if !ops::equal(key, other, budget)? {
                break;
            }
            members.push(item.clone())?;
            count += 1;
        }
        let shown = match attribute_of(first, &attribute, budget)? {
            Value::Undefined(_) => key.clone(),
            value => value,
        };
        let mut pair = Items::new(budget)?;
        pair.push(shown)?;
        pair.push(members.list())?;
        out.push(pair.tuple())?;
        // An item that does not equal itself cannot be.
        rest = &rest[count.max(1)..];
    }
    Ok(out.list())
}

/// Every item with what it is ordered by: itself or its attributes, strings in lower case unless `cased`.
fn keys(value: &Value, attribute: Option<&Value>, cased: bool, budget: &Rc<Budget>) -> Res<(Keyed, Held)> {
    let list = iterate(value, budget)?;
    // Twice: what sorts and what collects keeps as much again.
    let held = budget.hold(list.items.len() * 4 * std::mem::size_of::<Value>())?;
    let mut keyed = Vec::with_capacity(list.items.len());
    let lower = |key: Value| match &key {
        Value::Str(_) if !cased => methods::call(&key, "lower", Args::default(), budget),
        _ => Ok(key),
    };
    for item in &list.items {
        let key = match attribute.filter(|v| !matches!(v, Value::None)) {
            None => lower(item.clone())?,
            Some(Value::Str(paths)) if paths.text.contains(',') => {
                let mut all = Items::new(budget)?;
                for path in paths.text.split(',') {
                    all.push(lower(attribute_of(item, &methods::string(path, budget)?, budget)?)?)?;
                }
                all.tuple()
            }
            Some(path) => lower(attribute_of(item, path, budget)?)?,
        };
        keyed.push((key, item.clone()));
    }
    Ok((keyed, held))
}

fn order(keyed: &mut [(Value, Value)], reverse: bool, budget: &Rc<Budget>) -> Res<()> {
    sorted(keyed, |(a, _), (b, _)| {
        let found = ops::order(a, b, budget)?;
        Ok(if reverse { found.reverse() } else { found })
    })
}

fn values(keyed: Keyed, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    keyed.into_iter().try_for_each(|(_, item)| out.push(item))?;
    Ok(out.list())
}

/// A list in the order of `compare`, stable.
fn sorted<T>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Res<Ordering>) -> Res<()> {
    let mut failure = None;
    items.sort_by(|a, b| match &failure {
        Some(_) => Ordering::Equal,
        None => compare(a, b).unwrap_or_else(|e| {
            failure = Some(e);
            Ordering::Equal
        }),
    });
    failure.map_or(Ok(()), Err)
}

/// Entries of a dictionary, for those that order them.
fn entries(value: &Value) -> Res<&Dict> {
    match value {
        Value::Dict(dict) => Ok(dict),
        other => fail(format!("a dict is expected, not a {}", other.kind())),
    }
}
