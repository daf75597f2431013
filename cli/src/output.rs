//! What the screen shows: a progress bar, numbers for people, tables, JSON.
//!
//! Colours and bars only where a terminal reads them.

use super::failure::{Failure, Outcome};
use engraft::{Error, Stats};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The bar while something is read; it appears only when that takes long enough to be read itself.
pub struct Loading {
    what: &'static str,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Default for Loading {
    fn default() -> Self {
        Self::of("loading")
    }
}

impl Loading {
    /// A bar that names what goes on.
    pub fn of(what: &'static str) -> Self {
        Self { what, began: Instant::now(), bar: None }
    }

    const PATIENCE: Duration = Duration::from_millis(200);

    /// Moves the bar.
    pub fn show(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && self.began.elapsed() > Self::PATIENCE && io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{msg} {bar:32} {bytes}/{total_bytes} {eta}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(total).with_style(style).with_message(self.what));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}

/// Writes to standard output at once.
pub fn emit(text: &str) -> Outcome {
    emit_bytes(text.as_bytes())
}

/// The same of what is no text.
pub fn emit_bytes(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Writes a line to standard error.
pub fn note(text: &str) {
    // A closed standard error must not end a command whose output is read.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes to standard error, without a line end.
pub fn note_inline(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Prints a value as JSON, on one line.
pub fn json(value: &Value) -> Outcome {
    emit(&format!("{value}\n"))
}

/// A line of JSON that begins with `first`, if it is there: by it people find the line again.
pub fn json_with_first(first: &str, mut fields: Map<String, Value>) -> Outcome {
    let Some(value) = fields.remove(first) else { return json(&Value::Object(fields)) };
    let rest = Value::Object(fields).to_string();
    let comma = if rest == "{}" { "" } else { "," };
    emit(&format!("{{{}:{value}{comma}{}\n", Value::from(first), &rest[1..]))
}

fn stdout_error(source: io::Error) -> Failure {
    Error::io("standard output", source).into()
}

/// Grey on a terminal.
pub fn dim(text: &str) -> String {
    styled(text, "2", io::stderr().is_terminal())
}

/// Bold on a terminal.
pub fn bold(text: &str) -> String {
    styled(text, "1", io::stderr().is_terminal())
}

fn styled(text: &str, code: &str, terminal: bool) -> String {
    let plain = !terminal || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    if plain { text.to_string() } else { format!("\x1b[{code}m{text}\x1b[0m") }
}

/// The line at the end: `64 tokens, 285 tokens/s, ...`.
pub fn summary(stats: &Stats) -> String {
    let mut line = plural(stats.tokens.len(), "token");
    if stats.tokens.len() > 1 {
        let _ = write!(line, " at {} tokens/s", rate(stats.decode_rate()));
    }
    let _ = write!(line, ", prompt of {}", plural(stats.prompt_tokens, "token"));
    if stats.prompt_rate().is_finite() && !stats.tokens.is_empty() {
        let _ = write!(line, " at {} tokens/s", rate(stats.prompt_rate()));
    }
    if let Some(finish) = &stats.finish {
        let _ = write!(line, ", ended by {finish}");
    }
    line
}

/// `1 token`, `2 tokens`.
pub fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Three digits are enough.
pub fn rate(x: f64) -> String {
    match x {
        x if x.is_nan() => "-".into(),
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// `438 MB`.
pub fn bytes(n: u64) -> String {
    match n as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e8 => format!("{:.0} MB", b / 1e6),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.0} kB", b / 1e3),
        b => format!("{b} B"),
    }
}

/// `1.2 M`, for parameters.
pub fn count(n: u64) -> String {
    match n as f64 {
        x if x >= 1e9 => format!("{:.2} B", x / 1e9),
        x if x >= 1e6 => format!("{:.1} M", x / 1e6),
        x if x >= 1e3 => format!("{:.0} k", x / 1e3),
        x => format!("{x}"),
    }
}

/// Rows under heads, columns as wide as they must be; the first column left, numbers right.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
        cells.chain([heads[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    let heads: Vec<String> = heads.iter().map(|h| h.to_string()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
