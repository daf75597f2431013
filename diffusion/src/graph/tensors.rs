//! The tensors of a model by name, and what graphs take of them.
//!
//! Graphs of other sizes take the same operands: an operand has a key, made of the names of its tensors and
//! how they are packed, and is loaded once.

use engraft_core::checkpoint::TensorInfo;
use engraft_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Weights that no file has: of `inputs` products each column takes a run of `run`, each of them `1 / run`
/// times; run number `column / every`, counted around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shares {
    /// Products of a column.
    pub inputs: usize,
    /// Columns.
    pub cols: usize,
    /// Products that count.
    pub run: usize,
    /// Columns behind which the next run counts.
    pub every: usize,
}

impl Shares {
    /// `[inputs, cols]`.
    pub fn values(&self) -> Vec<f32> {
        let Self { inputs, cols, run, every } = *self;
        let (run, every) = (run.max(1), every.max(1));
        let runs = (inputs / run).max(1);
        let value = |k: usize, c: usize| if c / every % runs == k / run { 1.0 / run as f32 } else { 0.0 };
        (0..inputs).flat_map(|k| (0..cols).map(move |c| value(k, c))).collect()
    }
}

/// How an operand is made of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Matrices `[outputs, inputs]`, one below the other.
    Matrix,
    /// A matrix `[up | gate, inputs]`, the gate first.
    Gated,
    /// A matrix whose halves of outputs are exchanged: `[up | gate, inputs]`, the gate first.
    GateFirst,
    /// A convolution `[outputs, inputs, lines, columns]` as `[outputs, taps * inputs]`.
    Taps(usize),
    /// A convolution in groups of columns as `[taps * inputs, outputs]`; where the gate is to come first,
    /// both halves of the outputs are exchanged.
    Grouped {
        /// Lines times columns of the kernel.
        taps: usize,
        /// Whether halves are exchanged.
        gate_first: bool,
    },
    /// Of no tensors.
    Shares(Shares),
    /// Vectors one after the other.
    Vector,
    /// A vector `[up | gate]`, the gate first.
    GatedVector,
    /// What a batch norm multiplies by: `weight / sqrt(variance + eps)`, of these two.
    BatchScale,
    /// What a batch norm adds: `bias - mean * weight / sqrt(variance + eps)`, of bias, weight, mean and
    /// variance.
    BatchShift,
    /// Rows to look up, of the last dimension.
    Table,
}

/// An operand of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Param(pub(crate) usize);

/// What an operand is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Names of its tensors.
    pub tensors: Vec<String>,
    /// What is made of them.
    pub packing: Packing,
}

/// The tensors of a model, and the operands that graphs have asked for.
#[derive(Debug, Clone)]
pub struct Tensors {
    file: String,
    shapes: BTreeMap<String, Vec<usize>>,
    taken: BTreeSet<String>,
    operands: Vec<Operand>,
    numbers: HashMap<Operand, Param>,
}

impl Tensors {
    /// Those of `file`.
    pub fn new(file: &str, tensors: &[TensorInfo]) -> Self {
        let shapes = tensors.iter().map(|t| (t.name.clone(), t.shape.clone())).collect();
        let (taken, operands, numbers) = (BTreeSet::new(), Vec::new(), HashMap::new());
        Self { file: file.to_string(), shapes, taken, operands, numbers }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.shapes.contains_key(name)
    }

    /// The first of these names that is there, the first of all where none is.
    pub fn first_of(&self, names: &[&str]) -> String {
        let found = names.iter().find(|name| self.has(&format!("{name}.weight")));
        found.or(names.first()).map_or(String::new(), |name| (*name).to_string())
    }

    /// A tensor's dimensions.
    ///
    /// # Errors
    /// `Tensor` where it is missing.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        let missing = || Error::tensor(name, format!("is not in {}", self.file));
        self.shapes.get(name).map(Vec::as_slice).ok_or_else(missing)
    }

    /// The operand that these tensors make.
    pub fn take(&mut self, tensors: Vec<String>, packing: Packing) -> Param {
        self.taken.extend(tensors.iter().cloned());
        let operand = Operand { tensors, packing };
        let next = Param(self.operands.len());
        *self.numbers.entry(operand.clone()).or_insert_with(|| {
            self.operands.push(operand);
            next
        })
    }

    /// Leaves a tensor unread, if there is one of this name.
    pub fn pass_over(&mut self, name: String) {
        self.taken.insert(name);
    }

    /// All operands that were asked for, in the order of their numbers.
    pub fn operands(&self) -> &[Operand] {
        &self.operands
    }

    /// Refuses a model with tensors that nothing has taken and `ignored` does not name.
    ///
    /// # Errors
    /// `Binding`, with their names.
    pub fn check_all_taken(&self, class: &str, ignored: impl Fn(&str) -> bool) -> Result<()> {
        let left = |name: &&String| !self.taken.contains(*name) && !ignored(name);
        let names: Vec<String> = self.shapes.keys().filter(left).cloned().collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(Error::Binding {
                policy: class.to_string(),
                what: "tensors are left over: ".to_string(),
                names,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_means_and_choices() {
        let half = 0.5;
        let mean = Shares { inputs: 2, cols: 1, run: 2, every: 1 };
        assert_eq!(mean.values(), [half, half]);
        let pairs = Shares { inputs: 4, cols: 2, run: 2, every: 1 };
        assert_eq!(pairs.values(), [half, 0.0, half, 0.0, 0.0, half, 0.0, half]);
        let blocks = Shares { inputs: 2, cols: 4, run: 1, every: 2 };
        assert_eq!(blocks.values(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }
}
