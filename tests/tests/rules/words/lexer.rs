//! A reader of tokens that serves Rust, CUDA C and WGSL templates: identifiers, strings and comments told
//! apart.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or a keyword.
    Identifier,
    /// The content of a string.
    Message,
    /// A doc comment in front of an item.
    Doc,
    /// Any other single character.
    Sign,
}

/// A token and the line on which it begins, from 1.
#[derive(Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    pub line: usize,
}

/// The tokens of a source, without its comments (but for `///`) and character literals.
pub fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let rest = &text[at..];
        let (kind, skip, inner, end) = next(rest);
        if let Some(kind) = kind {
            found.push(Token { kind, text: rest[skip..inner].to_owned(), line });
        }
        line += rest[..end].matches('\n').count();
        at += end;
    }
    found
}

/// The first token of a text: its kind (none for what is left out), where its content begins and ends, where
/// the next one begins.
fn next(rest: &str) -> (Option<Kind>, usize, usize, usize) {
    let first = rest.chars().next().unwrap_or(' ');
    let whole = |kind, end| (kind, 0, end, end);
    if let Some(comment) = rest.strip_prefix("///") {
        let end = 3 + comment.find('\n').unwrap_or(comment.len());
        return (Some(Kind::Doc), 3, end, end);
    }
    if rest.starts_with("//") {
        return whole(None, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return whole(None, block(rest));
    }
    if rest.starts_with("{#") {
        return whole(None, rest.find("#}").map_or(rest.len(), |at| at + 2));
    }
    if let Some(token) = string(rest) {
        return token;
    }
    if first == '\'' {
        return whole(None, character(rest));
    }
    if first.is_alphabetic() || first == '_' {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        return whole(Some(Kind::Identifier), end);
    }
    if first.is_ascii_digit() {
        // With its suffix: `1u32`, `0xff`.
        return whole(None, rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()));
    }
    whole((!first.is_whitespace()).then_some(Kind::Sign), first.len_utf8())
}

/// End of a block comment; they nest.
fn block(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// A string of any kind: plain, of bytes, of C, raw.
fn string(rest: &str) -> Option<(Option<Kind>, usize, usize, usize)> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|p| {
        let raw = p.ends_with('r');
        let behind = rest.strip_prefix(p).map(|r| if raw { r.trim_start_matches('#') } else { r });
        behind.is_some_and(|r| r.starts_with('"'))
    })?;
    let mut begin = prefix.len();
    if prefix.ends_with('r') {
        let marks = rest[begin..].bytes().take_while(|b| *b == b'#').count();
        begin += marks + 1;
        let close = format!("\"{}", "#".repeat(marks));
        let end = rest[begin..].find(&close).map_or(rest.len(), |at| begin + at);
        return Some((Some(Kind::Message), begin, end, (end + close.len()).min(rest.len())));
    }
    begin += 1;
    let (bytes, mut end) = (rest.as_bytes(), begin);
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    let end = end.min(rest.len());
    Some((Some(Kind::Message), begin, end, (end + 1).min(rest.len())))
}

/// End of a character, or of a lifetime's mark.
fn character(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match (letters.next(), letters.next()) {
        // At least one letter is escaped.
        (Some((_, '\\')), Some((at, c))) => {
            let from = at + c.len_utf8();
            rest[from..].find('\'').map_or(rest.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}
