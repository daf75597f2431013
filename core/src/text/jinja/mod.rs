//! Jinja for chat templates, as Python's library renders them, within fixed limits.
//!
//! A template comes with a checkpoint, so it is untrusted, and the languages' usual engines cannot be
//! stopped: values that contain themselves or are nested without bound overflow the stack when they are
//! printed or dropped, one call can ask for any amount of memory, and no count of instructions bounds the
//! time of a sort. Here
//! - containers and namespaces hold plain data, so that no value leads to itself, and are nested to a fixed
//!   depth ([`value`]); text, macros and recursive loops are, too ([`parser`], [`render`]);
//! - each string, list and dictionary is granted before it grows, and work is counted by bytes touched, not
//!   by instructions ([`budget`]). How much there is of both depends on what is rendered, up to a limit, and
//!   not on the template.
//!
//! So a rendering ends within a bounded time, memory and stack on every platform, in the caller's own thread.
//! Left out of the language are templates of several files (`include`, `extends`, `block`, `import`), `do`,
//! `*args` and automatic escapes: no chat template has them, and they are refused by name.

mod access;
mod ast;
mod budget;
mod call;
mod checks;
mod data;
mod eval;
mod expressions;
mod filters;
mod lexer;
mod methods;
mod ops;
mod parser;
mod percent;
mod print;
mod render;
mod select;
mod sequence;
mod sorting;
mod value;

use std::sync::Arc;

pub(super) use budget::{Fail, Res};
pub use data::Data;

/// Steps that any rendering may take: in the `dev` profile some 40 ns each, 60 ns at most.
const STEPS: u64 = 1_000_000;
/// Further steps for each byte of the variables. The template with its comments adds none.
const STEPS_PER_BYTE: u64 = 64;
/// Steps of all, however long the variables are: half a second. A usual template needs a tenth of them for a
/// megabyte in the messages.
const MOST_STEPS: u64 = 10_000_000;
/// Bytes that strings, lists and the output of any rendering may hold at once.
const BYTES: usize = 16 << 20;
/// Further bytes for each byte of the variables: a small number in a long list takes up to 80 for 2 while the
/// list grows, an empty string 176.
const BYTES_PER_BYTE: usize = 80;
/// Bytes of all, however long the variables are.
const MOST_BYTES: usize = 64 << 20;

/// A compiled template.
#[derive(Debug, Clone)]
pub(super) struct Template {
    program: Arc<ast::Program>,
}

impl Template {
    /// Compiles `source`.
    pub fn new(source: &str) -> Res<Self> {
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        Ok(Template { program: Arc::new(parser::parse(&source)?) })
    }

    /// The text with these variables; `now` is what `strftime_now` tells, in seconds since 1970.
    pub fn render(&self, variables: &[(&str, &Data)], now: Option<i64>) -> Res<String> {
        let given = variables.iter().map(|(name, value)| name.len() + value.weight());
        let bytes = given.fold(0, usize::saturating_add);
        let steps = STEPS.saturating_add((bytes as u64).saturating_mul(STEPS_PER_BYTE));
        let room = BYTES.saturating_add(bytes.saturating_mul(BYTES_PER_BYTE));
        let budget = budget::Budget::new(steps.min(MOST_STEPS), room.min(MOST_BYTES));
        let value = |(name, data): &(&str, &Data)| Ok((Arc::from(*name), data.value(&budget)?));
        let variables = variables.iter().map(value).collect::<Res<Vec<_>>>()?;
        render::Run::new(&self.program, variables, &budget, now)?.finish()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
