//! Places that no launch has reached, by what programs on the PTX machine noted (`ptx_vm::reached`): a mutant
//! there lives whatever tests compare.

use super::Outcome;
use super::texts::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What was executed: a target, a unit and a line of it.
type Reached = BTreeSet<(String, String, usize)>;

fn read(text: &str, path: &Path) -> Outcome<Reached> {
    text.lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut next = || words.next().map(str::to_owned);
            let place = next().zip(next()).zip(next().and_then(|line| line.parse().ok()));
            let ((target, unit), line) = place.ok_or_else(|| {
                format!("{}: a line is `{line}`; allowed: TARGET UNIT LINE", path.display())
            })?;
            Ok((target, unit, line))
        })
        .collect()
}

/// Prints how many places of each text were reached, and where those are that were not.
///
/// # Errors
/// A file that cannot be read, or that holds something else.
pub fn print(texts: &[Text], path: &Path) -> Outcome<()> {
    let wrong = |e: std::io::Error| format!("{}: {e}", path.display());
    let reached = read(&std::fs::read_to_string(path).map_err(wrong)?, path)?;
    let (mut all, mut missed) = (0, 0);
    for text in texts {
        let rest = unreached(text, &reached);
        let count: usize = rest.values().map(Vec::len).sum();
        let of = text.sites.len();
        println!("{:<26} {:6} of {of:6} places ({:5.1} %)", text.name, of - count, share(of - count, of));
        for (unit, lines) in rest {
            println!("    {unit}: {}", ranges(&lines));
        }
        (all, missed) = (all + of, missed + count);
    }
    println!("# reached {} of {all} places ({:.1} %)", all - missed, share(all - missed, all));
    Ok(())
}

fn share(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// The places of a text that nothing has reached: lines by unit, ascending.
fn unreached<'a>(text: &'a Text, reached: &Reached) -> BTreeMap<&'a str, Vec<usize>> {
    let target = text.name.rsplit('.').next().unwrap_or_default().replacen("compute", "sm", 1);
    let mut rest: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for site in &text.sites {
        if !reached.contains(&(target.clone(), site.unit.clone(), site.line)) {
            rest.entry(&site.unit).or_default().push(site.line);
        }
    }
    rest
}

/// Lines as ranges, as the list of mutants counts them.
fn ranges(lines: &[usize]) -> String {
    /// Lines between two places that hold none.
    const NEAR: usize = 12;
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for line in lines.iter().map(|line| line + 1) {
        match ranges.last_mut() {
            Some((_, last)) if line <= *last + NEAR => *last = line,
            _ => ranges.push((line, line)),
        }
    }
    let ranges = ranges.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    ranges.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mutants::{Operator, Site};

    #[test]
    fn a_place_is_reached_in_its_own_text_alone() {
        let site = |unit: &str, line| Site {
            unit: unit.into(),
            line,
            operator: Operator::Swap,
            old: String::new(),
            new: String::new(),
        };
        let sites = vec![site("a", 3), site("a", 7), site("b", 3), site("b", 40)];
        let text = Text { name: "x.compute_80".into(), stem: "x".into(), text: String::new(), sites };
        let reached = read("sm_80 a 3\nsm_90a a 7\nsm_80 b 40\n", Path::new("file")).unwrap();
        assert_eq!(unreached(&text, &reached), BTreeMap::from([("a", vec![7]), ("b", vec![3])]));
        assert_eq!(ranges(&[3, 4, 9, 40, 70, 71]), "4-10, 41, 71-72");
        let why = read("sm_80 a\n", Path::new("file")).unwrap_err();
        assert!(why.contains("file: a line is `sm_80 a`"), "{why}");
    }
}
