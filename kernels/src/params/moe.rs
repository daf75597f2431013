//! Experts: `cuda/moe.cu`; their matmuls on tensor cores: [`super::grouped`].

use super::{Elem, Format, Leaves, MatView, WeightView, by_elem, by_format, launch, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Experts per token that [`Route`] has room for.
pub const MOST_CHOSEN: u32 = 64;

/// Groups of experts that [`Route`] has room for: a lane each.
pub const MOST_GROUPS: u32 = 32;

/// Chooses experts and their weights.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Route {
    /// `[tokens, experts]` f32.
    pub logits: MatView,
    /// `[tokens, top_k]` f32, written.
    pub weights: MatView,
    /// `[tokens * top_k]` u32, written; ascending within a token.
    pub experts: u64,
    /// Experts per token, at most [`MOST_CHOSEN`].
    pub top_k: u32,
    /// 1: sigmoid, 0: softmax.
    pub sigmoid: u32,
    /// 1: divided by the sum of the chosen.
    pub renormalise: u32,
    /// Factor of the weights.
    pub scale: f32,
    /// `[experts]` f32, added to scores for the choice alone; 0: none.
    pub bias: u64,
    /// 1: chosen by score, 0: by logit.
    pub by_score: u32,
    /// Groups of experts, at most [`MOST_GROUPS`]; 0: none.
    pub groups: u32,
    /// Groups that are chosen.
    pub open_groups: u32,
    /// 1: groups are ranked by the sum of their two best, 0: by their best.
    pub best_two: u32,
    /// 1: chosen one after the other, each weighed among the logits left and near its own.
    pub one_by_one: u32,
    /// How near.
    pub near: f32,
}

impl Route {
    /// The entry.
    pub const ENTRY: &str = "moe_route";

    /// One launch; [`Group`] follows.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [self.logits.rows.div_ceil(4), 1, 1], [128, 1, 1])
    }
}

/// Sorts slots by expert.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Group {
    /// `[slots]` u32.
    pub experts: u64,
    /// `[count + 1]`, then `[slots]` u32, written.
    pub groups: u64,
    /// Experts.
    pub count: u32,
    /// Slots.
    pub slots: u32,
}

impl Group {
    /// The entry.
    pub const ENTRY: &str = "moe_group";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [self.count, 1, 1], [32, 1, 1])
    }
}

/// Every slot's matmul with its expert's weight, in the contract's order.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ExpertLinear {
    /// `[slots, k]`, or a row per token.
    pub x: MatView,
    /// `[own * n, k]`.
    pub weight: WeightView,
    /// `[slots, n]`.
    pub out: MatView,
    /// `[own * n]` f32, or 0.
    pub bias: u64,
    /// As [`Group`] leaves them.
    pub groups: u64,
    /// Leaves of the sums.
    pub leaves: Leaves,
    /// Experts in all.
    pub count: u32,
    /// The first whose weight is here.
    pub first: u32,
    /// How many weights are.
    pub own: u32,
    /// Element type of `x`.
    pub elem: Elem,
    /// That of `out`: the same, or f32 for a rank's part of sums.
    pub elem_out: Elem,
}

impl ExpertLinear {
    /// The entries for a weight of this format.
    pub fn entries(format: Format) -> impl Iterator<Item = &'static str> {
        std::iter::once(by_format!("moe_linear_", format)).chain(many(format))
    }

    /// One launch, for a weight of this format. The grid has room for every way in which slots may fall on
    /// experts.
    pub fn launch(&self, format: Format) -> Launch {
        let slots = self.out.rows;
        let (entry, rows) = match many(format) {
            Some(entry) if slots / 8 >= self.count => (entry, 16),
            _ => (by_format!("moe_linear_", format), 4),
        };
        let tiles = (slots / rows + self.own).min(slots);
        launch(entry, [tiles, self.out.cols.div_ceil(32), 1], [256, 1, 1])
    }
}

/// The entry for many slots to an expert.
fn many(format: Format) -> Option<&'static str> {
    Some(match format {
        Format::F32 => "moe_linear_many_f32",
        Format::F16 => "moe_linear_many_f16",
        Format::Bf16 => "moe_linear_many_bf16",
        _ => return None,
    })
}

/// `out[t] = sum over j of weights[t, j] * y[t * top_k + j]`, by leaves of expert number, added to `out[t]`
/// where asked.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Combine {
    /// `[tokens * top_k, n]`.
    pub y: MatView,
    /// `[tokens, top_k]` f32.
    pub weights: MatView,
    /// `[tokens, n]`.
    pub out: MatView,
    /// `[tokens * top_k]` u32, ascending within a token; 0: one chain.
    pub experts: u64,
    /// First expert of every leaf, and their number.
    pub leaves: [u32; 9],
    /// Which leaves are added here, a bit each.
    pub own: u32,
    /// Element type of `y`.
    pub elem: Elem,
    /// That of `out`: the same, or f32 without `add`.
    pub elem_out: Elem,
    /// 1: added to what `out` holds.
    pub add: u32,
    /// Zero.
    pub reserved: u32,
}

impl Combine {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["moe_combine_f32", "moe_combine_f16", "moe_combine_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        over_rows(Self::entry(self.elem), self.out.rows, self.out.cols, 16 / self.elem.bytes())
    }
}
