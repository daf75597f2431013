//! From text to a syntax tree: nothing here knows what an instruction does.
//!
//! [`lexer`] splits the text into words and punctuation, [`parser`] builds functions, variables, scopes and
//! instructions from them. Opcodes are kept as one dotted word; the lowering reads their parts. Every node
//! remembers its line.

pub(crate) mod lexer;
pub(crate) mod parser;
pub(crate) mod syntax;
pub(crate) mod types;
pub(crate) mod words;

#[cfg(test)]
mod tests;
