//! Ops as values: what models ask for and backends run.
//!
//! One struct per op, in the file of its stem, with everything that is to be said of it beside it: its name,
//! the check of its operands, the signature that kernel choice depends on, the operands it reads and writes,
//! and its composed form if it has one. [`Op`] gathers them by stem. Views lie inside their memory by
//! construction ([`crate::mem`]); an op's check is whether its operands go together. What passes is a
//! [`Checked`] op, which nothing else can make, and the only thing that a backend runs.
//!
//! Matrices are `[rows, cols]`. An op reads its inputs in their element type, computes in f32 and rounds once
//! on output; sums are in the order of `docs/numerics.md`. Outputs are operands. What changes from step to
//! step is read from device buffers when the op runs, never from a field: a captured op is replayed with the
//! fields that it was captured with.
//!
//! Data in device buffers (ids, slots, page numbers, bounds) is not checked here: nobody knows it before the
//! op runs. Each op says what a value out of range does; no value makes a kernel touch memory outside its
//! operands.
//!
//! Adding an op: `docs/add_an_op.md`.

mod attention;
mod check;
mod elementwise;
mod embed;
mod kv;
mod linear;
mod moe;
mod norm;
mod rope;
mod rows;
mod sample;
mod stem;

pub use attention::*;
pub use elementwise::*;
pub use embed::*;
pub use kv::*;
pub use linear::*;
pub use moe::*;
pub use norm::*;
pub use rope::*;
pub use rows::*;
pub use sample::*;

use crate::mem::{BufMut, BufRef, Device, Float, KvMut, KvRef, MatMut, MatRef, WeightFormat};
use crate::params::Heads;
use crate::sample::SampleRow;
use crate::{Error, Result};

/// An op with its operands, by stem.
pub enum Op<'a, D: Device> {
    /// Row look-up.
    Embed(Embed<'a, D>),
    /// A matmul with what follows it.
    Linear(Linear<'a, D>),
    /// Norms.
    Norm(NormOp<'a, D>),
    /// Element by element.
    Elementwise(ElementwiseOp<'a, D>),
    /// Experts.
    Moe(MoeOp<'a, D>),
    /// Rotary embedding.
    Rope(RopeOp<'a, D>),
    /// Paged keys and values.
    Kv(KvOp<'a, D>),
    /// Attention.
    Attention(AttentionOp<'a, D>),
    /// Rows and words moved.
    Rows(RowsOp<'a, D>),
    /// From logits to tokens.
    Sample(Sample<'a, D>),
}

/// Which op, without operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // Reason: the stems are those of `Op`.
pub enum OpKind {
    Embed(EmbedOpKind),
    Linear(LinearOpKind),
    Norm(NormOpKind),
    Elementwise(ElementwiseOpKind),
    Moe(MoeOpKind),
    Rope(RopeOpKind),
    Kv(KvOpKind),
    Attention(AttentionOpKind),
    Rows(RowsOpKind),
    Sample(SampleOpKind),
}

/// One arm per stem: the single place where an op is taken apart by stem in the core.
macro_rules! each_stem {
    ($value:expr, $enum:ident, $inner:ident => $then:expr) => {
        match $value {
            $enum::Embed($inner) => $then,
            $enum::Linear($inner) => $then,
            $enum::Norm($inner) => $then,
            $enum::Elementwise($inner) => $then,
            $enum::Moe($inner) => $then,
            $enum::Rope($inner) => $then,
            $enum::Kv($inner) => $then,
            $enum::Attention($inner) => $then,
            $enum::Rows($inner) => $then,
            $enum::Sample($inner) => $then,
        }
    };
}

impl OpKind {
    /// The op's name in plans, profiles and messages: `linear_act`.
    pub fn name(self) -> &'static str {
        each_stem!(self, OpKind, kind => kind.name())
    }

    /// Whether it has a composed form.
    pub fn is_fused(self) -> bool {
        each_stem!(self, OpKind, kind => kind.is_fused())
    }

    /// Every op.
    pub fn all() -> impl Iterator<Item = OpKind> {
        let embed = EmbedOpKind::ALL.iter().map(|k| OpKind::Embed(*k));
        let linear = LinearOpKind::ALL.iter().map(|k| OpKind::Linear(*k));
        let norm = NormOpKind::ALL.iter().map(|k| OpKind::Norm(*k));
        let elementwise = ElementwiseOpKind::ALL.iter().map(|k| OpKind::Elementwise(*k));
        let moe = MoeOpKind::ALL.iter().map(|k| OpKind::Moe(*k));
        let rope = RopeOpKind::ALL.iter().map(|k| OpKind::Rope(*k));
        let kv = KvOpKind::ALL.iter().map(|k| OpKind::Kv(*k));
        let attention = AttentionOpKind::ALL.iter().map(|k| OpKind::Attention(*k));
        let rows = RowsOpKind::ALL.iter().map(|k| OpKind::Rows(*k));
        let sample = SampleOpKind::ALL.iter().map(|k| OpKind::Sample(*k));
        let first = embed.chain(linear).chain(norm).chain(elementwise).chain(moe);
        first.chain(rope).chain(kv).chain(attention).chain(rows).chain(sample)
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
    /// Heads of attention and of what happens before it.
    pub heads: Option<Heads>,
    /// Element type of cached keys and values.
    pub kv: Option<Float>,
}

impl Signature {
    /// The signature of an op over matrices of one type.
    pub fn new(op: OpKind, x: Float, inner: usize, outer: usize) -> Self {
        Self { op, x, out: x, weight: None, inner, outer, bias: false, heads: None, kv: None }
    }
}

/// An operand of an op, or one of its sizes, by reference: for tests that perturb each, and for reports.
#[allow(missing_docs)] // Reason: the names are those of the views.
pub enum Operand<'o, 'a, D: Device> {
    Mat(&'o mut MatRef<'a, D::Mem>),
    MatMut(&'o mut MatMut<'a, D::Mem>),
    Words(&'o mut BufRef<'a, D::Mem, u32>),
    Slots(&'o mut BufRef<'a, D::Mem, i32>),
    Floats(&'o mut BufRef<'a, D::Mem, f32>),
    Samples(&'o mut BufRef<'a, D::Mem, SampleRow>),
    WordsMut(&'o mut BufMut<'a, D::Mem, u32>),
    Kv(&'o mut KvRef<'a, D::Mem>),
    KvMut(&'o mut KvMut<'a, D::Mem>),
    Weight(&'o mut &'a D::Weight),
    /// A size that the host gives.
    Size(&'o mut usize),
}

/// Operands by name.
pub type Operands<'o, 'a, D> = Vec<(&'static str, Operand<'o, 'a, D>)>;

/// What every op states, beside its struct.
pub(crate) trait Rules<'a, D: Device>: Sized {
    /// Which op.
    fn kind(&self) -> OpKind;
    /// Whether the operands go together.
    fn check(&self) -> Result<()>;
    /// What its kernel depends on.
    fn signature(&self) -> Signature;
    /// What it reads and writes: views to write are written, all others read.
    fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D>;
    /// Runs the composed form.
    fn compose(self, _to: &mut dyn Run<D>) -> Result<()> {
        Err(Error::internal(format!("{} has no composed form", self.kind())))
    }
}

/// Takes checked ops: a stream, or something in front of one.
pub trait Run<D: Device> {
    /// Enqueues an op.
    ///
    /// # Errors
    /// `Unsupported` where there is no kernel and no composed form; what only the device knows (lost, out of
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
        each_stem!(self, Op, op => op.kind())
    }

    /// What its kernel depends on.
    pub fn signature(&self) -> Signature {
        each_stem!(self, Op, op => op.signature())
    }

    /// What it reads and writes, and its sizes: views to write are written, all others read.
    pub fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        each_stem!(self, Op, op => op.operands())
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
        each_stem!(&op, Op, op => op.check())?;
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

    /// Whether it has a composed form.
    pub fn is_fused(&self) -> bool {
        self.0.kind().is_fused()
    }

    /// Runs the composed form: the ops that it stands for, one after the other.
    ///
    /// # Errors
    /// `Internal` for an op without one, and what the ops raise.
    pub fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        each_stem!(self.0, Op, op => op.compose(to))
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
