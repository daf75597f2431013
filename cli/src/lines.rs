//! Lines in, lines of JSON out: what `embed`, `score`, `classify` and `answer` read and print.
//!
//! A line that is wrong has an answer, too: its number and `error`. The others are answered all the same; the
//! command then ends with status 1.

use super::failure::{Failure, Outcome};
use super::input;
use super::output::{json_with_first, note, plural};
use engraft::Error;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, stdin};
use std::path::Path;

/// A source of lines, and how many of them failed.
pub(super) struct Lines {
    name: String,
    reader: Box<dyn BufRead>,
    /// Lines read so far.
    number: usize,
    /// Of them, those that are not blank.
    asked: usize,
    failed: usize,
}

impl Lines {
    /// A file, or standard input without one and for `-`.
    pub fn open(file: Option<&Path>) -> Result<Self, Failure> {
        let (name, reader): (String, Box<dyn BufRead>) = match file {
            Some(path) if path.as_os_str() != "-" => (path.display().to_string(), Box::new(opened(path)?)),
            _ => {
                if stdin().is_terminal() {
                    note("a line per text is read from here; Ctrl-D ends");
                }
                ("standard input".into(), Box::new(stdin().lock()))
            }
        };
        Ok(Self { name, reader, number: 0, asked: 0, failed: 0 })
    }

    /// The next line that is not blank, with its number (from 1); one that is no text is answered as wrong.
    pub fn next(&mut self) -> Result<Option<(usize, String)>, Failure> {
        loop {
            self.number += 1;
            let (name, number) = (&self.name, self.number);
            let line = input::line(&mut *self.reader, &|| format!("{name}, line {number}"))?;
            if line.is_empty() {
                return Ok(None);
            }
            let text = match String::from_utf8(line) {
                Ok(text) => text,
                Err(_) => {
                    self.asked += 1;
                    self.fail(self.number, Map::new(), "the line is not UTF-8")?;
                    continue;
                }
            };
            // A file may begin with a byte-order mark, which is no part of its text.
            let text =
                if number == 1 { text.strip_prefix('\u{feff}').unwrap_or(&text) } else { text.as_str() };
            let text = text.trim_end_matches(['\n', '\r']);
            if !text.trim().is_empty() {
                self.asked += 1;
                return Ok(Some((self.number, text.to_string())));
            }
        }
    }

    /// Answers a line that is wrong; `answer` is what its answer begins with.
    pub fn fail(&mut self, number: usize, mut answer: Map<String, Value>, what: &str) -> Outcome {
        self.failed += 1;
        answer.insert("line".into(), number.into());
        answer.insert("error".into(), what.into());
        json_with_first("id", answer)
    }

    /// An error where a line was wrong.
    pub fn end(&self) -> Outcome {
        match self.failed {
            0 => Ok(()),
            failed => {
                let what = format!("{failed} of {} could not be answered", plural(self.asked, "line"));
                Err(Error::text(format!("{}: {what}; `error` says why", self.name)).into())
            }
        }
    }
}

fn opened(path: &Path) -> Result<BufReader<File>, Failure> {
    if path.is_dir() {
        let what = format!("{} is a folder; a file with a line per text is expected", path.display());
        return Err(Failure::Usage(what));
    }
    match File::open(path) {
        Ok(file) => Ok(BufReader::new(file)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let path = path.display();
            Err(Failure::Usage(format!(
                "there is no file {path}; texts come by a file or standard input: echo TEXT | engraft ... --plain"
            )))
        }
        Err(e) => Err(Error::io(path, e).into()),
    }
}
