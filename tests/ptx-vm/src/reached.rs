//! Which lines of kernels a program has executed, over all its launches: what no test reaches, none can see.
//!
//! A program that runs on this machine adds to the file that [`FILE`] names a line `TARGET UNIT LINE` for each
//! line of a text that a warp executes for the first time. The unit is the kernel or the function that has the
//! line, which is counted from its first line on, as a [mutant](crate::mutant)'s.

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
    if !wanted() {
        return Units::new();
    }
    (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, name(text)?.to_owned()))).collect()
}

/// Adds what a launch has executed to the file.
pub(crate) fn note(target: &str, units: &Units, lines: &[LineCount]) {
    static KNOWN: Mutex<BTreeSet<(String, String, u32)>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut news = String::new();
    for line in lines.iter().filter(|line| line.warps > 0).map(|line| line.line) {
        let Some((first, unit)) = units.iter().rev().find(|(first, _)| *first <= line) else { continue };
        if known.insert((target.to_owned(), unit.clone(), line - first)) {
            // A `String` takes everything.
            let _ = writeln!(news, "{target} {unit} {}", line - first);
        }
    }
    let Some(path) = std::env::var_os(FILE).filter(|_| !news.is_empty()) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    if let Err(e) = file.and_then(|mut file| file.write_all(news.as_bytes())) {
        eprintln!("{FILE}: {}: {e}", path.display());
    }
}
