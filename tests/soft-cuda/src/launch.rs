//! Launches: what is checked before a kernel is submitted.
//!
//! Limits are the device's ([`crate::device`]) and the function's. What is wrong here is an error of the call
//! and is not sticky; what goes wrong in the kernel comes out when it has run.

use crate::capture;
use crate::code::{Code, Result};
use crate::device::{BLOCK, GRID, SMS, THREADS_PER_BLOCK};
use crate::graph::Job;
use crate::module::Function;
use crate::occupancy;
use crate::state::{Driver, Held, Id};
use crate::stream;
use crate::work::{HostCall, KernelWork, Work};

/// Grid, block and attributes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Blocks per cluster, if given.
    pub cluster: Option<[u32; 3]>,
    /// All blocks must be resident at once.
    pub cooperative: bool,
    /// It may start before the stream's previous kernel has ended.
    pub programmatic: bool,
}

impl Config {
    /// A launch without attributes.
    pub fn new(grid: [u32; 3], block: [u32; 3], shared: u32) -> Self {
        Config { grid, block, shared, cluster: None, cooperative: false, programmatic: false }
    }
}

/// The cluster that a launch will have.
fn cluster(function: &Function, config: &Config) -> Result<[u32; 3]> {
    let set = function.cluster;
    let own = if set == [0; 3] { None } else { Some(set.map(|n| n.max(1))) };
    let required = function.kernel.required_cluster;
    if required.is_some() && config.cluster.is_some() && config.cluster != required {
        return Err(Code::INVALID_CLUSTER_SIZE);
    }
    let cluster = config.cluster.or(required).or(own).unwrap_or([1; 3]);
    let size = cluster.iter().try_fold(1u32, |a, &b| a.checked_mul(b)).ok_or(Code::INVALID_CLUSTER_SIZE)?;
    let most = match (function.large_clusters, function.kernel.max_cluster) {
        (true, declared) => declared.unwrap_or(16).min(16),
        (false, declared) => declared.unwrap_or(8).min(8),
    };
    let divides = (0..3).all(|i| cluster[i] > 0 && config.grid[i].is_multiple_of(cluster[i]));
    if size == 0 || size > most || !divides {
        return Err(Code::INVALID_CLUSTER_SIZE);
    }
    Ok(cluster)
}

/// Checks a launch against a function's and the device's limits; the cluster it will have.
pub fn check(function: &Function, config: &Config) -> Result<[u32; 3]> {
    let within = |value: [u32; 3], most: [u32; 3]| (0..3).all(|i| value[i] > 0 && value[i] <= most[i]);
    let threads: u64 = config.block.iter().map(|&n| u64::from(n)).product();
    if !within(config.grid, GRID) || !within(config.block, BLOCK) || threads > u64::from(THREADS_PER_BLOCK) {
        return Err(Code::INVALID_VALUE);
    }
    let threads = threads as u32;
    // A block above the kernel's own bound is no lack of resources: numba-cuda's tests hold GPUs to this
    // code.
    if function.kernel.required_threads.is_some_and(|r| r != config.block)
        || threads > occupancy::max_threads(&function.kernel)
        || config.shared > function.max_dynamic
    {
        return Err(Code::INVALID_VALUE);
    }
    let cluster = cluster(function, config)?;
    if config.cooperative {
        let fit = u64::from(occupancy::blocks(function, threads, u64::from(config.shared)) * SMS);
        let blocks: u64 = config.grid.iter().map(|&n| u64::from(n)).product();
        if blocks > fit {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(cluster)
}

/// Makes a kernel operation of a function, a checked configuration and a parameter block.
pub fn prepare(d: &Driver, id: Id, config: &Config, params: Vec<u8>) -> Result<KernelWork> {
    let function = d.functions.get(&id).ok_or(Code::INVALID_HANDLE)?;
    let device = d.healthy(function.context)?.device;
    let cluster = check(function, config)?;
    let launch = ptx_vm::Launch {
        grid: config.grid,
        block: config.block,
        cluster,
        dynamic_shared: config.shared,
        params,
        cooperative: config.cooperative,
        device,
        heap: function.context.0,
        pending: Vec::new(),
    };
    Ok(KernelWork {
        function: id,
        instance: function.instance.clone(),
        name: function.kernel.name.as_str().into(),
        heap: function.kernel.uses_heap,
        launch,
        written: Default::default(),
        programmatic: config.programmatic,
        unfinished: None,
    })
}

/// Launches a kernel in a stream.
pub fn launch(d: &mut Held, function: Id, config: &Config, params: Vec<u8>, stream_id: Id) -> Result {
    let work = prepare(d, function, config, params)?;
    let found = d.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)?;
    let (context, late) = (found.context, !found.loaded);
    if stream::get(d, stream_id)?.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    if late && let Some(found) = d.functions.get_mut(&function) {
        found.loaded = true;
        d.statistics.loaded_late += 1;
    }
    let work = Work::Kernel(Box::new(work));
    if capture::active(d, stream_id)?.is_some() {
        return capture::add(d, stream_id, Job::Work(work)).map(|_| ());
    }
    stream::submit(d, stream_id, work).map(|_| ())
}

/// Submits a function of the program.
pub fn host_call(d: &mut Held, stream_id: Id, call: HostCall) -> Result {
    stream::submit(d, stream_id, Work::Call(call)).map(|_| ())
}
