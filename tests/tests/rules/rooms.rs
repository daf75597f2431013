//! The rules that no compiler checks: which module may import which, how long a file may be, where a panic
//! may stand, what a file begins with.
//!
//! Reads the sources of this repository. A rule that is broken is reported with file and line, all of them at
//! once. The text is taken as rustfmt leaves it: an item ends with `;` on its first line or with a brace in
//! its own column.

mod arrows;
mod asserts;
mod lengths;
mod tokens;
mod tree;

use conformance::sources::{Source, root, sources};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use tree::World;

/// The longest file, in lines.
const LONGEST: usize = 600;
/// The longest function, in lines.
const LONGEST_FUNCTION: usize = 60;

/// Crates that users run, by the name that others import, and their root files.
const SHIPPED: [(&str, &str); 14] = [
    ("engraft_core", "core/src/lib.rs"),
    ("engraft_ranks", "ranks/src/lib.rs"),
    ("engraft_audio", "audio/src/lib.rs"),
    ("engraft_image", "image/src/lib.rs"),
    ("engraft_diffusion", "diffusion/src/lib.rs"),
    ("engraft_cpu", "backend-cpu/src/lib.rs"),
    ("engraft_kernels", "kernels/src/lib.rs"),
    ("engraft_cuda", "backend-cuda/src/lib.rs"),
    ("engraft_shaders", "shaders/src/lib.rs"),
    ("engraft_wgpu", "backend-wgpu/src/lib.rs"),
    ("engraft", "engraft/src/lib.rs"),
    ("engraft_server", "server/src/lib.rs"),
    ("engraft_cli", "cli/src/lib.rs"),
    ("the program", "cli/src/main.rs"),
];

/// The modules of `core`, from the bottom up: each may import those before it.
const MODULES: [&str; 22] = [
    "error",
    "file",
    "numerics",
    "math",
    "params",
    "mem",
    "quant",
    "kv",
    "sample",
    "schedule",
    "ops",
    "backend",
    "checkpoint",
    "config",
    "policy",
    "profile",
    "weights",
    "model",
    "inject",
    "graph",
    "engine",
    "text",
];

/// What a module must not import although it stands higher: what a model is does not depend on what runs it,
/// nor the other way round.
const STRANGERS: [(&str, &[&str]); 3] = [
    ("checkpoint", &["kv", "schedule", "ops", "backend"]),
    ("config", &["kv", "schedule", "ops", "backend"]),
    ("policy", &["kv", "schedule", "ops", "backend"]),
];

/// What a backend never sees.
const ABOVE_BACKENDS: [&str; 9] =
    ["engine", "model", "policy", "schedule", "weights", "inject", "graph", "checkpoint", "config"];

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

/// Names right behind a crate's: `b` of `a::b::c`, `b` and `d` of `a::{b::c, d}`.
fn behind(text: &str, crate_name: &str) -> Vec<String> {
    let flat: String = code(text).iter().flat_map(|(_, l)| [l.trim(), " "]).collect();
    after(&flat, &format!("{crate_name}::")).iter().flat_map(|at| first_names(&flat[*at..])).collect()
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

fn none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// All crates that are shipped, as far as they are not test code.
static WORLD: LazyLock<World> = LazyLock::new(|| {
    let mut world = World::default();
    let text = |file: &str| fs::read_to_string(root().join(file)).ok();
    SHIPPED.iter().for_each(|(name, file)| world.read(name, file, &text));
    world
});

/// The folder of a crate's sources.
fn folder(root_file: &str) -> String {
    root_file.trim_end_matches("lib.rs").trim_end_matches("main.rs").to_owned()
}

/// The module of a file of `core`; none for its root.
fn module(file: &str) -> Option<&str> {
    let first = file.strip_prefix("core/src/")?.split('/').next()?.trim_end_matches(".rs");
    (first != "lib").then_some(first)
}

/// The one enum whose variants use it: an op's composition, stated next to its struct, is made of other ops,
/// so the files of the stems name what gathers them.
const RECURSIVE: (&str, &str) = ("core/src/ops/mod.rs", "core/src/ops/");

/// Whether an arrow is one of those that gather the recursive enum.
fn gathers(head: &str, file: &str) -> bool {
    head == RECURSIVE.0 && file.starts_with(RECURSIVE.1)
}

/// Files that import each other in a circle, each circle with the arrows in it.
fn circles(world: &World) -> Vec<String> {
    let (mut arrows, _) = world.arrows();
    arrows.retain(|(from, to), _| !gathers(&world.files[*from], &world.files[*to]));
    let mut found = Vec::new();
    for circle in arrows::circles(world.files.len(), &arrows) {
        found.push(format!("{} files:", circle.len()));
        for ((from, to), names) in &arrows {
            if circle.contains(from) && circle.contains(to) {
                let names = Vec::from_iter(names.iter().map(String::as_str)).join(", ");
                found.push(format!("  {} -> {}: {names}", world.files[*from], world.files[*to]));
            }
        }
    }
    found
}

/// Arrows that go up, or to a stranger, or from a backend to what it never sees.
fn against_the_order(world: &World) -> Vec<String> {
    let height = |module: &str| MODULES.iter().position(|m| *m == module);
    let stranger =
        |a: &str, b: &str| STRANGERS.iter().any(|(module, never)| *module == a && never.contains(&b));
    let mut broken = Vec::new();
    for ((from, to), names) in &world.arrows().0 {
        let (from, to) = (world.files[*from].as_str(), world.files[*to].as_str());
        let Some(target) = module(to) else { continue };
        let wrong = match module(from) {
            Some(own) => own != target && (height(own) <= height(target) || stranger(own, target)),
            None => from.starts_with("backend-") && ABOVE_BACKENDS.contains(&target),
        };
        if wrong {
            let names = Vec::from_iter(names.iter().map(String::as_str)).join(", ");
            broken.push(format!("{from} -> {to}: {names}"));
        }
    }
    broken
}

#[test]
fn the_reader_reaches_every_file_and_every_path() {
    let mut broken = WORLD.arrows().1;
    for s in library(&SHIPPED.map(|(_, file)| folder(file)).each_ref().map(String::as_str)) {
        if !WORLD.files.contains(&s.name) {
            broken.push(format!("{} is in no `mod` tree", s.name));
        }
    }
    none("imports are followed to the file that defines a name", broken);
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    none("files have an order: what two need lies in one below both", circles(&WORLD));
}

#[test]
fn imports_go_down() {
    let mut broken: Vec<String> = WORLD
        .files
        .iter()
        .filter_map(|file| module(file))
        .filter(|module| !MODULES.contains(module))
        .map(|module| format!("core's module {module} has no place in the order"))
        .collect();
    broken.dedup();
    broken.extend(against_the_order(&WORLD));
    none("modules have an order, and backends see ops, memory and pages", broken);
}

#[test]
fn policies_see_headers_and_no_bytes() {
    let mut broken = Vec::new();
    for ((from, to), names) in &WORLD.arrows().0 {
        let (from, to) = (&WORLD.files[*from], &WORLD.files[*to]);
        if module(from) == Some("policy") && module(to) == Some("checkpoint") {
            broken.extend(names.iter().filter(|n| *n != "TensorInfo").map(|n| format!("{from} uses {n}")));
        }
    }
    none("policies only see configurations and the headers of tensors", broken);
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
        let std_rooms = behind(&s.text, "std").into_iter().filter(|r| r == "thread" || r == "env");
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

/// Functions of a file that are too long.
fn long_functions(name: &str, text: &str) -> Vec<String> {
    let functions = lengths::functions(text).into_iter();
    let long = functions.filter(|(_, first, last)| last + 1 - first > LONGEST_FUNCTION);
    long.map(|(own, first, last)| format!("{name}:{first}: {own} has {} lines", last + 1 - first)).collect()
}

#[test]
fn functions_are_short() {
    let all = sources(&[".rs"]);
    let own = all.iter().filter(|s| !is_test(&s.name) || s.name.starts_with("fuzz/src/"));
    none(
        "at most 60 lines from `fn` to its brace",
        own.flat_map(|s| long_functions(&s.name, &s.text)).collect(),
    );
}

#[test]
fn a_family_is_a_short_table() {
    let all = library(&["core/src/policy/families/"]);
    let stem = |name: &str| Path::new(name).file_stem().unwrap().to_string_lossy().into_owned();
    let mut lengths: Vec<(usize, String)> = all
        .iter()
        .map(|s| (s.text.lines().take_while(|l| !l.contains("#[cfg(test)]")).count(), stem(&s.name)))
        .filter(|(_, stem)| stem != "mod")
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

/// Rust on a page is included by a documentation test, all of it.
#[test]
fn rust_on_pages_is_compiled() {
    let mut included = Vec::new();
    for s in sources(&[".rs"]) {
        let folder = s.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let quoted = s.text.split("#[doc = include_str!(\"").skip(1).filter_map(|rest| rest.split_once('"'));
        included.extend(quoted.map(|(path, _)| tree::joined(folder, path)));
    }
    let mut broken = Vec::new();
    for page in sources(&[".md"]).iter().filter(|p| !p.name.contains('/') || p.name.starts_with("docs/")) {
        let fences = page.text.lines().filter_map(|l| l.strip_prefix("```"));
        // What is quoted from a file is held by `docs.rs`.
        let code = fences.filter(|kind| kind.starts_with("rust") && !kind.contains(" file="));
        let rust: Vec<&str> = code.collect();
        if !rust.is_empty() && !included.contains(&page.name) {
            broken.push(format!("{} is in no `#[doc = include_str!(..)]`", page.name));
        }
        broken.extend(rust.iter().filter(|k| k.contains("ignore")).map(|k| format!("{}: {k}", page.name)));
    }
    none("examples work", broken);
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
fn assertions_of_equality_show_both_values() {
    let seen = asserts::bare(
        "#[test]\nfn t() {\n    assert!(a == b);\n    assert!(a == b && (c == d));\n    assert!(a == b, \"{a}\");\n\
         assert!(a < b && c == d);\n    prop_assert!(a == b);\n    assert!(a.to_bits() == b.to_bits(), \"{{bits}}\");\n\
         assert!(a == b, \"other bits\");\n    assert!(a < b, \"not below\");\n}\n\
         const _: () = assert!(1 == 1);\n",
    );
    assert_eq!(seen, [3, 4, 7, 8, 9]);
    let all = sources(&[".rs"]);
    let bare = |s: &Source| {
        asserts::bare(&s.text).into_iter().map(|line| format!("{}:{line}", s.name)).collect::<Vec<_>>()
    };
    none("`assert_eq!`, or a message with the values", all.iter().flat_map(bare).collect());
}

#[test]
fn every_library_file_says_what_it_is() {
    let mut broken = Vec::new();
    let folders = [
        "core",
        "ranks",
        "audio",
        "image",
        "diffusion",
        "backend-cpu",
        "backend-cuda",
        "backend-wgpu",
        "kernels",
        "shaders",
        "engraft",
        "server",
        "cli",
    ];
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

/// The readers themselves: a rule that sees nothing would hold for everything.
#[test]
fn the_text_reader_sees_what_the_rules_forbid() {
    let text = "//! std::env\nuse std::{\n    env, fs::{File, x},\n    thread,\n};\nfn f() { std::process::exit(g(a::std::b)); }\n\
                #[cfg(test)]\n#[allow(x)]\nmod tests {\n    use std::sync;\n    fn y() {\n    }\n}\n#[cfg(test)]\nmod t;\nuse std::net;\n";
    assert_eq!(behind(text, "std"), ["env", "fs", "thread", "process", "net"]);
    assert!(
        is_test("core/src/policy/tests.rs")
            && is_test("tests/src/lib.rs")
            && !is_test("core/src/mem/view.rs")
    );
}

/// Crates that break rules in every way that a name can be written.
fn planted() -> World {
    let files = BTreeMap::from([
        (
            "core/src/lib.rs",
            "pub mod mem;\npub mod kv;\npub mod engine;\npub mod odd;\npub use mem::View as Seen;",
        ),
        ("core/src/mem/mod.rs", "mod view;\nmod tests;\npub use view::{View, make};\npub struct Own;"),
        (
            "core/src/mem/view.rs",
            "pub struct View;\npub fn make() {}\n#[cfg(test)]\nmod tests { use crate::engine::Engine; }",
        ),
        ("core/src/mem/tests.rs", "use std::fmt;\nfn f() { let _ = fmt::Error; }"),
        // A glob, a path in a macro, a value, an attribute.
        (
            "core/src/kv.rs",
            "use crate::mem::*;\nfn f() { vec![crate::engine::go(make())]; }\n#[arg(parser = super::odd::read)]\nstruct S;",
        ),
        // Through the root's re-export, through `super`, through a macro of its own.
        (
            "core/src/engine.rs",
            "use crate::Seen;\nuse super::kv as pages;\npub struct Engine(Seen, pages::S);\npub fn go() {}",
        ),
        ("core/src/odd.rs", "#[path = \"strange.rs\"]\nmod own;\npub fn read() { own::one() }"),
        ("core/src/strange.rs", "pub fn one() { super::read(); super::nothing(); }"),
        (
            "backend-x/src/lib.rs",
            "use engraft_core::{engine, mem::View, Seen};\nfn f(_: View, _: Seen) { engine::go() }",
        ),
    ]);
    let mut world = World::default();
    let text = |file: &str| files.get(file).map(|text| (*text).to_owned());
    world.read("engraft_core", "core/src/lib.rs", &text);
    world.read("engraft_x", "backend-x/src/lib.rs", &text);
    world
}

#[test]
fn the_reader_of_imports_follows_every_path() {
    let world = planted();
    let (arrows, lost) = world.arrows();
    let name = |file: usize| world.files[file].trim_end_matches(".rs").replace("core/src/", "");
    let mut seen: Vec<String> = arrows
        .iter()
        .flat_map(|((from, to), names)| names.iter().map(|n| format!("{} {n} {}", name(*from), name(*to))))
        .collect();
    let mut want = vec![
        "kv make mem/view",
        "kv go engine",
        "kv read odd",
        "engine View mem/view",
        "engine S kv",
        "odd one strange",
        "strange read odd",
        "backend-x/src/lib View mem/view",
        "backend-x/src/lib go engine",
    ];
    seen.sort();
    want.sort();
    assert_eq!(seen, want);
    assert_eq!(lost, ["core/src/strange.rs names super::nothing"]);
    assert_eq!(circles(&world).iter().filter(|line| line.starts_with("2 files")).count(), 2);
    let order = against_the_order(&world);
    assert!(order.contains(&"core/src/kv.rs -> core/src/engine.rs: go".to_owned()), "{order:?}");
    assert!(order.contains(&"backend-x/src/lib.rs -> core/src/engine.rs: go".to_owned()), "{order:?}");
    assert!(!order.iter().any(|o| o.starts_with("core/src/engine.rs -> core/src/kv.rs")), "{order:?}");
}

#[test]
fn long_functions_are_found_wherever_they_stand() {
    let body = "    x();\n".repeat(59);
    let text = format!(
        "fn exact() {{\n{}}}\n#[inline]\nfn plain() {{\n{body}}}\nimpl A {{\nfn method(\n) {{\n{body}}}\n}}\n\
         m! {{ fn within() {{\n{body}}} }}\ntrait T {{ fn default() {{\n{body}}} fn none(); }}\n\
         #[cfg(test)]\nmod tests {{ fn t() {{\n{body}}} }}\n#[test]\nfn t() {{\n{body}}}\n",
        "    x();\n".repeat(58)
    );
    let found = long_functions("a.rs", &text);
    let names: Vec<&str> = found.iter().filter_map(|f| f.split(' ').nth(1)).collect();
    assert_eq!(names, ["plain", "method", "within", "default"], "{found:?}");
    assert_eq!(found[0], "a.rs:62: plain has 61 lines");
}
