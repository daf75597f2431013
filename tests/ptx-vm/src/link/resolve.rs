//! Which definition each name is bound to.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::unit::{Symbol, Thing, Unit};
use crate::Error;
use crate::text::syntax::Linkage;

/// What becomes of the symbols of all texts.
pub(super) struct Plan<'u, 'a> {
    /// Those that are written, text after text.
    pub(super) kept: Vec<&'u Symbol<'a>>,
    /// New names of what texts keep to themselves, where another text has the name too.
    pub(super) renamed: HashMap<(usize, &'a str), String>,
}

/// Binds names.
pub(super) fn resolve<'u, 'a>(units: &'u [Unit<'a>]) -> Result<Plan<'u, 'a>, Error> {
    let mut wrong = Vec::new();
    let mut visible: BTreeMap<&str, Vec<&Symbol<'a>>> = BTreeMap::new();
    for symbol in units.iter().flat_map(|u| &u.symbols) {
        // A function without a body is another text's, whatever stands before it.
        if symbol.linkage != Linkage::Local || !symbol.defined {
            visible.entry(symbol.name).or_default().push(symbol);
        }
    }
    let mut chosen: HashSet<(usize, usize, &str)> = HashSet::new();
    for (name, all) in &visible {
        match choose(units, name, all) {
            Ok(symbol) => {
                chosen.extend(symbol.map(|s| (s.unit, s.span.start, s.name)));
            }
            Err(what) => wrong.push(what),
        }
    }
    if !wrong.is_empty() {
        return Err(Error::Link(wrong.join("; ")));
    }
    let own = |s: &&Symbol<'a>| s.linkage == Linkage::Local && s.defined;
    let kept = |s: &&Symbol<'a>| own(s) || chosen.contains(&(s.unit, s.span.start, s.name));
    Ok(Plan {
        kept: units.iter().flat_map(|u| &u.symbols).filter(kept).collect(),
        renamed: rename(units, own),
    })
}

/// The one symbol of a name that is written; none when nothing needs it.
fn choose<'u, 'a>(
    units: &[Unit<'a>],
    name: &str,
    all: &[&'u Symbol<'a>],
) -> Result<Option<&'u Symbol<'a>>, String> {
    let text = |s: &Symbol<'_>| format!("`{}`", units[s.unit].name);
    let strong: Vec<_> = all.iter().filter(|s| s.defined && s.linkage == Linkage::Visible).collect();
    if let [first, second, ..] = strong[..] {
        return Err(format!("`{name}` is defined in {} and in {}", text(first), text(second)));
    }
    let weak = || all.iter().find(|s| s.defined && s.linkage == Linkage::Weak);
    let common = || {
        let common = all.iter().filter(|s| s.linkage == Linkage::Common);
        common.max_by_key(|s| match s.thing {
            Thing::Variable(_, bytes) => bytes,
            _ => None,
        })
    };
    let Some(&definition) = strong.first().copied().or_else(weak).or_else(common) else {
        let wanted: Vec<_> = all.iter().filter(|s| units[s.unit].wants(s)).collect();
        let built_in = all.iter().filter(|s| s.is_built_in()).max_by_key(|s| s.align);
        return match (built_in, wanted.first()) {
            (Some(symbol), _) => Ok(Some(symbol)),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                let users: Vec<_> = wanted.iter().map(|s| text(s)).collect();
                Err(format!("`{name}` is defined in no text; {} needs it", users.join(", ")))
            }
        };
    };
    match all.iter().find(|s| !agree(&s.thing, &definition.thing, s.linkage)) {
        Some(other) => Err(format!(
            "`{name}` is {} in {}, and {} in {}",
            shown(&other.thing),
            text(other),
            shown(&definition.thing),
            text(definition)
        )),
        None => Ok(Some(definition)),
    }
}

/// Whether a declaration fits a definition.
fn agree(declared: &Thing, defined: &Thing, linkage: Linkage) -> bool {
    match (declared, defined) {
        (Thing::Variable(a, size), Thing::Variable(b, whole)) => {
            a == b && (linkage == Linkage::Common || size.is_none() || size == whole)
        }
        _ => declared == defined,
    }
}

fn shown(thing: &Thing) -> String {
    match thing {
        Thing::Kernel => "a kernel".into(),
        Thing::Function(shape) => format!("a function with {shape}"),
        Thing::Variable(space, Some(bytes)) => format!("a variable of {bytes} bytes in {space:?} memory"),
        Thing::Variable(space, None) => format!("a variable in {space:?} memory"),
    }
}

/// New names for what texts keep to themselves: the first text that has a name keeps it, unless it is visible
/// somewhere.
fn rename<'u, 'a>(
    units: &'u [Unit<'a>],
    own: impl Fn(&&'u Symbol<'a>) -> bool,
) -> HashMap<(usize, &'a str), String> {
    let all = || units.iter().flat_map(|u| &u.symbols);
    let mut taken: HashSet<&str> = all().filter(|s| !own(s)).map(|s| s.name).collect();
    let (mut renamed, mut given) = (HashMap::new(), HashSet::new());
    for symbol in all().filter(&own) {
        let place = (symbol.unit, symbol.name);
        // What stands twice in one text has one name there.
        if !taken.insert(symbol.name) && !renamed.contains_key(&place) {
            let new = (symbol.unit..).map(|n| format!("{}_text{n}", symbol.name));
            let free = new
                .into_iter()
                .find(|new| units.iter().all(|u| !u.has_word(new)) && !given.contains(new))
                .unwrap_or_default();
            given.insert(free.clone());
            renamed.insert(place, free);
        }
    }
    renamed
}
