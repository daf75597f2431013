//! Which lines of kernels a program has executed, over all its launches: what no test reaches, none can see.
//!
//! A program that runs on this machine adds to the file that [`FILE`] names a line `TARGET UNIT LINE` for
//! each line of a text that a warp executes for the first time. The unit is the kernel or the function that
//! has the line, which is counted from its first line on, as a [mutant](crate::mutant)'s.

use crate::launch::LineCount;
use crate::mutant::name;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The environment variable that names the file.
pub const FILE: &str = "PTX_VM_REACHED";

/// Where the definitions of a text begin, by line from 1.
pub(crate) type Units = Vec<(u32, String)>;

/// Whether somebody asks.
pub(crate) fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os(FILE).is_some())
}

/// The definitions of a text; none where nobody asks.
pub(crate) fn units(text: &str) -> Units {
    if wanted() { units_of(text) } else { Units::new() }
}

fn units_of(text: &str) -> Units {
    (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, name(text)?.to_owned()))).collect()
}

/// What was executed so far: a target, a unit and a line of it.
type Known = BTreeSet<(String, String, u32)>;

/// Adds what a launch has executed to the file.
pub(crate) fn note(target: &str, units: &Units, lines: &[LineCount]) {
    static KNOWN: Mutex<Known> = Mutex::new(Known::new());
    let news = news(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner), target, units, lines);
    let Some(path) = std::env::var_os(FILE).filter(|_| !news.is_empty()) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    if let Err(e) = file.and_then(|mut file| file.write_all(news.as_bytes())) {
        eprintln!("{FILE}: {}: {e}", path.display());
    }
}

/// The lines of the file for what was not known.
fn news(known: &mut Known, target: &str, units: &Units, lines: &[LineCount]) -> String {
    let mut news = String::new();
    for line in lines.iter().filter(|line| line.warps > 0).map(|line| line.line) {
        let Some((first, unit)) = units.iter().rev().find(|(first, _)| *first <= line) else { continue };
        if known.insert((target.to_owned(), unit.clone(), line - first)) {
            // A `String` takes everything.
            let _ = writeln!(news, "{target} {unit} {}", line - first);
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_their_unit_and_noted_once() {
        let text = ".func helper()\n{\n\tret;\n}\n.entry one()\n{\n\tbar.sync 0;\n\tret;\n}\n";
        let units = units_of(text);
        assert_eq!(units, [(1, "helper".into()), (5, "one".into())]);
        let line = |line, warps| LineCount { line, text: String::new(), warps };
        let mut known = Known::new();
        let lines = [line(3, 2), line(7, 1), line(8, 0)];
        assert_eq!(news(&mut known, "sm_80", &units, &lines), "sm_80 helper 2\nsm_80 one 2\n");
        assert_eq!(news(&mut known, "sm_80", &units, &[line(7, 9), line(8, 1)]), "sm_80 one 3\n");
        assert_eq!(news(&mut known, "sm_90a", &units, &[line(7, 1)]), "sm_90a one 2\n");
    }
}
