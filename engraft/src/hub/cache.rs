//! The cache that Hugging Face's programs share: where a repository's files lie once any of them has fetched
//! it.
//!
//! `models--ORG--NAME/refs/main` holds a commit, `snapshots/COMMIT/` the files. Only looked at, never
//! written; works in builds without the hub's client, too.

use engraft_core::{Error, Result, file};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Bytes of a file that names a commit.
const MOST_REF: u64 = 1 << 10;
/// Bytes of an index of shards.
const MOST_INDEX: u64 = 64 << 20;

/// The cache's folder, by the variables that Hugging Face's programs read; `variable` gives their values.
pub fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || path("HF_HOME").or_else(|| path("HOME").map(|home| home.join(".cache/huggingface")));
    path("HF_HUB_CACHE").or_else(|| home().map(|home| home.join("hub")))
}

/// Refuses an id that is no repository's: parts of `ORG/NAME@REVISION` become parts of paths. A revision may
/// have several, as branches have.
///
/// # Errors
/// `Config`, naming the id and the part.
pub fn check(id: &str) -> Result<()> {
    let (repository, revision) = id.split_once('@').unwrap_or((id, "main"));
    let odd = |c: char| c.is_control() || c.is_whitespace() || "\\:*?\"<>|".contains(c);
    let wrong =
        |part: &&str| part.is_empty() || part.starts_with('.') || part.contains("..") || part.contains(odd);
    match repository.split('/').chain(revision.split('/')).find(wrong) {
        None => Ok(()),
        Some(part) => {
            let allowed =
                "organisation/name or organisation/name@revision, each part between `/` a plain name";
            Err(Error::config("model", format!("{id:?}, with the part {part:?}"), allowed))
        }
    }
}

/// The snapshot of repository `id` (`ORG/NAME`, or with `@REVISION`) in `cache`, if it has weights and a
/// configuration. Files that are not regular, or too long for what they are, count as missing.
pub fn snapshot(cache: &Path, id: &str) -> Option<PathBuf> {
    check(id).ok()?;
    let (id, revision) = id.split_once('@').unwrap_or((id, "main"));
    let home = cache.join(format!("models--{}", id.replace('/', "--")));
    let commit = match is_commit(revision) {
        true => revision.to_string(),
        false => file::text(&home.join("refs").join(revision), MOST_REF).ok()?,
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
        let text = file::whole(&folder.join(name), MOST_INDEX).unwrap_or_default();
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

    /// A snapshot of one file of weights, below a folder of its own; the repository's folder.
    fn cached(name: &str) -> (PathBuf, PathBuf) {
        let cache = std::env::temp_dir().join(format!("engraft-hub-{name}-{}", std::process::id()));
        let home = cache.join("models--org--name");
        fs::create_dir_all(home.join("snapshots/0a")).unwrap();
        fs::create_dir_all(home.join("refs")).unwrap();
        fs::write(home.join("refs/main"), "0a").unwrap();
        fs::write(home.join("snapshots/0a/config.json"), "{}").unwrap();
        fs::write(home.join("snapshots/0a/model.safetensors"), "").unwrap();
        (cache, home)
    }

    #[test]
    fn a_revision_is_a_name_below_the_repository() {
        let (cache, home) = cached("revisions");
        // A branch's name may have several parts.
        fs::create_dir_all(home.join("refs/refs/pr")).unwrap();
        fs::write(home.join("refs/refs/pr/3"), "0a").unwrap();
        assert!(snapshot(&cache, "org/name@refs/pr/3").is_some());
        // What lies beyond it is not read, though it names a commit.
        fs::write(cache.join("outside"), "0a").unwrap();
        let absolute = format!("org/name@{}", cache.join("outside").display());
        for id in ["org/name@../../outside", "org/name@x/../../../outside", &absolute] {
            assert_eq!(snapshot(&cache, id), None, "{id}");
        }
        for (id, part) in [
            ("org/name@../../outside", "\"..\""),
            ("org/name@", "\"\""),
            ("org/name@a//b", "\"\""),
            ("org/name@/etc", "\"\""),
            ("org/name@.git", "\".git\""),
            ("org/name@a\\b", "\"a\\\\b\""),
            ("org/name@C:x", "\"C:x\""),
            ("../name", "\"..\""),
        ] {
            let said = check(id).unwrap_err().to_string();
            assert!(said.contains(&format!("{id:?}, with the part {part}")), "{said}");
        }
        for id in ["org/name", "name", "org/name@v1.0", "org/name@feature/a+b_c", "org/na-me.2@refs/pr/3"] {
            check(id).unwrap();
        }
        fs::remove_dir_all(&cache).unwrap();
    }

    /// Without waiting for a writer.
    #[cfg(unix)]
    #[test]
    fn pipes_and_files_without_end_are_no_snapshot() {
        use std::{os::unix::fs::symlink, process::Command, sync::mpsc, thread, time::Duration};
        let (cache, home) = cached("pipes");
        let found = || {
            let (sender, receiver) = mpsc::channel();
            let cache = cache.clone();
            thread::spawn(move || sender.send(snapshot(&cache, "org/name").is_some()));
            receiver.recv_timeout(Duration::from_secs(30))
        };
        let weights = home.join("snapshots/0a/model.safetensors");
        let (main, index) = (home.join("refs/main"), weights.with_extension("safetensors.index.json"));
        assert_eq!(found(), Ok(true));
        fs::remove_file(&main).unwrap();
        assert!(Command::new("mkfifo").arg(&main).status().unwrap().success());
        assert_eq!(found(), Ok(false), "a reference is a pipe");
        fs::remove_file(&main).unwrap();
        fs::write(&main, "0a").unwrap();
        fs::remove_file(&weights).unwrap();
        assert!(Command::new("mkfifo").arg(&index).status().unwrap().success());
        assert_eq!(found(), Ok(false), "an index is a pipe");
        fs::remove_file(&index).unwrap();
        symlink("/dev/zero", &index).unwrap();
        assert_eq!(found(), Ok(false), "an index has no end");
        fs::remove_dir_all(&cache).unwrap();
    }
}
