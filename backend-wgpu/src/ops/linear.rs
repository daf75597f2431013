//! Matmuls with what follows them.

use crate::budget::of_matmul;
use crate::command::{Call, Place, Slot, activation, elem, groups, matrix, word};
use crate::kernel::Variant;
use crate::limits::Limits;
use crate::select::{LANES_PER_PANEL, MatmulOf, Shader};
use crate::slices::ALL_GROUPS;
use crate::weight::{Chunk, Panels};
use crate::{Wgpu, WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::mem::MatRef;
use engraft_core::ops::{Linear, Then};
use engraft_core::quant::activation::SPAN as QUANTIZED;
use engraft_shaders::{BLOCK_WORDS, Elem, Kernel, PANEL, Packing};

/// Rows that a matmul reads: the caller's, or the bytes that were made of them (`quantize.wgsl`).
pub(super) struct Input<'a> {
    x: MatRef<'a, WgpuMem>,
    /// Memory of the stream, good until the next op.
    pub bytes: Option<WgpuMem>,
}

impl<'a> Input<'a> {
    /// Enqueues the making of bytes where the weight is multiplied with such.
    pub fn new(stream: &mut WgpuStream, w: &Panels, x: MatRef<'a, WgpuMem>) -> Result<Self> {
        if w.packing != Packing::W8A8 {
            return Ok(Self { x, bytes: None });
        }
        let (limits, blocks) = (*stream.gpu().limits(), x.cols().div_ceil(QUANTIZED));
        let bytes = stream.scratch(x.rows() * blocks * BLOCK_WORDS * 4)?;
        let from = matrix(&limits, x, "activations")?;
        let words = [word(x.rows())?, word(blocks)?, from.offset, word(x.pitch())?];
        let slots = [from.slot, Slot::whole(&limits, &bytes, "quantized rows")?];
        let (kernel, grid) = (Kernel::Quantize(elem(x.dtype())), groups(&limits, x.rows() * blocks, 64));
        stream.call(&Call { kernel, slots: &slots, words: &words, grid })?;
        Ok(Self { x, bytes: Some(bytes) })
    }

    /// Where the rows lie, and words or elements from one to the next.
    pub fn place(&self, limits: &Limits) -> Result<(Place<'_>, usize)> {
        match &self.bytes {
            None => Ok((matrix(limits, self.x, "activations")?, self.x.pitch())),
            Some(bytes) => {
                let place = Place { slot: Slot::whole(limits, bytes, "quantized rows")?, offset: 0 };
                Ok((place, self.x.cols().div_ceil(QUANTIZED) * BLOCK_WORDS))
            }
        }
    }

    /// Whether rows begin at multiples of four elements.
    pub fn aligned(&self) -> bool {
        self.bytes.is_none() && self.x.offset().is_multiple_of(4) && self.x.pitch().is_multiple_of(4)
    }
}

fn matmul_of(w: &Panels, input: &Input<'_>, out: Elem, act: bool) -> MatmulOf {
    MatmulOf {
        weight: w.packing,
        // Bytes have lost the type of what they were made of.
        x: if input.bytes.is_some() { Elem::F32 } else { elem(input.x.dtype()) },
        out,
        gate: w.gate,
        act,
        vector: input.aligned(),
    }
}

/// Work of a chunk's outputs of so many rows, in tiles of `of_tile`.
fn work_of((w, chunk): (&Panels, &Chunk), rows: usize, of_tile: usize) -> u64 {
    let outputs = chunk.count * PANEL * (1 + usize::from(w.gate));
    of_matmul(of_tile, outputs, w.cols).saturating_mul(rows.div_ceil(of_tile) as u64)
}

pub(super) fn run(stream: &mut WgpuStream, op: Linear<'_, Wgpu>, variant: Variant) -> Result<()> {
    let Linear { x, weight, bias, then, out } = op;
    let (w, gpu, out) = (weight.panels()?, stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits();
    if out.rows() * out.cols() == 0 {
        return Ok(());
    }
    // An activation behind a gate weight is that of the gate.
    let (add, act) = match then {
        Then::Nothing => (false, None),
        Then::Act(act) | Then::Gate { act, .. } => (false, Some(activation(act)?)),
        Then::Add { .. } => (true, None),
    };
    let to = matrix(limits, out, "activations")?;
    // A rank's part has no bias, and its leaves there.
    let bias_mem = match (&w.leaves, bias) {
        (Some(leaves), _) => leaves,
        (None, Some(bias)) => bias.vector()?,
        (None, None) => gpu.nothing(),
    };
    let flags = u32::from(bias.is_some()) | u32::from(w.leaves.is_some()) << 2 | u32::from(add) << 3;
    let input = Input::new(stream, w, x)?;
    let (from, x_pitch) = input.place(limits)?;
    let fits = w.chunks.iter().all(|c| c.count * LANES_PER_PANEL <= limits.groups as usize);
    let matmul = gpu.select.matmul(variant, x.rows(), input.aligned(), fits);
    let shader = matmul.shader(&matmul_of(w, &input, elem(out.dtype()), act.is_some()));
    let Shader { kernel, rows, wide, per_panel } = shader.by(gpu.runs(shader.kernel)?);
    for chunk in &w.chunks {
        let outputs = w.range(chunk);
        let words = [
            word(x.rows())?,
            word(w.cols)?,
            word(w.grain)?,
            from.offset,
            word(x_pitch)?,
            to.offset,
            word(out.pitch())?,
            word(outputs.start)?,
            word(outputs.end)?,
            word(w.outputs())?,
            flags | u32::from(wide) << 1,
            ALL_GROUPS,
            act.unwrap_or(0),
            word(w.block)?,
            word(w.group)?,
        ];
        let slots = [
            Slot::whole(limits, &chunk.codes, "a weight")?,
            Slot::whole(limits, chunk.scales.as_ref().unwrap_or(gpu.nothing()), "a weight's scales")?,
            Slot::whole(limits, bias_mem, "a bias")?,
            from.slot,
            to.slot,
        ];
        let tiles = x.rows().div_ceil(rows as usize).min(limits.groups as usize);
        let grid = [word(chunk.count * per_panel)?, word(tiles)?, 1];
        let work = work_of((w, chunk), x.rows(), rows as usize);
        stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)?;
    }
    Ok(())
}
