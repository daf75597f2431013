//! Row look-up, alone or added.

use super::{buffer, elem, matrix};
use crate::{CudaMem, CudaStream, CudaWeight};
use engraft_core::Result;
use engraft_core::mem::{BufRef, MatMut};
use engraft_kernels::params::embed as kernel;

pub(super) fn embed(
    stream: &mut CudaStream,
    ids: BufRef<'_, CudaMem, u32>,
    table: &CudaWeight,
    out: MatMut<'_, CudaMem>,
    add: bool,
) -> Result<()> {
    let (table, out) = (table.rows()?, out.as_ref());
    let p = kernel::Embed {
        ids: buffer(ids)?,
        table: table.view(stream.gpu())?,
        out: matrix(out)?,
        elem: elem(out.dtype),
        add: u32::from(add),
    };
    stream.run(&p.launch(table.format), &p)
}
