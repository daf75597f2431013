//! How long functions are, those in macros too.

use super::tokens;
use super::tree::for_tests;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A function's name, the line of its `fn` and the line of its closing brace.
pub type Function = (String, usize, usize);

/// The functions of a file that are not test code.
pub fn functions(text: &str) -> Vec<Function> {
    let parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let mut reader = Reader::default();
    reader.visit_file(&parsed);
    reader.found
}

#[derive(Default)]
struct Reader {
    found: Vec<Function>,
}

impl Reader {
    fn note(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let lines = (signature.fn_token.span().start().line, body.brace_token.span.close().end().line);
        self.found.push((signature.ident.to_string(), lines.0, lines.1));
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !for_tests(&item.attrs) {
            self.note(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            self.note(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.note(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.found.extend(tokens::functions(&item.tokens));
    }
}
