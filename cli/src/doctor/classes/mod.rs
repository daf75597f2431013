//! The classes of kernels that a report times: every op of the engine, in the types and formats that have
//! kernels of their own.
//!
//! One list for every backend: ops are built by the engine's own types on the contract of backends. A class
//! stands in the file of its ops, with what builds it; a test holds that no op is missing.

mod attention;
mod class;
mod elementwise;
mod maker;
mod matmul;
mod rows;
mod special;

pub use class::{Built, Size};
pub use maker::Maker;

use class::Entry;
use engraft::engraft_core::backend::Backend;
use engraft::{OpKind, Result};

/// What a class times.
#[derive(Debug, Clone, Copy)]
pub enum What {
    Attention(attention::Of),
    Elementwise(elementwise::Of),
    Matmul(matmul::Of),
    Moved(rows::Of),
    Special(special::Of),
    /// What fails so: for tests.
    #[cfg(test)]
    Fails(fn() -> engraft::Error),
}

/// A class of kernels.
#[derive(Debug, Clone)]
pub struct Class {
    pub name: String,
    pub op: OpKind,
    pub what: What,
}

impl Class {
    /// Makes the op and all that it reads and writes.
    ///
    /// # Errors
    /// What allocating, packing and uploading raise.
    pub fn build<B: Backend>(&self, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
        match self.what {
            What::Attention(of) => attention::build(of, maker, size),
            What::Elementwise(of) => elementwise::build(of, maker, size),
            What::Matmul(of) => matmul::build(of, maker, size),
            What::Moved(of) => rows::build(of, maker, size),
            What::Special(of) => special::build(of, maker, size),
            #[cfg(test)]
            What::Fails(error) => Err(error()),
        }
    }
}

/// All classes, those first that say most of a device.
pub fn all() -> Vec<Class> {
    let mut all: Vec<(u8, Class)> = Vec::new();
    add(&mut all, matmul::all(), What::Matmul);
    add(&mut all, attention::all(), What::Attention);
    add(&mut all, elementwise::all(), What::Elementwise);
    add(&mut all, rows::all(), What::Moved);
    add(&mut all, special::all(), What::Special);
    // Of one rank they stay in this order.
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, class)| class).collect()
}

fn add<T>(all: &mut Vec<(u8, Class)>, entries: Vec<Entry<T>>, what: impl Fn(T) -> What) {
    all.extend(entries.into_iter().map(|Entry { rank, name, op, of }| {
        let what = what(of);
        (rank, Class { name, op, what })
    }));
}
