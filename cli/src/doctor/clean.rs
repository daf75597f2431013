//! Takes out of a report what could say whose machine it is from: drivers and systems write paths into their
//! messages.

use super::super::failure::one_line;
use serde_json::Value;
use std::path::PathBuf;

/// What stands for a path.
const PATH: &str = "<path>";

/// A value with every text in it cleaned.
pub fn cleaned(value: Value) -> Value {
    let own = own_paths();
    clean(value, &own)
}

fn clean(value: Value, own: &[String]) -> Value {
    match value {
        Value::String(text) => clean_text(&text, own).into(),
        Value::Array(all) => all.into_iter().map(|value| clean(value, own)).collect(),
        Value::Object(all) => all.into_iter().map(|(name, value)| (name, clean(value, own))).collect(),
        other => other,
    }
}

/// Folders of this user and process: their names may have spaces in them.
fn own_paths() -> Vec<String> {
    let homes = ["HOME", "USERPROFILE"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let program = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_path_buf()));
    let all = homes.chain(std::env::current_dir().ok()).chain(program);
    // A root is in every path, and no one's.
    all.filter(|path| path.parent().is_some()).map(|path| path.display().to_string()).collect()
}

/// A message on one line, every path in it replaced.
fn clean_text(text: &str, own: &[String]) -> String {
    let text = own.iter().fold(one_line(text), |text, path| text.replace(path, PATH));
    let words = text.split(' ').map(|word| if has_path(word) { PATH } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a slash begins something in a word, or it has slashes the other way: `GB/s` is no path.
fn has_path(word: &str) -> bool {
    let begins = |at: usize| !word[..at].ends_with(|c: char| c.is_alphanumeric());
    let follows =
        |at: usize| word[at + 1..].starts_with(|c: char| c.is_alphanumeric() || "._-~<".contains(c));
    word.contains('\\') || word.match_indices('/').any(|(at, _)| begins(at) && follows(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_path_is_left() {
        let own = ["/home/Jo Smith".to_string()];
        for (text, want) in [
            ("opening /home/Jo Smith/.cache/x: denied", "opening <path> denied"),
            ("libx.so: /usr/lib/libx.so.1: cannot open", "libx.so: <path> cannot open"),
            ("file=/var/lib/x or ~/x", "<path> or <path>"),
            ("C:\\Users\\jo\\x.dll is missing", "<path> is missing"),
            ("file:///opt/x", "<path>"),
            ("120 GB/s and 3 / 4, Debian GNU/Linux 12", "120 GB/s and 3 / 4, Debian GNU/Linux 12"),
            ("two\nlines", "two lines"),
        ] {
            assert_eq!(clean_text(text, &own), want);
        }
        let value = json!({"a": ["/opt/x", 1, null], "b": {"c": "/opt/y"}});
        assert_eq!(clean(value, &[]), json!({"a": ["<path>", 1, null], "b": {"c": "<path>"}}));
    }
}
