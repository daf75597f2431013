//! Parameters of scores on the device.

use crate::WgpuMem;
use crate::device::Gpu;
use engraft_core::Result;
use engraft_core::params::Scores;
use std::sync::{Mutex, PoisonError};

/// Parameters of scores on the device, one small buffer for each set that a model uses.
#[derive(Debug, Default)]
pub(crate) struct ScoreBuffers(Mutex<Vec<(Scores, WgpuMem)>>);

impl ScoreBuffers {
    /// The buffer of a set, made when it is first asked for.
    pub fn get(&self, gpu: &Gpu, scores: &Scores) -> Result<WgpuMem> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(s, _)| s == scores) {
            return Ok(mem.share());
        }
        let mem = gpu.alloc_filled("scores", bytemuck::cast_slice(&describe(scores)))?;
        // Models have a handful; a caller that never repeats itself must not fill memory.
        if made.len() >= 64 {
            made.remove(0);
        }
        made.push((scores.clone(), mem.share()));
        Ok(mem)
    }
}

/// Words as `attention.wgsl` reads them: scale, cap, its reciprocal, window or chunk, flags, ahead, slopes.
fn describe(scores: &Scores) -> Vec<u32> {
    let cap = scores.soft_cap.unwrap_or(1.0);
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    let flags = flag(scores.causal, 1)
        | flag(scores.window.is_some(), 2)
        | flag(scores.alibi.is_some(), 4)
        | flag(scores.ahead.is_some() && !scores.causal, 8)
        | flag(scores.chunk.is_some(), 16);
    let (window, ahead) = (scores.window.or(scores.chunk).unwrap_or(0), scores.ahead.unwrap_or(0));
    let head = [scores.scale.to_bits(), cap.to_bits(), (1.0 / cap).to_bits(), window, flags, ahead];
    let slopes = scores.alibi.iter().flat_map(|s| s.iter().map(|v| v.to_bits()));
    head.into_iter().chain(slopes).collect()
}
