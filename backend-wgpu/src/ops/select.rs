//! Which variant of a kernel runs: decided once when a device is opened, asked by the ops and by `coverage`.
//!
//! Three ways to bring a sum together (`Reduce`): the contract's eight chains, which `Reference` demands; and the wide
//! order, where a workgroup's invocations meet through workgroup memory or within subgroups. The last two give the
//! same bits on every device, whatever the width of its subgroups, so the promise of `Invariant` holds between them, too.
//!
//! The wide order needs hundreds of invocations side by side to pay. Drivers that run on the CPU have none to spare and
//! are given the chains, unless the configuration says otherwise.

use crate::adapter::IN_BROWSER;
use crate::{AdapterKind, Listed, WgpuConfig};
use engraft_core::backend::{Op, Signature};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Mode;
use engraft_core::params::Heads;
use engraft_core::{Error, Result};
use engraft_shaders::{ATTENTION_SLOTS, Reduce};

/// The variants of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Select {
    /// Of norms and products.
    reduce: Reduce,
    /// Whether attention finds its largest score within subgroups; no bit depends on it.
    attention: bool,
    software: bool,
    /// Whether the configuration names a variant: then small cases get what large ones would.
    eager: bool,
    /// Whether four bytes are multiplied at a time.
    dot: bool,
    /// Why subgroups would be used but are not.
    reason: Option<String>,
    /// Why halves are unpacked by hand, if they are.
    by_hand: Option<String>,
}

/// How a product runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// Tiles of this many rows, in the wide order or the contract's.
    Tiles {
        /// Of a tile.
        rows: u32,
        /// The wide order.
        wide: bool,
    },
    /// Sums cut over the lanes of a workgroup.
    Lanes {
        /// Of a tile.
        rows: u32,
        /// Parts meet within subgroups.
        subgroups: bool,
    },
}

/// Workgroups of attention that keep a GPU busy.
const BUSY_TILES: usize = 128;

/// Most rows that lanes serve: beyond them tiles keep a GPU busy and read a weight less often.
const FEW_ROWS: usize = 4;

impl Select {
    /// What the configuration asks of an adapter, as far as the adapter says that it can.
    ///
    /// # Errors
    /// As [`Select::wanted`]; `Unsupported` when the configuration names what the adapter lacks.
    pub fn offered(config: &WgpuConfig, listed: &Listed) -> Result<Self> {
        let mut select = Self::wanted(config, listed.kind)?;
        if select.subgroups() && listed.subgroups.is_none() {
            let backend = format!("wgpu:{}", listed.name);
            select = select.without_subgroups(config, &backend, "the adapter offers none")?;
        }
        if config.f16_by_hand {
            select.unpack_by_hand("as configured");
        } else if !listed.f16 {
            select.unpack_by_hand("the adapter has no shader-f16");
        }
        Ok(select)
    }

    /// What the configuration asks of an adapter of this kind, were it able to do everything.
    ///
    /// # Errors
    /// `Config` when a wide order is wanted together with `Reference`.
    pub fn wanted(config: &WgpuConfig, kind: AdapterKind) -> Result<Self> {
        let software = kind == AdapterKind::Software;
        let reduce = match (config.mode, config.reduce) {
            (Mode::Reference, Some(reduce)) if reduce != Reduce::Leaves => {
                return Err(Error::config(
                    "reduce",
                    format!("{reduce:?} in reference mode"),
                    "Leaves there, or another mode",
                ));
            }
            (_, Some(reduce)) => reduce,
            (Mode::Reference, None) => Reduce::Leaves,
            (_, None) if software => Reduce::Leaves,
            (_, None) => Reduce::Subgroups,
        };
        let attention = match config.reduce {
            Some(reduce) => reduce == Reduce::Subgroups,
            None => !software,
        };
        // Pages cannot ask whether the browser's shaders know the product of four bytes.
        let dot = !config.bytes_by_hand && !IN_BROWSER;
        let eager = config.reduce.is_some();
        Ok(Self { reduce, attention, software, eager, dot, reason: None, by_hand: None })
    }

    /// Whether the device has to be opened with subgroups.
    pub fn subgroups(&self) -> bool {
        self.attention || self.reduce == Reduce::Subgroups
    }

    /// The next best without subgroups, which are missing for `reason`.
    ///
    /// # Errors
    /// `Unsupported` when the configuration named subgroups.
    pub fn without_subgroups(self, config: &WgpuConfig, backend: &str, reason: &str) -> Result<Self> {
        if config.reduce == Some(Reduce::Subgroups) {
            return Err(Error::Unsupported {
                op: "sums within subgroups".into(),
                backend: backend.to_string(),
                reason: reason.to_string(),
            });
        }
        let reduce = if self.reduce == Reduce::Subgroups { Reduce::Shared } else { self.reduce };
        Ok(Self { reduce, attention: false, reason: Some(reason.to_string()), ..self })
    }

    /// Whether four bytes are multiplied at a time.
    pub fn dot(&self) -> bool {
        self.dot
    }

    /// Halves are unpacked from words, for `reason`.
    pub fn unpack_by_hand(&mut self, reason: &str) {
        self.by_hand = Some(reason.to_string());
    }

    /// Whether shaders read and write halves by their own type.
    pub fn f16(&self) -> bool {
        self.by_hand.is_none()
    }

    /// Whether sums keep the contract's order.
    pub fn keeps_order(&self) -> bool {
        self.reduce == Reduce::Leaves
    }

    /// How norms sum.
    pub fn norm(&self) -> Reduce {
        self.reduce
    }

    /// Whether attention finds its largest score within subgroups.
    pub fn attention(&self) -> bool {
        self.attention
    }

    /// Heads that share keys in a tile of attention, where tiles pay: not on the CPU; there must be enough of them, and their slots must find
    /// heads of a group or rows of a sequence. No bit depends on it.
    pub fn tile_heads(&self, rows: usize, sequences: usize, heads: &Heads) -> Option<usize> {
        let (heads, share) = (heads.heads, heads.heads / heads.kv_heads);
        let busy = !self.software && rows * heads >= BUSY_TILES * ATTENTION_SLOTS;
        if !busy && !self.eager {
            return None;
        }
        match share {
            3.. => Some(4),
            _ if rows < 2 * sequences => None,
            2 => Some(2),
            _ => Some(1),
        }
    }

    /// How a product of `rows` rows runs, whose rows begin at multiples of four elements or not, in `groups` workgroups
    /// at most.
    pub fn product(&self, rows: usize, aligned: bool, groups: bool) -> Product {
        let wide = !self.keeps_order();
        if wide && rows <= FEW_ROWS && aligned && groups {
            let subgroups = self.reduce == Reduce::Subgroups;
            return Product::Lanes { rows: if rows <= 1 { 1 } else { 4 }, subgroups };
        }
        Product::Tiles { rows: self.tile_rows(rows), wide }
    }

    /// How a product of rows that are bytes runs: always in the contract's order, since its chains are short.
    pub fn product_of_bytes(&self, rows: usize) -> Product {
        Product::Tiles { rows: self.tile_rows(rows), wide: false }
    }

    /// Rows of a tile: more of them use a weight oftener once it is read. No bit depends on it. Drivers that run on the
    /// CPU gain nothing beyond 4 and compile twice as long: there the tile of 8 runs only where a test names how sums meet.
    pub fn tile_rows(&self, rows: usize) -> u32 {
        match rows {
            0..=1 => 1,
            2..=4 => 4,
            _ if self.software && !self.eager => 4,
            _ => 8,
        }
    }

    /// What a kernel's name in reports says about its variant.
    pub fn suffix(&self, op: Op, signature: &Signature) -> String {
        let of_reduce = match self.reduce {
            Reduce::Leaves => "",
            Reduce::Shared => "_shared",
            Reduce::Subgroups => "_subgroups",
        };
        let (variant, falls_back) = match op {
            Op::Attend | Op::AttendDense => (if self.attention { "_subgroups" } else { "" }, !self.attention),
            Op::Norm | Op::AddNorm | Op::HeadNorm | Op::ReduceAddNorm => {
                (of_reduce, self.reduce == Reduce::Shared)
            }
            Op::Linear | Op::LinearAct | Op::LinearAdd | Op::GatedLinear | Op::ExpertLinear
                if signature.weight == Some(WeightFormat::W8A8) =>
            {
                (if self.dot { "_dot4" } else { "_by_bytes" }, false)
            }
            Op::Linear | Op::LinearAct | Op::LinearAdd | Op::GatedLinear => {
                (of_reduce, self.reduce == Reduce::Shared)
            }
            _ => ("", false),
        };
        let halves =
            signature.dtype == Float::F16 || signature.weight == Some(WeightFormat::Plain(Float::F16));
        let lanes = self.reason.as_ref().filter(|_| falls_back).map(|why| format!("no subgroups: {why}"));
        let by_hand = self.by_hand.as_ref().filter(|_| halves).map(|why| format!("f16 by hand: {why}"));
        let reasons: Vec<String> = lanes.into_iter().chain(by_hand).collect();
        match reasons.is_empty() {
            true => variant.to_string(),
            false => format!("{variant} ({})", reasons.join("; ")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(mode: Mode, reduce: Option<Reduce>) -> WgpuConfig {
        WgpuConfig { mode, reduce, ..WgpuConfig::default() }
    }

    #[test]
    fn the_mode_and_the_adapter_decide() {
        let wanted = |mode, kind| Select::wanted(&config(mode, None), kind).unwrap();
        let gpu = wanted(Mode::Invariant, AdapterKind::Discrete);
        assert_eq!((gpu.norm(), gpu.attention()), (Reduce::Subgroups, true));
        assert_eq!(gpu.product(1, true, true), Product::Lanes { rows: 1, subgroups: true });
        assert_eq!(gpu.product(3, true, true), Product::Lanes { rows: 4, subgroups: true });
        // The same order for any number of rows and any layout.
        assert_eq!(gpu.product(3, false, true), Product::Tiles { rows: 4, wide: true });
        assert_eq!(gpu.product(9, true, true), Product::Tiles { rows: 8, wide: true });
        // One sequence decoded, a prompt, a batch decoded with shared keys and without.
        let tile = |rows, sequences, kv_heads| {
            gpu.tile_heads(rows, sequences, &Heads { heads: 32, kv_heads, k_dim: 64, v_dim: 64 })
        };
        let all = [tile(1, 1, 8), tile(512, 1, 32), tile(64, 64, 4), tile(64, 64, 32)];
        assert_eq!(all, [None, Some(1), Some(4), None]);
        let strict = wanted(Mode::Reference, AdapterKind::Discrete);
        assert_eq!((strict.norm(), strict.attention()), (Reduce::Leaves, true));
        assert_eq!(strict.product(1, true, true), Product::Tiles { rows: 1, wide: false });
        let software = wanted(Mode::Invariant, AdapterKind::Software);
        assert!(software.keeps_order() && !software.subgroups());
        let refused = Select::wanted(&config(Mode::Reference, Some(Reduce::Shared)), AdapterKind::Discrete);
        assert!(refused.unwrap_err().to_string().contains("Shared in reference mode"));
    }

    #[test]
    fn a_fallback_says_why() {
        let auto = config(Mode::Invariant, None);
        let gpu = Select::wanted(&auto, AdapterKind::Discrete).unwrap();
        let signature = Signature::default();
        assert_eq!(gpu.suffix(Op::Norm, &signature), "_subgroups");
        let plain = gpu.clone().without_subgroups(&auto, "wgpu:x", "the adapter offers none").unwrap();
        assert_eq!(plain.product(1, true, true), Product::Lanes { rows: 1, subgroups: false });
        assert_eq!(plain.suffix(Op::Linear, &signature), "_shared (no subgroups: the adapter offers none)");
        assert_eq!(plain.suffix(Op::Attend, &signature), " (no subgroups: the adapter offers none)");
        assert_eq!(plain.suffix(Op::Rope, &signature), "");
        let mut by_hand = gpu;
        by_hand.unpack_by_hand("the adapter has no shader-f16");
        let halves = Signature { dtype: Float::F16, ..Signature::default() };
        assert_eq!(by_hand.suffix(Op::Rope, &halves), " (f16 by hand: the adapter has no shader-f16)");
        assert_eq!(by_hand.suffix(Op::Rope, &signature), "");
        let bytes = Signature { weight: Some(WeightFormat::W8A8), ..signature };
        assert_eq!(by_hand.suffix(Op::Linear, &bytes), "_dot4");
        let forced = config(Mode::Invariant, Some(Reduce::Subgroups));
        let gpu = Select::wanted(&forced, AdapterKind::Software).unwrap();
        let refused = gpu.without_subgroups(&forced, "wgpu:x", "the adapter offers none").unwrap_err();
        assert!(refused.to_string().contains("offers none"));
    }
}
