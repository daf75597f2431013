//! Rotary embedding.

use crate::kernels::rope::{Angles, rope as kernel};
use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuStream};
use engraft_core::Result;
use engraft_core::backend::RopeView;
use engraft_core::mem::{BufRef, MatMut};

pub(super) fn rope(
    stream: &mut CpuStream,
    x: MatMut<'_, CpuMem>,
    width: usize,
    positions: BufRef<'_, CpuMem, u32>,
    rope: RopeView<'_, CpuMem>,
) -> Result<()> {
    let (x, positions, table) = (Rows::from(x), Words::from(positions), Words::from(rope.table));
    let (count, pairs, style) = (rope.positions * rope.pairs, rope.pairs, rope.style);
    stream.run(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let (positions, table) = unsafe { (positions.slice(), table.slice()) };
        let (cos, sin) = table.split_at(count);
        kernel(cpu.machine(), x.write(), width, positions, Angles { cos, sin, pairs, style })
    })
}
