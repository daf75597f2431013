//! Places in WGSL templates where one line can be changed into a plausible bug.

use super::{Operator, Site};

/// What stands in a line, and what it is taken for. Spaces tell relations from the brackets of types.
const CHANGES: [(&str, &str, Operator); 20] = [
    ("workgroupBarrier();", "", Operator::Barrier),
    ("storageBarrier();", "", Operator::Barrier),
    (" < ", " <= ", Operator::Bound),
    (" <= ", " < ", Operator::Bound),
    (" > ", " >= ", Operator::Bound),
    (" >= ", " > ", Operator::Bound),
    (" == ", " != ", Operator::Bound),
    (" != ", " == ", Operator::Bound),
    (" && ", " || ", Operator::Branch),
    (" || ", " && ", Operator::Branch),
    (" - ", " + ", Operator::Operation),
    (" + ", " - ", Operator::Operation),
    (" * ", " + ", Operator::Operation),
    (" / ", " * ", Operator::Operation),
    ("min(", "max(", Operator::Operation),
    ("max(", "min(", Operator::Operation),
    (" % ", " / ", Operator::Operation),
    ("0u", "1u", Operator::Constant),
    ("1u", "2u", Operator::Constant),
    (" >> ", " << ", Operator::Swap),
];

/// Every place of a template that can be changed, in order. Comments and what the template engine reads are
/// none.
pub fn sites(template: &str, text: &str) -> Vec<Site> {
    let code =
        |line: &str| !line.trim_start().starts_with("//") && !line.contains("{%") && !line.contains("{#");
    let lines = text.lines().enumerate().filter(|(_, line)| code(line));
    let mut sites = Vec::new();
    for (i, line) in lines {
        let until = line.find("//").unwrap_or(line.len());
        for (from, to, operator) in CHANGES {
            let places = line[..until].match_indices(from).filter(|(at, _)| whole(line, *at, from));
            sites.extend(places.map(|(at, _)| Site {
                unit: template.to_owned(),
                line: i,
                operator,
                old: line.to_owned(),
                new: format!("{}{to}{}", &line[..at], &line[at + from.len()..]),
            }));
        }
    }
    sites
}

/// Whether a name or number begins there: `10u` holds no `0u`, `argmin(` no `min(`. What the template engine
/// puts in is no code.
fn whole(line: &str, at: usize, from: &str) -> bool {
    let before = line[..at].chars().next_back();
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let inside = line[..at].matches("{{").count() > line[..at].matches("}}").count();
    !(inside || from.starts_with(word) && before.is_some_and(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_code_and_whole_words() {
        let text = "// a < b\nif i < 10u && n > 0u { workgroupBarrier(); } // c < d\n{% if x < 1 %}\nlet a = {{ n - 1 }}u;\n";
        let found = sites("t.wgsl", text);
        let new: Vec<_> = found.iter().map(|site| (site.line, site.new.as_str())).collect();
        assert_eq!(
            new,
            [
                (1, "if i < 10u && n > 0u {  } // c < d"),
                (1, "if i <= 10u && n > 0u { workgroupBarrier(); } // c < d"),
                (1, "if i < 10u && n >= 0u { workgroupBarrier(); } // c < d"),
                (1, "if i < 10u || n > 0u { workgroupBarrier(); } // c < d"),
                (1, "if i < 10u && n > 1u { workgroupBarrier(); } // c < d"),
            ]
        );
    }
}
