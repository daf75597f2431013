//! What a launch is given and what it gives back.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::fault::Instruction;
use crate::memory::Traffic;
use crate::{Fault, Instance, Memory};

/// The order in which ready warps (and blocks) take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// Ascending warp numbers, ascending blocks.
    #[default]
    Forward,
    /// Descending warp numbers, descending blocks.
    Reverse,
    /// A new pseudo-random order each turn, from this seed.
    Random(u64),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Forward => f.write_str("forward"),
            Schedule::Reverse => f.write_str("reverse"),
            Schedule::Random(seed) => write!(f, "random{seed}"),
        }
    }
}

/// How `*.approx` functions round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// The correctly rounded result of an f64 evaluation.
    #[default]
    Exact,
    /// The documented error, added or taken by a hash of the argument's bits: a kernel that lives on lucky
    /// bits fails.
    Worst,
}

/// Which threads may be absent from a `bar.sync`, or another barrier of the block with `.aligned`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Barriers {
    /// Threads that have ended, as Volta and later hardware counts them.
    Ended,
    /// Warps that have ended, all lanes of them. A warp of which some lanes have ended, or went around the
    /// barrier, breaks the manual's rule for `.aligned`: `if (t < 20) __syncthreads()`.
    #[default]
    EndedWarps,
    /// None: every thread of the block comes to each barrier that names no number of threads.
    NoLane,
}

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Blocks, `[x, y, z]`.
    pub grid: [u32; 3],
    /// Threads per block, `[x, y, z]`.
    pub block: [u32; 3],
    /// Blocks per cluster, `[x, y, z]`; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// The parameter block, laid out as [`Kernel::parameters`](crate::Kernel::parameters) says.
    pub params: Vec<u8>,
    /// All blocks run at once and may wait for each other (cooperative launch).
    pub cooperative: bool,
    /// The virtual device that runs the kernel.
    pub device: u32,
    /// Which of the device's heaps `malloc` and `free` are about: launches with one number share a heap,
    /// which lives until [`Memory::drop_heap`].
    pub heap: u64,
    /// Memory that an unfinished earlier grid still writes (programmatic dependent launch): off limits until
    /// `griddepcontrol.wait`. Usually the [`Report::written`] of that earlier grid.
    pub pending: Vec<Range<u64>>,
}

impl Launch {
    /// A plain launch on device 0 without clusters, dynamic shared memory or parameters.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Launch {
            grid,
            block,
            cluster: [1; 3],
            dynamic_shared: 0,
            params: Vec::new(),
            cooperative: false,
            device: 0,
            heap: 0,
            pending: Vec::new(),
        }
    }

    /// The same launch with this parameter block (see [`Kernel::pack`](crate::Kernel::pack)).
    pub fn with_params(mut self, params: Vec<u8>) -> Self {
        self.params = params;
        self
    }
}

/// What the machine checks, and how it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The order of warps and blocks.
    pub schedule: Schedule,
    /// Report races in shared memory.
    pub shared_races: bool,
    /// Report races in global memory, between warps and between blocks.
    pub global_races: bool,
    /// Report races of two stores of the same bytes, as when many threads raise one flag.
    pub equal_stores: bool,
    /// Report reads of bytes (global or shared) that nothing has written.
    pub uninitialised: bool,
    /// Which threads may be absent from a barrier of the block.
    pub barriers: Barriers,
    /// Distinct faults after which the launch ends, 1 at least. A launch goes on behind races, reads of
    /// unwritten bytes, and loads and stores at bad addresses (these load zero and store nothing); every
    /// other fault ends it.
    pub faults: usize,
    /// Warp instructions after which the launch is given up.
    pub budget: u64,
    /// How `*.approx` functions round.
    pub approx: Rounding,
    /// Sum tensor-core matmuls as the hardware is known to (true), or in plain f32 (false).
    pub tensor_core_sums: bool,
    /// Collect [`Report::written`].
    pub track_writes: bool,
    /// Collect [`Report::accesses`]; needs `global_races`.
    pub track_accesses: bool,
    /// Collect [`Report::traffic`] and [`Memory::traffic`].
    pub count_traffic: bool,
    /// Collect [`Report::lines`].
    pub count_lines: bool,
    /// Bytes of text that `printf` may leave behind before the oldest are lost.
    pub print_bytes: usize,
    /// Bytes of the heap that `malloc` takes from: it gives 0 where they do not suffice.
    pub heap_bytes: u64,
    /// Threads over which independent blocks are spread, at most; results, reports and faults do not depend
    /// on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            schedule: Schedule::Forward,
            shared_races: true,
            global_races: true,
            equal_stores: true,
            uninitialised: true,
            barriers: Barriers::EndedWarps,
            faults: 1,
            budget: 4_000_000_000,
            approx: Rounding::Exact,
            tensor_core_sums: false,
            track_writes: false,
            track_accesses: false,
            count_traffic: false,
            count_lines: false,
            print_bytes: 1 << 20,
            heap_bytes: 8 << 20,
            threads: 1,
        }
    }
}

/// How often a line of the PTX was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineCount {
    /// Number of the line in the module's text, from 1.
    pub line: u32,
    /// The instruction as it stands there.
    pub text: String,
    /// Executions by a warp, whatever lanes were active.
    pub warps: u64,
}

/// A range of global memory that a launch has read or written by one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// The addresses.
    pub range: Range<u64>,
    /// It was written (and perhaps read as well).
    pub write: bool,
    /// By atomics, volatile or relaxed accesses alone.
    pub strong: bool,
    /// Not before a release to other launches: none of them can be ordered behind it by a flag.
    pub late: bool,
    /// The instruction that did it last, where it is known.
    pub by: Option<Arc<Instruction>>,
}

/// What a finished launch did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Warp instructions executed.
    pub instructions: u64,
    /// Blocks run.
    pub blocks: u64,
    /// Ranges of global memory written, ascending and disjoint, at the grain of 256 bytes
    /// (with [`Options::track_writes`]).
    pub written: Vec<Range<u64>>,
    /// Global memory read and written, at the grain of 4 bytes, by address (with
    /// [`Options::track_accesses`]).
    pub accesses: Vec<Touched>,
    /// Bytes moved from and to global memory (with [`Options::count_traffic`]).
    pub traffic: Traffic,
    /// Executions of each line of the kernel, lines never reached included (with [`Options::count_lines`]).
    pub lines: Vec<LineCount>,
    /// Most instructions that one warp executed.
    pub longest_warp: u64,
}

/// Runs a kernel to its end.
///
/// # Errors
/// The first [`Fault`]. Memory then holds what had been written when the launch was given up: at the fault,
/// or, behind a read of unwritten bytes, when it was clear whether somebody writes them later (then it is a
/// race).
pub fn launch(
    instance: &Instance,
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Report, Fault> {
    first(crate::run::schedule::run(instance, kernel, launch, None, memory, options))
}

/// Runs a kernel to its end, or to [`Options::faults`] distinct faults.
///
/// # Errors
/// All faults in the order they were found, one at least. They are distinct: the same kind at the same
/// instruction (with the same other instruction) is told once.
pub fn launch_all(
    instance: &Instance,
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Report, Vec<Fault>> {
    crate::run::schedule::run(instance, kernel, launch, None, memory, options)
}

/// The first of one or more faults.
fn first(outcome: Result<Report, Vec<Fault>>) -> Result<Report, Fault> {
    outcome.map_err(|mut faults| faults.swap_remove(0))
}

/// Runs these blocks of a launch alone, by their number in the grid (x fastest); the kernel sees the whole
/// grid.
///
/// For what a part of a large grid does, such as the counts of one block. With clusters a number is a
/// cluster's.
///
/// # Errors
/// As [`launch`]; a number beyond the grid, or one that appears twice.
pub fn launch_blocks(
    instance: &Instance,
    kernel: &str,
    launch: &Launch,
    blocks: &[u32],
    memory: &mut Memory,
    options: &Options,
) -> Result<Report, Fault> {
    first(crate::run::schedule::run(instance, kernel, launch, Some(blocks), memory, options))
}
