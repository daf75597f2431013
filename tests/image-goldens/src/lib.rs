//! What the reference implementation computed for text-to-image, and the one way in which it is compared:
//! schedulers by themselves, single models and whole pipelines on any backend.
//!
//! The tests of `image` and of `diffusion` and the program `goldens` all read cases here. What the folders
//! hold: `tests/golden-image/README.md`. Failures are values: nothing here panics.

#[cfg(feature = "models")]
mod captured;
#[cfg(feature = "models")]
mod components;
mod golden;
#[cfg(feature = "models")]
mod pipelines;
#[cfg(feature = "models")]
mod requests;
mod schedulers;

#[cfg(feature = "models")]
pub use captured::{Change, captured_steps};
#[cfg(feature = "models")]
pub use components::{Ran, component};
#[cfg(feature = "models")]
pub use engraft_diffusion::Plan;
pub use golden::{Golden, Result, Tensor, Verdict, json, rows};
#[cfg(feature = "models")]
pub use pipelines::{Runs, tokenizers};
#[cfg(feature = "models")]
pub use requests::Given;
pub use schedulers::{Case, scheduler};

use std::path::{Path, PathBuf};

/// What a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A scheduler's configuration and its runs.
    Scheduler,
    /// A model.
    Component,
    /// A pipeline and its runs.
    Pipeline,
}

/// What a folder holds; none where it is no case of text-to-image.
pub fn kind(folder: &Path) -> Option<Kind> {
    let there = |file: &str| folder.join(file).is_file();
    if !there("golden.json") {
        return None;
    }
    match (there("scheduler_config.json"), there("model_index.json")) {
        (true, _) => Some(Kind::Scheduler),
        (_, true) => Some(Kind::Pipeline),
        // Models of texts have `architectures` there.
        _ => class(folder).map(|_| Kind::Component),
    }
}

/// The class of diffusers that a folder names.
pub fn class(folder: &Path) -> Option<String> {
    let named = |file: &str| Some(json(&folder.join(file)).ok()?["_class_name"].as_str()?.to_string());
    ["config.json", "model_index.json", "scheduler_config.json"].into_iter().find_map(named)
}

/// The folder of the project's own cases of a kind: `schedulers`, `components` or `pipelines`.
pub fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden-image").join(kind)
}

/// All cases of a kind, by name.
///
/// # Errors
/// Where the folder cannot be read.
pub fn cases(kind: &str) -> Result<Vec<PathBuf>> {
    let folder = folder(kind);
    let no = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = std::fs::read_dir(&folder).map_err(no)?;
    let mut all: Vec<PathBuf> =
        entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<_>>().map_err(no)?;
    all.sort();
    Ok(all)
}

/// A folder's name.
pub fn name(folder: &Path) -> String {
    folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
