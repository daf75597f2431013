//! Takes out of a report what could say whose machine it is from: drivers and systems write paths into their
//! messages.

use super::super::failure::one_line;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What stands for a path.
const PATH: &str = "<path>";

/// Words with a slash that are no paths.
const NO_PATHS: [&str; 10] =
    ["/", "GB/s", "GFLOP/s", "GNU/Linux", "I/O", "Input/output", "input/output", "N/A", "and/or", "n/a"];

/// A value with every text in it cleaned; `named` are paths of the command line.
pub fn cleaned(value: Value, named: &[&Path]) -> Value {
    let own = own_paths(named);
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

/// Paths of this user, process and command line: their names may have spaces in them. The longest is first.
fn own_paths(named: &[&Path]) -> Vec<String> {
    let homes = ["HOME", "USERPROFILE"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let named = named.iter().map(|path| path.to_path_buf()).filter(|path| path != Path::new("off"));
    let files: Vec<PathBuf> = std::env::current_exe().ok().into_iter().chain(named).collect();
    let folders: Vec<PathBuf> = files.iter().filter_map(|path| Some(path.parent()?.to_path_buf())).collect();
    let given = homes.chain(std::env::current_dir().ok()).chain(files).chain(folders);
    // A root is in every path, and no one's.
    let given: Vec<PathBuf> = given.filter(|path| path.parent().is_some()).collect();
    // As it is given, and without a slash at its end.
    let plain: Vec<PathBuf> = given.iter().map(|path| path.components().collect()).collect();
    longest_first(given.iter().chain(&plain).map(|path| path.display().to_string()).collect())
}

/// Texts to be replaced in an order in which none hides a longer one that has it within.
fn longest_first(mut all: Vec<String>) -> Vec<String> {
    all.retain(|text| !text.is_empty() && text != ".");
    all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    all.dedup();
    all
}

/// A message on one line, every path in it replaced. It is shortened last: half a path would not be known.
fn clean_text(text: &str, own: &[String]) -> String {
    let long = own.iter().filter(|path| path.contains(['/', '\\', ' ']));
    let text = long.fold(text.to_string(), |text, path| text.replace(path.as_str(), PATH));
    let words = text.split_whitespace().map(|word| if has_path(word, own) { PATH } else { word });
    one_line(&words.collect::<Vec<_>>().join(" "))
}

/// Whether a word has a path in it: whatever has a slash and is not known, a user's home, a name without a
/// slash that the command line has as a path.
fn has_path(word: &str, own: &[String]) -> bool {
    let bare = word.trim_matches(|c: char| "()[]{},.;:\"'`".contains(c));
    let home = bare.strip_prefix('~').is_some_and(|user| user.starts_with(char::is_alphabetic));
    let slash = word.contains('\\') || word.contains('/');
    slash && !NO_PATHS.contains(&bare) || home || own.iter().any(|path| path == bare)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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
            ("jo/none.so, ~jo/none.so: or ~jo is missing", "<path> <path> or <path> is missing"),
            ("12.5 GFLOP/s (I/O), Input/output error", "12.5 GFLOP/s (I/O), Input/output error"),
        ] {
            assert_eq!(clean_text(text, &own), want);
        }
        let value = json!({"a": ["/opt/x", 1, null], "b": {"c": "/opt/y"}});
        assert_eq!(clean(value, &[]), json!({"a": ["<path>", 1, null], "b": {"c": "<path>"}}));
    }

    #[test]
    fn a_path_below_another_one_is_replaced_as_a_whole() {
        let own = longest_first(["/home/jo", "/home/jo/My Files", ""].map(String::from).to_vec());
        assert_eq!(own, ["/home/jo/My Files", "/home/jo"]);
        assert_eq!(clean_text("in /home/jo/My Files/x and /home/jo", &own), "in <path> and <path>");
    }

    #[test]
    fn paths_of_the_command_line_are_replaced_as_a_whole() {
        let named = [Path::new("/srv/Jo Smith/none.so"), Path::new("none-of.jo"), Path::new("off")];
        let text = "/srv/Jo Smith/none.so: or \"none-of.jo\" in /srv/Jo Smith: off";
        let value = cleaned(json!([text]), &named);
        assert_eq!(value[0], "<path>: or <path> in <path>: off");
        let program = std::env::current_exe().unwrap().display().to_string();
        assert_eq!(cleaned(json!([program]), &[])[0], "<path>");
    }

    #[test]
    fn a_long_text_is_cleaned_before_it_is_shortened() {
        let own = ["/home/Jo Smith".to_string()];
        // The end of what is shown begins within the path.
        let text = format!("{} /home/Jo Smith/x {}", "a".repeat(4000), "b".repeat(1488));
        let clean = clean_text(&text, &own);
        assert!(!clean.contains("Smith") && clean.contains("<path> bbb"), "{clean}");
        assert!(clean.len() < 3100, "{}", clean.len());
    }
}
