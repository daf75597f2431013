//! One text: what it defines, what it declares, what it uses.

use std::collections::HashMap;
use std::ops::Range;

use super::Input;
use crate::Error;
use crate::lower::Shape;
use crate::text::lexer::{Kind, Token, tokens};
use crate::text::parser;
use crate::text::syntax::{File, Linkage, Space};

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
}

impl<'a> Unit<'a> {
    pub(super) fn read(number: usize, input: Input<'a>) -> Result<Self, Error> {
        let bad = |e: Error| Error::Input { name: input.name.into(), what: e.to_string() };
        let file = parser::parse(input.text).map_err(bad)?;
        let tokens = tokens(input.text).map_err(bad)?;
        let mut words = HashMap::new();
        for token in &tokens {
            if let Kind::Word(word) = token.kind {
                *words.entry(word).or_default() += 1;
            }
        }
        let symbols = symbols(number, &file, input.text, &words).map_err(bad)?;
        let File { version, target, sources, .. } = file;
        Ok(Unit { name: input.name, text: input.text, tokens, version, target, sources, symbols, words })
    }

    /// Names that another text has to define.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &Symbol<'a>> {
        self.symbols.iter().filter(|s| !s.defined && !s.is_built_in() && self.uses(s))
    }

    /// Whether a word stands in the text.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.contains_key(word)
    }

    /// Whether a declared name stands anywhere but in its declarations.
    fn uses(&self, symbol: &Symbol<'_>) -> bool {
        let declared = self.symbols.iter().filter(|s| s.name == symbol.name).count();
        self.words.get(symbol.name).is_some_and(|&n| n > declared)
    }
}

fn symbols<'a>(
    unit: usize,
    file: &File,
    text: &'a str,
    words: &HashMap<&'a str, usize>,
) -> Result<Vec<Symbol<'a>>, Error> {
    // The name as the text has it, so that it lives as long.
    let name = |name: &str| words.get_key_value(name).map_or("", |(word, _)| *word);
    let mut out = Vec::new();
    for v in &file.variables {
        let lonely = file.variables.iter().filter(|other| other.span == v.span).count() == 1;
        if !lonely {
            let what =
                format!("`{}`: texts to link declare one variable at a time", text[v.span.clone()].trim());
            return Err(Error::Syntax { line: v.line, what });
        }
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
    for f in &file.functions {
        // A declaration of what follows says nothing new.
        let twice = file.functions.iter().any(|other| other.name == f.name && other.body.is_some())
            || file.aliases.iter().any(|alias| alias.name == f.name);
        if f.body.is_none() && twice {
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
    for alias in &file.aliases {
        let Some(f) = file.functions.iter().find(|f| f.name == alias.name) else { continue };
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
    Ok(out)
}
