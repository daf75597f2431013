//! The driver's own functions: what a test chooses and asks. No real driver has them.
//!
//! They are what [`crate::preload::SoftCuda`] calls. Choices about devices must come before `cuInit`; the rest counts from the
//! next operation on.

use std::ffi::c_char;

use ptx_vm::{Rounding, Schedule};

use super::arg::{Out, write_text};
use super::entries;
use crate::code::Code;
use crate::order::Order;

/// The version of this file's interface.
const VERSION: u32 = 1;

entries! {
    /// The version of these functions; its presence says which driver this is.
    bare fn engraftSoftCudaVersion(_, version: Out<u32>) {
        version.set(VERSION)
    }

    /// How many devices there will be, and the memory of each in bytes (0 leaves it).
    early fn engraftSoftCudaSetDevices(d, count: u32, bytes: u64) {
        if d.initialised {
            return Err(Code::ILLEGAL_STATE);
        }
        if count > 64 {
            return Err(Code::INVALID_VALUE);
        }
        d.settings.devices = count;
        if bytes > 0 {
            d.settings.memory = bytes;
        }
        Ok(())
    }

    /// The order of unordered work: 0 eager, 1 latest, 2 others first, 3 seeded.
    early fn engraftSoftCudaSetOrder(d, order: u32, seed: u64) {
        d.settings.order = Order::from_number(order, seed).ok_or(Code::INVALID_VALUE)?;
        d.queue.seed(seed);
        Ok(())
    }

    /// The order of warps and blocks inside a kernel: 0 forward, 1 reverse, 2 random.
    early fn engraftSoftCudaSetSchedule(d, schedule: u32, seed: u64) {
        d.settings.machine.schedule = match schedule {
            0 => Schedule::Forward,
            1 => Schedule::Reverse,
            2 => Schedule::Random(seed),
            _ => return Err(Code::INVALID_VALUE),
        };
        Ok(())
    }

    /// What is checked in kernels, as a sum: 1 shared races, 2 global races, 4 reads of unwritten memory; and how they compute:
    /// 8 worst-case rounding of approximate functions, 16 sums of tensor cores as the hardware makes them.
    early fn engraftSoftCudaSetChecks(d, mask: u32) {
        if mask > 31 {
            return Err(Code::INVALID_VALUE);
        }
        let machine = &mut d.settings.machine;
        machine.shared_races = mask & 1 != 0;
        machine.global_races = mask & 2 != 0;
        machine.uninitialised = mask & 4 != 0;
        machine.approx = if mask & 8 != 0 { Rounding::Worst } else { Rounding::Exact };
        machine.tensor_core_sums = mask & 16 != 0;
        Ok(())
    }

    /// Warp instructions after which a kernel is given up.
    early fn engraftSoftCudaSetBudget(d, instructions: u64) {
        d.settings.machine.budget = instructions;
        Ok(())
    }

    /// The last fault in words, cut to the buffer; its whole length in bytes with the NUL, 0 when there was none.
    early fn engraftSoftCudaLastFault(d, buffer: *mut c_char, bytes: usize, length: Out<usize>) {
        let text = d.last_fault.as_deref();
        length.set_if_wanted(text.map_or(0, |t| t.len() + 1));
        write_text(buffer as usize, bytes, text.unwrap_or(""));
        Ok(())
    }

    /// Forgets it.
    early fn engraftSoftCudaClearFault(d) {
        d.last_fault = None;
        Ok(())
    }

    /// Kernels run and warp instructions executed so far.
    early fn engraftSoftCudaCounts(d, kernels: Out<u64>, instructions: Out<u64>) {
        kernels.set_if_wanted(d.counted.0);
        instructions.set_if_wanted(d.counted.1);
        Ok(())
    }

    /// Operations submitted and not yet run.
    early fn engraftSoftCudaPending(d, count: Out<u64>) {
        count.set(d.queue.len() as u64)
    }
}
