//! What the machine can do: reading memory and multiplying and adding, with as many threads as the runs use.
//!
//! Read bandwidth is measured on a buffer far beyond any cache, several streams per thread (one stream alone loses 15
//! to 40 %). The peak of multiply-add is that of the vector instructions that the CPU backend uses, from registers.

use engraft::Result;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// The machine's limits at one time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// 10^9 bytes read per second.
    pub read_gbs: f64,
    /// 10^9 floating-point operations per second; a multiply-add counts as two.
    pub fma_gflops: f64,
}

const WORDS: usize = 256 << 17;
const STREAMS: usize = 4;
const ROUNDS: usize = 3;
const CHAINS: usize = 10;
const CHAIN_STEPS: usize = 4_000_000;

/// Measures both with `threads` threads (0: one per core); the best of a few rounds.
pub fn measure(threads: usize) -> Result<Limits> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if threads == 0 { cores } else { threads };
    // Not zeros: those would be one shared page.
    let buffer: Vec<u64> = (0..WORDS as u64).collect();
    let read = best(|| each(threads, |t| read_part(&buffer, t, threads)));
    let fma = best(|| each(threads, |_| fma_part()));
    Ok(Limits {
        read_gbs: (WORDS * 8) as f64 / read / 1e9,
        fma_gflops: (threads * CHAINS * CHAIN_STEPS * 8 * 2) as f64 / fma / 1e9,
    })
}

/// Seconds of the fastest of a few rounds.
fn best(round: impl Fn()) -> f64 {
    let time = |_| {
        let began = Instant::now();
        round();
        began.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(time).fold(f64::INFINITY, f64::min)
}

fn each(threads: usize, part: impl Fn(usize) + Sync) {
    let part = &part;
    thread::scope(|scope| {
        for t in 1..threads {
            scope.spawn(move || part(t));
        }
        part(0);
    });
}

fn read_part(buffer: &[u64], t: usize, threads: usize) {
    let len = buffer.len() / threads / STREAMS;
    let streams: [&[u64]; STREAMS] = std::array::from_fn(|s| {
        let from = (t * STREAMS + s) * len;
        &buffer[from..from + len]
    });
    let mut sums = [[0u64; 4]; STREAMS];
    for i in 0..len / 4 {
        for (sum, stream) in sums.iter_mut().zip(&streams) {
            for (lane, sum) in sum.iter_mut().enumerate() {
                *sum = sum.wrapping_add(stream[i * 4 + lane]);
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
fn fma_part() {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: both features were just found.
        unsafe { fma_avx2() }
    } else {
        fma_plain();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn fma_part() {
    fma_plain();
}

/// Enough independent chains to hide the latency.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_avx2() {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
    let mut chains = [_mm256_set1_ps(1.0); CHAINS];
    for _ in 0..CHAIN_STEPS {
        for chain in &mut chains {
            *chain = _mm256_fmadd_ps(*chain, a, b);
        }
    }
    black_box(chains);
}

fn fma_plain() {
    let (a, b) = (black_box(0.999f32), black_box(0.001f32));
    let mut chains = [[1f32; 8]; CHAINS];
    for _ in 0..CHAIN_STEPS {
        for chain in &mut chains {
            chain.iter_mut().for_each(|c| *c = *c * a + b);
        }
    }
    black_box(chains);
}
