//! Makes what ops read and write: matrices of noise, words, weights, pages.
//!
//! Values are noise of one magnitude, bytes of weights too: no device is to gain by zeros, and no result is
//! to become infinite.

use engraft::Result;
use engraft::engraft_core::backend::{Backend, Mem, Stream, Weight};
use engraft::engraft_core::mem::{
    Buf, DeviceMem, Float, HostWeight, KvLayout, Mat, Slab, StepShape, StepView, StepWords, WeightFormat,
    WeightInfo, WeightUse,
};
use engraft::engraft_core::ops::{Checked, Convert, Run};
use engraft::engraft_core::sample::SampleRow;
use std::borrow::Cow;
use std::sync::Arc;

/// A device on which things are made.
pub struct Maker<'a, B: Backend> {
    pub backend: &'a Arc<B>,
    pub stream: &'a mut B::Stream,
    state: u64,
}

impl<'a, B: Backend> Maker<'a, B> {
    pub fn new(backend: &'a Arc<B>, stream: &'a mut B::Stream) -> Self {
        Self { backend, stream, state: 0x2545_f491_4f6c_dd1d }
    }

    fn bits(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Between 1/2 and 1, of both signs.
    fn noise(&mut self, len: usize) -> Vec<f32> {
        let value = |bits: u64| {
            let (sign, mantissa) = ((bits >> 32) as u32 & 0x8000_0000, bits as u32 & 0x007f_ffff);
            f32::from_bits(sign | 0x3f00_0000 | mantissa)
        };
        (0..len).map(|_| value(self.bits())).collect()
    }

    /// A matrix of zeros.
    pub fn blank(&self, rows: usize, cols: usize, dtype: Float) -> Result<Mat<Mem<B>>> {
        Mat::new(self.backend.alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
    }

    /// A matrix of noise.
    pub fn mat(&mut self, rows: usize, cols: usize, dtype: Float) -> Result<Mat<Mem<B>>> {
        let values = self.noise(rows * cols);
        let mut wide = self.blank(rows, cols, Float::F32)?;
        self.stream.upload(&values, wide.view_mut(rows)?.into_f32()?)?;
        if dtype == Float::F32 {
            return Ok(wide);
        }
        let mut out = self.blank(rows, cols, dtype)?;
        let convert = Convert { x: wide.view(rows)?, bias: None, out: out.view_mut(rows)? };
        self.stream.run(Checked::new(convert)?)?;
        // What it reads is freed here.
        self.stream.sync()?;
        Ok(out)
    }

    /// Room for so many elements.
    fn room<T>(&self, len: usize) -> Result<Buf<Mem<B>, T>> {
        Buf::new(self.backend.alloc((len * size_of::<T>()).max(4))?, len)
    }

    pub fn words(&mut self, words: &[u32]) -> Result<Buf<Mem<B>, u32>> {
        let mut buffer = self.room(words.len())?;
        self.stream.upload(words, buffer.view_mut())?;
        Ok(buffer)
    }

    pub fn floats(&mut self, values: &[f32]) -> Result<Buf<Mem<B>, f32>> {
        let mut buffer = self.room(values.len())?;
        self.stream.upload(values, buffer.view_mut())?;
        Ok(buffer)
    }

    pub fn samples(&mut self, rows: &[SampleRow]) -> Result<Buf<Mem<B>, SampleRow>> {
        let mut buffer = self.room(rows.len())?;
        self.stream.upload(rows, buffer.view_mut())?;
        Ok(buffer)
    }

    /// A weight `[rows, cols]` in its format's layout, whatever its values.
    pub fn weight(
        &mut self,
        rows: usize,
        cols: usize,
        format: WeightFormat,
        used_for: WeightUse,
    ) -> Result<Weight<B>> {
        let mut bytes = vec![0u8; format.bytes(rows, cols)];
        for chunk in bytes.chunks_mut(8) {
            // As a half, a bfloat16 or an f32 such bytes are small numbers, as codes they are any.
            let noise = ((self.bits() & 0x0f0f_0f0f_0f0f_0f0f) | 0x2020_2020_2020_2020).to_le_bytes();
            chunk.copy_from_slice(&noise[..chunk.len()]);
        }
        let info = WeightInfo { name: "a timed weight".into(), rows, cols, format, used_for };
        self.backend.prepare_weight(HostWeight::new(info, vec![Cow::Owned(bytes)])?, &[])
    }

    /// A norm's weight, or a bias.
    pub fn vector(&mut self, len: usize) -> Result<Weight<B>> {
        let bytes = self.noise(len).iter().flat_map(|value| value.to_le_bytes()).collect();
        let (format, used_for) = (WeightFormat::Plain(Float::F32), WeightUse::Vector);
        let info = WeightInfo { name: "a timed vector".into(), rows: 1, cols: len, format, used_for };
        self.backend.prepare_weight(HostWeight::new(info, vec![Cow::Owned(bytes)])?, &[])
    }

    /// Pages of keys and values.
    pub fn slab(&self, layout: KvLayout) -> Result<Slab<Mem<B>>> {
        let (k, v) = Slab::<Mem<B>>::bytes::<B::Device>(&layout)?;
        Slab::new::<B::Device>(self.backend.alloc(k)?, self.backend.alloc(v)?, layout)
    }

    /// A step of one sequence: its last `tokens` of `keys` positions, position `p` in page slot `p`.
    pub fn step(&mut self, tokens: usize, keys: usize) -> Result<Step<Mem<B>>> {
        let shape = StepShape { tokens, seqs: 1, max_query: tokens, max_keys: keys, ..StepShape::default() };
        let mut words = StepWords::default();
        let mut fill = words.begin(shape);
        for token in 0..tokens {
            let position = keys - tokens + token;
            fill.token(token, 0, position as u32, position as i32, 0);
        }
        fill.seq(0, tokens, 0, keys as u32);
        Ok(Step { words: self.words(words.words())?, shape })
    }
}

/// The words of a step on the device.
pub struct Step<M> {
    words: Buf<M, u32>,
    pub shape: StepShape,
}

impl<M: DeviceMem> Step<M> {
    pub fn view(&self) -> Result<StepView<'_, M>> {
        StepView::new(self.words.view(), self.shape)
    }
}
