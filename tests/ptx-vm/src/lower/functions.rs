//! The device functions of a text: by name, and by the addresses that pointers to them hold.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use crate::code::FUNCTION_WINDOW;
use crate::text::syntax::{File, Function, Initial, Item, Operand, Variable};

/// Bytes from one function's address to the next.
const STEP: u64 = 16;
/// Bits of an address that number the function; above them stands what tells modules apart.
const NUMBER: u32 = 20;

/// The functions that calls can name.
pub(crate) struct Functions {
    names: HashMap<String, usize>,
    /// Those whose address the text takes, ascending: whatever an indirect call can reach.
    taken: Vec<usize>,
    base: u64,
}

impl Functions {
    /// Collects the functions of a file, and the addresses taken in it; `text` is its text.
    pub(crate) fn new(file: &File, text: &str) -> Self {
        // A later declaration with a body takes the place of one without.
        let mut names: HashMap<String, usize> = HashMap::new();
        for (i, f) in file.functions.iter().enumerate().filter(|(_, f)| !f.entry) {
            if f.body.is_some() || !names.contains_key(&f.name) {
                names.insert(f.name.clone(), i);
            }
        }
        for alias in &file.aliases {
            if let Some(&index) = names.get(&alias.target) {
                names.insert(alias.name.clone(), index);
            }
        }
        let mut taken = BTreeSet::new();
        let mut take = |name: &str| {
            taken.extend(names.get(name).copied());
        };
        for value in file.variables.iter().flat_map(|v| &v.initial) {
            if let Initial::Address(name, _) = value {
                take(name);
            }
        }
        let bodies = file.functions.iter().filter_map(|f| f.body.as_deref());
        bodies.for_each(|items| scan(items, &mut take));
        // The same text has the same addresses on every run; a pointer into another module is no function
        // of this one.
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let module = (hash ^ hash >> 32) & 0xffff;
        Functions {
            names,
            taken: taken.into_iter().collect(),
            base: FUNCTION_WINDOW + (module << (NUMBER + 4)),
        }
    }

    /// The index of a function in the file.
    pub(crate) fn get(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// The body of a function, if it has one.
    pub(crate) fn has_body(&self, file: &File, name: &str) -> bool {
        self.get(name).is_some_and(|index| file.functions[index].body.is_some())
    }

    /// What a pointer to a function holds.
    pub(crate) fn address(&self, index: usize) -> u64 {
        self.base + (index as u64 + 1) * STEP
    }

    /// The functions that a pointer can point to.
    pub(crate) fn taken(&self) -> &[usize] {
        &self.taken
    }
}

/// Takes the addresses that instructions name; the name behind `call` is none.
fn scan(items: &[Item], take: &mut impl FnMut(&str)) {
    for item in items {
        match item {
            Item::Scope(inner) => scan(inner, take),
            Item::Targets(_, list) => list.iter().for_each(|name| take(name)),
            Item::Instruction(i) if !i.opcode.starts_with("call") => {
                i.operands.iter().for_each(|o| {
                    if let Operand::Name(name, _) = o {
                        take(name);
                    }
                });
            }
            _ => {}
        }
    }
}

/// Bytes of a function's results and of its parameters: what a call through a pointer must agree about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(super) returns: Vec<u64>,
    pub(super) parameters: Vec<u64>,
}

impl Shape {
    pub(crate) fn of(f: &Function) -> Self {
        let bytes = |list: &[Variable]| list.iter().map(Variable::bytes).collect();
        Shape { returns: bytes(&f.returns), parameters: bytes(&f.parameters) }
    }

    /// Numbers of results and parameters.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.returns.len(), self.parameters.len())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |bytes: &[u64]| bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "parameters of ({}) bytes and results of ({})", list(&self.parameters), list(&self.returns))
    }
}
