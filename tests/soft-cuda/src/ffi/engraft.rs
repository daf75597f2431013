//! The driver's own functions: what a test chooses and asks. No real driver has them.
//!
//! They are what [`crate::preload::SoftCuda`] calls. Choices about devices must come before `cuInit`; the
//! rest counts from the next operation on.

use std::ffi::c_char;

use ptx_vm::memory::Traffic;
use ptx_vm::{Rounding, Schedule};

use super::arg::{Out, write_text};
use super::entries;
use crate::code::Code;
use crate::link::Linker;
use crate::order::Order;

/// The version of this file's interface.
const VERSION: u32 = 5;

/// Traffic as the interface has it.
fn words(t: Traffic) -> [u64; 6] {
    let (r, w) = (t.read, t.written);
    [r.requested, r.transferred, r.distinct, w.requested, w.transferred, w.distinct]
}

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

    /// The order of unordered work: 0 eager, 1 latest, 2 others first, 3 seeded, 4 never.
    early fn engraftSoftCudaSetOrder(d, order: u32, seed: u64) {
        d.settings.order = Order::from_number(order, seed).ok_or(Code::INVALID_VALUE)?;
        d.queue.seed(seed);
        Ok(())
    }

    /// Which texts the linker compiles: 0 all, 1 those for one device's own features only where the caller
    /// names that target, 2 none.
    early fn engraftSoftCudaSetLinker(d, linker: u32) {
        d.settings.linker = Linker::from_number(linker).ok_or(Code::INVALID_VALUE)?;
        Ok(())
    }

    /// How many more allocations of pinned memory are granted; all but 2^64 - 1 run out.
    early fn engraftSoftCudaSetPinned(d, granted: u64) {
        d.settings.pinned = granted;
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

    /// What is checked in kernels, as a sum: 1 shared races, 2 global races, 4 reads of unwritten memory; and
    /// how they compute: 8 worst-case rounding of approximate functions, 16 sums of tensor cores as the
    /// hardware makes them. 32: races between streams. 64: races of two stores of the same bytes count too.
    early fn engraftSoftCudaSetChecks(d, mask: u32) {
        if mask > 127 {
            return Err(Code::INVALID_VALUE);
        }
        let machine = &mut d.settings.machine;
        machine.shared_races = mask & 1 != 0;
        machine.global_races = mask & 2 != 0;
        machine.uninitialised = mask & 4 != 0;
        machine.approx = if mask & 8 != 0 { Rounding::Worst } else { Rounding::Exact };
        machine.tensor_core_sums = mask & 16 != 0;
        machine.equal_stores = mask & 64 != 0;
        d.settings.stream_races = mask & 32 != 0;
        Ok(())
    }

    /// Threads over which the independent blocks of a kernel are spread; as many as the processor has at
    /// first. Nothing but the time depends on it.
    early fn engraftSoftCudaSetThreads(d, threads: u32) {
        d.settings.machine.threads = threads.clamp(1, 256) as usize;
        Ok(())
    }

    /// Warp instructions after which a kernel is given up.
    early fn engraftSoftCudaSetBudget(d, instructions: u64) {
        d.settings.machine.budget = instructions;
        Ok(())
    }

    /// The last fault in words, truncated to the buffer; its whole length in bytes with the NUL, 0 when there
    /// was none.
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
        let (launches, executed) = d.statistics.total();
        kernels.set_if_wanted(launches);
        instructions.set_if_wanted(executed);
        Ok(())
    }

    /// Measures (1) the traffic of kernels from and to global memory, or does not (0, the default: it takes
    /// time).
    early fn engraftSoftCudaSetTraffic(d, on: u32) {
        d.settings.machine.count_traffic = on != 0;
        Ok(())
    }

    /// Traffic of kernels in an address range, at the grain of 32 bytes, since it was switched on or cleared:
    /// bytes requested, transferred and distinct of reads, then of writes (see `ptx_vm::memory::Moved`).
    early fn engraftSoftCudaTraffic(d, address: u64, bytes: u64, six: Out<u64>) {
        if six.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        six.fill(words(d.memory.traffic(address, bytes)));
        Ok(())
    }

    /// Kernel number `index`, by name, of those that have run: its name truncated to the buffer and the
    /// name's whole length with the NUL; launches, blocks and warp instructions, then six words of traffic as
    /// in [`engraftSoftCudaTraffic`]. `INVALID_VALUE` behind the last one.
    early fn engraftSoftCudaKernel(d, index: u64, buffer: *mut c_char, bytes: usize, length: Out<usize>, nine: Out<u64>) {
        let at = usize::try_from(index).map_err(|_| Code::INVALID_VALUE)?;
        let (name, counts) = d.statistics.kernels.iter().nth(at).ok_or(Code::INVALID_VALUE)?;
        length.set_if_wanted(name.len() + 1);
        write_text(buffer as usize, bytes, name);
        if !nine.is_null() {
            let head = [counts.launches, counts.blocks, counts.instructions];
            nine.fill(head.into_iter().chain(words(counts.traffic)));
        }
        Ok(())
    }

    /// Bytes that copies and memsets have moved.
    early fn engraftSoftCudaCopied(d, copied: Out<u64>, filled: Out<u64>) {
        copied.set_if_wanted(d.statistics.copied);
        filled.set_if_wanted(d.statistics.filled);
        Ok(())
    }

    /// Launches of graphs, and kernels in them, which count among all kernels as well.
    early fn engraftSoftCudaGraphs(d, launches: Out<u64>, kernels: Out<u64>) {
        launches.set_if_wanted(d.statistics.graphs.0);
        kernels.set_if_wanted(d.statistics.graphs.1);
        Ok(())
    }

    /// Functions that their first launch loaded.
    early fn engraftSoftCudaLoadedLate(d, count: Out<u64>) {
        count.set(d.statistics.loaded_late)
    }

    /// Sets all these counts to zero.
    early fn engraftSoftCudaClearCounts(d) {
        d.statistics = Default::default();
        d.memory.clear_traffic();
        Ok(())
    }

    /// Operations submitted and not yet run.
    early fn engraftSoftCudaPending(d, count: Out<u64>) {
        count.set(d.queue.len() as u64)
    }
}
