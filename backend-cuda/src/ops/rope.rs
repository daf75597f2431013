//! Rotary embedding.

use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream};
use engraft_core::Result;
use engraft_core::backend::RopeView;
use engraft_core::mem::{BufRef, MatMut};
use engraft_core::params::RopeStyle;
use engraft_kernels::params::rope as kernel;

pub(super) fn rope(
    stream: &mut CudaStream,
    x: MatMut<'_, CudaMem>,
    width: usize,
    positions: BufRef<'_, CudaMem, u32>,
    rope: RopeView<'_, CudaMem>,
) -> Result<()> {
    let x = x.as_ref();
    let p = kernel::Rope {
        x: matrix(x)?,
        positions: buffer(positions)?,
        table: buffer(rope.table)?,
        table_positions: word(rope.positions)?,
        pairs: word(rope.pairs)?,
        heads: word(x.cols / width.max(1))?,
        width: word(width)?,
        interleaved: u32::from(rope.style == RopeStyle::Interleaved),
        elem: elem(x.dtype),
    };
    stream.run(&p.launch(), &p)
}
