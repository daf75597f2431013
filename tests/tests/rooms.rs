//! The rules of the house that no compiler checks: which room may look into which, how long a file may be, where a
//! panic may stand, what a file begins with.
//!
//! Reads the sources of this repository. A rule that is broken is reported with file and line, all of them at once.
//! The text is taken as rustfmt leaves it: an item ends with `;` on its first line or with a brace in its own column.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// The longest file, in lines.
const LONGEST: usize = 600;

/// One file of the repository.
struct Source {
    /// Path from the root, with `/`.
    name: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every file with one of these endings, sorted by path; build outputs, hidden folders and links are left out.
fn sources(endings: &[&str]) -> Vec<Source> {
    let (root, mut found) = (root(), Vec::new());
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let own = entry.file_name().into_string().unwrap_or_default();
            if kind.is_dir() && own != "target" && !own.starts_with('.') {
                folders.push(path);
            } else if kind.is_file() && endings.iter().any(|e| own.ends_with(e)) {
                let parts =
                    path.strip_prefix(&root).unwrap().iter().map(|p| p.to_string_lossy().into_owned());
                let name = parts.collect::<Vec<_>>().join("/");
                found.push(Source { name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!found.is_empty(), "nothing ends with {endings:?} below {}", root.display());
    found
}

/// Library files below one of these paths, as far as they are not test code.
fn library(below: &[&str]) -> Vec<Source> {
    let mut all = sources(&[".rs"]);
    all.retain(|s| below.iter().any(|b| s.name.starts_with(b)) && !is_test(&s.name));
    for below in below {
        assert!(all.iter().any(|s| s.name.starts_with(below)), "{below} holds no library file");
    }
    all
}

/// Whether all of a file is test code.
fn is_test(name: &str) -> bool {
    let folder = |f: &str| name.starts_with(&format!("{f}/")) || name.contains(&format!("/{f}/"));
    name.ends_with("/tests.rs")
        || name.ends_with("_tests.rs")
        || ["tests", "benches", "examples", "fuzz"].iter().any(|f| folder(f))
}

fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Numbered lines without comment lines and without items that only tests see.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
    let mut kept = Vec::new();
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("//") {
            continue;
        }
        if trimmed != "#[cfg(test)]" {
            kept.push((number, line));
            continue;
        }
        let end = format!("{}}}", indent(line));
        // Further attributes and comments belong to the item, too.
        let first = lines.by_ref().map(|(_, l)| l).find(|l| !l.trim_start().starts_with(['#', '/']));
        if first.is_some_and(|l| !l.ends_with([';', '}'])) {
            lines.by_ref().find(|(_, l)| l.starts_with(&end));
        }
    }
    kept
}

/// Names right behind the crate's root: `b` of `crate::b::c`, `b` and `d` of `crate::{b::c, d}`.
///
/// `crate_name` is `crate` or another crate's name. `depth`: how many `super`s lead from the file to the root.
fn rooms(text: &str, crate_name: &str, depth: usize) -> Vec<String> {
    let flat: String = code(text).iter().flat_map(|(_, l)| [l.trim(), " "]).collect();
    let mut starts: Vec<usize> = after(&flat, &format!("{crate_name}::"));
    if crate_name == "crate" {
        starts.extend(after(&flat, &"super::".repeat(depth)));
    }
    starts.iter().flat_map(|at| first_names(&flat[*at..])).collect()
}

/// Ends of the places where `path` stands as a whole path's beginning.
fn after(text: &str, path: &str) -> Vec<usize> {
    let begins = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    text.match_indices(path).filter(|(at, _)| begins(*at)).map(|(at, p)| at + p.len()).collect()
}

/// The first name of a path, or the first names of a group of paths.
fn first_names(rest: &str) -> Vec<String> {
    let word = |s: &str| -> String {
        let s = s.trim_start();
        let end = s.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(s.len());
        s[..end].to_string()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut names, mut open, mut fresh) = (Vec::new(), 1, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 || (open == 1 && c == ',') {
            names.push(word(&group[fresh..at]));
            fresh = at + 1;
        }
        if open == 0 {
            break;
        }
    }
    names.retain(|n| !n.is_empty());
    names
}

/// `super`s from a file of `core/src` up to the root: 1 for `kv/mod.rs`, 2 for `kv/pool.rs`.
fn depth(name: &str) -> usize {
    let inside = name.trim_start_matches("core/src/");
    inside.split('/').count() - usize::from(inside.ends_with("/mod.rs"))
}

/// No file below `from` (files in `spared` apart) may name one of `rooms_named`.
fn forbid(from: &str, crate_name: &str, rooms_named: &[&str], spared: &[(&str, &str)]) -> Vec<String> {
    let mut broken = Vec::new();
    for s in library(&[from]) {
        for room in rooms(&s.text, crate_name, depth(&s.name)) {
            let free = spared.iter().any(|(file, r)| s.name == *file && room == *r);
            // A glob could bring in anything.
            if (rooms_named.contains(&room.as_str()) || room == "*") && !free {
                broken.push(format!("{} imports {crate_name}::{room}", s.name));
            }
        }
    }
    broken
}

fn none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn the_scheduler_and_the_pages_know_no_backend() {
    let up = ["backend", "model", "engine", "policy", "weights", "inject", "graph", "profile"];
    let broken = [forbid("core/src/schedule/", "crate", &up, &[]), forbid("core/src/kv/", "crate", &up, &[])];
    none("schedule and kv stand below backends and models", broken.concat());
}

#[test]
fn policies_describe_and_touch_nothing() {
    let up = ["backend", "weights", "model", "engine", "inject", "kv", "schedule", "graph", "profile"];
    let mut broken = forbid("core/src/policy/", "crate", &up, &[]);
    for s in library(&["core/src/policy/"]) {
        let flat: String = code(&s.text).iter().map(|(_, l)| l.trim()).collect();
        let names = after(&flat, "crate::checkpoint::").into_iter().flat_map(|at| first_names(&flat[at..]));
        broken
            .extend(names.filter(|n| n != "TensorInfo").map(|n| format!("{} uses checkpoint::{n}", s.name)));
        // A group `crate::{checkpoint::..}` would hide what it takes.
        let grouped =
            flat.match_indices("checkpoint::").count() != flat.match_indices("crate::checkpoint::").count();
        broken.extend(grouped.then(|| format!("{} names checkpoint without `crate::` before it", s.name)));
    }
    none("policies only see configurations and the headers of tensors", broken);
}

#[test]
fn backends_know_no_models() {
    let up = ["model", "engine", "policy", "weights", "inject", "schedule", "graph", "checkpoint"];
    let timing = [("core/src/backend/exec.rs", "profile")];
    let core = forbid("core/src/backend/", "crate", &[&up[..], &["profile"]].concat(), &timing);
    let above = ["engine", "model", "policy", "schedule", "weights", "inject"];
    let own = |from: &str| forbid(from, "engraft_core", &above, &[]);
    let backends = [core, own("backend-cpu/src/"), own("backend-cuda/src/"), own("backend-wgpu/src/")];
    none("a backend sees ops, memory and pages", backends.concat());
}

#[test]
fn core_has_no_threads_and_no_environment() {
    let mut broken = Vec::new();
    for s in library(&["core/src/"]) {
        for (number, line) in code(&s.text) {
            let names = ["std::thread", "thread::spawn", "std::env", "env::var", "std::process"];
            broken.extend(
                names.iter().filter(|n| line.contains(**n)).map(|n| format!("{}:{number}: {n}", s.name)),
            );
        }
        let std_rooms = rooms(&s.text, "std", 0).into_iter().filter(|r| r == "thread" || r == "env");
        broken.extend(std_rooms.map(|r| format!("{} imports std::{r}", s.name)));
    }
    none("core runs wherever its caller runs it", broken);
}

#[test]
fn files_are_short() {
    let mut broken = Vec::new();
    for s in sources(&[".rs"]).iter().filter(|s| !s.name.starts_with("tests/golden/")) {
        let lines = s.text.lines().count();
        let excused = s.text.lines().take(40).any(|l| l.contains("over 600 lines because"));
        if lines > LONGEST && !excused {
            broken.push(format!("{} has {lines} lines", s.name));
        }
    }
    none("at most 600 lines, or the head says why not", broken);
}

/// What families share, and not a family: everything else in the folder is one.
const NO_FAMILY: [&str; 15] = [
    "auto", "binding", "describe", "gguf", "mod", "moe", "names", "registry", "resolve", "roles", "rope",
    "spec", "table", "task", "tests",
];

#[test]
fn a_family_is_a_short_table() {
    let all = library(&["core/src/policy/"]);
    let stem = |name: &str| Path::new(name).file_stem().unwrap().to_string_lossy().into_owned();
    let mut lengths: Vec<(usize, String)> = all
        .iter()
        .map(|s| (s.text.lines().take_while(|l| !l.contains("#[cfg(test)]")).count(), stem(&s.name)))
        .filter(|(_, stem)| !NO_FAMILY.contains(&stem.as_str()) && !stem.ends_with("_tests"))
        .collect();
    lengths.sort();
    assert!(lengths.len() >= 20, "{lengths:?}");
    let (median, name) = &lengths[lengths.len() / 2];
    println!(
        "{} families, the median {name} has {median} lines, the longest is {:?}",
        lengths.len(),
        lengths.last()
    );
    assert!(*median <= 80, "{name}: {median} lines");
}

/// `docs/deepspeed_defects.md` names tests that are there.
#[test]
fn every_defect_has_its_test() {
    let page = fs::read_to_string(root().join("docs/deepspeed_defects.md")).unwrap();
    let mut broken = Vec::new();
    for number in 1..=24 {
        let Some(row) = page.lines().find(|l| l.starts_with(&format!("| {number} |"))) else {
            broken.push(format!("no row for defect {number}"));
            continue;
        };
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|n| n.contains(".rs::")).collect();
        if named.is_empty() && !row.contains("not applicable") {
            broken.push(format!("defect {number} names neither a test nor a reason"));
        }
        for (file, test) in named.iter().filter_map(|n| n.split_once("::")) {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            if !text.contains(&format!("fn {test}(")) {
                broken.push(format!("{file} has no test {test}"));
            }
        }
    }
    none("what is said to be tested is tested", broken);
}

#[test]
fn only_tests_panic() {
    let words = [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "dbg!("];
    let mut broken = Vec::new();
    for s in sources(&[".rs"]).iter().filter(|s| !is_test(&s.name)) {
        for (number, line) in code(&s.text) {
            let found = words.iter().filter(|w| line.contains(**w));
            broken.extend(found.map(|w| format!("{}:{number}: {w}", s.name)));
        }
    }
    none("mistakes of users and files are errors, not panics", broken);
}

#[test]
fn every_library_file_says_what_it_is() {
    let mut broken = Vec::new();
    let folders = ["core", "backend-cpu", "backend-cuda", "backend-wgpu", "kernels", "shaders", "engraft"];
    let below = folders.map(|folder| format!("{folder}/src/"));
    for s in library(&below.each_ref().map(String::as_str)) {
        let head: Vec<&str> = s.text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).collect();
        let sentence =
            head.iter().any(|l| l.contains(char::is_alphabetic) && l.ends_with(['.', ':', '?', '!']));
        if !sentence {
            broken.push(format!("{} begins with {:?}", s.name, s.text.lines().next().unwrap_or("")));
        }
    }
    none("a file begins with `//!` and at least a sentence", broken);
}

#[test]
fn no_path_of_a_machine_is_written_down() {
    // Put together here, so that this file keeps the rule as well.
    let paths: Vec<String> = ["work", "root", "tmp"].iter().map(|f| format!("/{f}/")).collect();
    let absolute = |line: &str, path: &str| {
        // Behind a word it is a folder inside something, else it is one of a machine.
        let inner = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-}".contains(c));
        line.match_indices(path).any(|(at, _)| !inner(&line[..at]))
    };
    let mut broken = Vec::new();
    for s in sources(&[".rs", ".md", ".toml"]) {
        for (number, line) in s.text.lines().enumerate() {
            let found = paths.iter().filter(|p| absolute(line, p));
            broken.extend(found.map(|p| format!("{}:{}: {p}", s.name, number + 1)));
        }
    }
    none("the project builds anywhere", broken);
}

/// The reader itself: a rule that sees nothing would hold for everything.
#[test]
fn the_reader_sees_what_the_rules_forbid() {
    let text = "//! crate::engine\nuse crate::{\n    Error, backend::{Stream, x},\n    kv,\n};\nfn f() { crate::model::g(super::super::graph::h); }\n\
                #[cfg(test)]\n#[allow(x)]\nmod tests {\n    use crate::weights;\n    fn y() {\n    }\n}\nuse super::policy;\n#[cfg(test)]\nmod t;\nuse crate::inject;\n";
    let mut seen = rooms(text, "crate", 2);
    seen.sort();
    assert_eq!(seen, ["Error", "backend", "graph", "inject", "kv", "model"]);
    assert_eq!(rooms("use super::policy::P;", "crate", 1), ["policy"]);
    assert_eq!(rooms("use engraft_core::{mem::{A, B}, schedule};", "engraft_core", 1), ["mem", "schedule"]);
    assert_eq!(
        (depth("core/src/kv/mod.rs"), depth("core/src/kv/pool.rs"), depth("core/src/math.rs")),
        (1, 2, 1)
    );
    assert!(
        is_test("core/src/policy/tests.rs")
            && is_test("tests/src/lib.rs")
            && !is_test("core/src/mem/view.rs")
    );
}
