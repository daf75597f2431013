//! The functions of a file, which of them are tests, and what words they have.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// The functions of a file.
#[derive(Debug, Default)]
pub struct Functions {
    /// Words of every function: names, pairs of a path (`a::b`), calls (`a()`), macros (`a!`). Of those
    /// that share a name, all.
    pub words: BTreeMap<String, BTreeSet<String>>,
    /// Those that are marked by `#[test]`, and whether they are ignored.
    pub tests: BTreeMap<String, bool>,
    /// Those that are listed by `named!`.
    pub trials: BTreeSet<String>,
    /// The functions around what is read.
    inside: Vec<String>,
}

impl Functions {
    /// Reads a file.
    pub fn read(text: &str) -> Self {
        let parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let mut found = Self::default();
        found.visit_file(&parsed);
        found
    }

    /// Words of a function, and of those of the file that it calls.
    pub fn reached(&self, from: &str) -> BTreeSet<String> {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.to_string()]);
        while let Some(name) = left.pop() {
            for word in self.words.get(&name).into_iter().flatten() {
                if seen.insert(word.clone()) {
                    left.extend(word.strip_suffix("()").map(str::to_string));
                }
            }
        }
        seen
    }

    /// Takes the words of another file's functions where this one has none of that name.
    pub fn help(&mut self, other: Self) {
        for (name, words) in other.words {
            self.words.entry(name).or_insert(words);
        }
    }

    fn say(&mut self, word: &str) {
        for name in &self.inside {
            self.words.entry(name.clone()).or_default().insert(word.to_string());
        }
    }

    /// Words of a macro's arguments, which have no syntax of their own.
    fn say_tokens(&mut self, tokens: &TokenStream) {
        let mut tokens = tokens.clone().into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) => {
                    self.say(&word.to_string());
                    match tokens.peek() {
                        Some(TokenTree::Punct(next)) if next.as_char() == '!' => {
                            self.say(&format!("{word}!"))
                        }
                        Some(next) if is_arguments(next) => self.say(&format!("{word}()")),
                        _ => {}
                    }
                }
                TokenTree::Group(group) => self.say_tokens(&group.stream()),
                _ => {}
            }
        }
    }

    fn enter(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        self.words.entry(name.clone()).or_default();
        self.inside.push(name);
        visit::visit_block(self, body);
        self.inside.pop();
    }
}

/// Whether a token opens the arguments of a call.
fn is_arguments(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis)
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let has = |name: &str| item.attrs.iter().any(|attribute| attribute.path().is_ident(name));
        if has("test") {
            self.tests.insert(item.sig.ident.to_string(), has("ignore"));
        }
        self.enter(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.enter(&item.sig, &item.block);
    }

    fn visit_ident(&mut self, word: &'ast proc_macro2::Ident) {
        self.say(&word.to_string());
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(name) = &*call.func
            && let Some(last) = name.path.segments.last()
        {
            self.say(&format!("{}()", last.ident));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        words.windows(2).for_each(|pair| self.say(&pair.join("::")));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let Some(name) = item.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
        self.say(&format!("{name}!"));
        self.say_tokens(&item.tokens);
        if name == "named" {
            let names = item.tokens.clone().into_iter();
            self.trials.extend(names.filter_map(|token| match token {
                TokenTree::Ident(name) => Some(name.to_string()),
                _ => None,
            }));
        }
    }
}
