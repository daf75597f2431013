//! Filters that call filters or tests on every item.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::call::Args;
use super::value::{Items, Value};
use super::{checks, filters};

/// `value | name(args)`, whatever the filter.
pub(super) fn filter(name: &str, value: &Value, args: Args, budget: &Rc<Budget>) -> Res<Value> {
    budget.touch(args.bytes())?;
    match name {
        "map" => map(value, args, budget),
        "select" | "reject" | "selectattr" | "rejectattr" => pick(name, value, args, budget),
        _ => filters::apply(name, value, args, budget),
    }
}

/// `map(attribute=...)`, or a filter by its name and what it takes. That filter is none of this file: a
/// string of one character is a list of itself, and maps of maps would never reach its end.
fn map(value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    if args.count() == 0 {
        let path = args.need("attribute")?;
        let default = args.take("default");
        args.end()?;
        for item in &filters::iterate(value, budget)?.items {
            let found = filters::attribute_of(item, &path, budget)?;
            out.push(match (&found, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                _ => found,
            })?;
        }
        return Ok(out.list());
    }
    let name = args.need("filter")?;
    let Some(name) = name.str().filter(|n| !filters::SELECTING.contains(n)) else {
        return fail("`map` needs the name of a filter that is none of map, select, reject");
    };
    for item in &filters::iterate(value, budget)?.items {
        budget.work(args.len())?;
        out.push(filters::apply(name, item, args.clone(), budget)?)?;
    }
    Ok(out.list())
}

fn pick(name: &str, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let path = if name.ends_with("attr") { Some(args.need("attribute")?) } else { None };
    let test = args.take("test");
    let wanted = name.starts_with("select");
    let mut out = Items::new(budget)?;
    for item in &filters::iterate(value, budget)?.items {
        budget.work(args.len())?;
        let seen = match &path {
            Some(path) => filters::attribute_of(item, path, budget)?,
            None => item.clone(),
        };
        let holds = match &test {
            None => seen.truth(),
            Some(Value::Str(test)) => checks::apply(&test.text, &seen, args.clone(), budget)?,
            Some(other) => return fail(format!("a test has a name, not a {}", other.kind())),
        };
        if holds == wanted {
            out.push(item.clone())?;
        }
    }
    Ok(out.list())
}
