//! Ops as values: what models ask for and backends run.
//!
//! One struct per op, in the file of its stem, with everything that is to be said of it next to it: its name,
//! the check of its operands, the signature that kernel choice depends on, the operands it reads and writes,
//! and its composition if it has one. [`Op`] gathers them by stem. Views lie inside their memory by
//! construction ([`crate::mem`]); an op's check is whether its operands go together. What passes is a
//! [`Checked`] op, which nothing else can make, and the only thing that a backend runs.
//!
//! Matrices are `[rows, cols]`. An op reads its inputs in their element type, computes in f32 and rounds once
//! on output; sums are in the order of `docs/numerics.md`. Outputs are operands. What changes from step to
//! step is read from device buffers when the op runs, never from a field: a captured op is replayed with the
//! fields that it was captured with.
//!
//! Data in device buffers (ids, slots, page numbers, bounds) is not checked here: it is not known before the
//! op runs. Each op says what a value out of range does; no value makes a kernel touch memory outside its
//! operands.
//!
//! Adding an op: `docs/add_an_op.md`.

mod attention;
mod check;
mod elementwise;
mod embed;
mod index;
mod kv;
mod linear;
mod moe;
mod norm;
mod operand;
mod picture;
mod rope;
mod rows;
mod sample;
mod stem;

pub use attention::*;
pub use elementwise::*;
pub use embed::*;
pub use index::*;
pub use kv::*;
pub use linear::*;
pub use moe::*;
pub use norm::*;
pub use operand::{Operand, Operands};
pub use picture::*;
pub use rope::*;
pub use rows::*;
pub use sample::*;

use crate::mem::{Device, Float, KvFormat, MatLayout, WeightFormat, WeightUse};
use crate::params::Heads;
use crate::{Error, Result};
use check::Check;
use operand::{Listed, groups, operands, rules};
use stem::dispatch;

/// `stems!(Op, OpKind: Stem(Ops, Kinds), ...)`: the ops of all stems, and their kinds.
macro_rules! stems {
    ($all:ident, $kinds:ident: $($stem:ident($op:ident, $kind:ident)),+ $(,)?) => {
        dispatch! {
            /// An op with its operands, by stem.
            $all: $($stem($op)),+
        }

        $(impl<'a, D: Device> From<$op<'a, D>> for $all<'a, D> {
            fn from(op: $op<'a, D>) -> Self {
                Self::$stem(op)
            }
        })+

        /// Which op, without operands.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // Reason: the stems are those of `Op`.
        pub enum $kinds {
            $($stem($kind)),+
        }

        impl $kinds {
            /// The op's name in plans, profiles and messages: `linear_act`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$stem(kind) => kind.name()),+ }
            }

            /// Whether it has a composition.
            pub fn is_fused(self) -> bool {
                match self { $(Self::$stem(kind) => kind.is_fused()),+ }
            }

            /// Every op.
            pub fn all() -> impl Iterator<Item = Self> {
                std::iter::empty()$(.chain($kind::ALL.iter().map(|kind| Self::$stem(*kind))))+
            }
        }
    };
}

stems!(
    Op, OpKind:
    Embed(Embed, EmbedOpKind),
    Linear(Linear, LinearOpKind),
    Norm(NormOp, NormOpKind),
    Elementwise(ElementwiseOp, ElementwiseOpKind),
    Moe(MoeOp, MoeOpKind),
    Rope(RopeOp, RopeOpKind),
    Kv(KvOp, KvOpKind),
    Attention(AttentionOp, AttentionOpKind),
    Index(IndexOp, IndexOpKind),
    Picture(PictureOp, PictureOpKind),
    Rows(RowsOp, RowsOpKind),
    Sample(Sample, SampleOpKind),
);

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What of a matmul's sums a rank makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SumPart {
    /// All of them.
    #[default]
    Whole,
    /// Its leaves, all of which begin at multiples of [`LEAF_UNIT`](crate::numerics::LEAF_UNIT) columns.
    Units,
    /// Its leaves, which begin anywhere.
    Any,
}

impl SumPart {
    /// Of what a weight is used for.
    pub fn of(used_for: WeightUse) -> Self {
        match used_for.share() {
            None => Self::Whole,
            Some(share) if share.is_in_units() => Self::Units,
            Some(_) => Self::Any,
        }
    }
}

/// What the choice of a kernel depends on, and nothing that changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The op.
    pub op: OpKind,
    /// Element type of the activations that are read.
    pub x: Float,
    /// Element type of the output.
    pub out: Float,
    /// Format of the weight, if the op has one.
    pub weight: Option<WeightFormat>,
    /// Inner size: K of a matmul, width of a normed part, width of a key head.
    pub inner: usize,
    /// Outer size: N of a matmul, columns of a row, heads of attention.
    pub outer: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// What of a matmul's sums it makes.
    pub part: SumPart,
    /// Heads of attention and of what happens before it.
    pub heads: Option<Heads>,
    /// Element type of cached keys and values.
    pub kv: Option<KvFormat>,
}

impl Signature {
    /// The signature of an op over matrices of one type.
    pub fn new(op: OpKind, x: Float, inner: usize, outer: usize) -> Self {
        let (weight, bias, part) = (None, false, SumPart::Whole);
        Self { op, x, out: x, weight, inner, outer, bias, part, heads: None, kv: None }
    }

    /// The signature of an op that takes a matrix row by row.
    fn of_rows(op: OpKind, x: MatLayout) -> Self {
        Self::new(op, x.dtype, x.cols, x.cols)
    }
}

/// What every op states, next to its struct.
pub(crate) trait Rules<'a, D: Device>: Sized {
    /// Which op.
    fn kind(&self) -> OpKind;
    /// Whether the operands go together; `check` compares in the op's name.
    fn check(&self, check: &Check) -> Result<()>;
    /// What its kernel depends on.
    fn signature(&self) -> Signature;
    /// What it reads and writes: views to write are written, all others read.
    fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D>;
    /// Runs the composition.
    fn compose(self, _to: &mut dyn Run<D>) -> Result<()> {
        Err(Error::internal(format!("{} has no composition", self.kind())))
    }
}

/// Takes checked ops: a stream, or something in front of one.
pub trait Run<D: Device> {
    /// Enqueues an op.
    ///
    /// # Errors
    /// `Unsupported` where there is no kernel and no composition; what only the device knows (lost, out of
    /// memory).
    fn run(&mut self, op: Checked<'_, D>) -> Result<()>;
}

/// Checks an op and runs it.
fn send<'a, D: Device>(to: &mut dyn Run<D>, op: impl Into<Op<'a, D>>) -> Result<()> {
    to.run(Checked::new(op)?)
}

impl<'a, D: Device> Op<'a, D> {
    /// Which op.
    pub fn kind(&self) -> OpKind {
        Rules::kind(self)
    }

    /// What its kernel depends on.
    pub fn signature(&self) -> Signature {
        Rules::signature(self)
    }

    /// What it reads and writes, and its sizes: views to write are written, all others read.
    pub fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        Rules::operands(self)
    }
}

/// An op whose operands go together: what a backend runs.
pub struct Checked<'a, D: Device>(Op<'a, D>);

impl<'a, D: Device> Checked<'a, D> {
    /// Checks an op.
    ///
    /// # Errors
    /// `Shape` and `Type`, naming op, operand, what was found and what is expected.
    pub fn new(op: impl Into<Op<'a, D>>) -> Result<Self> {
        let op = op.into();
        op.check(&Check(op.kind().name()))?;
        Ok(Self(op))
    }

    /// The op.
    pub fn op(&self) -> &Op<'a, D> {
        &self.0
    }

    /// The op, to take apart.
    pub fn into_op(self) -> Op<'a, D> {
        self.0
    }

    /// Whether it has a composition.
    pub fn is_fused(&self) -> bool {
        self.0.kind().is_fused()
    }

    /// Runs the composition: the ops that it stands for, one after the other.
    ///
    /// # Errors
    /// `Internal` for an op without one, and what the ops raise.
    pub fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        self.0.compose(to)
    }
}

impl<D: Device> std::fmt::Debug for Op<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.signature().fmt(f)
    }
}

impl<D: Device> std::fmt::Debug for Checked<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
