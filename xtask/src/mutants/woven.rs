//! `cargo xtask mutants weave`: a copy of the workspace with a sample of `cargo mutants`' changes at once.
//!
//! What does not compile says nothing about tests: the compiler is asked, and such changes leave the copy.
//! What is left lies in the copy's [`LIST`], by the numbers that [`SWITCH`] switches on.

use super::weave::{Change, Genre, Woven, weave};
use super::{Outcome, args};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that says which change is computed.
pub const SWITCH: &str = "ENGRAFT_MUTANT";
/// The file of a copy that lists its changes.
const LIST: &str = "mutants.json";
/// How it is called.
pub const USAGE: &str = "cargo xtask mutants weave --list FILE --to FOLDER [--seed N] [--count N]
       (FILE is what `cargo mutants --list --json` prints, FOLDER a copy of the repository)";
/// Asked at most so often what does not compile: an error may hide others.
const ROUNDS: usize = 12;

/// An entry of `cargo mutants`' list.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    package: String,
    file: String,
    genre: Genre,
    replacement: String,
    span: Span,
}

#[derive(Debug, Deserialize)]
struct Span {
    start: At,
    end: At,
}

/// From 1, by characters.
#[derive(Debug, Deserialize)]
struct At {
    line: usize,
    column: usize,
}

impl At {
    fn byte(&self, text: &str) -> Option<usize> {
        let start: usize = text.split_inclusive('\n').take(self.line - 1).map(str::len).sum();
        let column = text[start..].char_indices().map(|(at, _)| at).chain([text.len() - start]);
        column.skip(self.column - 1).map(|at| start + at).next()
    }
}

/// A change that a copy has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Numbered {
    /// What switches it on.
    pub number: u32,
    /// Its crate.
    pub package: String,
    /// As `cargo mutants` names it.
    pub name: String,
}

/// The crate that has the function which changes call; the others depend on it. Programs of tests include
/// some of their sources, so that `crate` is not always the same.
const CORE: &str = "engraft-core";
/// What is put at the end of its root.
const ROOT: &str = r#"
#[doc(hidden)]
#[inline]
pub fn mutant(number: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static ON: AtomicU32 = AtomicU32::new(u32::MAX);
    #[cold]
    fn read() -> u32 {
        let on = std::env::var("ENGRAFT_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        ON.store(on, Relaxed);
        on
    }
    let on = ON.load(Relaxed);
    number == if on == u32::MAX { read() } else { on }
}
"#;
/// What is put in front of every root: changed code is not clean.
const FRONT: &str = "#![allow(warnings, clippy::all)]\n";

/// Runs the chore.
///
/// # Errors
/// Arguments, files and compilers that are not as they should be.
pub fn main(args: impl Iterator<Item = String>) -> Outcome<()> {
    let usage = |why: String| format!("{why}\nusage: {USAGE}");
    let (mut list, mut to, mut seed, mut count) = (None, None, 1, 60);
    args::options(args, |option, value| {
        match option {
            "--list" => list = Some(PathBuf::from(value)),
            "--to" => to = Some(PathBuf::from(value)),
            "--seed" => seed = args::number(option, &value)?,
            "--count" => count = args::number(option, &value)? as usize,
            _ => return Err(format!("unknown option `{option}`")),
        }
        Ok(())
    })
    .map_err(usage)?;
    let list = list.ok_or_else(|| usage("no --list".into()))?;
    let to = to.ok_or_else(|| usage("no --to".into()))?;
    let text = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let all: Vec<Listed> = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", list.display()))?;
    let mut copy = Copy::new(&to, sample(&all, seed, count))?;
    for _ in 0..ROUNDS {
        copy.write()?;
        let wrong = copy.wrong()?;
        if wrong.is_empty() {
            return copy.list();
        }
        println!("# {} of {} changes do not compile", wrong.len(), copy.changes.len());
        copy.changes.retain(|number, _| !wrong.contains(number));
    }
    Err(format!("{} does not compile after {ROUNDS} rounds", to.display()))
}

/// Changes at random, none twice, by their numbers.
fn sample(all: &[Listed], seed: u64, count: usize) -> BTreeMap<u32, &Listed> {
    let mut order: Vec<&Listed> = all.iter().collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    (1..).zip(order.into_iter().take(count)).collect()
}

/// A copy of the workspace.
struct Copy<'a> {
    folder: &'a Path,
    changes: BTreeMap<u32, &'a Listed>,
    /// The files that are changed, as they were, and the roots of their crates.
    files: BTreeMap<&'a str, String>,
    /// Where changes lie in the files of the copy.
    places: Vec<(u32, &'a str, Range<usize>)>,
}

impl<'a> Copy<'a> {
    fn new(folder: &'a Path, changes: BTreeMap<u32, &'a Listed>) -> Outcome<Self> {
        let mut files = BTreeMap::new();
        for file in changes.values().map(|listed| &listed.file[..]) {
            let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
            files.insert(file, text);
        }
        Ok(Self { folder, changes, files, places: Vec::new() })
    }

    /// Writes the changed files, and the roots of what is compiled of them.
    fn write(&mut self) -> Outcome<()> {
        self.places.clear();
        let mut lost = BTreeSet::new();
        let roots = self.roots()?;
        for (&file, text) in &self.files {
            let mut woven = self.woven(file, text)?;
            lost.extend(std::mem::take(&mut woven.left));
            if let Some(end) = roots.get(file) {
                woven.text = format!("{FRONT}{}{end}", woven.text);
                woven
                    .places
                    .iter_mut()
                    .for_each(|(_, at)| *at = at.start + FRONT.len()..at.end + FRONT.len());
            }
            self.places.extend(woven.places.into_iter().map(|(number, at)| (number, file, at)));
            self.put(file, &woven.text)?;
        }
        for (root, end) in roots.iter().filter(|(root, _)| !self.files.contains_key(&root[..])) {
            let text = std::fs::read_to_string(root).map_err(|e| format!("{root}: {e}"))?;
            self.put(root, &format!("{FRONT}{text}{end}"))?;
        }
        self.changes.retain(|number, _| !lost.contains(number));
        Ok(())
    }

    /// Roots of crates and of programs of tests, and what is put at their ends.
    fn roots(&self) -> Outcome<BTreeMap<String, &'static str>> {
        let folder = |file: &str| file.split_once("/src/").map_or(String::new(), |(folder, _)| folder.into());
        let mut roots = BTreeMap::from([("core/src/lib.rs".to_owned(), ROOT)]);
        for folder in self.changes.values().map(|listed| folder(&listed.file)).collect::<BTreeSet<_>>() {
            roots.entry(format!("{folder}/src/lib.rs")).or_insert("");
            let tests = format!("{folder}/tests");
            let entries = std::fs::read_dir(&tests).map_err(|e| format!("{tests}: {e}"))?;
            for path in entries.flatten().map(|entry| entry.path()) {
                let root = if path.is_dir() { path.join("main.rs") } else { path };
                if root.extension().is_some_and(|e| e == "rs") && root.is_file() {
                    roots.insert(root.display().to_string(), "");
                }
            }
        }
        Ok(roots)
    }

    fn woven(&self, file: &str, text: &str) -> Outcome<Woven> {
        let of_file = self.changes.iter().filter(|(_, listed)| listed.file == file);
        let changes = of_file.map(|(&number, listed)| {
            let span = listed.span.start.byte(text).zip(listed.span.end.byte(text));
            let (start, end) = span.ok_or_else(|| format!("{}: no such place", listed.name))?;
            let (genre, new) = (listed.genre, listed.replacement.clone());
            Ok(Change { number, genre, span: start..end, new })
        });
        let in_core = self.changes.values().any(|listed| listed.file == file && listed.package == CORE);
        let asks = if in_core { "crate::mutant" } else { "engraft_core::mutant" };
        weave(text, &changes.collect::<Outcome<Vec<_>>>()?, asks).map_err(|e| format!("{file}: {e}"))
    }

    fn put(&self, file: &str, text: &str) -> Outcome<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Changes where the compiler finds errors.
    fn wrong(&self) -> Outcome<BTreeSet<u32>> {
        let packages: BTreeSet<&str> = self.changes.values().map(|listed| &listed.package[..]).collect();
        let mut check = Command::new("cargo");
        check.args(["check", "--message-format", "json"]).current_dir(self.folder);
        packages.iter().for_each(|package| {
            check.args(["--package", package]);
        });
        let ran = check.output().map_err(|e| format!("cargo check: {e}"))?;
        let (mut wrong, mut others) = (BTreeSet::new(), String::new());
        for line in String::from_utf8_lossy(&ran.stdout).lines() {
            let Ok(Said { message: Some(message) }) = serde_json::from_str::<Said>(line) else { continue };
            if message.level != "error" {
                continue;
            }
            let found = self.touched(&message.spans);
            if found.is_empty() {
                others += &message.rendered;
            }
            wrong.extend(found);
        }
        match ran.status.success() || !wrong.is_empty() {
            true => Ok(wrong),
            false => Err(format!("cargo check: {others}{}", String::from_utf8_lossy(&ran.stderr))),
        }
    }

    /// The changes that an error is about.
    fn touched(&self, spans: &[Place]) -> BTreeSet<u32> {
        let within = |span: &Place, file: &str, at: &Range<usize>| {
            Path::new(&span.file_name).ends_with(file) && span.byte_start < at.end && at.start < span.byte_end
        };
        let of = |span: &Place| {
            let places = self.places.iter().filter(|(_, file, at)| within(span, file, at));
            places.map(|(number, ..)| *number).collect::<Vec<_>>()
        };
        spans.iter().flat_map(of).collect()
    }

    /// Writes what the copy has.
    fn list(&self) -> Outcome<()> {
        let of = |(&number, listed): (&u32, &&Listed)| Numbered {
            number,
            package: listed.package.clone(),
            name: listed.name.clone(),
        };
        let all: Vec<Numbered> = self.changes.iter().map(of).collect();
        let path = self.folder.join(LIST);
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("# {} changes in {}", all.len(), self.folder.display());
        Ok(())
    }
}

/// A line that the compiler says.
#[derive(Debug, Deserialize)]
struct Said {
    message: Option<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    level: String,
    spans: Vec<Place>,
    rendered: String,
}

#[derive(Debug, Deserialize)]
struct Place {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
}

/// The changes of a copy.
///
/// # Errors
/// A folder that holds none.
pub fn read(folder: &Path) -> Outcome<Vec<Numbered>> {
    let path = folder.join(LIST);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_lines_and_characters() {
        let text = "ab\nä<c\n";
        assert_eq!(At { line: 2, column: 2 }.byte(text), Some(5));
        assert_eq!(At { line: 1, column: 3 }.byte(text), Some(2));
        assert_eq!(At { line: 2, column: 9 }.byte(text), None);
    }

    #[test]
    fn the_roots_function_is_what_changes_call() {
        let text = format!("{FRONT}//! A crate.\n{ROOT}");
        assert!(syn::parse_file(&text).is_ok() && text.contains(&format!("(\"{SWITCH}\")")), "{text}");
    }
}
