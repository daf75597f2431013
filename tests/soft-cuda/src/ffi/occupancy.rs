//! Occupancy.

use super::arg::{In, Out};
use super::entries;
use super::launch::config;
use super::module::function;
use crate::abi::{Handle, LaunchConfig};
use crate::called;
use crate::code::{Code, Result};
use crate::occupancy;
use crate::state::Held;

/// Dynamic shared memory as a function of the block size, if the program gives one.
type BySize = Option<unsafe extern "C" fn(i32) -> usize>;

fn blocks(d: &mut Held, count: Out<i32>, f: Handle, threads: i32, dynamic: usize) -> Result {
    let threads = u32::try_from(threads).ok().filter(|&n| n > 0).ok_or(Code::INVALID_VALUE)?;
    count.set(occupancy::blocks(function(d, f)?, threads, dynamic as u64) as i32)
}

fn best(
    d: &mut Held,
    grid: Out<i32>,
    block: Out<i32>,
    f: Handle,
    by_size: BySize,
    dynamic: usize,
    limit: i32,
) -> Result {
    let limit = u32::try_from(limit).map_err(|_| Code::INVALID_VALUE)?;
    let shared = |threads: u32| match by_size {
        // SAFETY: the program handed in this function to be called with block sizes.
        Some(function) => called::as_host_function(|| unsafe { function(threads as i32) as u64 }),
        None => dynamic as u64,
    };
    let (blocks, threads) = occupancy::best_block(function(d, f)?, limit, shared);
    grid.set(blocks as i32)?;
    block.set(threads as i32)
}

fn threads(raw: &LaunchConfig) -> u32 {
    raw.block.iter().product()
}

entries! {
    /// Blocks that fit a multiprocessor.
    live fn cuOccupancyMaxActiveBlocksPerMultiprocessor(d, count: Out<i32>, f: Handle, threads: i32, dynamic: usize) {
        blocks(d, count, f, threads, dynamic)
    }

    /// The same; the flag about caching changes nothing.
    live fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        d, count: Out<i32>, f: Handle, threads: i32, dynamic: usize, flags: u32,
    ) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        blocks(d, count, f, threads, dynamic)
    }

    /// The block size that fills the device.
    live fn cuOccupancyMaxPotentialBlockSize(
        d, grid: Out<i32>, block: Out<i32>, f: Handle, by_size: BySize, dynamic: usize, limit: i32,
    ) {
        best(d, grid, block, f, by_size, dynamic, limit)
    }

    /// The same with flags.
    live fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        d, grid: Out<i32>, block: Out<i32>, f: Handle, by_size: BySize, dynamic: usize, limit: i32, flags: u32,
    ) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        best(d, grid, block, f, by_size, dynamic, limit)
    }

    /// Dynamic shared memory that lets so many blocks fit.
    live fn cuOccupancyAvailableDynamicSMemPerBlock(d, bytes: Out<usize>, f: Handle, blocks: i32, threads: i32) {
        let [Ok(blocks), Ok(threads)] = [u32::try_from(blocks), u32::try_from(threads)] else { return Err(Code::INVALID_VALUE) };
        bytes.set(occupancy::dynamic_shared(function(d, f)?, blocks, threads).ok_or(Code::INVALID_VALUE)? as usize)
    }

    /// The largest cluster.
    live fn cuOccupancyMaxPotentialClusterSize(d, size: Out<i32>, f: Handle, raw: In<LaunchConfig>) {
        let raw = raw.get()?;
        size.set(occupancy::largest_cluster(function(d, f)?, threads(&raw), raw.shared.into()) as i32)
    }

    /// Clusters at once.
    live fn cuOccupancyMaxActiveClusters(d, count: Out<i32>, f: Handle, raw: In<LaunchConfig>) {
        let raw = raw.get()?;
        let cluster = config(&raw)?.cluster.unwrap_or([1; 3]).iter().product();
        count.set(occupancy::clusters(function(d, f)?, threads(&raw), raw.shared.into(), cluster) as i32)
    }
}
