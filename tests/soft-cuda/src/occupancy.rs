//! How many blocks fit a multiprocessor: registers, shared memory, threads, blocks.
//!
//! The arithmetic is that of NVIDIA's occupancy tables for compute capability 9.0 (registers are given to
//! warps in units of 256, over four partitions; shared memory in units of 128 bytes). Registers per thread
//! are the machine's estimate from the text:
//! `ptxas` decides on a device, so these numbers are plausible and no more.

use ptx_vm::Kernel;

use crate::device::{
    BLOCKS_PER_SM, REGISTERS, SHARED_RESERVED, SMS, THREADS_PER_BLOCK, THREADS_PER_SM, shared_opt_in,
    shared_per_sm,
};
use crate::module::Function;

const WARP: u32 = 32;
const PARTITIONS: u32 = 4;
const REGISTER_UNIT: u32 = 256;
const SHARED_UNIT: u32 = 128;

fn bound(kernel: &Kernel) -> u32 {
    let bound = kernel.required_threads.or(kernel.max_threads);
    bound.map_or(THREADS_PER_BLOCK, |t| t.iter().product()).clamp(1, THREADS_PER_BLOCK)
}

/// Registers per thread that the driver reports: what the text declares, as far as the largest block (and the
/// blocks per multiprocessor that the text asks for) leaves room and its `.maxnreg` allows. ptxas reuses
/// registers and keeps to such bounds, so no launch is refused for an estimate.
pub fn registers(kernel: &Kernel) -> u32 {
    let threads = bound(kernel).next_multiple_of(WARP * PARTITIONS) * kernel.min_blocks.unwrap_or(1).max(1);
    let most = (REGISTERS / threads / 8 * 8).clamp(16, 255);
    let most = most.min(kernel.max_registers.unwrap_or(most).max(16));
    kernel.registers.next_multiple_of(8).clamp(16, most)
}

/// Threads per block that the kernel can be launched with.
pub fn max_threads(kernel: &Kernel) -> u32 {
    bound(kernel)
}

/// Warps whose registers fit a multiprocessor.
fn warps_by_registers(kernel: &Kernel) -> u32 {
    let per_warp = (registers(kernel) * WARP).next_multiple_of(REGISTER_UNIT);
    REGISTERS / PARTITIONS / per_warp * PARTITIONS
}

/// Blocks of `threads` threads with `dynamic` bytes of dynamic shared memory that fit one multiprocessor.
pub fn blocks(function: &Function, threads: u32, dynamic: u64) -> u32 {
    let kernel = &function.kernel;
    if threads == 0 || threads > max_threads(kernel) || dynamic > u64::from(shared_opt_in()) {
        return 0;
    }
    let shared = kernel.static_shared + dynamic as u32;
    if shared > shared_opt_in() {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let shared = (shared + SHARED_RESERVED).next_multiple_of(SHARED_UNIT);
    let by_threads = THREADS_PER_SM / (warps * WARP);
    let by_registers = warps_by_registers(kernel) / warps;
    by_threads.min(by_registers).min(shared_per_sm() / shared).min(BLOCKS_PER_SM)
}

/// Dynamic shared memory per block, in bytes, that lets `count` blocks of `threads` threads fit one
/// multiprocessor.
pub fn dynamic_shared(function: &Function, count: u32, threads: u32) -> Option<u64> {
    if count == 0 || blocks(function, threads, 0) < count {
        return None;
    }
    let per_block = (shared_per_sm() / count / SHARED_UNIT * SHARED_UNIT).saturating_sub(SHARED_RESERVED);
    Some(u64::from(per_block.min(shared_opt_in()).saturating_sub(function.kernel.static_shared)))
}

/// The block size with the most threads per multiprocessor, and the grid that fills the device with it.
pub fn best_block(function: &Function, limit: u32, dynamic: impl Fn(u32) -> u64) -> (u32, u32) {
    let limit = if limit == 0 { THREADS_PER_BLOCK } else { limit };
    let most = limit.min(max_threads(&function.kernel));
    let mut best = (0, 0, 0);
    let mut threads = most.next_multiple_of(WARP).min(THREADS_PER_BLOCK);
    while threads > 0 {
        let size = threads.min(most);
        let fit = blocks(function, size, dynamic(size));
        if fit * size > best.0 {
            best = (fit * size, fit * SMS, size);
        }
        threads -= WARP;
    }
    (best.1, best.2)
}

/// The largest cluster, in blocks, that can be launched.
pub fn largest_cluster(function: &Function, threads: u32, dynamic: u64) -> u32 {
    let most = if function.large_clusters { 16 } else { 8 };
    if blocks(function, threads, dynamic) == 0 { 0 } else { most }
}

/// Clusters of `size` blocks that run at once: a cluster lives in one of the groups of at most 18
/// multiprocessors.
pub fn clusters(function: &Function, threads: u32, dynamic: u64, size: u32) -> u32 {
    const GROUPS: u32 = 8;
    let fit = blocks(function, threads, dynamic);
    (SMS / GROUPS * fit).checked_div(size).unwrap_or(0) * GROUPS
}
