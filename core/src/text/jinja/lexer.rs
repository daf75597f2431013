//! Source text to tokens, whitespace control applied.
//!
//! Blocks and comments take the newline behind them (`trim_blocks`) and the indentation in front of them
//! (`lstrip_blocks`), as Python's chat templates are compiled; `-` strips all blanks on its side, `+` keeps
//! them.

use super::budget::{Fail, Res};

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Text(String),
    PrintBegin,
    PrintEnd,
    TagBegin,
    TagEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Sign(&'static str),
}

/// A token and the line that it begins in, from 1.
#[derive(Debug)]
pub(super) struct Lexed {
    pub token: Token,
    pub line: usize,
}

/// Bytes of a name: looking one up costs the same whatever its length.
pub(super) const MOST_NAME: usize = 256;

const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{",
    "}", ",", ":", ".", "|", ";",
];

/// Which kind of tag begins.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Print,
    Block,
    Comment,
}

/// Splits `source`, whose newlines are `\n`.
pub(super) fn lex(source: &str) -> Res<Vec<Lexed>> {
    let source = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer = Lexer { source, at: 0, line: 1, fresh: true, out: Vec::new() };
    while lexer.at < source.len() {
        lexer.next()?;
    }
    Ok(lexer.out)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    /// Whether the text before `at` ended with a newline that a tag took.
    fresh: bool,
    out: Vec<Lexed>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn fail<T>(&self, what: impl Into<String>) -> Res<T> {
        Err(Fail::new(what).at(self.line))
    }

    fn push(&mut self, token: Token) {
        self.out.push(Lexed { token, line: self.line });
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|&b| b == b'\n').count();
        self.at += bytes;
    }

    /// Text up to the next tag, and the tag.
    fn next(&mut self) -> Res<()> {
        let rest = self.rest();
        let opening = |(i, _): &(usize, &str)| matches!(rest.as_bytes().get(i + 1), Some(b'{' | b'%' | b'#'));
        let Some((open, _)) = rest.match_indices('{').find(opening) else {
            self.push(Token::Text(rest.into()));
            self.at = self.source.len();
            return Ok(());
        };
        let kind = match rest.as_bytes()[open + 1] {
            b'{' => Kind::Print,
            b'%' => Kind::Block,
            _ => Kind::Comment,
        };
        let sign = rest.as_bytes().get(open + 2).copied();
        let text = self.before(&rest[..open], kind, sign);
        if !text.is_empty() {
            self.push(Token::Text(text.into()));
        }
        self.fresh = false;
        self.advance(open + 2 + usize::from(matches!(sign, Some(b'-' | b'+'))));
        match kind {
            Kind::Comment => self.comment(),
            Kind::Block => match raw_begin(self.rest()) {
                Some((length, strip)) => self.raw(length, strip),
                None => self.tag(kind),
            },
            Kind::Print => self.tag(kind),
        }
    }

    /// What is left of the text in front of a tag.
    fn before(&self, text: &'s str, kind: Kind, sign: Option<u8>) -> &'s str {
        if sign == Some(b'-') {
            return text.trim_end();
        }
        if kind == Kind::Print || sign == Some(b'+') {
            return text;
        }
        let start = text.rfind('\n').map_or(0, |i| i + 1);
        let begins_line = start > 0 || self.fresh;
        if begins_line && text[start..].trim().is_empty() { &text[..start] } else { text }
    }

    /// What a closing tag takes with it: all blanks after `-`, one newline if `trims`.
    fn after(&mut self, sign: Option<u8>, trims: bool) {
        let rest = self.rest();
        let taken = match sign {
            Some(b'-') => rest.len() - rest.trim_start().len(),
            Some(b'+') => 0,
            _ if trims && rest.starts_with('\n') => 1,
            _ => 0,
        };
        self.fresh = rest[..taken].ends_with('\n');
        self.advance(taken);
    }

    fn comment(&mut self) -> Res<()> {
        let Some(end) = self.rest().find("#}") else { return self.fail("a comment is not closed") };
        let sign = self.rest()[..end].bytes().last();
        self.advance(end + 2);
        self.after(sign, true);
        Ok(())
    }

    /// Text between `raw` and `endraw` as it stands; `length` is what is left of the opening tag.
    fn raw(&mut self, length: usize, strip: bool) -> Res<()> {
        self.advance(length);
        if strip {
            self.after(Some(b'-'), false);
        }
        let rest = self.rest();
        for (open, _) in rest.match_indices("{%") {
            let sign = rest.as_bytes().get(open + 2).copied().filter(|b| b"-+".contains(b));
            let inner = &rest[open + 2 + usize::from(sign.is_some())..];
            let Some(tail) = inner.trim_start().strip_prefix("endraw") else { continue };
            let tail = tail.trim_start();
            let close = tail.bytes().next().filter(|b| b"-+".contains(b));
            let Some(behind) = tail[usize::from(close.is_some())..].strip_prefix("%}") else { continue };
            let text = self.before(&rest[..open], Kind::Block, sign);
            self.push(Token::Text(text.into()));
            self.advance(rest.len() - behind.len());
            self.after(close, true);
            return Ok(());
        }
        self.fail("`raw` is not closed")
    }

    /// The tokens of a tag and its end.
    fn tag(&mut self, kind: Kind) -> Res<()> {
        let (begin, end, closing) = match kind {
            Kind::Print => (Token::PrintBegin, Token::PrintEnd, "}}"),
            _ => (Token::TagBegin, Token::TagEnd, "%}"),
        };
        self.push(begin);
        let mut open: Vec<u8> = Vec::new();
        loop {
            let blank = self.rest().len() - self.rest().trim_start().len();
            self.advance(blank);
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return self.fail("a tag is not closed") };
            let sign = rest.bytes().next().filter(|b| b"-+".contains(b));
            if open.is_empty() && rest[usize::from(sign.is_some())..].starts_with(closing) {
                self.push(end);
                self.advance(2 + usize::from(sign.is_some()));
                self.after(sign, kind == Kind::Block);
                return Ok(());
            }
            match first {
                '"' | '\'' => self.string(first)?,
                c if c.is_ascii_digit() => self.number()?,
                c if c.is_alphabetic() || c == '_' => {
                    let name = |c: char| c.is_alphanumeric() || c == '_';
                    let length = rest.find(|c| !name(c)).unwrap_or(rest.len());
                    if length > MOST_NAME {
                        return self.fail(format!("a name of {length} bytes; {MOST_NAME} are allowed"));
                    }
                    self.push(Token::Name(rest[..length].into()));
                    self.advance(length);
                }
                _ => self.sign(&mut open)?,
            }
        }
    }

    fn sign(&mut self, open: &mut Vec<u8>) -> Res<()> {
        let rest = self.rest();
        let Some(sign) = SIGNS.into_iter().find(|s| rest.starts_with(s)) else {
            let found = rest.chars().next().unwrap_or_default();
            return self.fail(format!("unexpected character {found:?}"));
        };
        match sign.as_bytes()[0] {
            b @ (b'(' | b'[' | b'{') => open.push(b),
            b @ (b')' | b']' | b'}') => {
                let pair = if b == b')' { b'(' } else { b - 2 };
                if open.pop() != Some(pair) {
                    return self.fail(format!("unexpected `{sign}`"));
                }
            }
            _ => {}
        }
        self.push(Token::Sign(sign));
        self.advance(sign.len());
        Ok(())
    }

    fn number(&mut self) -> Res<()> {
        let rest = self.rest();
        let after_dot = matches!(self.out.last(), Some(Lexed { token: Token::Sign("."), .. }));
        let radix = match rest.get(..2) {
            Some("0x" | "0X") => 16,
            Some("0o" | "0O") => 8,
            Some("0b" | "0B") => 2,
            _ => 10,
        };
        let run = |from: usize| {
            let part = &rest[from..];
            from + part.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(part.len())
        };
        let digit = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let mut end = run(0);
        let mut float = false;
        if radix != 10 {
            end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        } else if !after_dot {
            if rest[end..].starts_with('.') && digit(end + 1) {
                (end, float) = (run(end + 1), true);
            }
            let signed = usize::from(rest[end..].len() > 1 && b"+-".contains(&rest.as_bytes()[end + 1]));
            if rest[end..].starts_with(['e', 'E']) && digit(end + 1 + signed) {
                (end, float) = (run(end + 1 + signed), true);
            }
        }
        let text: String = rest[..end].chars().filter(|&c| c != '_').collect();
        let token = match float {
            true => text.parse().ok().map(Token::Float),
            false if radix == 10 => text.parse().ok().map(Token::Int),
            false => i128::from_str_radix(&text[2..], radix).ok().map(Token::Int),
        };
        let Some(token) = token else { return self.fail(format!("`{}` is no number", &rest[..end])) };
        self.push(token);
        self.advance(end);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Res<()> {
        let body = &self.rest()[1..];
        let (mut text, mut chars) = (String::new(), body.char_indices());
        while let Some((i, c)) = chars.next() {
            if c == quote {
                self.push(Token::Str(text));
                self.advance(i + 2);
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let escaped = body[i + 1..].chars().next();
            let (piece, length) = match escape(&body[i + 1..]) {
                Some((piece, length)) => (piece, length),
                None if matches!(escaped, Some('x' | 'u' | 'U' | 'N')) => {
                    return self.fail("a string has a broken escape");
                }
                // Python keeps the backslash of what is no escape.
                None => (Some('\\'), 0),
            };
            text.extend(piece);
            while length > 0 && chars.clone().next().is_some_and(|(j, _)| j < i + 1 + length) {
                chars.next();
            }
        }
        self.fail("a string is not closed")
    }
}

/// The character that an escape stands for (none for a newline that is left out), and the bytes after the
/// backslash.
fn escape(text: &str) -> Option<(Option<char>, usize)> {
    let first = text.chars().next()?;
    let simple = |c| Some((Some(c), 1));
    let hex = |digits: usize| {
        let code = u32::from_str_radix(text.get(1..=digits)?, 16).ok()?;
        Some((Some(char::from_u32(code)?), digits + 1))
    };
    match first {
        'n' => simple('\n'),
        't' => simple('\t'),
        'r' => simple('\r'),
        'a' => simple('\u{7}'),
        'b' => simple('\u{8}'),
        'f' => simple('\u{c}'),
        'v' => simple('\u{b}'),
        '\\' | '\'' | '"' => simple(first),
        '\n' => Some((None, 1)),
        'x' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        '0'..='7' => {
            let digits = text.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let code = u32::from_str_radix(&text[..digits], 8).ok()?;
            Some((Some(char::from_u32(code)?), digits))
        }
        _ => None,
    }
}

/// Whether `raw` stands here: the bytes to the end of its tag, and whether blanks behind it go.
fn raw_begin(rest: &str) -> Option<(usize, bool)> {
    let tail = rest.trim_start().strip_prefix("raw")?.trim_start();
    let strip = tail.starts_with('-');
    let behind = tail[usize::from(strip)..].strip_prefix("%}")?;
    Some((rest.len() - behind.len(), strip))
}
