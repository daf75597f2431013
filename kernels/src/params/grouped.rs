//! Experts' matmuls on tensor cores: `cuda/grouped.cuh`, `grouped.cu`, `groupedq.cu`.
//!
//! A slot has the bits of the matmul of its row with its expert's weight ([`super::gemm`]), whatever the
//! other slots are.

use super::Elem;
use super::gemm::{Gemm, Tiling, entry_of, number};
use crate::Launch;
use crate::pack::Encoding;
use bytemuck::{Pod, Zeroable};

/// Every slot's matmul with its expert's weight.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Grouped {
    /// x `[slots, k]` or a row per token, out `[slots, n]`, the layout in parts of an expert each, a bias
    /// `[own * n]`.
    pub gemm: Gemm,
    /// As [`super::moe::Group`] leaves them.
    pub groups: u64,
    /// Experts in all.
    pub count: u32,
    /// The first whose weight is here.
    pub first: u32,
    /// How many weights are.
    pub own: u32,
    /// Zero.
    pub reserved: u32,
}

const STEMS: [&str; 2] = ["grouped", "groupedq"];
/// Those of the tiles of [`Gemm`] that experts have, too.
const PLAIN: [&str; 5] = ["n8", "n16", "n32", "small", "wide"];
const PACKED: [&str; 3] = ["n8", "n32", "wide"];

fn tilings(encoding: u32) -> &'static [&'static str] {
    if encoding == 0 { &PLAIN } else { &PACKED }
}

/// The entries of weights of this encoding: one per tile, that of a launch by its slots and experts.
pub fn entries(encoding: Encoding, elem: Elem) -> impl Iterator<Item = String> {
    let encoding = number(encoding);
    tilings(encoding).iter().map(move |tiling| entry_of(STEMS, encoding, tiling, elem))
}

/// The name that stands for all of [`entries`] in reports: `grouped_*_bf16`.
pub fn name(encoding: Encoding, elem: Elem) -> String {
    entry_of(STEMS, number(encoding), "*", elem)
}

impl Grouped {
    /// The launch for this number of slots. What it gives does not depend on which kernel it takes.
    pub fn launch(&self) -> Launch {
        self.launch_by(&self.tiling())
    }

    /// Slots of a block of that launch, at most.
    pub fn tile_rows(&self) -> u32 {
        self.tiling().rows
    }

    /// Tiles are as wide as half as many slots again as an expert has on average: few experts then take a
    /// second one, which reads their weight again.
    fn tiling(&self) -> Tiling {
        let slots = u64::from(self.gemm.out.rows);
        let usual = (slots * 3).div_ceil(u64::from(self.count.max(1)) * 2);
        let large = u64::from(self.gemm.n.div_ceil(128)) * slots.div_ceil(128) >= 96;
        let name = match (self.gemm.encoding > 0, usual) {
            (_, 0..=8) => "n8",
            (false, 9..=16) => "n16",
            (_, 9..=32) => "n32",
            // Of two tiles of an expert and more one is half empty.
            (false, 256..) if large => "wide",
            (false, _) => "small",
            (true, _) => "wide",
        };
        let all = self.gemm.tilings();
        *all.iter().find(|tiling| tiling.name == name).unwrap_or(&all[0])
    }

    /// The launches of all kernels that this matmul can take: all give the same bits, at different speed.
    pub fn choices(&self) -> Vec<Launch> {
        let own = tilings(self.gemm.encoding);
        let all = self.gemm.tilings();
        all.iter().filter(|tiling| own.contains(&tiling.name)).map(|tiling| self.launch_by(tiling)).collect()
    }

    /// The grid has room for every way in which slots may fall on experts.
    fn launch_by(&self, tiling: &Tiling) -> Launch {
        let slots = self.gemm.out.rows;
        let tiles = (slots / tiling.rows + self.own).min(slots);
        Launch {
            entry: entry_of(STEMS, self.gemm.encoding, tiling.name, self.gemm.elem),
            grid: [self.gemm.n.div_ceil(16).div_ceil(tiling.tiles), tiles, 1],
            block: [tiling.threads, 1, 1],
            shared_bytes: tiling.shared,
        }
    }
}
