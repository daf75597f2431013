//! Experts: routing, their matmuls, their sum.
//!
//! Which expert a slot goes to is known on the device alone. Few slots look their expert up one by one; many
//! are taken in tiles by expert, so that a weight that was read serves several rows. No bit depends on which
//! way is taken.

use super::attention::pair;
use super::linear;
use crate::budget::of_matmul;
use crate::command::{Call, FLAT, Place, Slot, buffer, elem, groups, matrix, word};
use crate::slices::ALL_GROUPS;
use crate::weight::{Chunk, Panels};
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::ops::{Chosen, Combine, ExpertLinear, MoeOp, Route};
use engraft_core::params::{GroupRank, RouterScore};
use engraft_shaders::{Elem, Kernel, Moe as Entry, PANEL};

/// Experts whose slots a workgroup counts.
const COUNTED: usize = 1024;

pub(super) fn run(stream: &mut WgpuStream, op: MoeOp<'_, Wgpu>) -> Result<()> {
    match op {
        MoeOp::Route(op) => route(stream, op),
        MoeOp::ExpertLinear(op) => expert_linear(stream, op),
        MoeOp::Combine(op) => combine(stream, op),
    }
}

fn route(stream: &mut WgpuStream, op: Route<'_, Wgpu>) -> Result<()> {
    let Route { logits, router, choice_bias, experts, weights, groups: grouped } = op;
    if logits.rows() == 0 {
        return Ok(());
    }
    let (limits, weights) = (*stream.gpu().limits(), weights.as_ref());
    let (from, to) = (matrix(&limits, logits, "logits")?, matrix(&limits, weights, "experts' weights")?);
    let experts = buffer(&limits, experts.as_ref(), "experts")?;
    let grouped = buffer(&limits, grouped.as_ref(), "slots by expert")?;
    let best_two = router.groups.is_some_and(|groups| groups.rank == GroupRank::BestTwo);
    let flags = u32::from(router.score == RouterScore::Sigmoid)
        | u32::from(router.renormalise) << 1
        | u32::from(choice_bias.is_some()) << 2
        | u32::from(best_two) << 3
        | u32::from(router.near.is_some()) << 4;
    let (count, open) = router.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
    let words = [
        word(logits.rows())?,
        word(router.experts)?,
        word(router.top_k)?,
        flags,
        router.scale.to_bits(),
        router.near.unwrap_or(0.0).to_bits(),
        from.offset,
        word(logits.pitch())?,
        experts.offset,
        to.offset,
        word(weights.pitch())?,
        word(count)?,
        word(open)?,
    ];
    let grid = groups(&limits, logits.rows(), 1);
    let gpu = stream.gpu().clone();
    let bias = choice_bias.map_or(Ok(gpu.nothing()), |bias| bias.vector())?;
    let slots = [from.slot, experts.slot, to.slot, Slot::whole(&limits, bias, "a bias of the choice")?];
    let (entry, bound) = match router.is_by_score() {
        true => (Entry::RouteByScore, (&slots[..], &words[..])),
        false => (Entry::Route, (&slots[..3], &words[..words.len() - 2])),
    };
    let (slots, words) = bound;
    stream.call(&Call { kernel: Kernel::Moe(entry, Elem::F32), slots, words, grid })?;
    let slots = logits.rows() * router.top_k;
    let words = [word(slots)?, word(router.experts)?, experts.offset, grouped.offset];
    let (kernel, slots) = (Kernel::Moe(Entry::Group, Elem::F32), [experts.slot, grouped.slot]);
    let grid = groups(&limits, router.experts + 1, COUNTED);
    stream.call(&Call { kernel, slots: &slots, words: &words, grid })
}

/// What stands in a bias's binding: a rank's part of a sum has no bias, and its leaves there.
fn bias_or_leaves<'a>(w: &'a Panels, bias: Option<&'a WgpuWeight>, gpu: &'a Wgpu) -> Result<&'a WgpuMem> {
    match (&w.leaves, bias) {
        (Some(leaves), _) => Ok(leaves),
        (None, Some(bias)) => bias.vector(),
        (None, None) => Ok(gpu.nothing()),
    }
}

fn expert_linear(stream: &mut WgpuStream, op: ExpertLinear<'_, Wgpu>) -> Result<()> {
    let ExpertLinear { x, weight, bias, groups: by, first, out } = op;
    let (w, gpu, out) = (weight.panels()?, stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits();
    if out.rows() * out.cols() == 0 || x.rows() == 0 {
        return Ok(());
    }
    let to = matrix(limits, out, "activations")?;
    let input = linear::Input::new(stream, w, x)?;
    let (from, x_pitch) = input.place(limits)?;
    let bias_mem = bias_or_leaves(w, bias, &gpu)?;
    let flags = u32::from(bias.is_some()) | u32::from(w.leaves.is_some()) << 1 | word(first)? << 2;
    // Slots that an expert has on average.
    let share = out.rows().div_ceil(by.count.max(1));
    let own = w.experts;
    let rows = gpu.select.tile_rows(share);
    let (from_elem, to_elem) = (elem(x.dtype()), elem(out.dtype()));
    let (weight, vector, grouped) = (w.packing, input.aligned(), rows > 1);
    let kernel = gpu.runs(Kernel::Experts { weight, x: from_elem, out: to_elem, rows, vector, grouped })?;
    let (which, tiles, experts) = match kernel {
        Kernel::Experts { rows, grouped: true, .. } => {
            (buffer(limits, by.groups, "slots by expert")?, share.div_ceil(rows as usize), own)
        }
        _ => (buffer(limits, by.experts, "experts")?, out.rows(), 1),
    };
    let tiles = tiles.min(limits.groups as usize);
    // Panels are counted from those of expert 0, wherever they are.
    let before = first * w.per_expert();
    for chunk in &w.chunks {
        let words = [
            word(out.rows())?,
            word(w.cols)?,
            word(w.grain)?,
            from.offset,
            word(x_pitch)?,
            to.offset,
            word(out.pitch())?,
            word(w.outputs())?,
            flags,
            word(w.block)?,
            ALL_GROUPS,
            which.offset,
            pair(by.count, out.rows() / x.rows())?,
            word(before + chunk.first)?,
            word(before + chunk.first + chunk.count)?,
        ];
        let slots = [
            Slot::whole(limits, &chunk.codes, "a weight")?,
            Slot::whole(limits, chunk.scales.as_ref().unwrap_or(gpu.nothing()), "a weight's scales")?,
            Slot::whole(limits, bias_mem, "a bias")?,
            from.slot,
            to.slot,
            which.slot,
        ];
        let grid = [word(w.outputs().div_ceil(PANEL))?, word(tiles)?, word(experts)?];
        let work = work_of((w, chunk), out.rows(), by.count, rows as usize);
        stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)?;
    }
    Ok(())
}

/// Work of a chunk for slots that all experts share, in tiles of so many rows. Of an expert's tiles one has
/// fewer. A rank has a share of the experts, and a chunk one of theirs.
fn work_of((w, chunk): (&Panels, &Chunk), slots: usize, experts: usize, rows: usize) -> u64 {
    let tiles = slots.div_ceil(rows) + if rows > 1 { experts.min(slots) } else { 0 };
    let all = of_matmul(rows, w.outputs(), w.cols).saturating_mul(tiles as u64);
    all.saturating_mul(chunk.count as u64) / experts.saturating_mul(w.per_expert()).max(1) as u64
}

fn combine(stream: &mut WgpuStream, op: Combine<'_, Wgpu>) -> Result<()> {
    let Combine { y, weights, chosen, add, out } = op;
    let gpu = stream.gpu().clone();
    let (limits, out) = (*gpu.limits(), out.as_ref());
    let total = out.rows() * out.cols();
    if total == 0 {
        return Ok(());
    }
    let place = |m| matrix(&limits, m, "activations");
    let (from, by, to) = (place(y)?, place(weights)?, place(out)?);
    let (count, own, experts) = match &chosen {
        Some(Chosen { experts, share }) => {
            let own = share.leaves().fold(0, |own, leaf| own | 1 << leaf);
            (share.count(), own, buffer(&limits, *experts, "experts")?)
        }
        None => (0, 0, Place { slot: Slot::whole(&limits, gpu.nothing(), "experts")?, offset: 0 }),
    };
    let words = [
        word(out.rows())?,
        word(out.cols())?,
        word(weights.cols())?,
        u32::from(add),
        from.offset,
        word(y.pitch())?,
        by.offset,
        word(weights.pitch())?,
        to.offset,
        word(out.pitch())?,
        word(count)?,
        own,
        experts.offset,
    ];
    let how = if out.dtype() == y.dtype() { Entry::Combine } else { Entry::CombineNode };
    let kernel = Kernel::Moe(how, elem(y.dtype()));
    let (slots, grid) = ([from.slot, by.slot, to.slot, experts.slot], groups(&limits, total, FLAT));
    stream.call(&Call { kernel, slots: &slots, words: &words, grid })
}
