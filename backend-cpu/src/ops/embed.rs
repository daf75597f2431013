//! Row look-up, alone or added.

use crate::kernels::embed::{self as kernel, Table};
use crate::mem::{SharedMat, Words};
use crate::weight::Storage;
use crate::{Cpu, CpuStream};
use engraft_core::ops::Embed;
use engraft_core::{Error, Result};

pub(super) fn run(stream: &mut CpuStream, op: Embed<'_, Cpu>) -> Result<()> {
    let Embed { ids, table, add, out } = op;
    let (ids, table, out) = (Words::from(ids), table.storage().clone(), SharedMat::from(out));
    let add = add.is_some();
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let (ids, machine) = (unsafe { ids.slice() }, cpu.machine());
        match &table {
            Storage::Panels(packed) => {
                let read = |row, to: &mut [f32]| {
                    kernel::unpack(machine, packed, row, to);
                    Ok(())
                };
                let table = Table { rows: packed.rows(), cols: packed.cols(), read: &read };
                kernel::embed(machine, ids, table, add, out.write())
            }
            Storage::Table(stored) => {
                let read = |row, to: &mut [f32]| stored.row(row, to);
                let table = Table { rows: stored.rows, cols: stored.cols, read: &read };
                kernel::embed(machine, ids, table, add, out.write())
            }
            Storage::Experts(_) | Storage::Vector(_) => {
                Err(Error::internal("an embedding was not packed as one"))
            }
        }
    })
}
