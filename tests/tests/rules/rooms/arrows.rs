//! Which file imports which: paths resolved through modules, imports and re-exports to the file that defines
//! them.

use super::tree::{Module, Use, World};
use std::collections::{BTreeMap, BTreeSet};

/// Names that one file takes from another, by the two files' numbers.
pub type Arrows = BTreeMap<(usize, usize), BTreeSet<String>>;

/// What a path leads to.
#[derive(Clone, PartialEq)]
enum Found {
    Module(usize),
    /// Something defined in this file, and its name there.
    Item(usize, String),
    /// Something of a crate that was not read.
    Outside,
}

/// Imports that are being followed, so that none is followed in a circle.
type Trail<'a> = &'a mut BTreeSet<(usize, usize)>;

impl World {
    /// All arrows between files, those between crates too, and the paths that lead nowhere.
    ///
    /// A re-export of what lies below a module is none: who takes the name imports the file that defines it.
    pub fn arrows(&self) -> (Arrows, Vec<String>) {
        let (mut arrows, mut lost) = (Arrows::new(), Vec::new());
        for (number, module) in self.modules.iter().enumerate() {
            let exports = module.uses.iter().map(|u| (&u.path, u.exported && u.name.is_some(), true));
            let paths = module.paths.iter().map(|path| (path, false, false));
            for (path, export, import) in exports.chain(paths) {
                let found = self.resolve(number, path, &mut BTreeSet::new());
                if found.is_empty() && self.is_ours(path) {
                    lost.push(format!("{} names {}", self.files[module.file], path.join("::")));
                }
                // Who imports a module names what is in it by a path.
                let whole = import && found.iter().any(|f| matches!(f, Found::Module(_)));
                for found in found.into_iter().filter(|_| !whole) {
                    if let Found::Item(file, name) = found
                        && file != module.file
                        && !(export && self.below(number, file))
                    {
                        arrows.entry((module.file, file)).or_default().insert(name);
                    }
                }
            }
        }
        (arrows, lost)
    }

    /// Whether a path begins where the reader should find something.
    fn is_ours(&self, path: &[String]) -> bool {
        let first = path.iter().find(|p| !p.is_empty()).map_or("", String::as_str);
        path.len() > 1 && (["crate", "super", "self"].contains(&first) || self.roots.contains_key(first))
    }

    /// Whether a file holds a module below this one.
    fn below(&self, above: usize, file: usize) -> bool {
        let inside = |module: &Module| {
            let mut at = module.parent;
            while let Some(parent) = at {
                if parent == above {
                    return true;
                }
                at = self.modules[parent].parent;
            }
            false
        };
        self.modules.iter().any(|m| m.file == file && inside(m))
    }

    fn resolve(&self, from: usize, path: &[String], trail: Trail<'_>) -> Vec<Found> {
        let Some(first) = path.first() else { return Vec::new() };
        let module = &self.modules[from];
        match first.as_str() {
            "" => self.foreign(&path[1..], trail),
            "crate" => self.member(module.root, &path[1..], trail),
            "self" => self.member(from, &path[1..], trail),
            "super" => {
                let Some(mut at) = module.parent else { return Vec::new() };
                let mut rest = &path[1..];
                while rest.first().is_some_and(|name| name == "super") {
                    let Some(parent) = self.modules[at].parent else { return Vec::new() };
                    (at, rest) = (parent, &rest[1..]);
                }
                self.member(at, rest, trail)
            }
            _ => {
                let local = self.member(from, path, trail);
                if !local.is_empty() {
                    return local;
                }
                let above = self.macro_above(from, path);
                if above.is_empty() { self.foreign(path, trail) } else { above }
            }
        }
    }

    /// A path that begins with a crate's name.
    fn foreign(&self, path: &[String], trail: Trail<'_>) -> Vec<Found> {
        let root = path.first().and_then(|name| self.roots.get(name));
        root.map_or(Vec::new(), |root| self.member(*root, &path[1..], trail))
    }

    /// What `path` is inside a module.
    fn member(&self, module: usize, path: &[String], trail: Trail<'_>) -> Vec<Found> {
        let Some(name) = path.first() else { return vec![Found::Module(module)] };
        let here = &self.modules[module];
        let children = here.children.get(name).map_or(&[][..], Vec::as_slice);
        if path.len() > 1 && !children.is_empty() {
            return children.iter().flat_map(|child| self.member(*child, &path[1..], trail)).collect();
        }
        // A function may have the name of a module; a path to either is a path to both.
        let mut found: Vec<Found> = children.iter().map(|child| Found::Module(*child)).collect();
        if let Some(file) = here.items.get(name) {
            found.push(Found::Item(*file, name.clone()));
            return found;
        }
        let named = |u: &Use| u.name.as_ref() == Some(name);
        found.extend(self.follow(module, named, &path[1..], trail));
        if found.is_empty() {
            found = self.follow(module, |u| u.name.is_none(), path, trail);
        }
        found
    }

    /// What `rest` is behind the imports of a module that `wanted` picks.
    fn follow(
        &self,
        module: usize,
        wanted: impl Fn(&Use) -> bool,
        rest: &[String],
        trail: Trail<'_>,
    ) -> Vec<Found> {
        let mut found = Vec::new();
        for (number, u) in self.modules[module].uses.iter().enumerate().filter(|(_, u)| wanted(u)) {
            if !trail.insert((module, number)) {
                continue;
            }
            let path: Vec<String> = u.path.iter().chain(rest).cloned().collect();
            let mut ends = self.resolve(module, &path, trail);
            if ends.is_empty() && u.name.is_some() && !self.is_ours(&u.path) {
                ends.push(Found::Outside);
            }
            for one in ends {
                // `use T::*` leads to T, whatever the name behind it.
                if !(found.contains(&one) || u.name.is_none() && self.is_type_glob(module, u)) {
                    found.push(one);
                }
            }
            trail.remove(&(module, number));
        }
        found
    }

    fn is_type_glob(&self, module: usize, u: &Use) -> bool {
        let trail = &mut BTreeSet::new();
        let index = self.modules[module].uses.iter().position(|other| std::ptr::eq(other, u));
        trail.extend(index.map(|i| (module, i)));
        self.resolve(module, &u.path, trail).iter().any(|f| matches!(f, Found::Item(..)))
    }

    /// A macro of a module above, which needs no import below its definition.
    fn macro_above(&self, from: usize, path: &[String]) -> Vec<Found> {
        let [name] = path else { return Vec::new() };
        let mut at = self.modules[from].parent;
        while let Some(module) = at {
            if let Some(file) = self.modules[module].macros.get(name) {
                return vec![Found::Item(*file, name.clone())];
            }
            at = self.modules[module].parent;
        }
        Vec::new()
    }
}

/// Files that import each other in a circle, as sets of more than one, each sorted.
pub fn circles(files: usize, arrows: &Arrows) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..files).map(|file| reached(file, arrows)).collect();
    let mut circles: Vec<Vec<usize>> = (0..files)
        .map(|file| (0..files).filter(|o| reach[file].contains(o) && reach[*o].contains(&file)).collect())
        .filter(|circle: &Vec<usize>| circle.len() > 1)
        .collect();
    circles.sort();
    circles.dedup();
    circles
}

fn reached(from: usize, arrows: &Arrows) -> BTreeSet<usize> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        for ((_, to), _) in arrows.range((file, 0)..(file + 1, 0)) {
            if seen.insert(*to) {
                next.push(*to);
            }
        }
    }
    seen
}
