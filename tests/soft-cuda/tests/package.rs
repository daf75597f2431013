//! The packages stand by themselves: nothing in them names a file that they do not have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Files below a folder, with their content if that is text.
fn texts(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, found);
        } else if let Ok(text) = fs::read_to_string(&path) {
            found.push((path, text));
        }
    }
}

/// A path without `..`, as far as there is something to go back from.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = out.pop(),
            part => out.push(part),
        }
    }
    out
}

/// What stands between `before` and `after`, wherever that is in the text, with the line before it.
fn between<'t>(text: &'t str, before: &str, after: char) -> Vec<(&'t str, &'t str)> {
    let mut out = Vec::new();
    for (at, _) in text.match_indices(before) {
        let line = text[..at].rfind('\n').map_or("", |end| text[..end].lines().next_back().unwrap_or(""));
        out.extend(text[at + before.len()..].split_once(after).map(|(path, _)| (line, path)));
    }
    out
}

#[test]
fn no_file_of_a_package_names_one_outside_of_it() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    // In the repository both stand side by side; the file is the same for each.
    let folders = [own.to_owned(), plain(&own.join("../ptx-vm"))];
    let (mut outside, mut read) = (Vec::new(), 0);
    for package in folders.iter().filter(|folder| folder.join("Cargo.toml").is_file()) {
        let mut files = Vec::new();
        for folder in ["src", "tests", "examples", "community"].map(|f| package.join(f)) {
            if folder.is_dir() {
                texts(&folder, &mut files);
            }
        }
        let readme = package.join("README.md");
        files.push((readme.clone(), fs::read_to_string(&readme).unwrap()));
        for (path, text) in &files {
            let mut named = Vec::new();
            if path.extension().is_some_and(|e| e == "rs") {
                for call in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
                    named.extend(between(text, call, '"'));
                }
            } else if path.extension().is_some_and(|e| e == "md") {
                named.extend(between(text, "](", ')'));
            }
            for (line, name) in named {
                read += 1;
                let target = plain(&path.parent().unwrap().join(name.split('#').next().unwrap()));
                let there = target.starts_with(package) && target.exists();
                // What is compiled in the repository alone.
                let marked = line.contains("in_repository") || text.contains("#[cfg(in_repository)]");
                if !there && !marked && !name.starts_with("http") {
                    outside.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(read > 10, "{read} names");
    assert_eq!(outside, Vec::<String>::new());
}
