//! Embedding sums.

use crate::Result;
use crate::backend::{Backend, PrimitiveOps};
use crate::mem::{BufRef, MatMut};

/// `scratch = table[ids]; out += scratch`.
pub fn embed_add<B: Backend>(
    s: &mut B::Stream,
    ids: BufRef<'_, B::Mem, u32>,
    table: &B::Weight,
    mut scratch: MatMut<'_, B::Mem>,
    out: MatMut<'_, B::Mem>,
) -> Result<()> {
    s.embed(ids, table, scratch.reborrow())?;
    s.add(out, scratch.as_ref())
}
