//! Row look-up, alone or added.

use super::names::{elem, format};
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::ops::{Embed, Signature};
use engraft_kernels::params::embed as kernels;

/// Which kernel.
pub(super) fn kernel(signature: &Signature) -> std::result::Result<Kernel, String> {
    Ok(Kernel::Entry(kernels::Embed::entry(format(signature)?)))
}

pub(super) fn run(stream: &mut CudaStream, op: Embed<'_, Cuda>) -> Result<()> {
    let (table, out) = (op.table.rows()?, op.out);
    let p = kernels::Embed {
        ids: stream.buffer(op.ids)?,
        table: table.view(stream.gpu())?,
        out: stream.matrix_mut(&out)?,
        elem: elem(out.dtype()),
        add: u32::from(op.add.is_some()),
    };
    stream.launch(&p.launch(table.format), &p)
}
