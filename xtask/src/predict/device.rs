//! The constants of an H200, in one table: everything that is not counted.
//!
//! Bandwidths and rates of matrix units are measured (`bench/runs/2026-11-26-h200`); the others are NVIDIA's
//! (H200 data sheet, Hopper tuning guide), or what published measurements of kernels reach on H100 and H200;
//! those of exchanges were fitted to published times of such kernels on H100; nothing here has measured
//! them.

/// What a device can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Streaming multiprocessors. Data sheet.
    pub sms: f64,
    /// Clock under load, Hz. Boost is 1.98e9; tensor-core kernels are held near this by power.
    pub clock: f64,
    /// Device memory, bytes/s that `bench` reads in the run that it measures; 4.8e12 in the data sheet.
    pub dram: f64,
    /// Latency of device memory under load, s: with `dram` it says how many bytes have to be in flight.
    pub dram_latency: f64,
    /// L2 cache, bytes/s of all SMs together: what the copies of `gemmw_n128` reach.
    pub l2: f64,
    /// Bytes that one SM takes from L2 in a cycle.
    pub l2_port: f64,
    /// Bytes of activations that are found in L2 by the next launch: half of its 60 MiB.
    pub l2_keeps: u64,
    /// Latency of a plain load that hits L2, cycles.
    pub l2_latency: f64,
    /// 16-bit operations/s of `wgmma` on random values after half a second of load: power allows no more.
    pub wgmma: f64,
    /// The same of `mma.sync`.
    pub mma: f64,
    /// Warp instructions that an SM issues in a cycle: 4 schedulers, 80 % of their slots in good kernels.
    pub issue: f64,
    /// Cycles from one instruction of a warp to its next, where no other warp hides them.
    pub warp_cycles: f64,
    /// Wavefronts of shared memory in a cycle of an SM.
    pub shared: f64,
    /// Warp instructions of the special function units in a cycle of an SM: 16 lanes.
    pub special: f64,
    /// Registers of an SM.
    pub registers: u32,
    /// Shared memory of an SM, bytes.
    pub shared_bytes: u32,
    /// Shared memory that the system keeps of each block, bytes.
    pub shared_reserved: u32,
    /// Threads of an SM.
    pub threads: u32,
    /// Blocks of an SM.
    pub blocks: u32,
    /// Memory of the device, bytes.
    pub memory: f64,
    /// From the end of a launch to the work of the next that waits for it, s: graph, programmatic dependent
    /// launch.
    pub gap: f64,
    /// Between two steps on the host: the token comes down, the next inputs go up, s.
    pub host: f64,
    /// What SMs read of other devices' memory, bytes/s: links take 450e9 in each direction.
    pub link: f64,
    /// The same at most, bytes/s.
    pub link_most: f64,
    /// An exchange of 2, 4 and 8 ranks without its bytes, s: a launch, and a round of flags.
    pub round: [f64; 3],
    /// The same with two rounds, s.
    pub rounds: [f64; 3],
}

/// An H200 SXM.
pub const H200: Device = Device {
    sms: 132.0,
    clock: 1.755e9,
    dram: 4.22e12,
    dram_latency: 1.0e-6,
    l2: 9.8e12,
    l2_port: 64.0,
    l2_keeps: 30 << 20,
    l2_latency: 270.0,
    wgmma: 888e12,
    mma: 629e12,
    issue: 3.2,
    warp_cycles: 3.0,
    shared: 1.0,
    special: 0.5,
    registers: 65_536,
    shared_bytes: 233_472,
    shared_reserved: 1024,
    threads: 2048,
    blocks: 32,
    memory: 141e9,
    gap: 0.9e-6,
    host: 55e-6,
    link: 340e9,
    link_most: 450e9,
    round: [5.5e-6, 5.8e-6, 6.8e-6],
    rounds: [8.0e-6, 8.5e-6, 9.5e-6],
};

/// What an entry takes of an SM, as `ptxas` reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, bytes.
    pub shared: u32,
}

impl Device {
    /// Blocks of so many threads and bytes of dynamic shared memory that an SM holds at once; at least 1.
    pub fn resident(&self, resources: Resources, threads: u32, dynamic: u32) -> u32 {
        let warps = threads.div_ceil(32).max(1);
        // Registers are given to warps in units of 256.
        let registers = warps * (resources.registers.max(1) * 32).next_multiple_of(256);
        let shared = resources.shared + dynamic + self.shared_reserved;
        let most = [
            self.registers / registers,
            self.shared_bytes / shared,
            self.threads / (warps * 32),
            self.blocks,
        ];
        most.into_iter().min().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_an_sm_are_bound_by_what_is_scarcest() {
        let of = |registers, shared, threads, dynamic| {
            H200.resident(Resources { registers, shared }, threads, dynamic)
        };
        assert_eq!(of(39, 0, 256, 98_304), 2, "shared memory");
        assert_eq!(of(205, 0, 256, 1024), 1, "registers");
        assert_eq!(of(32, 0, 1024, 0), 2, "threads");
        assert_eq!(of(16, 0, 32, 0), 32, "blocks");
        assert_eq!(of(168, 0, 384, 200_000), 1, "a block runs whatever it takes");
    }
}
