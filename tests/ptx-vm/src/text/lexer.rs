//! Words, punctuation and strings.
//!
//! A word is a run of letters, digits, `_`, `$`, `%`, `.` and double colons, so that `ld.shared::cta.v4.f32`,
//! `%tid.x`,
//! `$L__BB0_1`, `0f3F800000` and `.param` are one token each. A word that begins with a dot ends before the
//! next one: `.reg.b32` is `.reg .b32`.

use crate::Error;

/// A token with its place in the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) line: u32,
    pub(crate) start: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(char),
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Splits a text into tokens; comments and `#` lines vanish.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Error> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut out) = (0, 1, Vec::new());
    while let Some(&c) = bytes.get(at) {
        let start = at;
        let rest = &bytes[at..];
        if c == b'\n' {
            line += 1;
            at += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            at += 1;
        } else if rest.starts_with(b"//") || c == b'#' {
            at += rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let len =
                text[at..].find("*/").ok_or(Error::Syntax { line, what: "a comment does not end".into() })?
                    + 2;
            line += rest[..len].iter().filter(|&&c| c == b'\n').count() as u32;
            at += len;
        } else if is_word(c) || rest.starts_with(b"::") {
            let directive = c == b'.';
            while at < bytes.len() && (is_word(bytes[at]) || bytes[at..].starts_with(b"::")) {
                if directive && at > start && bytes[at] == b'.' {
                    break;
                }
                at += if bytes[at] == b':' { 2 } else { 1 };
            }
            out.push(Token { kind: Kind::Word(&text[start..at]), line, start });
        } else if c == b'"' {
            let len = rest[1..]
                .iter()
                .position(|&c| c == b'"')
                .ok_or(Error::Syntax { line, what: "a string does not end".into() })?;
            at += len + 2;
            let inner = text.get(start + 1..at - 1).unwrap_or("");
            line += inner.bytes().filter(|&c| c == b'\n').count() as u32;
            out.push(Token { kind: Kind::Text(inner), line, start });
        } else if c.is_ascii() {
            at += 1;
            out.push(Token { kind: Kind::Mark(c as char), line, start });
        } else {
            return Err(Error::Syntax {
                line,
                what: format!("unexpected character `{}`", text[at..].chars().next().unwrap_or('?')),
            });
        }
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_dots_and_double_colons() {
        let text = "// c\n@!%p1 ld.shared::cta.v2.f32 {%f1, _}, [%rd1+-8]; /* x\n */ $L__BB0_1: \"a b\"";
        let got: Vec<_> = tokens(text).unwrap();
        let words: Vec<String> = got
            .iter()
            .map(|t| match t.kind {
                Kind::Word(w) => w.into(),
                Kind::Text(t) => format!("\"{t}\""),
                Kind::Mark(c) => c.into(),
            })
            .collect();
        assert_eq!(
            words.join(" "),
            "@ ! %p1 ld.shared::cta.v2.f32 { %f1 , _ } , [ %rd1 + - 8 ] ; $L__BB0_1 : \"a b\""
        );
        assert_eq!(got[0].line, 2);
        assert_eq!(got[got.len() - 1].line, 3);
        let split: Vec<_> = tokens(".reg.b32 %tid.x;").unwrap().iter().map(|t| t.kind).collect();
        let words = [Kind::Word(".reg"), Kind::Word(".b32"), Kind::Word("%tid.x"), Kind::Mark(';')];
        assert_eq!(split, words);
        assert!(tokens("/* no end").is_err() && tokens("\"no end").is_err() && tokens("é").is_err());
    }
}
