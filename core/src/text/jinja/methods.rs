//! Methods of strings, lists and dictionaries.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::call::Args;
pub(super) use super::value::string;
use super::value::{Dict, Items, List, Sink, Value};
use super::{ops, percent, print, sequence};

const OF_STR: [&str; 36] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "startswith",
    "endswith",
    "replace",
    "upper",
    "lower",
    "title",
    "capitalize",
    "swapcase",
    "casefold",
    "join",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "format",
    "isdigit",
    "isdecimal",
    "isnumeric",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "zfill",
    "ljust",
    "rjust",
    "center",
    "removeprefix",
    "removesuffix",
];
const OF_STR_TOO: [&str; 2] = ["partition", "rpartition"];
const OF_DICT: [&str; 4] = ["items", "keys", "values", "get"];
const OF_LIST: [&str; 2] = ["index", "count"];

/// Whether `value` has a method of this name.
pub(super) fn known(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => OF_STR.contains(&name) || OF_STR_TOO.contains(&name),
        Value::Dict(_) => OF_DICT.contains(&name),
        Value::List(_) | Value::Tuple(_) => OF_LIST.contains(&name),
        _ => false,
    }
}

/// `value.name(args)`.
pub(super) fn call(value: &Value, name: &str, args: Args, budget: &Rc<Budget>) -> Res<Value> {
    // What is searched for is prepared before the search.
    budget.scan(2 * args.bytes())?;
    match value {
        Value::Str(text) => of_str(&text.text, name, args, budget),
        Value::Dict(dict) => of_dict(dict, name, args, budget),
        Value::List(list) | Value::Tuple(list) => of_list(list, name, args, budget),
        other => fail(format!("a {} has no method `{name}`", other.kind())),
    }
}

/// Keys and values of a dictionary as a list of pairs.
pub(super) fn pairs(dict: &Dict, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    for (key, value) in &dict.entries {
        let mut pair = Items::new(budget)?;
        pair.push(key.clone())?;
        pair.push(value.clone())?;
        out.push(pair.tuple())?;
    }
    Ok(out.list())
}

fn of_dict(dict: &Dict, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    match name {
        "items" => return args.end().and_then(|()| pairs(dict, budget)),
        "keys" => out.extend(dict.entries.iter().map(|(key, _)| key))?,
        "values" => out.extend(dict.entries.iter().map(|(_, value)| value))?,
        "get" => {
            let key = args.need("key")?;
            let default = args.take("default").unwrap_or(Value::None);
            args.end()?;
            return Ok(dict.get(&key)?.unwrap_or(default));
        }
        _ => return fail(format!("a dict has no method `{name}`")),
    }
    args.end()?;
    Ok(out.list())
}

fn of_list(list: &List, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let wanted = args.need("value")?;
    args.end()?;
    let (mut count, mut first) = (0, None);
    for (at, item) in list.items.iter().enumerate() {
        if ops::equal(item, &wanted, budget)? {
            count += 1;
            first.get_or_insert(at as i128);
            if name == "index" {
                break;
            }
        }
    }
    match (name, first) {
        ("count", _) => Ok(Value::Int(count)),
        ("index", Some(at)) => Ok(Value::Int(at)),
        ("index", None) => fail("the list does not hold the value"),
        _ => fail(format!("a list has no method `{name}`")),
    }
}

fn of_str(text: &str, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    match name {
        "strip" | "lstrip" | "rstrip" => return strip(text, name, args, budget),
        "startswith" | "endswith" => return affix(text, name, args, budget),
        // Classes of characters are looked up in tables.
        _ if name.starts_with("is") => budget.scan(8 * text.len())?,
        _ => budget.scan(text.len())?,
    }
    let is = |test: fn(char) -> bool| Ok(Value::Bool(!text.is_empty() && text.chars().all(test)));
    let cased = |wrong: fn(char) -> bool| {
        Ok(Value::Bool(text.chars().any(char::is_alphabetic) && !text.chars().any(wrong)))
    };
    let result = match name {
        "split" | "rsplit" => return split(text, name == "rsplit", args, budget),
        "replace" => return replace_method(text, args, budget),
        "find" | "rfind" | "index" | "rindex" | "count" => return search(text, name, args, budget),
        "partition" | "rpartition" => return partition(text, name, args, budget),
        "removeprefix" | "removesuffix" => return remove(text, name, args, budget),
        "zfill" | "ljust" | "rjust" | "center" => return justify(text, name, args, budget),
        "format" => return format(text, args, budget),
        "join" => {
            let items = args.need("iterable")?;
            args.end()?;
            return sequence::join(&items, text, budget);
        }
        "splitlines" => {
            let keep = args.take("keepends").is_some_and(|v| v.truth());
            lines(text, keep, budget)
        }
        "upper" => mapped(text, budget, |c, out| c.to_uppercase().try_for_each(|c| out.char(c))),
        "lower" | "casefold" => mapped(text, budget, |c, out| c.to_lowercase().try_for_each(|c| out.char(c))),
        "swapcase" => mapped(text, budget, |c, out| match c.is_uppercase() {
            true => c.to_lowercase().try_for_each(|c| out.char(c)),
            false => c.to_uppercase().try_for_each(|c| out.char(c)),
        }),
        "title" => title(text, budget, |before| !before.is_alphabetic()),
        "capitalize" => capitalize(text, budget),
        "isdigit" | "isdecimal" | "isnumeric" => is(char::is_numeric),
        "isalpha" => is(char::is_alphabetic),
        "isalnum" => is(char::is_alphanumeric),
        "isspace" => is(char::is_whitespace),
        "isupper" => cased(char::is_lowercase),
        "islower" => cased(char::is_uppercase),
        _ => fail(format!("a str has no method `{name}`")),
    };
    args.end()?;
    result
}

fn mapped(text: &str, budget: &Rc<Budget>, mut each: impl FnMut(char, &mut Sink) -> Res<()>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    text.chars().try_for_each(|c| each(c, &mut out))?;
    Ok(out.value())
}

/// Upper case behind what `begins` a word, lower case elsewhere.
pub(super) fn title(text: &str, budget: &Rc<Budget>, begins: fn(char) -> bool) -> Res<Value> {
    let mut start = true;
    mapped(text, budget, |c, out| {
        let upper = std::mem::replace(&mut start, begins(c));
        match upper {
            true => c.to_uppercase().try_for_each(|c| out.char(c)),
            false => c.to_lowercase().try_for_each(|c| out.char(c)),
        }
    })
}

/// The first character in upper case, the rest in lower case.
pub(super) fn capitalize(text: &str, budget: &Rc<Budget>) -> Res<Value> {
    let mut first = true;
    mapped(text, budget, |c, out| match std::mem::take(&mut first) {
        true => c.to_uppercase().try_for_each(|c| out.char(c)),
        false => c.to_lowercase().try_for_each(|c| out.char(c)),
    })
}

/// The text of an argument that is a string.
fn text_of(value: &Value) -> Res<&str> {
    match value.str() {
        Some(text) => Ok(text),
        None => fail(format!("a str is expected, not a {}", value.kind())),
    }
}

/// Blanks, or the characters of an argument, off the ends.
pub(super) fn strip(text: &str, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let chars = args.take("chars").unwrap_or(Value::None);
    args.end()?;
    budget.scan(text.len())?;
    let set: Option<Vec<char>> = match &chars {
        Value::None => None,
        given => {
            let given = text_of(given)?;
            if given.len() > 256 {
                return fail("more than 256 bytes of characters to strip");
            }
            budget.work(text.len().saturating_mul(given.len()) / 64)?;
            Some(given.chars().collect())
        }
    };
    let gone = |c: char| set.as_ref().map_or(c.is_whitespace(), |set| set.contains(&c));
    string(
        match name {
            "lstrip" => text.trim_start_matches(gone),
            "rstrip" => text.trim_end_matches(gone),
            _ => text.trim_matches(gone),
        },
        budget,
    )
}

fn split(text: &str, from_end: bool, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let separator = args.take("sep").unwrap_or(Value::None);
    let most = args.take("maxsplit").and_then(|v| v.int()).unwrap_or(-1);
    args.end()?;
    let most = usize::try_from(most).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut out = Items::new(budget)?;
    let mut push = |part: &str| out.push(string(part, budget)?);
    match &separator {
        Value::None if from_end => {
            let (mut rest, mut n) = (text.trim(), 1);
            while !rest.is_empty() && n < most {
                let Some((at, c)) = rest.char_indices().rev().find(|(_, c)| c.is_whitespace()) else { break };
                push(&rest[at + c.len_utf8()..])?;
                (rest, n) = (rest[..at].trim_end(), n + 1);
            }
            if !rest.is_empty() {
                push(rest)?;
            }
            out.reverse();
        }
        Value::None => {
            let (mut rest, mut n) = (text.trim_start(), 1);
            while !rest.is_empty() {
                let end = if n < most { rest.find(char::is_whitespace) } else { None };
                let Some(end) = end else {
                    push(rest)?;
                    break;
                };
                push(&rest[..end])?;
                (rest, n) = (rest[end..].trim_start(), n + 1);
            }
        }
        given => match (text_of(given)?, from_end) {
            ("", _) => return fail("an empty separator"),
            (separator, false) => text.splitn(most, separator).try_for_each(push)?,
            (separator, true) => {
                text.rsplitn(most, separator).try_for_each(push)?;
                out.reverse();
            }
        },
    }
    Ok(out.list())
}

fn lines(text: &str, keep: bool, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Items::new(budget)?;
    let mut rest = text;
    while !rest.is_empty() {
        let (end, next) = match rest.find(['\n', '\r']) {
            None => (rest.len(), rest.len()),
            Some(at) => (at, at + if rest[at..].starts_with("\r\n") { 2 } else { 1 }),
        };
        out.push(string(&rest[..if keep { next } else { end }], budget)?)?;
        rest = &rest[next..];
    }
    Ok(out.list())
}

fn affix(text: &str, name: &str, mut args: Args, budget: &Budget) -> Res<Value> {
    let wanted = args.need("prefix")?;
    args.end()?;
    let one = |value: &Value| -> Res<bool> {
        let part = text_of(value)?;
        budget.touch(part.len())?;
        Ok(if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) })
    };
    match &wanted {
        Value::Tuple(all) => {
            for value in &all.items {
                if one(value)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        value => Ok(Value::Bool(one(value)?)),
    }
}

fn replace_method(text: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let (old, new) = (args.need("old")?, args.need("new")?);
    let most = args.take("count").and_then(|v| v.int()).unwrap_or(-1);
    args.end()?;
    replace(text, text_of(&old)?, text_of(&new)?, most, budget)
}

/// `most` times at most, unless it is negative.
pub(super) fn replace(text: &str, old: &str, new: &str, most: i128, budget: &Rc<Budget>) -> Res<Value> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    budget.scan(text.len())?;
    let mut out = Sink::new(budget)?;
    let mut from = 0;
    for (at, found) in text.match_indices(old).take(most) {
        out.push(&text[from..at])?;
        out.push(new)?;
        from = at + found.len();
    }
    out.push(&text[from..])?;
    Ok(out.value())
}

fn search(text: &str, name: &str, mut args: Args, budget: &Budget) -> Res<Value> {
    let wanted = args.need("sub")?;
    args.end()?;
    let wanted = text_of(&wanted)?;
    if name == "count" {
        // As many times as there are characters.
        budget.scan(3 * text.len())?;
        return Ok(Value::Int(text.matches(wanted).count() as i128));
    }
    let at = if name.starts_with('r') { text.rfind(wanted) } else { text.find(wanted) };
    match at {
        Some(at) => Ok(Value::Int(text[..at].chars().count() as i128)),
        None if name.ends_with("index") => fail("the substring is not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn partition(text: &str, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let separator = args.need("sep")?;
    args.end()?;
    let separator = text_of(&separator)?;
    if separator.is_empty() {
        return fail("an empty separator");
    }
    let parts = match name {
        "partition" => text.split_once(separator).map_or([text, "", ""], |(a, b)| [a, separator, b]),
        _ => text.rsplit_once(separator).map_or(["", "", text], |(a, b)| [a, separator, b]),
    };
    let mut out = Items::new(budget)?;
    parts.iter().try_for_each(|part| out.push(string(part, budget)?))?;
    Ok(out.tuple())
}

fn remove(text: &str, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let part = args.need("affix")?;
    args.end()?;
    let part = text_of(&part)?;
    let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
    string(rest.unwrap_or(text), budget)
}

fn justify(text: &str, name: &str, mut args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let width = args.need("width")?.int().and_then(|n| usize::try_from(n.max(0)).ok()).unwrap_or(0);
    let fill = args.take("fillchar").and_then(|v| v.str().and_then(|s| s.chars().next())).unwrap_or(' ');
    args.end()?;
    let missing = width.saturating_sub(text.chars().count());
    let mut out = Sink::new(budget)?;
    let (before, after) = match name {
        "ljust" => (0, missing),
        "center" => (missing / 2 + (missing & width & 1), missing - missing / 2 - (missing & width & 1)),
        _ => (missing, 0),
    };
    let (sign, rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) if name == "zfill" => text.split_at(text.len() - rest.len()),
        _ => ("", text),
    };
    out.push(sign)?;
    out.fill(if name == "zfill" { '0' } else { fill }, before)?;
    out.push(rest)?;
    out.fill(fill, after)?;
    Ok(out.value())
}

/// `text.format(...)`: fields by number or name, with conversion and format.
fn format(text: &str, args: Args, budget: &Rc<Budget>) -> Res<Value> {
    let mut out = Sink::new(budget)?;
    let mut rest = text;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let brace = &rest[at..at + 1];
        if rest[at + 1..].starts_with(brace) {
            out.push(brace)?;
            rest = &rest[at + 2..];
            continue;
        }
        let Some(end) = rest[at..].find('}').filter(|_| brace == "{") else {
            return fail("a single brace in a format");
        };
        let field = &rest[at + 1..at + end];
        rest = &rest[at + end + 1..];
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = name.split_once('!').map_or((name, None), |(n, c)| (n, Some(c)));
        let value = match name.parse::<usize>() {
            _ if name.is_empty() => {
                next += 1;
                args.nth(next - 1)
            }
            Ok(number) => args.nth(number),
            Err(_) => {
                budget.work(1 + args.len() / 8)?;
                args.named(name)
            }
        };
        let Some(value) = value else {
            return fail(format!(
                "field `{}` of a format has no argument",
                name.chars().take(40).collect::<String>()
            ));
        };
        match conversion {
            None => percent::braced(spec, &value, &mut out)?,
            Some("s") => percent::braced(spec, &print::text(&value, budget)?, &mut out)?,
            Some("r") => {
                let mut repr = Sink::new(budget)?;
                print::repr(&value, &mut repr)?;
                percent::braced(spec, &repr.value(), &mut out)?;
            }
            Some(_) => return fail("conversions of a format are `!s` and `!r`"),
        }
    }
    out.push(rest)?;
    Ok(out.value())
}
