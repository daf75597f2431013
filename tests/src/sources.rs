//! The files of this repository, for tests that read them: sources, pages, scripts. Build outputs and links
//! are left out.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path from the root, with `/`.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every text file with one of these endings, sorted by path; hidden folders are left out.
///
/// # Panics
/// Where there is none: a rule about no file holds nothing.
pub fn sources(endings: &[&str]) -> Vec<Source> {
    let found = below("", &|name| endings.iter().any(|ending| name.ends_with(ending)));
    assert!(!found.is_empty(), "nothing ends with {endings:?} below {}", root().display());
    found
}

/// Every text file below a folder of the repository whose name is wanted, sorted by path. The folder itself
/// may be a hidden one.
pub fn below(folder: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<Source> {
    let (root, mut found) = (root(), Vec::new());
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        assert!(folder.is_dir(), "{} is no folder", folder.display());
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, own) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is = entry.file_type().ok();
            if is.is_some_and(|t| t.is_dir()) {
                if !["target", "node_modules"].contains(&own.as_str()) && !own.starts_with('.') {
                    folders.push(path);
                }
            } else if is.is_some_and(|t| t.is_file()) && wanted(&own) {
                let parts =
                    path.strip_prefix(&root).unwrap_or(&path).iter().map(|part| part.to_string_lossy());
                let name = parts.collect::<Vec<_>>().join("/");
                // What is no text holds no words.
                found.extend(fs::read_to_string(&path).ok().map(|text| Source { name, text }));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}
