//! Formatting as Python does it: `"%s" % x` and `"{}".format(x)`.

use std::rc::Rc;

use super::budget::{Budget, Res, fail};
use super::print;
use super::value::{Sink, Value};

/// What stands between the sign and the letter of a field.
#[derive(Debug, Default, Clone)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    comma: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Digits behind the point, at most.
const MOST_DIGITS: usize = 400;

/// Digits of a width or a precision, which are bounded long before memory is.
fn count(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Res<Option<usize>> {
    let mut found = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        let value = found.unwrap_or(0usize).saturating_mul(10).saturating_add(digit as usize);
        if value > 1 << 20 {
            return fail("a width or a precision of more than 1048576");
        }
        found = Some(value);
        chars.next();
    }
    Ok(found)
}

/// `format % values`.
pub(super) fn format(format: &str, values: &Value, budget: &Rc<Budget>) -> Res<Value> {
    budget.scan(2 * format.len())?;
    let mut out = Sink::new(budget)?;
    let one = std::slice::from_ref(values);
    let mut given = match values {
        Value::Tuple(list) => list.items.iter(),
        _ => one.iter(),
    };
    let mut chars = format.chars().peekable();
    let (mut fields, mut by_name) = (0usize, false);
    while let Some(c) = chars.next() {
        if c != '%' {
            out.char(c)?;
            continue;
        }
        let mut named = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            let mut name = Sink::new(budget)?;
            chars.by_ref().take_while(|&c| c != ')').try_for_each(|c| name.char(c))?;
            named = Some(name);
        }
        let mut spec = flags(&mut chars)?;
        match chars.next() {
            Some('%') => {
                out.char('%')?;
                continue;
            }
            kind => spec.kind = kind,
        }
        let value = match (&named, values) {
            (Some(name), Value::Dict(dict)) => {
                by_name = true;
                dict.field(name.text())?
            }
            (Some(_), _) => return fail("a named field of a format needs a dictionary"),
            (None, _) => given.next().cloned(),
        };
        fields += 1;
        let Some(value) = value else { return fail("there are not enough arguments for a format") };
        field(&spec, &value, &mut out)?;
    }
    let rest = given.next().is_some() && !by_name && !(fields == 0 && matches!(values, Value::Dict(_)));
    if rest { fail("not all arguments of a format are used") } else { Ok(out.value()) }
}

fn flags(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Res<Spec> {
    let mut spec = Spec::default();
    while let Some(&c) = chars.peek() {
        match c {
            '-' => spec.align = Some('<'),
            '+' => spec.sign = Some('+'),
            ' ' if spec.sign.is_none() => spec.sign = Some(' '),
            ' ' => {}
            '0' => spec.fill = Some('0'),
            '#' => spec.alternate = true,
            _ => break,
        }
        chars.next();
    }
    spec.width = count(chars)?.unwrap_or(0);
    if chars.peek() == Some(&'.') {
        chars.next();
        spec.precision = Some(count(chars)?.unwrap_or(0));
    }
    while chars.peek().is_some_and(|c| "hlL".contains(*c)) {
        chars.next();
    }
    Ok(spec)
}

/// One field of `%`.
fn field(spec: &Spec, value: &Value, out: &mut Sink) -> Res<()> {
    let budget = out.budget();
    let (text, number) = match spec.kind {
        Some('s') => (truncate(print::text(value, &budget)?, spec.precision, &budget)?, false),
        Some('r' | 'a') => {
            let mut repr = Sink::new(&budget)?;
            print::repr(value, &mut repr)?;
            (truncate(repr.value(), spec.precision, &budget)?, false)
        }
        Some('c') => (print::text(value, &budget)?, false),
        Some(kind) if "diuxXofFeEgG".contains(kind) => {
            let kind = if kind == 'i' || kind == 'u' { 'd' } else { kind };
            let value = match value {
                Value::Float(x) if kind == 'd' => Value::Int(x.trunc() as i128),
                other => other.clone(),
            };
            (number_text(&Spec { kind: Some(kind), ..spec.clone() }, &value, &budget)?, true)
        }
        other => return fail(format!("a format field of kind {:?} is not supported", other.unwrap_or(' '))),
    };
    let fill = spec.fill.filter(|_| number && spec.align.is_none());
    pad(text.str().unwrap_or_default(), fill, spec.align.unwrap_or('>'), spec.width, out)
}

fn truncate(text: Value, precision: Option<usize>, budget: &Rc<Budget>) -> Res<Value> {
    let (Some(most), Some(all)) = (precision, text.str()) else { return Ok(text) };
    let end = all.char_indices().nth(most).map_or(all.len(), |(i, _)| i);
    let mut out = Sink::new(budget)?;
    out.push(&all[..end])?;
    Ok(out.value())
}

/// `text` in `width` characters. Zeros go between a sign and the digits.
fn pad(text: &str, fill: Option<char>, align: char, width: usize, out: &mut Sink) -> Res<()> {
    out.budget().touch(text.len())?;
    let missing = width.saturating_sub(text.chars().count());
    let fill_with = fill.unwrap_or(' ');
    let (sign, digits) = match text.strip_prefix(['-', '+', ' ']) {
        Some(digits) if fill == Some('0') && matches!(align, '>' | '=') => {
            text.split_at(text.len() - digits.len())
        }
        _ => ("", text),
    };
    let (before, after) = match align {
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    out.push(sign)?;
    out.fill(fill_with, before)?;
    out.push(digits)?;
    out.fill(fill_with, after)
}

/// A number without its padding.
fn number_text(spec: &Spec, value: &Value, budget: &Rc<Budget>) -> Res<Value> {
    let kind = spec.kind.unwrap_or('d');
    let precision = spec.precision.unwrap_or(6).min(MOST_DIGITS);
    let mut out = Sink::new(budget)?;
    let Some(x) = value.float() else {
        return fail(format!("a number is expected for `{kind}`, not a {}", value.kind()));
    };
    let negative = x < 0.0 || (x == 0.0 && x.is_sign_negative() && value.int().is_none());
    out.push(if negative { "-" } else { "" })?;
    if let Some(sign) = spec.sign.filter(|&s| s != '-' && !negative) {
        out.char(sign)?;
    }
    let digits = match (kind, value.int()) {
        ('d' | 'x' | 'X' | 'o' | 'b', Some(n)) => {
            let n = n.unsigned_abs();
            let (prefix, digits) = match kind {
                'x' => ("0x", format!("{n:x}")),
                'X' => ("0X", format!("{n:X}")),
                'o' => ("0o", format!("{n:o}")),
                'b' => ("0b", format!("{n:b}")),
                _ => ("", n.to_string()),
            };
            out.push(if spec.alternate { prefix } else { "" })?;
            digits
        }
        ('d' | 'x' | 'X' | 'o' | 'b', None) => return fail(format!("`{kind}` needs a whole number")),
        ('%', _) => format!("{:.precision$}%", x.abs() * 100.0),
        ('e' | 'E', _) => exponent(x.abs(), precision, kind),
        ('g' | 'G' | 'n', _) => general(x.abs(), precision.max(1)),
        _ => format!("{:.precision$}", x.abs()),
    };
    // Each digit is a division of long numbers. Some are made that are not shown.
    budget.work(precision + digits.len())?;
    match spec.comma {
        Some(comma) => out.push(&grouped(&digits, comma))?,
        None => out.push(&digits)?,
    }
    Ok(out.value())
}

fn exponent(x: f64, precision: usize, kind: char) -> String {
    let short = format!("{x:.precision$e}");
    let (mantissa, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}{kind}{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(x: f64, precision: usize) -> String {
    let short = format!("{x:.*e}", precision - 1);
    let power: i32 = short.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if power < -4 || power >= precision as i32 {
        let text = exponent(x, precision - 1, 'e');
        let (mantissa, rest) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{rest}", trim(mantissa.to_owned()));
    }
    trim(format!("{x:.*}", (precision as i32 - 1 - power).max(0) as usize))
}

fn grouped(digits: &str, comma: char) -> String {
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i).is_multiple_of(3) {
            out.push(comma);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

/// `format(value, spec)`, as the fields of `str.format` do it.
pub(super) fn braced(spec: &str, value: &Value, out: &mut Sink) -> Res<()> {
    let spec = parse(spec)?;
    let budget = out.budget();
    let numeric = value.float().is_some() && !matches!(value, Value::Bool(_));
    let (text, align) = match (spec.kind, numeric) {
        (None | Some('s'), false) => (truncate(print::text(value, &budget)?, spec.precision, &budget)?, '<'),
        (None, true) if value.int().is_none() && spec.precision.is_none() && spec.comma.is_none() => {
            let mut text = Sink::new(&budget)?;
            if let (Some(sign), Some(true)) = (spec.sign, value.float().map(|x| x >= 0.0)) {
                text.push(sign.encode_utf8(&mut [0; 4]).trim_start_matches('-'))?;
            }
            print::show(value, &mut text)?;
            (text.value(), '>')
        }
        (Some('c'), _) => {
            let code = value.int().and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
            let Some(c) = code else { return fail("`c` needs the number of a character") };
            let mut text = Sink::new(&budget)?;
            text.char(c)?;
            (text.value(), '<')
        }
        _ => {
            let plain = if value.int().is_some() { 'd' } else { 'g' };
            let kind = spec.kind.unwrap_or(plain);
            if !"dxXobfFeEgGn%".contains(kind) {
                return fail(format!(
                    "a format field of kind {kind:?} is not supported for a {}",
                    value.kind()
                ));
            }
            (number_text(&Spec { kind: Some(kind), ..spec.clone() }, value, &budget)?, '>')
        }
    };
    pad(text.str().unwrap_or_default(), spec.fill, spec.align.unwrap_or(align), spec.width, out)
}

/// `[[fill]align][sign][#][0][width][,][.precision][kind]`.
fn parse(text: &str) -> Res<Spec> {
    let mut spec = Spec::default();
    let mut chars = text.chars().peekable();
    let is_align = |c: Option<char>| c.filter(|c| "<>^=".contains(*c));
    let second = text.chars().nth(1);
    if let Some(align) = is_align(second) {
        (spec.fill, spec.align) = (chars.next(), Some(align));
        chars.next();
    } else if let Some(align) = is_align(chars.peek().copied()) {
        spec.align = Some(align);
        chars.next();
    }
    spec.sign = chars.next_if(|c| "+- ".contains(*c));
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() {
        spec.fill.get_or_insert('0');
        spec.align.get_or_insert('=');
    }
    spec.width = count(&mut chars)?.unwrap_or(0);
    spec.comma = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = count(&mut chars)?;
        if spec.precision.is_none() {
            return fail("a format field lacks its precision");
        }
    }
    spec.kind = chars.next();
    match chars.next() {
        None => Ok(spec),
        Some(_) => fail(format!("`{}` is no format of a field", text.chars().take(40).collect::<String>())),
    }
}
