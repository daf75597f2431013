//! One line of one kernel, replaced when its text is read: how a mutation lane plants bugs without a build.
//!
//! A program that runs on this machine takes a mutant from the file that [`FILE`] names: every text that has
//! the kernel is read with the line replaced. The file's lines are the kernel's name, the line's number from
//! the kernel's first line on (which is 0), the line as it must stand there, and what replaces it.

use std::borrow::Cow;
use std::sync::OnceLock;

/// The environment variable that names a mutant's file.
pub const FILE: &str = "PTX_VM_MUTANT";

/// A line of a kernel, and what replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutant {
    /// The kernel's name, or a function's.
    pub kernel: String,
    /// The line's number, counted from the kernel's first line.
    pub line: usize,
    /// The line as it is.
    pub old: String,
    /// The line that is read in its place.
    pub new: String,
}

impl Mutant {
    /// The mutant as a file.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n{}\n", self.kernel, self.line, self.old, self.new)
    }

    /// The mutant in a file; none where it is no such file.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        let mut next = || lines.next();
        let (kernel, line, old, new) = (next()?, next()?.parse().ok()?, next()?, next()?);
        Some(Self { kernel, line, old, new })
    }

    /// `text` with the line replaced; none where the text has no such kernel, or another line there.
    pub fn applied(&self, text: &str) -> Option<String> {
        let first = text.lines().position(|line| name(line) == Some(&self.kernel))?;
        let at = first + self.line;
        (text.lines().nth(at)? == self.old).then(|| {
            let lines = text.lines().enumerate().map(|(i, line)| if i == at { &self.new } else { line });
            lines.flat_map(|line| [line, "\n"]).collect()
        })
    }
}

/// The kernel or function whose definition begins at a line.
pub fn name(line: &str) -> Option<&str> {
    const KINDS: [&str; 2] = [".entry", ".func"];
    let rest = line.trim_start().trim_start_matches(".visible ").trim_start_matches(".weak ").trim_start();
    let rest = KINDS.into_iter().find_map(|kind| rest.strip_prefix(kind))?.trim_start();
    // A function names its results first.
    let rest = rest
        .strip_prefix('(')
        .and_then(|results| results.split_once(')'))
        .map_or(rest, |(_, name)| name.trim_start());
    let end = rest.find(|c: char| !(c.is_alphanumeric() || "_$.".contains(c))).unwrap_or(rest.len());
    let name = rest[..end].trim();
    (!name.is_empty()).then_some(name)
}

/// `text` as it is to be read: with the mutant that the environment names, where it has that kernel.
///
/// # Errors
/// The variable is set and names no mutant.
pub(crate) fn read(text: &str) -> Result<Cow<'_, str>, String> {
    static PLANTED: OnceLock<Result<Option<Mutant>, String>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let Some(path) = std::env::var_os(FILE) else { return Ok(None) };
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{FILE}: {}: {e}", path.display()))?;
        Mutant::from_text(&text)
            .map(Some)
            .ok_or_else(|| format!("{FILE}: {} holds no mutant", path.display()))
    });
    let planted = planted.as_ref().map_err(String::clone)?;
    Ok(planted.as_ref().and_then(|mutant| mutant.applied(text)).map_or(Cow::Borrowed(text), Cow::Owned))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    const TEXT: &str = ".func (.reg .b32 out) helper(\n)\n{\n\tret;\n}\n.visible .entry one(\n)\n{\n\tbar.sync 0;\n\tret;\n}\n\
                        .entry two(\n)\n{\n\tbar.sync 0;\n}\n";

    #[test]
    fn the_line_of_the_kernel_is_replaced_and_no_other() {
        let drop = |kernel: &str, line| Mutant {
            kernel: kernel.into(),
            line,
            old: "\tbar.sync 0;".into(),
            new: "\t//".into(),
        };
        let one = drop("one", 3);
        assert_eq!(Mutant::from_text(&one.to_text()), Some(one.clone()));
        let text = one.applied(TEXT).unwrap();
        assert_eq!(text, TEXT.replacen("\tbar.sync 0;", "\t//", 1));
        assert_eq!(drop("two", 3).applied(TEXT).unwrap().matches("bar.sync").count(), 1);
        // Another line stands there, or there is no such kernel.
        assert_eq!(drop("one", 4).applied(TEXT), None);
        assert_eq!(drop("three", 3).applied(TEXT), None);
        let names: Vec<_> = TEXT.lines().filter_map(name).collect();
        assert_eq!(names, ["helper", "one", "two"]);
    }
}
