//! What a loop over a value sees, and its text.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::print;
use super::value::{Items, List, Sink, Value, string};

/// What a loop over a value sees.
pub(super) fn iterate(value: &Value, budget: &Rc<Budget>) -> Res<Rc<List>> {
    let mut out = match value {
        Value::List(list) | Value::Tuple(list) => return Ok(list.clone()),
        _ => Items::new(budget)?,
    };
    match value {
        Value::Undefined(_) => {}
        Value::Dict(dict) => out.extend(dict.entries.iter().map(|(key, _)| key))?,
        Value::Str(text) => {
            for c in text.text.chars() {
                out.push(string(c.encode_utf8(&mut [0; 4]), budget)?)?;
            }
        }
        other => return fail(format!("a {} cannot be iterated over", other.kind())),
    }
    Ok(out.rc())
}

/// The items' texts with `separator` between them.
pub(super) fn join(value: &Value, separator: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    for (i, item) in iterate(value, budget)?.items.iter().enumerate() {
        out.push(if i > 0 { separator } else { "" })?;
        print::show(item, &mut out)?;
    }
    Ok(out.value())
}
