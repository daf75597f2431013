//! Assertions of equality that would fail without saying what the values were.

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Token};

/// Lines of `assert!(a == b)` and `assert!(a == b && c == d)` without a message that has values in it.
pub fn bare(text: &str) -> Vec<usize> {
    let parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let mut reader = Reader(Vec::new());
    reader.visit_file(&parsed);
    reader.0
}

struct Reader(Vec<usize>);

impl<'ast> Visit<'ast> for Reader {
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let name = item.path.segments.last().map(|segment| segment.ident.to_string());
        let arguments = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(item.tokens.clone());
        if let (Some("assert" | "prop_assert" | "debug_assert"), Ok(arguments)) = (name.as_deref(), arguments)
            && arguments.first().is_some_and(equality)
            && !arguments.iter().nth(1).is_some_and(shows)
        {
            self.0.push(item.path.span().start().line);
        }
        visit::visit_macro(self, item);
    }

    // Compile time has no other assertion.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
}

/// Whether a message has values in it.
fn shows(message: &Expr) -> bool {
    let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = message else { return true };
    text.value().replace("{{", "").contains('{')
}

/// Whether an expression is an equality, or several: of values, or of their bits.
fn equality(expression: &Expr) -> bool {
    match expression {
        Expr::Binary(binary) => match binary.op {
            BinOp::Eq(_) => true,
            BinOp::And(_) => equality(&binary.left) && equality(&binary.right),
            _ => false,
        },
        Expr::Paren(inner) => equality(&inner.expr),
        _ => false,
    }
}
