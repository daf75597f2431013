//! What all kernels of a text share: the functions and variables that they can name, and how much they may
//! come to together.

use std::cell::Cell;
use std::collections::HashMap;

use super::Functions;
use crate::text::syntax::{File, Space, Variable};

/// What the kernels of a text may come to together, calls inlined: instructions, declarations, registers,
/// scopes and arguments. A few lines of calls that call twice would else become thousands of millions.
const WORK: u64 = 1 << 21;

/// The state of lowering a text.
pub(crate) struct Context<'f> {
    pub(super) file: &'f File,
    pub(crate) functions: Functions,
    /// Indices of `.global` and `.const` variables among those of the module.
    globals: HashMap<&'f str, usize>,
    shared: HashMap<&'f str, &'f Variable>,
    left: Cell<u64>,
}

impl<'f> Context<'f> {
    /// `text` is the file's text.
    pub(crate) fn new(file: &'f File, text: &str) -> Self {
        let variables = || file.variables.iter();
        let globals = variables().filter(|v| matches!(v.space, Space::Global | Space::Const));
        let shared = variables().rev().filter(|v| v.space == Space::Shared);
        Context {
            file,
            functions: Functions::new(file, text),
            globals: globals.enumerate().map(|(i, v)| (v.name.as_str(), i)).collect(),
            // Of equal names the first.
            shared: shared.map(|v| (v.name.as_str(), v)).collect(),
            left: Cell::new(WORK),
        }
    }

    /// The index of a `.global` or `.const` variable.
    pub(crate) fn global(&self, name: &str) -> Option<usize> {
        self.globals.get(name).copied()
    }

    /// A `.shared` variable that stands outside of kernels.
    pub(super) fn shared(&self, name: &str) -> Option<&'f Variable> {
        self.shared.get(name).copied()
    }

    /// Takes from what is left, or says what it was.
    pub(super) fn spend(&self, work: u64) -> Result<(), String> {
        let left = self.left.get().checked_sub(work);
        self.left.set(left.unwrap_or(0));
        match left {
            Some(_) => Ok(()),
            None => Err(format!(
                "the text's kernels come to more than {WORK} instructions, registers and arguments, calls inlined"
            )),
        }
    }
}
