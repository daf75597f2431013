//! Buffers of several residual streams, and of a low-rank path next to attention.

use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::policy::{BlockSpec, ModelSpec, Placement};
use crate::{Error, Result};

/// Buffers of several residual streams.
#[derive(Debug)]
pub struct StreamScratch<M> {
    /// The streams side by side `[tokens, inputs * hidden]`.
    pub(super) all: Mat<M>,
    /// What a block predicts of them.
    pub(super) predicted: Mat<M>,
    /// What the router gives `[tokens, inputs]`, f32.
    pub(super) modalities: Mat<M>,
    /// Of predictions or corrections `[tokens, inputs * inputs]`, f32.
    pub(super) coefficients: Mat<M>,
    /// Factors of columns `[1, hidden]`.
    pub(super) scale: Mat<M>,
    /// The row of factors that a row has, for every row: always the first.
    pub(super) zeros: Buf<M, u32>,
}

/// Buffers of a low-rank path next to attention.
#[derive(Debug)]
pub struct LaurelScratch<M> {
    /// Between its matmuls `[tokens, rank]`.
    pub(super) low: Mat<M>,
    /// What it gives `[tokens, hidden]`.
    pub(super) sum: Mat<M>,
}

/// Refuses a description whose blocks do not agree on their streams, or that has such blocks where they
/// cannot run.
fn check(spec: &ModelSpec) -> Result<()> {
    let refuse =
        |word: &str, i: usize, allowed: &str| Err(Error::config(word, format!("in block {i}"), allowed));
    for (i, block) in spec.blocks.iter().enumerate() {
        let plain = spec.placement == Placement::Pre && block.cross.is_none() && block.attn_norm.is_some();
        if block.altup != spec.blocks[0].altup {
            return refuse("altup", i, "one description for all blocks");
        }
        if block.altup.is_some_and(|altup| altup.inputs < 2 || altup.active >= altup.inputs) {
            return refuse("altup", i, "two streams at least, one of which is active");
        }
        if block.altup.is_some() && (!plain || block.end_factor || spec.final_norm.is_none()) {
            return refuse(
                "altup",
                i,
                "norms before the parts and at the end, and no factor at a block's end",
            );
        }
        if block.altup.is_some_and(|altup| altup.scaled) && block.input.is_none() {
            return refuse("altup", i, "factors of what an input of the block's own reads, where it has one");
        }
        if block.laurel.is_some() && !plain {
            return refuse(
                "laurel",
                i,
                "a norm before attention, and nothing between it and the feed-forward part",
            );
        }
        if block.mlp.cutoff.is_some()
            && (!block.mlp.gated || block.mlp.clamp.is_some() || block.moe.is_some())
        {
            return refuse("cutoff", i, "a gated feed-forward part without a clamp and without experts");
        }
    }
    Ok(())
}

impl<M: DeviceMem> StreamScratch<M> {
    /// Buffers for steps of up to `tokens` rows; none for models of one stream.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        check(spec)?;
        let (Some(altup), tokens) = (spec.altup(), tokens.max(1)) else { return Ok(None) };
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let wide = altup.inputs * spec.hidden;
        Ok(Some(Self {
            all: mat(tokens, wide, dtype)?,
            predicted: mat(tokens, wide, dtype)?,
            modalities: mat(tokens, altup.inputs, Float::F32)?,
            coefficients: mat(tokens, altup.inputs * altup.inputs, Float::F32)?,
            scale: mat(1, spec.hidden, dtype)?,
            zeros: Buf::new(alloc(tokens * 4)?, tokens)?,
        }))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.modalities.cols()
    }

    /// What must be in the words before the first step, and where.
    pub(crate) fn zeros(&mut self) -> (Vec<u32>, &mut Buf<M, u32>) {
        (vec![0; self.predicted.rows()], &mut self.zeros)
    }
}

impl<M: DeviceMem> LaurelScratch<M> {
    /// Buffers for steps of up to `tokens` rows; none for models without such paths.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let rank = |block: &BlockSpec| Some(block.laurel?.rank);
        let (Some(rank), tokens) = (spec.blocks.iter().filter_map(rank).max(), tokens.max(1)) else {
            return Ok(None);
        };
        let mut mat = |cols: usize| Mat::new(alloc(tokens * cols * dtype.bytes())?, tokens, cols, dtype);
        Ok(Some(Self { low: mat(rank.max(1))?, sum: mat(spec.hidden)? }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::DryMem;
    use crate::model::tests::{NORM, block, decoder};
    use crate::policy::{AltupSpec, LaurelSpec};

    /// Two blocks of three streams.
    fn model() -> ModelSpec {
        let mut block = block();
        block.altup = Some(AltupSpec::new(3, NORM));
        block.laurel = Some(LaurelSpec::new(4, NORM));
        decoder(vec![block; 2])
    }

    fn room(spec: &ModelSpec) -> Result<Option<StreamScratch<DryMem>>> {
        StreamScratch::new(spec, 5, Float::F32, &mut |bytes: usize| Ok(DryMem(bytes)))
    }

    #[test]
    fn streams_that_cannot_run_are_refused() {
        let streams = room(&model()).unwrap().unwrap();
        assert_eq!((streams.all.rows(), streams.all.cols(), streams.count()), (5, 48, 3));
        type Change = fn(&mut ModelSpec);
        let changes: [(&str, Change); 7] = [
            ("altup", |spec| spec.blocks[1].altup = None),
            ("altup", |spec| spec.each(|_, b| b.altup.iter_mut().for_each(|altup| altup.active = 3))),
            ("altup", |spec| spec.each(|_, b| b.altup.iter_mut().for_each(|altup| altup.inputs = 1))),
            ("altup", |spec| spec.each(|_, b| b.altup.iter_mut().for_each(|altup| altup.scaled = true))),
            ("altup", |spec| spec.placement = Placement::Post),
            ("altup", |spec| spec.final_norm = None),
            ("cutoff", |spec| {
                (spec.blocks[1].mlp.gated, spec.blocks[1].mlp.cutoff) = (false, Some(1.0));
            }),
        ];
        for (i, (word, change)) in changes.into_iter().enumerate() {
            let mut spec = model();
            change(&mut spec);
            let error = room(&spec).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(word), "change {i}: {error}");
        }
    }
}
