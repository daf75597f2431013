//! What a summary says: a test that needs a device is a trial, which is ignored by name where there is none;
//! and what a page says to be tested is a test, and asserts something.

use crate::functions::Functions;
use conformance::sources::{Source, below, root, sources};
use std::collections::BTreeSet;
use std::fs;
use toml::{Table, Value};

/// What lists devices, or says which are missing.
const LISTINGS: [&str; 7] = [
    "cuda_names()",
    "adapters()",
    "required_adapters()",
    "absent()",
    "missing_here()",
    "engraft_cuda::list",
    "engraft_wgpu::list",
];

/// Names of this package's test programs without the usual harness.
fn programs() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("tests/Cargo.toml")).unwrap();
    let manifest: Table = text.parse().unwrap();
    let own = |test: &&Value| test.get("harness").and_then(Value::as_bool) == Some(false);
    let all = manifest["test"].as_array().unwrap().iter();
    all.filter(own).map(|test| test["name"].as_str().unwrap().to_string()).collect()
}

/// The program of this package that a file below `tests/tests` belongs to, by its path.
fn program(file: &str) -> Option<&str> {
    let below = file.strip_prefix("tests/tests/")?;
    Some(below.split('/').next()?.trim_end_matches(".rs"))
}

/// Listings among words.
fn listings(words: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    words.iter().map(String::as_str).filter(|word| LISTINGS.contains(word))
}

/// What is against the rule in a file: plain tests that list devices, themselves or through functions of the
/// file, unless they are ignored; in a program of plain tests whatever lists some; in one of trials whatever
/// is marked as a test, as nothing would run it.
fn faults(file: &str, functions: &Functions, of_trials: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (test, _) in functions.tests.iter().filter(|(_, ignored)| !**ignored) {
        let reached = functions.reached(test);
        faults.extend(listings(&reached).map(|what| format!("{file}: #[test] {test} asks for {what}")));
    }
    let plain = program(file).is_some() && !of_trials;
    for (name, words) in functions.words.iter().filter(|_| plain) {
        faults.extend(listings(words).map(|what| format!("{file}: {name} asks for {what}")));
    }
    let idle = functions.tests.keys().filter(|_| of_trials);
    faults.extend(idle.map(|test| format!("{file}: nothing runs #[test] {test}")));
    faults
}

#[test]
fn tests_that_need_a_device_are_trials() {
    let programs = programs();
    assert!(programs.contains("unchanged_bits") && programs.contains("cuda_traffic"), "{programs:?}");
    let (mut broken, mut listing) = (Vec::new(), 0);
    for Source { name, text } in sources(&[".rs"]) {
        let functions = Functions::read(&text);
        let of_trials = program(&name).is_some_and(|own| programs.contains(own));
        let lists = functions.words.values().any(|words| listings(words).next().is_some());
        listing += usize::from(of_trials && lists);
        broken.extend(faults(&name, &functions, of_trials));
    }
    assert!(listing >= 15, "{listing} files of trials list devices");
    let rule =
        "a test that lists devices is a trial (conformance::trials), or is ignored and fails without one";
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn a_plain_test_that_lists_devices_is_seen() {
    let text = "use x::cuda_names;\nfn all() -> Vec<u8> { engraft_wgpu::list().unwrap() }\nfn none() { let absent = 0; absent_mind() }\n\
                #[test]\nfn direct() { for name in cuda_names() {} }\n#[test]\nfn by_helper() { all(); }\n\
                #[test]\nfn in_macro() { println!(\"{}\", adapters().len()); }\n\
                #[test]\n#[ignore = \"needs one\"]\nfn ignored() { all(); }\n\
                #[test]\nfn other() { none(); let _ = x::list(); }\n";
    let functions = Functions::read(text);
    let of = |file: &str, of_trials| faults(file, &functions, of_trials);
    let plain = of("engraft/tests/b.rs", false);
    assert_eq!(plain.len(), 3, "{plain:?}");
    for test in ["direct", "by_helper", "in_macro"] {
        assert!(plain.iter().any(|fault| fault.contains(&format!("#[test] {test} "))), "{test}: {plain:?}");
    }
    // In this package's programs of plain tests no function does; in those of trials nothing is marked.
    assert_eq!(of("tests/tests/models/b.rs", false).len(), 3 + 3);
    assert_eq!(of("tests/tests/wgpu.rs", true).len(), 3 + 5);
    assert_eq!((program("tests/tests/wgpu.rs"), program("tests/src/lib.rs")), (Some("wgpu"), None));
}

/// Whether something of these words asserts.
fn asserts(words: &BTreeSet<String>) -> bool {
    words.iter().any(|word| word.ends_with('!') && (word.contains("assert") || word == "panic!"))
}

/// What is wrong with a test that a page names, if anything is.
fn fault_of(functions: &Functions, test: &str) -> Option<&'static str> {
    match functions.tests.get(test) {
        _ if !functions.words.contains_key(test) => Some("has no such function"),
        None if !functions.trials.contains(test) => Some("has it, but neither as #[test] nor as a trial"),
        Some(true) => Some("ignores it"),
        _ if !asserts(&functions.reached(test)) => Some("asserts nothing in it"),
        _ => None,
    }
}

/// A file that a page names; of programs of tests the other files of its folder, too, where helpers lie.
fn of_page(file: &str) -> Option<Functions> {
    let mut functions = Functions::read(&fs::read_to_string(root().join(file)).ok()?);
    let (folder, _) = file.rsplit_once('/')?;
    if folder.split('/').any(|part| part == "tests") {
        let others = below(folder, &|name| name.ends_with(".rs")).into_iter().filter(|s| s.name != file);
        others.for_each(|other| functions.help(Functions::read(&other.text)));
    }
    Some(functions)
}

/// What is wrong with a row of the page.
fn of_row(number: usize, row: &str, read: &dyn Fn(&str) -> Option<Functions>) -> Vec<String> {
    let named: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|n| n.contains(".rs::")).collect();
    let mut broken = Vec::new();
    if named.is_empty() && !row.contains("not applicable") {
        broken.push(format!("defect {number} names neither a test nor a reason"));
    }
    for (file, test) in named.iter().filter_map(|n| n.split_once("::")) {
        let fault = match read(file) {
            Some(functions) => fault_of(&functions, test),
            None => Some("is not there"),
        };
        broken.extend(fault.map(|fault| format!("defect {number}, {test}: {file} {fault}")));
    }
    broken
}

/// `docs/deepspeed_defects.md` names tests that are there, run, and assert something.
#[test]
fn every_defect_has_its_test() {
    let page = fs::read_to_string(root().join("docs/deepspeed_defects.md")).unwrap();
    let mut broken = Vec::new();
    for number in 1..=24 {
        match page.lines().find(|l| l.starts_with(&format!("| {number} |"))) {
            Some(row) => broken.extend(of_row(number, row, &of_page)),
            None => broken.push(format!("no row for defect {number}")),
        }
    }
    assert!(broken.is_empty(), "what is said to be tested is tested:\n  {}", broken.join("\n  "));
}

#[test]
fn a_row_whose_test_shows_nothing_is_seen() {
    let file = "pub const TESTS: &[Named] = &named![trial];\nfn trial() { assert!(true); }\n\
                fn helper() { assert!(true); }\n#[test]\nfn empty() { helping(); }\nfn helping() {}\n\
                #[test]\nfn full() { helper(); }\n#[test]\n#[ignore = \"x\"]\nfn idle() { assert!(true); }\n";
    let fault = |test: &str| fault_of(&Functions::read(file), test);
    assert_eq!((fault("trial"), fault("full")), (None, None));
    assert_eq!(fault("helper"), Some("has it, but neither as #[test] nor as a trial"));
    assert_eq!(fault("empty"), Some("asserts nothing in it"));
    assert_eq!(fault("idle"), Some("ignores it"));
    assert_eq!(fault("other"), Some("has no such function"));
    let of = |row: &str| of_row(7, row, &|name| (name == "a.rs").then(|| Functions::read(file)));
    assert_eq!(of("| 7 | there | `a.rs::full`, `a.rs::trial` |"), Vec::<String>::new());
    assert_eq!(of("| 7 | there | `a.rs::empty` |"), ["defect 7, empty: a.rs asserts nothing in it"]);
    assert_eq!(of("| 7 | there | `b.rs::full` |"), ["defect 7, full: b.rs is not there"]);
    assert_eq!(of("| 7 | there | here |"), ["defect 7 names neither a test nor a reason"]);
}
