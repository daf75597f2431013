//! Filters that order, group and add up. What is not a number (NaN) stands behind all numbers.

use std::cmp::Ordering;
use std::rc::Rc;

use super::access::attribute_of;
use super::ast::Operator;
use super::budget::{Budget, Held, Res, fail};
use super::call::Args;
use super::sequence::iterate;
use super::value::{Dict, Items, Value, undefined};
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
            let (keyed, _held) = keys(value, attribute.as_ref(), cased, budget)?;
            values(&keyed, reverse, budget)
        }
        "dictsort" => {
            let cased = args.take("case_sensitive").is_some_and(|v| v.truth());
            let by = args.take("by");
            let reverse = args.take("reverse").is_some_and(|v| v.truth());
            args.end()?;
            let part = usize::from(by.as_ref().and_then(Value::str) == Some("value"));
            let pairs = methods::pairs(entries(value)?, budget)?;
            let (keyed, _held) = keys(&pairs, Some(&Value::Int(part as i128)), cased, budget)?;
            values(&keyed, reverse, budget)
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
    best.map_or_else(|| undefined(&["the sequence is empty"], budget), |(_, item)| Ok(item))
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
    let places = order(&keyed, false, budget)?;
    let mut out = Items::new(budget)?;
    let mut rest = places.as_slice();
    while let Some((&first, others)) = rest.split_first() {
        let (key, item) = &keyed[first];
        let mut members = Items::new(budget)?;
        members.push(item.clone())?;
        rest = others;
        while let Some((&at, others)) = rest.split_first() {
            let (other, member) = &keyed[at];
            if !ops::equal(key, other, budget)? {
                break;
            }
            members.push(member.clone())?;
            rest = others;
        }
        let shown = match attribute_of(item, &attribute, budget)? {
            Value::Undefined(_) => key.clone(),
            value => value,
        };
        let mut pair = Items::new(budget)?;
        pair.push(shown)?;
        pair.push(members.list())?;
        out.push(pair.tuple())?;
    }
    Ok(out.list())
}

/// Every item with what it is ordered by: itself or its attributes, strings in lower case unless `cased`.
fn keys(value: &Value, attribute: Option<&Value>, cased: bool, budget: &Rc<Budget>) -> Res<(Keyed, Held)> {
    let list = iterate(value, budget)?;
    // The third value pays for the indices of what sorts.
    let held = budget.hold(list.items.len() * 3 * std::mem::size_of::<Value>())?;
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

/// The places of all in the order of their keys.
fn order(keyed: &[(Value, Value)], reverse: bool, budget: &Budget) -> Res<Vec<usize>> {
    sorted(keyed.len(), |a, b| {
        budget.work(1)?;
        let found = ops::order(&keyed[a].0, &keyed[b].0, budget)?;
        Ok(if reverse { found.reverse() } else { found })
    })
}

/// A list of all in the order of their keys.
fn values(keyed: &[(Value, Value)], reverse: bool, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    order(keyed, reverse, budget)?.into_iter().try_for_each(|at| out.push(keyed[at].1.clone()))?;
    Ok(out.list())
}

/// The numbers below `len` in the order of `compare`, stable. Runs are merged, two by two: a comparison may
/// fail at any time, and an order that is none gives some order, where the standard library's sort panics.
fn sorted(len: usize, mut compare: impl FnMut(usize, usize) -> Res<Ordering>) -> Res<Vec<usize>> {
    let mut places: Vec<usize> = (0..len).collect();
    let mut merged = places.clone();
    let mut run = 1;
    while run < len {
        for (from, to) in places.chunks(2 * run).zip(merged.chunks_mut(2 * run)) {
            let (mut left, mut right) = from.split_at(run.min(from.len()));
            for place in to {
                let second = match (left.first(), right.first()) {
                    (Some(&a), Some(&b)) => compare(b, a)?.is_lt(),
                    (first, _) => first.is_none(),
                };
                let side = if second { &mut right } else { &mut left };
                if let Some((&first, rest)) = side.split_first() {
                    (*place, *side) = (first, rest);
                }
            }
        }
        std::mem::swap(&mut places, &mut merged);
        run *= 2;
    }
    Ok(places)
}

/// Entries of a dictionary, for those that order them.
fn entries(value: &Value) -> Res<&Dict> {
    match value {
        Value::Dict(dict) => Ok(dict),
        other => fail(format!("a dict is expected, not a {}", other.kind())),
    }
}
