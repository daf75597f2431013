//! Small buffers that kernels read next to their operands: parameters of scores, what heads have for
//! themselves, and words that no parameters are left for.

use crate::WgpuMem;
use crate::device::{Gpu, Uploads};
use crate::encoding::{self, Encoding};
use engraft_core::Result;
use engraft_core::mem::DeviceMem;
use engraft_core::params::{Relative, Scores};
use std::sync::{Mutex, PoisonError};

/// Small buffers that were made once, by what they were made of.
#[derive(Debug)]
struct Made<K>(Mutex<Vec<(K, WgpuMem)>>);

impl<K> Default for Made<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K> Made<K> {
    /// The buffer that `is` finds, else what `make` makes. Models have a handful; a caller that never repeats
    /// itself must not fill memory: `most` are kept.
    fn get(
        &self,
        most: usize,
        is: impl Fn(&K) -> bool,
        make: impl FnOnce() -> Result<(K, WgpuMem)>,
    ) -> Result<WgpuMem> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(of, _)| is(of)) {
            return Ok(mem.share());
        }
        let (of, mem) = make()?;
        if made.len() >= most {
            made.remove(0);
        }
        made.push((of, mem.share()));
        Ok(mem)
    }
}

/// Parameters of scores on the device, one small buffer for each set that a model uses.
#[derive(Debug, Default)]
pub(crate) struct ScoreBuffers(Made<Scores>);

impl ScoreBuffers {
    /// The buffer of a set, made when it is first asked for.
    pub fn get(&self, gpu: &Gpu, queue: &dyn Uploads, scores: &Scores) -> Result<WgpuMem> {
        let make = || {
            let mem = gpu.alloc_filled("scores", bytemuck::cast_slice(&describe(scores)), queue)?;
            Ok((scores.clone(), mem))
        };
        self.0.get(64, |of| of == scores, make)
    }
}

/// Words that a kernel has no parameters left for, the same in every step.
#[derive(Debug, Default)]
pub(crate) struct FixedWords(Made<Vec<u32>>);

impl FixedWords {
    /// The buffer of these words, made when it is first asked for.
    pub fn get(&self, gpu: &Gpu, queue: &dyn Uploads, words: &[u32]) -> Result<WgpuMem> {
        let make = || {
            let mem = gpu.alloc_filled("fixed words", bytemuck::cast_slice(words), queue)?;
            Ok((words.to_vec(), mem))
        };
        self.0.get(64, |of| of == words, make)
    }
}

/// Sinks and biases of heads that have both, one behind the other: shaders have one binding for them.
#[derive(Debug, Default)]
pub(crate) struct OfHeads(Made<[u64; 2]>);

impl OfHeads {
    /// The buffer of two weights, whose values never change: copied when it is first asked for. A model has
    /// one pair a layer.
    pub fn get(&self, gpu: &Gpu, encoding: &Mutex<Encoding>, parts: [&WgpuMem; 2]) -> Result<WgpuMem> {
        let ids = parts.map(WgpuMem::id);
        self.0.get(256, |of| *of == ids, || Ok((ids, joined(gpu, encoding, parts)?)))
    }
}

/// A copy of two buffers, one behind the other.
fn joined(gpu: &Gpu, encoding: &Mutex<Encoding>, parts: [&WgpuMem; 2]) -> Result<WgpuMem> {
    let sizes = parts.map(DeviceMem::bytes);
    let mem = gpu.alloc("sinks and biases", sizes[0].saturating_add(sizes[1]))?;
    encoding::lock(encoding).copy(gpu, |encoder| {
        let mut at = 0;
        for (part, size) in parts.iter().zip(sizes.map(|size| size as u64)) {
            encoder.copy_buffer_to_buffer(part.buffer(), 0, mem.buffer(), at, size);
            at += size;
        }
    })?;
    Ok(mem)
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
