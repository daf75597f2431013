//! One text: what it defines, what it declares, what it uses.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Input;
use crate::Error;
use crate::lower::Shape;
use crate::text::lexer::{Kind, Token, tokens};
use crate::text::parser;
use crate::text::syntax::{File, Function, Linkage, Space};

/// Functions that the machine itself has.
const BUILT_IN: [&str; 4] = ["vprintf", "__assertfail", "malloc", "free"];

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Kernel,
    Function(Shape),
    /// Its space, and its bytes where they are known.
    Variable(Space, Option<u64>),
}

/// A name at the top of a text.
#[derive(Debug)]
pub(super) struct Symbol<'a> {
    pub(super) name: &'a str,
    pub(super) unit: usize,
    pub(super) linkage: Linkage,
    pub(super) thing: Thing,
    /// It has a body, or memory of its own.
    pub(super) defined: bool,
    pub(super) align: u32,
    pub(super) span: Range<usize>,
    /// Of a function: what stands before its body.
    pub(super) head: Range<usize>,
}

impl Symbol<'_> {
    /// Shared memory whose size the launch gives: no text defines it.
    pub(super) fn is_dynamic_shared(&self) -> bool {
        self.thing == Thing::Variable(Space::Shared, None)
    }

    /// Nothing has to define it.
    pub(super) fn is_built_in(&self) -> bool {
        self.is_dynamic_shared() || BUILT_IN.contains(&self.name)
    }
}

/// A text that has been read.
pub(super) struct Unit<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Token<'a>>,
    pub(super) version: [u32; 2],
    pub(super) target: String,
    pub(super) sources: Vec<(u32, String)>,
    pub(super) symbols: Vec<Symbol<'a>>,
    /// How often each word stands in the text.
    words: HashMap<&'a str, usize>,
    /// How often each name is declared.
    declared: HashMap<&'a str, usize>,
}

impl<'a> Unit<'a> {
    pub(super) fn read(number: usize, input: Input<'a>) -> Result<Self, Error> {
        let bad = |e: Error| Error::Input { name: input.name.into(), what: e.to_string() };
        let file = parser::parse(input.text).map_err(bad)?;
        let tokens = tokens(input.text).map_err(bad)?;
        let words = counts(tokens.iter().filter_map(|t| match t.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }));
        let symbols = symbols(number, &file, &words);
        let declared = counts(symbols.iter().map(|s| s.name));
        let File { version, target, sources, .. } = file;
        let (name, text) = (input.name, input.text);
        Ok(Unit { name, text, tokens, version, target, sources, symbols, words, declared })
    }

    /// Names that another text has to define.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &Symbol<'a>> {
        self.symbols.iter().filter(|s| self.wants(s))
    }

    /// Whether another text has to define a symbol of this one.
    pub(super) fn wants(&self, symbol: &Symbol<'_>) -> bool {
        !symbol.defined && !symbol.is_built_in() && self.uses(symbol)
    }

    /// Whether a word stands in the text.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.contains_key(word)
    }

    /// Whether a declared name stands anywhere but in its declarations.
    fn uses(&self, symbol: &Symbol<'_>) -> bool {
        self.words.get(symbol.name) > self.declared.get(symbol.name)
    }
}

/// How often each is there.
fn counts<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn symbols<'a>(unit: usize, file: &File, words: &HashMap<&'a str, usize>) -> Vec<Symbol<'a>> {
    // The name as the text has it, so that it lives as long.
    let name = |name: &str| words.get_key_value(name).map_or("", |(word, _)| *word);
    let mut out = Vec::new();
    for v in &file.variables {
        out.push(Symbol {
            name: name(&v.name),
            unit,
            linkage: v.linkage,
            thing: Thing::Variable(v.space, v.elements.map(|_| v.bytes())),
            defined: v.linkage != Linkage::Extern,
            align: v.align,
            span: v.span.clone(),
            head: 0..0,
        });
    }
    let bodies = file.functions.iter().filter(|f| f.body.is_some()).map(|f| &f.name);
    let elsewhere: HashSet<&String> = bodies.chain(file.aliases.iter().map(|alias| &alias.name)).collect();
    for f in &file.functions {
        // A declaration of what follows says nothing new.
        if f.body.is_none() && elsewhere.contains(&f.name) {
            continue;
        }
        out.push(Symbol {
            name: name(&f.name),
            unit,
            linkage: if f.entry { Linkage::Visible } else { f.linkage },
            thing: if f.entry { Thing::Kernel } else { Thing::Function(Shape::of(f)) },
            defined: f.body.is_some(),
            align: 0,
            span: f.span.clone(),
            head: f.head.clone(),
        });
    }
    // Of equal names the first.
    let functions: HashMap<&String, &Function> = file.functions.iter().rev().map(|f| (&f.name, f)).collect();
    for alias in &file.aliases {
        let Some(f) = functions.get(&alias.name) else { continue };
        out.push(Symbol {
            name: name(&alias.name),
            unit,
            linkage: f.linkage,
            thing: Thing::Function(Shape::of(f)),
            defined: true,
            align: 0,
            span: alias.span.clone(),
            head: f.head.clone(),
        });
    }
    out
}
