//! The linked text: declarations of functions, variables, bodies.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::ops::Range;

use super::resolve::Plan;
use super::unit::{Symbol, Thing, Unit};
use crate::Error;
use crate::text::lexer::Kind;
use crate::text::words;

/// Writes what is kept.
pub(super) fn write(units: &[Unit<'_>], plan: &Plan<'_, '_>) -> Result<String, Error> {
    let [major, minor] = units.iter().map(|u| u.version).max().unwrap_or_default();
    let target = target(units)?;
    let mut out = format!(".version {major}.{minor}\n.target {target}\n.address_size 64\n");
    let files = files(units);
    for (unit, first) in units.iter().zip(&files) {
        for (number, name) in &unit.sources {
            let _ = writeln!(out, ".file {} \"{name}\"", number + first);
        }
    }
    let copy = |s: &Symbol<'_>, range: Range<usize>| {
        let new = |word| plan.renamed.get(&(s.unit, word)).cloned();
        piece(&units[s.unit], range, files[s.unit], &new)
    };
    let functions = || plan.kept.iter().filter(|s| matches!(s.thing, Thing::Function(_)));
    for symbol in functions() {
        let _ = writeln!(out, "{};", copy(symbol, symbol.head.clone()).trim_end());
    }
    for symbol in declarations(units, plan)? {
        let _ = writeln!(out, "{}", copy(symbol, symbol.span.clone()).trim_end());
    }
    let kernels = plan.kept.iter().filter(|s| s.thing == Thing::Kernel && s.defined);
    for symbol in functions().filter(|s| s.defined).chain(kernels) {
        let _ = writeln!(out, "{}", copy(symbol, symbol.span.clone()).trim_end());
    }
    Ok(out)
}

/// A symbol of each declaration of variables that is kept, of which all or none of its variables are.
fn declarations<'u, 'a>(units: &[Unit<'a>], plan: &Plan<'u, 'a>) -> Result<Vec<&'u Symbol<'a>>, Error> {
    let place = |s: &Symbol<'_>| (s.unit, s.span.start);
    let counted = |symbols: &mut dyn Iterator<Item = &Symbol<'a>>| {
        let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
        for symbol in symbols.filter(|s| matches!(s.thing, Thing::Variable(..))) {
            *counts.entry(place(symbol)).or_default() += 1;
        }
        counts
    };
    let all = counted(&mut units.iter().flat_map(|u| &u.symbols));
    let kept = counted(&mut plan.kept.iter().copied());
    let mut written = HashSet::new();
    let variables = plan.kept.iter().copied().filter(|s| matches!(s.thing, Thing::Variable(..)));
    let first: Vec<_> = variables.filter(|s| written.insert(place(s))).collect();
    match first.iter().find(|s| kept.get(&place(s)) != all.get(&place(s))) {
        None => Ok(first),
        Some(torn) => {
            let text = units[torn.unit].text[torn.span.clone()].trim();
            let name = units[torn.unit].name;
            Err(Error::Link(format!(
                "`{text}` in `{name}` declares several variables, and another text has some of them: declare each by itself"
            )))
        }
    }
}

/// What is added to the numbers of each text's source files.
fn files(units: &[Unit<'_>]) -> Vec<u32> {
    let mut next = 0u32;
    let first = |unit: &Unit<'_>| {
        let first = next;
        next = next.saturating_add(unit.sources.iter().map(|s| s.0).max().unwrap_or(0));
        first
    };
    units.iter().map(first).collect()
}

/// A part of a text with its names and the numbers of its files as they are in the linked one.
fn piece<'a>(
    unit: &Unit<'a>,
    range: Range<usize>,
    first: u32,
    renamed: &dyn Fn(&'a str) -> Option<String>,
) -> String {
    let (mut out, mut at) = (String::new(), range.start);
    let mut file_follows = false;
    let from = unit.tokens.partition_point(|t| t.start < range.start);
    for token in unit.tokens[from..].iter().take_while(|t| t.start < range.end) {
        let Kind::Word(word) = token.kind else { continue };
        let number = words::integer(word).and_then(|n| u32::try_from(n).ok()).filter(|_| file_follows);
        let new = match (number, renamed(word)) {
            (Some(number), _) => Some(number.saturating_add(first).to_string()),
            (None, new) => new,
        };
        file_follows = matches!(word, ".loc" | "inlined_at" | ".file");
        if let Some(new) = new {
            out.push_str(&unit.text[at..token.start]);
            out.push_str(&new);
            at = token.start + word.len();
        }
    }
    out.push_str(&unit.text[at..range.end]);
    out
}

/// Number and letter of a target: `sm_90a`.
fn parts(target: &str) -> (u32, &str) {
    let digits = target.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    (digits[..end].parse().unwrap_or(0), &digits[end..])
}

/// The newest target; code for one device's own features (`sm_90a`) fits no newer one.
fn target<'u>(units: &'u [Unit<'_>]) -> Result<&'u str, Error> {
    let Some(newest) = units.iter().max_by_key(|u| parts(&u.target)) else {
        return Err(Error::Link("there is no text to link".into()));
    };
    let (number, _) = parts(&newest.target);
    match units.iter().find(|u| !parts(&u.target).1.is_empty() && parts(&u.target).0 < number) {
        None => Ok(&newest.target),
        Some(own) => Err(Error::Link(format!(
            "`{}` is for {} alone, `{}` for {}",
            own.name, own.target, newest.name, newest.target
        ))),
    }
}
