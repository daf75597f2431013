//! What a class of kernels is made of: sizes to try, an op that can be run again and again, and what it moves
//! and computes.

use engraft::Result;
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::mem::Device;
use engraft::engraft_core::ops::{Checked, Op, OpKind, Run};

/// How large an op is: devices that are slow get no larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Small,
    Middle,
    Large,
}

impl Size {
    /// The next one.
    pub fn larger(self) -> Option<Self> {
        match self {
            Size::Small => Some(Size::Middle),
            Size::Middle => Some(Size::Large),
            Size::Large => None,
        }
    }

    /// One of three sizes.
    pub fn pick(self, [small, middle, large]: [usize; 3]) -> usize {
        match self {
            Size::Small => small,
            Size::Middle => middle,
            Size::Large => large,
        }
    }

    /// Columns of a matrix.
    pub fn width(self) -> usize {
        self.pick([256, 1024, 4096])
    }

    pub fn name(self) -> &'static str {
        match self {
            Size::Small => "small",
            Size::Middle => "middle",
            Size::Large => "large",
        }
    }
}

/// What running an op once takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Bytes that are read and written, each once.
    pub bytes: usize,
    /// Floating-point operations; none where they are not what an op is about.
    pub operations: Option<usize>,
}

impl Work {
    /// Of an op that moves bytes.
    pub fn moves(bytes: usize) -> Self {
        Self { bytes, operations: None }
    }

    /// Of one that also computes.
    pub fn computes(bytes: usize, operations: usize) -> Self {
        Self { bytes, operations: Some(operations) }
    }
}

/// Enqueues an op.
pub type Runner<B> = Box<dyn FnMut(&mut dyn Run<<B as Backend>::Device>) -> Result<()>>;

/// An op with all that it reads and writes.
pub struct Built<B: Backend> {
    /// Enqueues it, as often as wanted.
    pub run: Runner<B>,
    /// Its sizes, for people.
    pub shape: String,
    pub work: Work,
}

impl<B: Backend> Built<B> {
    pub fn new(
        shape: String,
        work: Work,
        run: impl FnMut(&mut dyn Run<B::Device>) -> Result<()> + 'static,
    ) -> Self {
        Self { run: Box::new(run), shape, work }
    }
}

/// Checks an op and runs it.
pub fn send<'a, D: Device>(to: &mut dyn Run<D>, op: impl Into<Op<'a, D>>) -> Result<()> {
    to.run(Checked::new(op)?)
}

/// A class as the file of its ops lists it.
pub struct Entry<T> {
    /// What people without time want to know first has 0.
    pub rank: u8,
    pub name: String,
    pub op: OpKind,
    pub of: T,
}

impl<T> Entry<T> {
    pub fn new(rank: u8, name: impl Into<String>, op: impl Into<OpKind>, of: T) -> Self {
        Self { rank, name: name.into(), op: op.into(), of }
    }
}

/// `1 row`, `64 rows`.
pub fn rows_of(rows: usize) -> String {
    super::super::super::output::plural(rows, "row")
}
