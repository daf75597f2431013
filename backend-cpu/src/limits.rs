//! What this machine can do at most: read bandwidth and multiply-add peak, measured with the backend's own
//! threads.
//!
//! `engraft bench` gives its figures as shares of these, measured in the same run, so that a noisy neighbour
//! spoils both.

use crate::kernels::{AlignedBytes, Machine};
use crate::simd::wide::{self, Kernel16, Lanes16};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::Result;
use std::time::Instant;

/// The limits with the threads of one machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Reading memory that no cache holds, 10^9 bytes per second.
    pub read_gb_s: f64,
    /// f32 multiply-adds from registers, 10^9 operations (two per multiply-add) per second.
    pub fma_gflop_s: f64,
}

/// Measures both, best of `rounds`; takes 512 MiB of memory and about 50 ms per round.
pub fn measure(machine: &Machine, rounds: usize) -> Result<Limits> {
    let mut memory = AlignedBytes::zeroed(READ);
    // Touched, so that pages exist; zero pages would all be the same one.
    // SAFETY: its own length.
    unsafe { memory.as_mut_ptr().write_bytes(1, READ) };
    let mut best = Limits { read_gb_s: 0.0, fma_gflop_s: 0.0 };
    for _ in 0..rounds.max(1) {
        best.read_gb_s = best.read_gb_s.max(read(machine, &memory)?);
        best.fma_gflop_s = best.fma_gflop_s.max(fma(machine)?);
    }
    Ok(best)
}

/// Bytes read per round.
const READ: usize = 512 << 20;
/// Bytes of a chunk: four streams of a quarter each.
const CHUNK: usize = 1 << 18;

/// One pass over `memory`, GB/s.
fn read(machine: &Machine, memory: &AlignedBytes) -> Result<f64> {
    struct Pass<'a>(&'a AlignedBytes, usize);
    impl Kernel for Pass<'_> {
        #[inline(always)]
        fn run<V: Lanes>(self) {
            let quarter = CHUNK / 4;
            let mut sums = [V::splat(0.0); 8];
            for at in (0..quarter).step_by(64) {
                for s in 0..4 {
                    let p = self.0.as_ptr().wrapping_add(self.1 * CHUNK + s * quarter + at);
                    // SAFETY: 64 bytes within chunk `self.1` of the memory.
                    unsafe {
                        V::prefetch(p.wrapping_add(2048));
                        let p = p.cast::<f32>();
                        sums[2 * s] = sums[2 * s].add(V::load(p)).add(V::load(p.add(8)));
                    }
                }
            }
            let total = sums.into_iter().reduce(Lanes::add);
            let mut out = [0f32; 8];
            if let Some(t) = total {
                // SAFETY: 8 floats.
                unsafe { t.store(out.as_mut_ptr()) };
            }
            std::hint::black_box(out);
        }
    }
    let start = Instant::now();
    machine.pool.run(READ / CHUNK, |c, _| simd::run(machine.isa, machine.madd, Pass(memory, c)))?;
    Ok(READ as f64 * 1e-9 / start.elapsed().as_secs_f64())
}

/// Independent chains in registers, GFLOP/s.
fn fma(machine: &Machine) -> Result<f64> {
    const STEPS: usize = 1 << 16;
    struct Chains;
    impl Kernel16 for Chains {
        #[inline(always)]
        fn run<W: Lanes16>(self) {
            // As many registers as a tile of a matmul has; more chains than the processor has multiply-adds
            // in flight.
            if W::TILE.panels > 1 { chains::<W, 12>() } else { chains::<W, 6>() }
        }
    }
    #[inline(always)]
    fn chains<W: Lanes16, const N: usize>() {
        let x = W::splat(std::hint::black_box(0.999));
        let mut acc = [W::splat(1.0); N];
        for _ in 0..STEPS * 12 / N {
            for a in &mut acc {
                *a = a.madd(x, x);
            }
        }
        let mut out = [0f32; 16];
        for a in acc {
            // SAFETY: 16 floats.
            unsafe { a.store(out.as_mut_ptr()) };
            std::hint::black_box(&out);
        }
    }
    let chunks = machine.pool.threads() * 16;
    let start = Instant::now();
    machine.pool.run(chunks, |_, _| wide::run(machine.isa, machine.madd, Chains))?;
    Ok((chunks * STEPS * 12 * 32) as f64 * 1e-9 / start.elapsed().as_secs_f64())
}
