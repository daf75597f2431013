//! The cache that Hugging Face's programs share: where a repository's files lie once any of them has fetched
//! it.
//!
//! `models--ORG--NAME/refs/main` holds a commit, `snapshots/COMMIT/` the files. Only looked at, never
//! written; works in builds without the hub's client, too.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The cache's folder, by the variables that Hugging Face's programs read; `variable` gives their values.
pub fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || path("HF_HOME").or_else(|| path("HOME").map(|home| home.join(".cache/huggingface")));
    path("HF_HUB_CACHE").or_else(|| home().map(|home| home.join("hub")))
}

/// The snapshot of repository `id` (`ORG/NAME`, or with `@REVISION`) in `cache`, if it has weights and a
/// configuration.
pub fn snapshot(cache: &Path, id: &str) -> Option<PathBuf> {
    let (id, revision) = id.split_once('@').unwrap_or((id, "main"));
    let home = cache.join(format!("models--{}", id.replace('/', "--")));
    let commit = match is_commit(revision) {
        true => revision.to_string(),
        false => std::fs::read_to_string(home.join("refs").join(revision)).ok()?,
    };
    let commit = commit.trim();
    if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric()) {
        return None;
    }
    let folder = home.join("snapshots").join(commit);
    complete(&folder).then_some(folder)
}

/// Whether a revision is a commit, not a branch or a tag.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether a snapshot has what a model needs; another program may have fetched only parts. Shards that an
/// index names must all be there.
pub fn complete(folder: &Path) -> bool {
    let there = |name: &str| folder.join(name).exists();
    if !there("config.json") {
        return false;
    }
    if there("model.safetensors") || there("pytorch_model.bin") {
        return true;
    }
    let indexes = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];
    indexes.iter().filter(|i| there(i)).any(|name| {
        let text = std::fs::read(folder.join(name)).unwrap_or_default();
        let index: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let map = index.get("weight_map").and_then(serde_json::Value::as_object);
        map.is_some_and(|m| m.values().all(|v| v.as_str().is_some_and(&there)))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_folder_is_that_of_other_programs() {
        let of = |set: &[(&str, &str)]| {
            folder(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[("HOME", "/me")]), Some("/me/.cache/huggingface/hub".into()));
        assert_eq!(of(&[("HOME", "/me"), ("HF_HOME", "/hf")]), Some("/hf/hub".into()));
        assert_eq!(of(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/hf")]), Some("/c".into()));
        assert_eq!((of(&[("HF_HUB_CACHE", "")]), of(&[])), (None, None));
    }

    #[test]
    fn snapshots_that_are_complete() {
        let cache = std::env::temp_dir().join(format!("engraft-hub-{}", std::process::id()));
        let home = cache.join("models--org--some-model");
        let inside = home.join("snapshots/0123abcd");
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(home.join("refs")).unwrap();
        let found = || snapshot(&cache, "org/some-model");
        assert_eq!(found(), None);
        fs::write(home.join("refs/main"), "0123abcd\n").unwrap();
        fs::write(inside.join("config.json"), "{}").unwrap();
        assert_eq!(found(), None);
        let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        fs::write(inside.join("model.safetensors.index.json"), index).unwrap();
        fs::write(inside.join("one.safetensors"), "").unwrap();
        assert_eq!(found(), None);
        fs::write(inside.join("two.safetensors"), "").unwrap();
        assert_eq!(found(), Some(inside.clone()));
        assert_eq!(snapshot(&cache, "org/some-model@v1"), None);
        fs::write(home.join("refs/v1"), "0123abcd").unwrap();
        assert_eq!(snapshot(&cache, "org/some-model@v1"), Some(inside.clone()));
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(snapshot(&cache, &format!("org/some-model@{commit}")), None);
        fs::rename(&inside, home.join("snapshots").join(commit)).unwrap();
        assert!(snapshot(&cache, &format!("org/some-model@{commit}")).is_some());
        for odd in ["../../x", "", "a/b"] {
            fs::write(home.join("refs/main"), odd).unwrap();
            assert_eq!(found(), None, "{odd}");
        }
        fs::remove_dir_all(&cache).unwrap();
    }
}
