//! Parameters of scores on the device, and what heads have for themselves.

use crate::WgpuMem;
use crate::device::Gpu;
use engraft_core::Result;
use engraft_core::mem::DeviceMem;
use engraft_core::params::{Relative, Scores};
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

/// Words that a kernel has no parameters left for, the same in every step.
#[derive(Debug, Default)]
pub(crate) struct FixedWords(Mutex<Vec<(Vec<u32>, WgpuMem)>>);

impl FixedWords {
    /// The buffer of these words, made when it is first asked for.
    pub fn get(&self, gpu: &Gpu, words: &[u32]) -> Result<WgpuMem> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(of, _)| of == words) {
            return Ok(mem.share());
        }
        let mem = gpu.alloc_filled("fixed words", bytemuck::cast_slice(words))?;
        // As for scores: a model has two.
        if made.len() >= 64 {
            made.remove(0);
        }
        made.push((words.to_vec(), mem.share()));
        Ok(mem)
    }
}

/// Sinks and biases of heads that have both, one behind the other: shaders have one binding for them.
#[derive(Debug, Default)]
pub(crate) struct OfHeads(Mutex<Vec<([u64; 2], WgpuMem)>>);

impl OfHeads {
    /// The buffer of two weights, whose values never change: copied when it is first asked for.
    pub fn get(&self, gpu: &Gpu, parts: [&WgpuMem; 2]) -> Result<WgpuMem> {
        let ids = parts.map(WgpuMem::id);
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(of, _)| *of == ids) {
            return Ok(mem.share());
        }
        let sizes = parts.map(DeviceMem::bytes);
        let mem = gpu.alloc("sinks and biases", sizes[0].saturating_add(sizes[1]))?;
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut at = 0;
        for (part, size) in parts.iter().zip(sizes.map(|size| size as u64)) {
            encoder.copy_buffer_to_buffer(part.buffer(), 0, mem.buffer(), at, size);
            at += size;
        }
        gpu.queue.submit([encoder.finish()]);
        // As for scores: a model has one pair a layer.
        if made.len() >= 256 {
            made.remove(0);
        }
        made.push((ids, mem.share()));
        Ok(mem)
    }
}

/// Words as `attention.wgsl` reads them: scale, cap, its reciprocal, window or chunk, flags, ahead, distances
/// behind and ahead, slopes.
fn describe(scores: &Scores) -> Vec<u32> {
    let cap = scores.soft_cap.unwrap_or(1.0);
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    let flags = flag(scores.causal, 1)
        | flag(scores.window.is_some(), 2)
        | flag(scores.alibi.is_some(), 4)
        | flag(scores.ahead.is_some() && !scores.causal, 8)
        | flag(scores.relative.is_some(), 16)
        | flag(scores.chunk.is_some(), 32);
    let Relative { behind, ahead: reach } = scores.relative.unwrap_or(Relative { behind: 0, ahead: 0 });
    let (window, ahead) = (scores.window.or(scores.chunk).unwrap_or(0), scores.ahead.unwrap_or(0));
    let factors = [scores.scale, cap, 1.0 / cap].map(f32::to_bits);
    let slopes = scores.alibi.iter().flat_map(|s| s.iter().map(|v| v.to_bits()));
    factors.into_iter().chain([window, flags, ahead, behind, reach]).chain(slopes).collect()
}
