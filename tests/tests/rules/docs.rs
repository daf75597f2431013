//! The pages for those who add something quote the sources and name files: what they quote has to stand
//! there.

use std::path::{Path, PathBuf};

/// Pages and the stem that their `<stem>` stands for.
const PAGES: [(&str, &str); 5] = [
    ("docs/add_an_op.md", "rows"),
    ("docs/add_a_backend.md", "rows"),
    ("docs/add_a_policy.md", "rows"),
    ("docs/architecture.md", "rows"),
    ("CONTRIBUTING.md", "rows"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of a page that name a file: the file, and the lines.
fn quotes(page: &str) -> Vec<(String, Vec<&str>)> {
    let (mut quotes, mut open): (Vec<(String, Vec<&str>)>, bool) = (Vec::new(), false);
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(info) => {
                if let Some((_, file)) = info.split_once("file=") {
                    quotes.push((file.to_string(), Vec::new()));
                    open = true;
                }
            }
            None => {
                if let Some((_, lines)) = quotes.last_mut().filter(|_| open) {
                    lines.push(line);
                }
            }
        }
    }
    quotes
}

/// Whether these lines stand in the text one after the other.
fn stands(text: &str, lines: &[&str]) -> bool {
    let all: Vec<&str> = text.lines().collect();
    !lines.is_empty() && all.windows(lines.len()).any(|window| window == lines)
}

/// Words in backticks that are paths of the repository.
fn paths(page: &str) -> impl Iterator<Item = &str> {
    let roots = [
        "core/", "backend-", "kernels/", "shaders/", "tests/", "docs/", "engraft/", "server/", "cli/",
        "xtask/", ".ci/",
    ];
    let words = page.split('`').skip(1).step_by(2);
    let is_path = move |word: &&str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._<>-".contains(c));
        plain && roots.iter().any(|root| word.starts_with(root))
    };
    words.filter(is_path)
}

#[test]
fn what_a_page_quotes_stands_in_the_file() {
    let mut count = 0;
    for (name, _) in PAGES {
        let page = std::fs::read_to_string(root().join(name)).unwrap();
        for (file, lines) in quotes(&page) {
            let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
            assert!(
                stands(&text, &lines),
                "{name} quotes of {file} what does not stand there:\n{}",
                lines.join("\n")
            );
            count += 1;
        }
    }
    assert!(count >= 12, "{count} quotes");
}

#[test]
fn the_files_that_a_page_names_are_there() {
    let mut count = 0;
    for (name, stem) in PAGES {
        let page = std::fs::read_to_string(root().join(name)).unwrap();
        for path in paths(&page).filter(|path| !path.contains("<family>") && !path.contains("<case>")) {
            if path.contains("<your") || path.contains(' ') {
                continue;
            }
            let file = root().join(path.replace("<stem>", stem));
            assert!(file.exists(), "{name} names `{path}`, which is not there");
            count += 1;
        }
    }
    assert!(count >= 85, "{count} paths");
}

#[test]
fn a_changed_quote_is_seen() {
    assert!(stands("a\n    b\nc\n", &["    b", "c"]));
    assert!(!stands("a\n    b\nc\n", &["b", "c"]) && !stands("a\nb\n", &["b", "a"]) && !stands("a", &[]));
    let page = "```rust file=x/y.rs\nfn f();\n```\n```rust\nother\n```\n";
    assert_eq!(quotes(page), [("x/y.rs".to_string(), vec!["fn f();"])]);
}
