//! A model of pictures as a list of nodes.
//!
//! A node reads values and makes one; a value is a matrix that is made once. Every node is an op of the
//! engine or a few of them (`run`). Who builds a graph does not think of memory: which values share
//! a buffer is decided afterwards, by who reads them last ([`Lives`]).
//!
//! A value is constant where nothing that it is made of changes from step to step; constant nodes run once.

mod builder;
mod grid;
mod group_step;
mod groups;
mod lives;
mod tensors;
mod token_step;
mod tokens;

pub use builder::{Builder, Picture};
pub use grid::{Grid, Stride, Window};
pub use group_step::{Grouped, LinearHeads};
pub use lives::Lives;
pub use tensors::{Operand, Packing, Param, Shares, Tensors};
pub use token_step::{Angles, Columns, Modulation, TokenStep};

use engraft_core::params::{Act, NormKind};

/// A matrix that a node makes, or an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) usize);

/// What is known of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows of all items.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Whether it stays the same from step to step.
    pub constant: bool,
}

impl Size {
    /// Elements.
    pub fn elements(&self) -> usize {
        self.rows.saturating_mul(self.cols)
    }
}

/// Weight and bias of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// The weight.
    pub weight: Param,
    /// The bias.
    pub bias: Option<Param>,
}

/// Keys and values that cross-attention reads: `items` texts of `tokens` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Rows of a text.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Whether tokens that a mask hides are hidden here.
    pub masked: bool,
}

/// What a node does with its arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// `out = act(x w^T + bias)`: x `[rows, k]`, w `[n, k]`.
    Linear(Weights, Option<Act>),
    /// `out = act(g) * u` of `[g | u] = x w^T + bias`.
    Gated(Weights, Act),
    /// `out = act(conv(x))` over the window of this number.
    Conv(usize, Weights, Option<Act>),
    /// `out = act(g) * u` of `x = [g | u]`.
    Gate(Act),
    /// A convolution in groups of columns.
    Grouped(Grouped),
    /// Norm of every row, with this added to the variance or the mean square.
    Norm(NormKind, Option<Weights>, f32),
    /// Norm of so many groups of columns over all rows of an item, with this added to the variance; then the
    /// activation.
    GroupNorm(usize, Weights, f32, Option<Act>),
    /// `x = act(x)`, in place.
    Activate(Act),
    /// `x = factor * x`, in place.
    Scale(f32),
    /// `x += y`, in place.
    Add,
    /// Every row of an item `+=` the item's row of `y` `[items, cols]`, in place.
    AddPerItem,
    /// The arguments' columns side by side.
    Join,
    /// Attention of every item's rows to each other: x `[rows, q | k | v]` of so many heads.
    Attend(usize),
    /// Attention without a softmax of every item's rows to each other: x has queries, keys and values.
    LinearAttend(LinearHeads),
    /// Puts keys and values `[rows, k | v]` where the cross-attention of this number reads them; the value
    /// that it makes is empty.
    Keep(usize),
    /// Attention of q `[rows, heads * width]` to what was kept; the second argument is what [`Step::Keep`]
    /// made.
    Cross(usize),
    /// What transformers do with tokens.
    Tokens(TokenStep),
}

/// One step of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub step: Step,
    /// What it reads; in-place steps change the first.
    pub args: Vec<Value>,
    /// What it makes.
    pub out: Value,
}

impl Step {
    /// Whether the first argument becomes the result.
    pub fn is_in_place(&self) -> bool {
        match self {
            Step::Activate(_) | Step::Scale(_) | Step::Add | Step::AddPerItem => true,
            Step::Tokens(step) => step.is_in_place(),
            _ => false,
        }
    }
}

/// Nodes in an order in which they can run.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Pictures.
    pub items: usize,
    /// All values.
    pub values: Vec<Size>,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// What is given, by name.
    pub inputs: Vec<(&'static str, Value)>,
    /// What is asked for.
    pub outputs: Vec<Value>,
    /// What convolutions read.
    pub windows: Vec<Window>,
    /// What cross-attention reads.
    pub kept: Vec<Kept>,
    /// Numbers of rows.
    pub lists: Vec<Vec<u32>>,
    /// By what rows turn.
    pub angles: Vec<Angles>,
}

impl Graph {
    /// A value's size.
    pub fn size(&self, value: Value) -> Size {
        self.values[value.0]
    }
}
