//! How fast the pure matrix functions are on one core:
//! `cargo run --release -p ptx-vm --example matrix_speed`.
//!
//! No memory, no checks, no instruction around them: an upper bound for what a kernel can reach in the
//! machine. Time is that of the core, where the system tells it (Linux), so that neighbours do not count.

mod clock;

use clock::Clock;
use ptx_vm::matrix::{Mma, Summation, Wgmma, WgmmaA};

/// Runs a function for about half a second; billions of floating-point operations per second.
fn rate(operations: usize, mut run: impl FnMut()) -> f64 {
    let start = Clock::start();
    let mut calls = 0usize;
    while start.seconds() < 0.3 {
        (0..64).for_each(|_| run());
        calls += 64;
    }
    (calls * operations) as f64 / start.seconds() / 1e9
}

fn main() -> Result<(), String> {
    for (k, d, a) in [
        (16, "f32", "bf16"),
        (16, "f32", "f16"),
        (16, "f16", "f16"),
        (8, "f32", "tf32"),
        (32, "f32", "e4m3"),
        (32, "s32", "s8"),
    ] {
        let mma = Mma::parse(&["sync", "aligned", &format!("m16n8k{k}"), "row", "col", d, a, a, d])?;
        let (left, right) = ([[0x3c00_3c01; 32]; 4], [[0x3c01_3c00; 32]; 4]);
        let (c, mut out) = ([[0; 32]; 4], [[0; 32]; 4]);
        let n = mma.c_registers();
        let (na, nb) = (mma.a_registers(), mma.b_registers());
        for summation in [Summation::Plain, Summation::Hopper] {
            let rate = rate(2 * 16 * 8 * k, || {
                mma.run(&mut out[..n], std::hint::black_box(&left[..na]), &right[..nb], &c[..n], summation);
            });
            println!("mma.m16n8k{k}.{d}.{a} {summation:?}: {rate:.2} GFLOP/s");
        }
    }
    for n in [64, 128, 256] {
        let wgmma = Wgmma::parse(&["mma_async", &format!("m64n{n}k16"), "f32", "bf16", "bf16"])?;
        let memory = vec![0x3c; 128 * 1024];
        let mut read = |at: u32, bytes: &mut [u8]| -> Result<(), ()> {
            let at = at as usize;
            bytes.copy_from_slice(memory.get(at..at + bytes.len()).ok_or(())?);
            Ok(())
        };
        // 128-byte rows, eight of them to a group, swizzled.
        let descriptor = (1024 >> 4) << 32 | 1 << 62;
        let mut d = vec![vec![[0u32; 32]; wgmma.d_registers()]; 4];
        let mut failed = false;
        let rate = rate(2 * 64 * n * 16, || {
            if let [d0, d1, d2, d3] = &mut d[..] {
                let a = WgmmaA::Shared(descriptor);
                failed |=
                    wgmma.run([d0, d1, d2, d3], a, descriptor, false, Summation::Plain, &mut read).is_err();
            }
        });
        println!(
            "wgmma.m64n{n}k16.f32.bf16 Plain: {rate:.2} GFLOP/s{}",
            if failed { " (failed)" } else { "" }
        );
    }
    Ok(())
}
