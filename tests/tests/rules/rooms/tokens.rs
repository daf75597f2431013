//! What can be told of a macro's tokens: the paths in them, the items, the functions.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Every path in the tokens of a macro, `a::{b, c}` as two.
pub fn paths(tokens: &TokenStream) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                found.extend(paths(&group.stream()));
                at += 1;
            }
            // A field or a method.
            TokenTree::Punct(dot) if dot.as_char() == '.' && !is_punct(tokens.get(at + 1), '.') => at += 2,
            TokenTree::Ident(_) => at = path(&tokens, at, Vec::new(), &mut found),
            _ => at += 1,
        }
    }
    found
}

/// Reads the path that begins at `at`, behind `before`; returns where it ends.
fn path(tokens: &[TokenTree], mut at: usize, before: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let mut names = before;
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        names.push(name.to_string());
        at += 1;
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
        if let Some(TokenTree::Group(group)) = tokens.get(at)
            && group.delimiter() == Delimiter::Brace
        {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            for part in inner.split(|t| is_punct(Some(t), ',')).filter(|part| !part.is_empty()) {
                path(part, 0, names.clone(), found);
            }
            return at + 1;
        }
    }
    found.push(names);
    at
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

/// Names behind the words that begin an item.
pub fn defined(tokens: &TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let words = ["struct", "enum", "fn", "const", "static", "type", "trait"];
    let pairs = tokens.windows(2).filter_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if words.iter().any(|w| word == w) => {
            Some(name.to_string())
        }
        _ => None,
    });
    let inner = tokens.iter().filter_map(|t| match t {
        TokenTree::Group(group) => Some(defined(&group.stream())),
        _ => None,
    });
    pairs.chain(inner.flatten()).collect()
}

/// First and last line of every function in a macro's tokens, by name.
pub fn functions(tokens: &TokenStream) -> Vec<(String, usize, usize)> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => found.extend(functions(&group.stream())),
            TokenTree::Ident(word) if word == "fn" => {
                let body =
                    tokens[at..].iter().take_while(|t| !is_punct(Some(t), ';')).find_map(|t| match t {
                        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
                        _ => None,
                    });
                if let (Some(name), Some(body)) = (tokens.get(at + 1), body) {
                    let (first, last) = (word.span().start().line, body.span_close().end().line);
                    found.push((name.to_string(), first, last));
                }
            }
            _ => {}
        }
    }
    found
}

/// Names of types among the tokens that a macro is given: what it may make is called by one of them.
pub fn type_names(tokens: &TokenStream) -> Vec<String> {
    let name = |token: TokenTree| match token {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    };
    let names = tokens.clone().into_iter().filter_map(name);
    names.filter(|name| name.starts_with(char::is_uppercase)).collect()
}
