//! Tests: what stands behind `is`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::call::Args;
use super::value::Value;
use super::{filters, ops};

/// `value is name(args)`.
pub(super) fn apply(name: &str, value: &Value, mut args: Args, budget: &Rc<Budget>) -> Res<bool> {
    budget.work(1)?;
    let mut other = || args.need("other");
    let result = match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => {
            matches!(
                value,
                Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_)
            )
        }
        "iterable" => {
            matches!(
                value,
                Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_)
            )
        }
        "callable" => {
            matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method(_) | Value::Loop(_))
        }
        "odd" | "even" => match value.int() {
            Some(n) => (n % 2 != 0) == (name == "odd"),
            None => return fail(format!("`{name}` needs a whole number")),
        },
        "divisibleby" => match (value.int(), other()?.int()) {
            (Some(n), Some(by)) if by != 0 => n.checked_rem(by) == Some(0),
            _ => return fail("`divisibleby` needs whole numbers other than 0"),
        },
        "lower" | "upper" => {
            let text = value.str().unwrap_or_default();
            budget.scan(8 * text.len())?;
            let wrong = if name == "lower" { char::is_uppercase } else { char::is_lowercase };
            text.chars().any(char::is_alphabetic) && !text.chars().any(wrong)
        }
        "escaped" => false,
        "filter" => other()?.str().is_some_and(known_filter),
        "test" => other()?.str().is_some_and(|name| NAMES.contains(&name)),
        "in" => ops::contains(&other()?, value, budget)?,
        "sameas" | "eq" | "equalto" | "==" => ops::equal(value, &other()?, budget)?,
        "ne" | "!=" => !ops::equal(value, &other()?, budget)?,
        "lt" | "lessthan" | "<" => ops::compare(value, &other()?, budget)?.is_some_and(Ordering::is_lt),
        "le" | "<=" => ops::compare(value, &other()?, budget)?.is_some_and(Ordering::is_le),
        "gt" | "greaterthan" | ">" => ops::compare(value, &other()?, budget)?.is_some_and(Ordering::is_gt),
        "ge" | ">=" => ops::compare(value, &other()?, budget)?.is_some_and(Ordering::is_ge),
        _ => return fail(format!("test `{name}` is not known")),
    };
    args.end()?;
    Ok(result)
}

/// Names of tests that stand in templates; signs are for `select`.
pub(super) const NAMES: [&str; 37] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "callable",
    "odd",
    "even",
    "divisibleby",
    "lower",
    "upper",
    "escaped",
    "filter",
    "test",
    "in",
    "sameas",
    "eq",
    "equalto",
    "ne",
    "lt",
    "lessthan",
    "le",
    "gt",
    "greaterthan",
    "ge",
    "==",
    "!=",
    "<",
    ">",
];

/// Whether a filter has this name.
pub(super) fn known_filter(name: &str) -> bool {
    filters::NAMES.contains(&name) || filters::SELECTING.contains(&name)
}
