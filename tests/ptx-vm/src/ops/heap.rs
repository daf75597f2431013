//! `malloc` and `free`, the functions of the device runtime that allocate from the heap of the context.

use super::data::{little, local, note};
use super::{Done, Flow};
use crate::memory::shadow::Party;
use crate::run::{Turn, lanes_of};

/// A call: where in local memory its parameter and its result are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HeapCall {
    /// `malloc(bytes)`.
    Allocate { bytes: u64, result: u64 },
    /// `free(pointer)`.
    Free { pointer: u64 },
}

/// The call of a lane in words, for whoever finds the block later.
fn place(t: &Turn<'_, '_>, lane: usize) -> String {
    let line = t.grid.program.lines.get(t.grid.line as usize).map(ToString::to_string).unwrap_or_default();
    let [bx, by, bz] = t.cluster.blocks[usize::from(t.warp.rank)].coordinates;
    let [x, y, _] = t.grid.launch.block;
    let at = u32::from(t.warp.index) * 32 + lane as u32;
    let kernel = crate::fault::demangled(t.grid.kernel);
    let thread = format!("({},{},{})", at % x, at / x % y, at / (x * y));
    format!("{line} of kernel `{kernel}`, block ({bx},{by},{bz}), thread {thread}")
}

fn parameter(t: &Turn<'_, '_>, address: u64, lane: usize) -> Done<u64> {
    let at = local(t, address, 8, lane)?;
    Ok(little(&t.warp.local[at..at + 8]))
}

fn free(t: &mut Turn<'_, '_>, address: u64, lane: usize) -> Done {
    let words = place(t, lane);
    let me = Party {
        cluster: t.cluster.id,
        warp: t.warp.id,
        lane: lane as u8,
        line: t.grid.line,
        clock: &t.warp.clock,
    };
    t.grid.free(address, words, &me)
}

/// Executes a call, lane after lane.
#[cold]
pub(crate) fn execute(t: &mut Turn<'_, '_>, call: HeapCall, active: u32) -> Done<Flow> {
    for lane in lanes_of(active) {
        match call {
            HeapCall::Allocate { bytes, result } => {
                let bytes = parameter(t, bytes, lane)?;
                let words = place(t, lane);
                let address = t.grid.malloc(bytes, words);
                let at = local(t, result, 8, lane)?;
                t.warp.local[at..at + 8].copy_from_slice(&address.to_le_bytes());
            }
            HeapCall::Free { pointer } => {
                let address = parameter(t, pointer, lane)?;
                // `free(0)` does nothing.
                if address != 0
                    && let Err(stop) = free(t, address, lane)
                {
                    note(t, stop, lane);
                }
            }
        }
    }
    t.cluster.progress += 1;
    Ok(Flow::Next)
}
