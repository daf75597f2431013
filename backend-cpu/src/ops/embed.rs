//! Row look-up, alone or added.

use crate::mem::{Rows, Words};
use crate::weight::Form;
use crate::{CpuMem, CpuStream, CpuWeight, kernels};
use engraft_core::mem::{BufRef, MatMut};
use engraft_core::{Error, Result};

pub(super) fn embed(
    stream: &mut CpuStream,
    ids: BufRef<'_, CpuMem, u32>,
    table: &CpuWeight,
    out: MatMut<'_, CpuMem>,
    add: bool,
) -> Result<()> {
    let (ids, table, out) = (Words::from(ids), table.clone(), Rows::from(out));
    stream.run(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let ids = unsafe { ids.slice() };
        match &table.0 {
            Form::Panels(packed) => {
                kernels::embed::embed(cpu.machine(), ids, packed.rows(), out.write(), add, &|row, to| {
                    kernels::embed::unpack(cpu.machine(), packed, row, to);
                    Ok(())
                })
            }
            Form::Table(table) => {
                kernels::embed::embed(cpu.machine(), ids, table.rows, out.write(), add, &|row, to| {
                    table.row(row, &mut to[..table.cols])
                })
            }
            Form::Experts(_) | Form::Vector(_) => Err(Error::internal("an embedding was not packed as one")),
        }
    })
}
