//! What the program reads besides files of models, for the fuzzer of this repository: no part of the
//! interface.

use super::{answer, args, input, texts};
use std::ffi::OsString;
use std::path::Path;

/// Whether `serve` takes the flags of a file.
pub fn settings(file: &Path) -> bool {
    let given = ["engraft", args::SERVE, args::SETTINGS].map(OsString::from);
    args::Args::of(given.into_iter().chain([file.into()])).is_ok()
}

/// Reads bytes line by line, as `embed`, `score` and `answer` do; how many lines one of them takes, and how
/// many there are.
pub fn lines(mut bytes: &[u8]) -> (usize, usize) {
    let (mut taken, mut all) = (0, 0);
    while let Ok(line) = input::line(&mut bytes, &|| "a line".into()) {
        if line.is_empty() {
            break;
        }
        all += 1;
        let Ok(text) = String::from_utf8(line) else { continue };
        let single = [false, true].map(|plain| texts::parse(&text, plain, false).0.is_ok());
        let pair = texts::parse(&text, false, true).0.is_ok();
        let question = answer::parse(&text).0.is_ok();
        taken += usize::from(single[0] || pair || question);
        assert!(single[1], "--plain takes any line");
    }
    (taken, all)
}
