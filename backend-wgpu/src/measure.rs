//! What an adapter can do at most, measured: the figures that those of models are compared with.

use crate::adapter::AdapterKind;
use crate::command::{Call, Slot};
use crate::{Wgpu, WgpuStream};
use engraft_core::Result;
use engraft_core::backend::Stream;
use engraft_shaders::{Kernel, Limit};
use std::sync::Arc;

/// Invocations that share the work: enough for the largest GPU.
const INVOCATIONS: u32 = 1 << 18;
/// Invocations of a workgroup.
const GROUP: u32 = 256;
/// Bytes of a vector that is read at once.
const VECTOR: u64 = 16;
/// Operations of an invocation's round: eight chains of four products and sums.
const ROUND: u64 = 64;
/// Rounds of an invocation in one dispatch, and where the CPU plays the device.
const ROUNDS: (u32, u32) = (1024, 16);
/// Bytes that are read, more than caches hold, and where the CPU plays the device.
const BYTES: (u64, u64) = (256 << 20, 64 << 20);
/// What a measurement takes at least, so that handing over does not count.
const LEAST_US: f64 = 5_000.0;
/// Dispatches of a measurement at most.
const MOST: usize = 1 << 10;
/// Measurements; the fastest counts.
const PASSES: usize = 3;

impl Wgpu {
    /// Measures 10^9 bytes read per second and 10^9 operations of f32 multiply-adds per second (a
    /// multiply-add counts as two).
    ///
    /// # Errors
    /// `OutOfMemory` where the buffer that is read does not fit; `DeviceLost`.
    pub fn measure_limits(self: &Arc<Self>) -> Result<(f64, f64)> {
        let software = self.adapter().kind == AdapterKind::Software;
        let (bytes, rounds) = if software { (BYTES.1, ROUNDS.1) } else { (BYTES.0, ROUNDS.0) };
        let bytes = bytes.min(self.limits().binding).min(self.limits().buffer) / VECTOR * VECTOR;
        let alloc = |bytes| self.gpu.alloc("what is measured", bytes);
        let (data, results) = (alloc(bytes as usize)?, alloc(INVOCATIONS as usize * 4)?);
        let [data, results] = [
            Slot::whole(self.limits(), &data, "what is read")?,
            Slot::whole(self.limits(), &results, "results")?,
        ];
        let grid = [INVOCATIONS / GROUP, 1, 1];
        let vectors = (bytes / VECTOR) as u32;
        let read = Call {
            kernel: Kernel::Limit(Limit::Read),
            slots: &[data, results],
            words: &[vectors, INVOCATIONS],
            grid,
        };
        let words = &[rounds, INVOCATIONS];
        let multiply = Call { kernel: Kernel::Limit(Limit::Multiply), slots: &[results], words, grid };
        let operations = ROUND * u64::from(rounds) * u64::from(INVOCATIONS);
        let mut stream = WgpuStream::new(self.clone());
        Ok((
            bytes as f64 / fastest(&mut stream, &read)? / 1e3,
            operations as f64 / fastest(&mut stream, &multiply)? / 1e3,
        ))
    }
}

/// Microseconds of a dispatch, of the fastest measurement.
fn fastest(stream: &mut WgpuStream, call: &Call<'_>) -> Result<f64> {
    // Compiles, and lets buffers be cleared.
    stream.call(call)?;
    stream.sync()?;
    let (mut dispatches, mut passes, mut best) = (1, 0, f64::INFINITY);
    while passes < PASSES {
        let from = stream.record()?;
        for _ in 0..dispatches {
            stream.call(call)?;
        }
        let to = stream.record()?;
        let us = stream.elapsed_us(&from, &to)?;
        match us < LEAST_US && dispatches < MOST {
            true => dispatches *= 2,
            false => {
                passes += 1;
                best = best.min(us / dispatches as f64);
            }
        }
    }
    Ok(best)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::tests::opened;

    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn limits_are_what_a_machine_can_have() {
        let gpu = opened();
        let (read, multiply) = gpu.measure_limits().unwrap();
        println!("{}: {read:.1} GB/s read, {multiply:.1} GFLOP/s", gpu.adapter().name);
        assert!((0.1..1e5).contains(&read) && (0.1..1e7).contains(&multiply), "{read} {multiply}");
    }
}
