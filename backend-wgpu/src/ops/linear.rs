//! Products with their epilogues.

use super::select::Product;
use crate::command::{Call, Slot, elem, matrix, word};
use crate::{WgpuMem, WgpuStream, WgpuWeight};
use crate::weight::Panels;
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_shaders::Kernel;

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    /// Nothing; a gate weight gives `[gate | up]`.
    Nothing,
    /// An activation; of a gate weight `act(g) * u`.
    Activate(u32),
    /// A sum with what the output holds.
    AddTo,
}

/// Whether rows begin at multiples of four elements.
pub(super) fn aligned(x: MatRef<'_, WgpuMem>) -> bool {
    x.offset.is_multiple_of(4) && x.pitch.is_multiple_of(4)
}

/// Workgroups of a panel where sums are cut over lanes.
const LANES_PER_PANEL: usize = 4;

/// The kernel of a product, rows of its tiles, whether it takes the wide order, its workgroups per panel.
fn variant(
    product: Product,
    w: &Panels,
    x: MatRef<'_, WgpuMem>,
    out: MatRef<'_, WgpuMem>,
    act: bool,
) -> (Kernel, u32, bool, usize) {
    let (weight, gate, vector) = (w.packing, w.gate, aligned(x));
    let (x, out) = (elem(x.dtype), elem(out.dtype));
    match product {
        Product::Tiles { rows, wide } => {
            (Kernel::Linear { weight, x, out, rows, gate, vector, act }, rows, wide, 1)
        }
        Product::Lanes { rows, subgroups } => {
            (Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups }, rows, true, LANES_PER_PANEL)
        }
    }
}

pub(super) fn linear(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    w: &WgpuWeight,
    bias: Option<&WgpuWeight>,
    then: Then,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (w, gpu) = (w.panels()?, stream.gpu().clone());
    let (limits, out) = (gpu.limits, out.as_ref());
    if out.rows * out.cols == 0 {
        return Ok(());
    }
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let bias_mem = bias.map_or_else(|| gpu.nothing(), WgpuWeight::vector)?;
    let fits = w.chunks.iter().all(|c| c.count * LANES_PER_PANEL <= limits.groups as usize);
    let product = gpu.select.product(x.rows, aligned(x), fits);
    let (kernel, rows, wide, per_panel) = variant(product, w, x, out, matches!(then, Then::Activate(_)));
    let (add, act) = match then {
        Then::Nothing => (0, 0),
        Then::Activate(act) => (0, act),
        Then::AddTo => (1, 0),
    };
    for chunk in &w.chunks {
        let outputs = w.range(chunk);
        let words = [
            word(x.rows)?,
            word(w.cols)?,
            word(w.grain)?,
            from.offset,
            word(x.pitch)?,
            to.offset,
            word(out.pitch)?,
            word(outputs.start)?,
            word(outputs.end)?,
            word(w.outputs())?,
            u32::from(bias.is_some()) | u32::from(wide) << 1,
            add,
            act,
            word(w.block)?,
        ];
        let scales = chunk.scales.as_ref().map_or_else(|| gpu.nothing(), Ok)?;
        let slots = [
            Slot::whole(&limits, &chunk.codes, "a weight")?,
            Slot::whole(&limits, scales, "a weight's scales")?,
            Slot::whole(&limits, bias_mem, "a bias")?,
            from.slot,
            to.slot,
        ];
        let tiles = x.rows.div_ceil(rows as usize).min(limits.groups as usize);
        let grid = [word(chunk.count * per_panel)?, word(tiles)?, 1];
        stream.run(&Call { kernel, slots: &slots, words: &words, grid })?;
    }
    Ok(())
}
