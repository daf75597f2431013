//! Many mutants of one Rust file in one text: each changed expression stands beside the one that it replaces,
//! and a number says at run time which of the two is computed.
//!
//! A build per mutant takes minutes, and most tests run in seconds. `a < b` with `<` replaced by `<=` becomes
//! `(if mutant(7) { a <= b } else { a < b })`; a function with a result in its place begins with
//! `if mutant(8) { return RESULT; }`; an arm that is left out, or whose guard is replaced, gets a guard.

use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What is changed, as `cargo mutants --list --json` calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Genre {
    /// A function gives a fixed result.
    FnValue,
    /// Another operator.
    BinaryOperator,
    /// No operator.
    UnaryOperator,
    /// An arm of a match that is left out.
    MatchArm,
    /// A guard that always holds, or never.
    MatchArmGuard,
    /// A field that is taken from the base of a struct's expression.
    StructField,
}

/// One change of a file.
#[derive(Debug, Clone)]
pub struct Change {
    /// The number that switches it on.
    pub number: u32,
    /// What it is.
    pub genre: Genre,
    /// The bytes that are replaced.
    pub span: Range<usize>,
    /// What replaces them.
    pub new: String,
}

/// A text in place of some of its bytes, for the sake of one change.
#[derive(Debug)]
struct Edit {
    number: u32,
    at: Range<usize>,
    new: String,
}

/// A file with changes woven into it.
#[derive(Debug, Default)]
pub struct Woven {
    /// The text.
    pub text: String,
    /// Where the changes lie in it.
    pub places: Vec<(u32, Range<usize>)>,
    /// Changes that no expression carries, and those that overlap with others.
    pub left: Vec<u32>,
}

/// Weaves changes into a text; `asks` is the path of the function that says whether a number is switched on.
///
/// # Errors
/// A text that is no Rust.
pub fn weave(text: &str, changes: &[Change], asks: &str) -> Result<Woven, String> {
    let file = syn::parse_file(text).map_err(|e| e.to_string())?;
    let mut woven = Woven::default();
    let mut edits: Vec<Edit> = Vec::new();
    for change in changes {
        match edit(text, &file, change, asks) {
            Some(edit) if edits.iter().all(|other| apart(&other.at, &edit.at)) => edits.push(edit),
            _ => woven.left.push(change.number),
        }
    }
    edits.sort_by_key(|edit| (edit.at.start, edit.at.end));
    let mut from = 0;
    for edit in edits {
        woven.text += &text[from..edit.at.start];
        let start = woven.text.len();
        woven.text += &edit.new;
        woven.places.push((edit.number, start..woven.text.len()));
        from = edit.at.end;
    }
    woven.text += &text[from..];
    Ok(woven)
}

/// Whether both can be made; what is put in front of an expression does not touch it.
fn apart(a: &Range<usize>, b: &Range<usize>) -> bool {
    a != b && (a.end <= b.start || b.end <= a.start)
}

fn edit(text: &str, file: &syn::File, change: &Change, asks: &str) -> Option<Edit> {
    let Change { number, genre, span, new } = change;
    let on = format!("{asks}({number})");
    let edit = |at: Range<usize>, new: String| Some(Edit { number: *number, at, new });
    let mut finder = Finder { genre: *genre, span, found: None };
    match genre {
        // Of a result of several types the first alone is what `Default` may be asked for.
        Genre::FnValue => edit(span.start..span.start, format!("if {on} {{ return {new}; }} ")),
        Genre::MatchArm => {
            finder.visit_file(file);
            let (pattern, guard) = finder.found?;
            Some(match guard {
                Some(guard) => {
                    let old = &text[guard.clone()];
                    Edit { number: *number, at: guard, new: format!("!{on} && ({old})") }
                }
                None => Edit { number: *number, at: pattern.end..pattern.end, new: format!(" if !{on}") },
            })
        }
        _ => {
            finder.visit_file(file);
            let (whole, _) = finder.found?;
            let old = &text[whole.clone()];
            let (start, end) = (span.start - whole.start, span.end - whole.start);
            let changed = format!("{}{new}{}", &old[..start], &old[end..]);
            edit(whole, format!("(if {on} {{ {changed} }} else {{ {old} }})"))
        }
    }
}

/// The smallest expression that carries a change. Of an arm its pattern and its guard.
struct Finder<'a> {
    genre: Genre,
    span: &'a Range<usize>,
    found: Option<(Range<usize>, Option<Range<usize>>)>,
}

impl Finder<'_> {
    fn carries(&self, expr: &syn::Expr) -> bool {
        let at = expr.span().byte_range();
        match (self.genre, expr) {
            (Genre::BinaryOperator, syn::Expr::Binary(binary)) => {
                binary.op.span().byte_range().start == self.span.start && !has_let(expr)
            }
            (Genre::UnaryOperator, syn::Expr::Unary(unary)) => {
                unary.op.span().byte_range().start == self.span.start
            }
            (Genre::StructField, syn::Expr::Struct(_)) => {
                at.start <= self.span.start && self.span.end <= at.end
            }
            (Genre::MatchArmGuard, _) => at == *self.span && !has_let(expr),
            _ => false,
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr(&mut self, expr: &'ast syn::Expr) {
        // What is visited later lies deeper.
        if self.carries(expr) {
            self.found = Some((expr.span().byte_range(), None));
        }
        visit::visit_expr(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let start = arm.span().byte_range().start;
        if self.genre == Genre::MatchArm && start == self.span.start {
            self.found = match &arm.pat {
                syn::Pat::Guard(guarded) if has_let(&guarded.guard) => None,
                syn::Pat::Guard(guarded) => {
                    Some((guarded.pat.span().byte_range(), Some(guarded.guard.span().byte_range())))
                }
                pattern => Some((pattern.span().byte_range(), None)),
            };
        }
        visit::visit_arm(self, arm);
    }
}

/// Whether an expression binds names for what follows: no other expression may stand around it.
fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXT: &str = "fn f(a: u32, b: Option<u32>) -> u32 {\n    match b {\n        Some(c) if c > a => a + c * 2,\n        \
                        Some(0) => 7,\n        _ if !(a == 1) => S { x: 1, ..s }.x,\n        _ => 0,\n    }\n}\n";

    fn change(number: u32, genre: Genre, old: &str, new: &str) -> Change {
        let start = TEXT.find(old).unwrap();
        let len = match genre {
            Genre::UnaryOperator => 1,
            _ => old.len(),
        };
        Change { number, genre, span: start..start + len, new: new.into() }
    }

    fn woven(changes: &[Change]) -> String {
        let woven = weave(TEXT, changes, "crate::mutant").unwrap();
        for (number, place) in &woven.places {
            assert!(woven.text[place.clone()].contains(&format!("crate::mutant({number})")));
        }
        assert_eq!(woven.places.len() + woven.left.len(), changes.len());
        syn::parse_file(&woven.text).unwrap();
        woven.text
    }

    #[test]
    fn each_genre_stands_next_to_what_it_replaces() {
        let has = |change: Change, part: &str| {
            let text = woven(&[change]);
            assert!(text.contains(part), "{text}");
        };
        has(
            change(1, Genre::BinaryOperator, "+", "-"),
            "=> (if crate::mutant(1) { a - c * 2 } else { a + c * 2 }),",
        );
        has(
            change(2, Genre::BinaryOperator, "*", "/"),
            "a + (if crate::mutant(2) { c / 2 } else { c * 2 }),",
        );
        has(
            change(3, Genre::UnaryOperator, "!(", ""),
            "_ if (if crate::mutant(3) { (a == 1) } else { !(a == 1) }) =>",
        );
        has(
            change(4, Genre::MatchArmGuard, "c > a", "true"),
            "if (if crate::mutant(4) { true } else { c > a }) =>",
        );
        has(change(5, Genre::MatchArm, "Some(0) => 7,", ""), "Some(0) if !crate::mutant(5) => 7,");
        has(
            change(6, Genre::MatchArm, "Some(c) if c > a => a + c * 2,", ""),
            "Some(c) if !crate::mutant(6) && (c > a) =>",
        );
        has(
            change(7, Genre::StructField, "x: 1,", ""),
            "(if crate::mutant(7) { S {  ..s } } else { S { x: 1, ..s } }).x",
        );
        has(change(8, Genre::FnValue, "match b {", "9"), "if crate::mutant(8) { return 9; } match b {");
    }

    #[test]
    fn changes_in_one_expression_are_left_out() {
        let plus = change(1, Genre::BinaryOperator, "+", "-");
        let times = change(2, Genre::BinaryOperator, "*", "/");
        assert_eq!(weave(TEXT, &[plus.clone(), times], "mutant").unwrap().left, [2]);
        // In front of the body stands another one.
        let body = change(3, Genre::FnValue, "match b {", "9");
        assert!(weave(TEXT, &[plus, body], "mutant").unwrap().left.is_empty());
        // Nothing is such an operator there.
        let none = change(4, Genre::BinaryOperator, "Some", "-");
        assert_eq!(weave(TEXT, &[none], "mutant").unwrap().left, [4]);
    }

    #[test]
    fn a_chain_of_lets_carries_no_other_expression() {
        let text = "fn f(a: bool, b: Option<u32>) {\n    if a && let Some(_) = b {}\n}\n";
        let at = text.find("&&").unwrap();
        let change = Change { number: 1, genre: Genre::BinaryOperator, span: at..at + 2, new: "||".into() };
        assert_eq!(weave(text, &[change], "mutant").unwrap().left, [1]);
    }
}
