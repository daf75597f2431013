//! DeepSpeed's JSON description of a checkpoint.
//!
//! | key | meaning |
//! | --- | --- |
//! | `type` | `BLOOM`, `ds_model`, `Megatron` (in any case) |
//! | `checkpoints` | a list of files, or `{"tp": [...], "non_tp": [...]}` |
//! | `parallelization` | of a list: `pp`, every file holds whole tensors (default), or `tp`, one file per rank |
//! | `tp_size`, `mp_size` | ranks that wrote `tp` files; default: as many as there are files |
//! | `version` | order of the rows of fused q, k, v: 0, 1.0 or 2.0; read for `Megatron` alone |
//! | `base_dir` | put before file names; default: the description's own folder |
//! | `dtype` | what DeepSpeed would cast to; not needed to read the files |
//!
//! `tp` files come partition by partition, all ranks of one partition together, as DeepSpeed writes them.
//!
//! A description that comes with a model must not name any file of the machine: all that it names lies below
//! the user's `base_dir`, or below its own folder where the user gives none. Links are followed.

use super::files::{Files, MAX_RANKS, parent};
use super::order::Order;
use crate::{Error, Result};
use serde_json::Value;
use std::path::{Component, Path, PathBuf};

const KEYS: [&str; 8] =
    ["type", "checkpoints", "version", "parallelization", "tp_size", "mp_size", "base_dir", "dtype"];

/// A description that has been read and checked.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::checkpoint) struct Description {
    /// The files.
    pub files: Files,
    /// Where they lie.
    pub base: PathBuf,
    /// What is said of the order of fused rows.
    pub order: Order,
}

/// Whether an object looks like a description, and not like a model's configuration.
pub(in crate::checkpoint) fn is_description(value: &Value) -> bool {
    value.get("checkpoints").is_some()
}

impl Description {
    /// Reads a description that lies in `folder`; `base` is what the user gave as `base_dir` next to it.
    pub(in crate::checkpoint) fn parse(
        file: &str,
        value: &Value,
        folder: &Path,
        base: Option<&str>,
    ) -> Result<Self> {
        let bad = |what: String| Error::format(file, what);
        let map = value.as_object().ok_or_else(|| bad("is no JSON object".into()))?;
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(bad(format!("`{key}` is unknown; known: {}", KEYS.join(", "))));
        }
        let kind = text(file, value, "type")?.unwrap_or("ds_model").to_ascii_lowercase();
        if !["bloom", "ds_model", "megatron"].contains(&kind.as_str()) {
            return Err(bad(format!("type is \"{kind}\"; allowed: BLOOM, ds_model, Megatron")));
        }
        let base = base_of(file, folder, base, text(file, value, "base_dir")?)?;
        let degree = degree(file, value)?;
        let paths = |value: Option<&Value>, key: &str| paths(file, value, key, &base);
        let files = match value.get("checkpoints") {
            Some(list @ Value::Array(_)) => {
                let all = paths(Some(list), "checkpoints")?;
                let default = if kind == "megatron" { "tp" } else { "pp" };
                match text(file, value, "parallelization")?.unwrap_or(default) {
                    "pp" => Files { whole: all, ranks: Vec::new() },
                    "tp" => Files { whole: Vec::new(), ranks: by_rank(file, all, degree)? },
                    other => return Err(bad(format!("parallelization is \"{other}\"; allowed: pp, tp"))),
                }
            }
            Some(Value::Object(both)) => {
                if let Some(key) = both.keys().find(|k| !["tp", "non_tp"].contains(&k.as_str())) {
                    return Err(bad(format!("checkpoints has `{key}`; allowed: tp, non_tp")));
                }
                let ranks = by_rank(file, paths(both.get("tp"), "checkpoints.tp")?, degree)?;
                Files { whole: paths(both.get("non_tp"), "checkpoints.non_tp")?, ranks }
            }
            _ => {
                return Err(
                    bad("checkpoints must be a list of files or an object with tp and non_tp".into()),
                );
            }
        };
        let version = match (value.get("version"), kind.as_str()) {
            (None | Some(Value::Null), _) => None,
            // The others write 1.0 or 0.0 without meaning an order.
            (Some(_), "bloom" | "ds_model") => None,
            (Some(v), _) => {
                Some(v.as_f64().ok_or_else(|| bad(format!("version is {v}; a number is expected")))?)
            }
        };
        Ok(Self { files, base, order: Order { version, megatron: kind == "megatron" } })
    }

    /// The folder of a description file.
    pub(in crate::checkpoint) fn folder(path: &Path) -> PathBuf {
        parent(path)
    }
}

fn text<'a>(file: &str, value: &'a Value, key: &str) -> Result<Option<&'a str>> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Error::format(file, format!("{key} is {other}; a text is expected"))),
    }
}

/// The folder that file names are joined to: the user's, else the description's own, else `folder`.
fn base_of(file: &str, folder: &Path, given: Option<&str>, own: Option<&str>) -> Result<PathBuf> {
    if let Some(given) = given.filter(|b| !b.is_empty()) {
        let given = PathBuf::from(given);
        return Ok(if given.is_absolute() || given.exists() { given } else { folder.join(given) });
    }
    let Some(own) = own.filter(|b| !b.is_empty()) else { return Ok(folder.to_owned()) };
    // DeepSpeed writes it as it was given when the files were saved, from wherever that was.
    let there = folder.join(own);
    let base = if there.exists() { there } else { PathBuf::from(own) };
    match is_below(folder, &base) {
        true => Ok(base),
        false => Err(outside(file, &format!("base_dir is {own:?}"), folder)),
    }
}

/// Whether a path lies in a folder or below, by its name.
fn is_below(folder: &Path, path: &Path) -> bool {
    let plain = |path: &Path| {
        let mut plain = PathBuf::new();
        for part in std::path::absolute(path).ok()?.components() {
            match part {
                Component::ParentDir => drop(plain.pop()),
                Component::CurDir => {}
                part => plain.push(part),
            }
        }
        Some(plain)
    };
    let empty = folder.as_os_str().is_empty();
    plain(path).zip(plain(if empty { Path::new(".") } else { folder })).is_some_and(|(p, f)| p.starts_with(f))
}

fn outside(file: &str, what: &str, folder: &Path) -> Error {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let below =
        format!("{what}, which is not below {}; a `base_dir` of your own allows it", folder.display());
    Error::format(file, below)
}

fn degree(file: &str, value: &Value) -> Result<Option<usize>> {
    let one = |key: &str| match value.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => match v.as_u64() {
            Some(n) if (1..=MAX_RANKS as u64).contains(&n) => Ok(Some(n as usize)),
            _ => Err(Error::format(file, format!("{key} is {v}; 1 to {MAX_RANKS} are allowed"))),
        },
    };
    match (one("tp_size")?, one("mp_size")?) {
        (Some(a), Some(b)) if a != b => {
            Err(Error::format(file, format!("tp_size is {a} and mp_size is {b}; they mean the same")))
        }
        (a, b) => Ok(a.or(b)),
    }
}

fn paths(file: &str, value: Option<&Value>, key: &str, base: &Path) -> Result<Vec<PathBuf>> {
    let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    let list = value.as_array().ok_or_else(|| Error::format(file, format!("{key} is no list of files")))?;
    let one = |v: &Value| match v.as_str() {
        Some(name) if !name.is_empty() && is_below(base, &base.join(name)) => Ok(base.join(name)),
        Some(name) if !name.is_empty() => Err(outside(file, &format!("{key} lists {name:?}"), base)),
        _ => Err(Error::format(file, format!("{key} lists {v}; file names are expected"))),
    };
    list.iter().map(one).collect()
}

/// `[partition 0 of ranks 0..n, partition 1 of ranks 0..n, ...]` to the files of each rank.
fn by_rank(file: &str, all: Vec<PathBuf>, degree: Option<usize>) -> Result<Vec<Vec<PathBuf>>> {
    let degree = degree.unwrap_or(all.len()).max(1);
    if all.len() > MAX_RANKS * MAX_RANKS || !all.len().is_multiple_of(degree) {
        let what = format!("{} files of shards for a tp_size of {degree}; a multiple is expected", all.len());
        return Err(Error::format(file, what));
    }
    let mut ranks = vec![Vec::new(); if all.is_empty() { 0 } else { degree }];
    for (i, path) in all.into_iter().enumerate() {
        ranks[i % degree].push(path);
    }
    Ok(ranks)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<Description> {
        Description::parse("d.json", &value, Path::new("/x"), None)
    }

    #[test]
    fn both_layouts() {
        let pp = parse(json!({"type": "bloom", "checkpoints": ["a.pt", "b.pt"], "version": 1.0})).unwrap();
        assert_eq!(pp.files.whole, [Path::new("/x/a.pt"), Path::new("/x/b.pt")]);
        let tp = parse(json!({
            "type": "ds_model", "version": 1.0, "parallelization": "tp", "tp_size": 2, "base_dir": "/x/y",
            "checkpoints": {"non_tp": ["n.pt"], "tp": ["00_00", "01_00", "00_01", "01_01"]},
        }))
        .unwrap();
        assert_eq!(tp.files.whole, [Path::new("/x/y/n.pt")]);
        assert_eq!(tp.files.ranks[1], [Path::new("/x/y/01_00"), Path::new("/x/y/01_01")]);
        let m = parse(json!({"type": "Megatron", "checkpoints": ["0", "1"], "version": 0})).unwrap();
        assert_eq!((m.files.ranks.len(), m.order.version), (2, Some(0.0)));
        assert_eq!(tp.order, Order::default());
    }

    #[test]
    fn files_lie_below_the_folder_or_the_users_own() {
        let below = |value: Value, base| Description::parse("d.json", &value, Path::new("/x"), base);
        let list = |name: &str| json!({"checkpoints": [name]});
        for name in ["a/../b.pt", "/x/deep/a.pt", "./a.pt"] {
            assert!(below(list(name), None).is_ok(), "{name}");
        }
        for name in ["../a.pt", "/etc/passwd", "a/../../x2/a.pt", "/x/../etc/passwd", "/xy/a.pt"] {
            let text = below(list(name), None).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("not below /x; a `base_dir`"), "{text}");
            assert!(below(list(name), Some("/")).is_ok(), "{name} below what the user gives");
        }
        let own = |base: &str| json!({"checkpoints": ["a.pt"], "base_dir": base});
        assert_eq!(below(own("/x/y"), None).unwrap().files.whole, [Path::new("/x/y/a.pt")]);
        for base in ["/etc", "/x/../etc"] {
            let text = below(own(base), None).unwrap_err().to_string();
            assert!(text.contains("base_dir is") && text.contains(base), "{text}");
        }
        // The user's counts before the description's.
        assert_eq!(below(own("/etc"), Some("/y")).unwrap().files.whole, [Path::new("/y/a.pt")]);
    }

    #[test]
    fn refusals_name_the_key() {
        for (value, word) in [
            (json!({"checkpoint": []}), "`checkpoint`"),
            (json!({"checkpoints": []  , "type": "GPT"}), "gpt"),
            (json!({"checkpoints": "a"}), "checkpoints"),
            (json!({"checkpoints": [3]}), "3"),
            (json!({"checkpoints": {"tp": ["a", "b", "c"]}, "tp_size": 2}), "tp_size of 2"),
            (json!({"checkpoints": {"pp": []}}), "`pp`"),
            (json!({"checkpoints": [], "tp_size": 2, "mp_size": 4}), "mp_size is 4"),
            (json!({"checkpoints": [], "tp_size": 0}), "tp_size is 0"),
            (json!({"checkpoints": ["a"], "parallelization": "ep"}), "\"ep\""),
            (json!({"checkpoints": ["a"], "type": "megatron", "version": "x"}), "version"),
        ] {
            let text = parse(value.clone()).unwrap_err().to_string();
            assert!(text.contains(word) && text.contains("d.json"), "{value}: {text}");
        }
    }
}
