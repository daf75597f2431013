//! Which variant of a kernel runs: decided once when a device is opened, asked by the ops and by `coverage`
//! with the same question, an op's signature.
//!
//! Three ways to bring a sum together (`Reduce`): the contract's eight chains, which `Reference` demands; and
//! the wide order, where a workgroup's invocations exchange sums through workgroup memory or within
//! subgroups. The last two give the same bits on every device, whatever the width of its subgroups, so the
//! promise of
//! `Invariant` holds between them, too.
//!
//! The wide order needs hundreds of invocations side by side to pay. Drivers that run on the CPU have none to
//! spare and are given the chains, unless the configuration says otherwise.

use crate::adapter::{AdapterKind, IN_BROWSER, Listed};
use crate::config::WgpuConfig;
use crate::kernel::{Variant, WIDTH, WgpuKernel, columns_of};
use crate::weight;
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Mode;
use engraft_core::ops::{MoeOpKind, NormOpKind, OpKind, PictureOpKind, RopeOpKind, Signature};
use engraft_core::params::Heads;
use engraft_core::{Error, Result};
use engraft_shaders::{ATTENTION_SLOTS, Elem, Kernel, Packing, Reduce};

/// The variants of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Select {
    /// Of norms and matmuls.
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

/// How a matmul runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matmul {
    /// Tiles of this many rows, in the wide order or the contract's.
    Tiles {
        /// Of a tile.
        rows: u32,
        /// The wide order.
        wide: bool,
    },
    /// Sums split over the lanes of a workgroup.
    Lanes {
        /// Of a tile.
        rows: u32,
        /// Parts are added within subgroups.
        subgroups: bool,
    },
}

/// What a matmul is of, next to how it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatmulOf {
    pub weight: Packing,
    pub x: Elem,
    pub out: Elem,
    pub gate: bool,
    /// Whether an activation follows.
    pub act: bool,
    /// Whether rows begin at multiples of four elements.
    pub vector: bool,
}

/// The shader of a matmul.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shader {
    pub kernel: Kernel,
    /// Of a tile.
    pub rows: u32,
    /// The wide order.
    pub wide: bool,
    /// Workgroups of a panel.
    pub per_panel: usize,
}

/// As an adapter names its API.
const DX12: &str = "Dx12";

impl Shader {
    /// The same matmul by the kernel that stands in for this one's.
    pub fn by(self, kernel: Kernel) -> Self {
        match kernel {
            Kernel::Linear { rows, .. } => Self { kernel, rows, per_panel: 1, ..self },
            Kernel::LinearLanes { rows, .. } => Self { kernel, rows, ..self },
            _ => self,
        }
    }
}

/// Workgroups of a panel where sums are split over lanes.
pub(crate) const LANES_PER_PANEL: usize = 4;

impl Matmul {
    /// The shader that runs it.
    pub fn shader(self, of: &MatmulOf) -> Shader {
        let MatmulOf { weight, x, out, gate, act, vector } = *of;
        match self {
            Matmul::Tiles { rows, wide } => {
                let kernel = Kernel::Linear { weight, x, out, rows, gate, vector, act };
                Shader { kernel, rows, wide, per_panel: 1 }
            }
            Matmul::Lanes { rows, subgroups } => {
                let kernel = Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups };
                Shader { kernel, rows, wide: true, per_panel: LANES_PER_PANEL }
            }
        }
    }
}

/// Workgroups of attention that keep a GPU busy.
const BUSY_TILES: usize = 128;

/// Columns of a value head at most: invocations of a workgroup, and how many an invocation can carry.
const WIDEST_VALUES: usize = WIDTH * 8;

/// Tokens to sample from at most: bins of the search count weights in parts of 10 bits, which more could
/// overflow.
const MOST_TOKENS: usize = 1 << 22;

/// Most rows that lanes serve: beyond them tiles keep a GPU busy and read a weight less often.
const FEW_ROWS: usize = 4;

/// Why an op runs by its composition; of all others none.
pub(crate) fn composed(op: OpKind) -> Option<&'static str> {
    match op {
        OpKind::Picture(PictureOpKind::Conv) => Some("windows are gathered, then multiplied as other rows"),
        _ => None,
    }
}

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
        // DXC refuses what naga writes for products of four bytes (the shaders' tests expect it).
        select.dot &= listed.api != DX12;
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

    /// Why subgroups are not used, where they are not.
    pub fn why_no_subgroups(&self) -> &str {
        self.reason.as_deref().unwrap_or("drivers that run on the CPU gain nothing by them")
    }

    /// Why halves are unpacked by hand, where they are.
    pub fn why_no_f16(&self) -> &str {
        self.by_hand.as_deref().unwrap_or_default()
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

    /// The variant that an op with this signature runs by.
    ///
    /// # Errors
    /// Why there is none.
    pub fn choose(&self, signature: &Signature) -> Result<Variant, String> {
        let Signature { op, weight, heads, inner, .. } = *signature;
        if let Some(reason) = weight.and_then(weight::unreadable) {
            return Err(reason);
        }
        match op {
            OpKind::Linear(_) | OpKind::Moe(MoeOpKind::ExpertLinear)
                if weight == Some(WeightFormat::W8A8) =>
            {
                Ok(Variant::Bytes { dot: self.dot })
            }
            OpKind::Norm(NormOpKind::GroupNorm) => Ok(Variant::Plain),
            OpKind::Linear(_) | OpKind::Norm(_) => Ok(Variant::Sums(self.reduce)),
            OpKind::Rope(RopeOpKind::QkvRopeAppend) => Ok(Variant::OfNorms(self.reduce)),
            OpKind::Attention(_) => match heads.map_or(Ok(()), heads_fit) {
                Ok(()) => Ok(Variant::Largest { subgroups: self.attention }),
                Err(reason) => Err(reason),
            },
            OpKind::Sample(_) if inner > MOST_TOKENS => {
                Err(format!("sampling from {inner} tokens; at most {MOST_TOKENS} are possible"))
            }
            _ => Ok(Variant::Plain),
        }
    }

    /// The key of that variant, with the reasons why it is not a better one.
    ///
    /// # Errors
    /// As [`Select::choose`].
    pub fn kernel(&self, signature: &Signature) -> Result<WgpuKernel, String> {
        let variant = self.choose(signature)?;
        let Signature { op, x, out, weight, kv, inner, heads, .. } = *signature;
        let halves = x == Float::F16 || weight == Some(WeightFormat::Plain(Float::F16));
        let lanes = self.reason.as_ref().filter(|_| variant.lacks_subgroups());
        let by_hand = self.by_hand.as_ref().filter(|_| halves);
        let lanes = lanes.map(|why| format!("no subgroups: {why}"));
        let by_hand = by_hand.map(|why| format!("f16 by hand: {why}"));
        let columns = heads.map_or(1, |heads| columns_of(&heads));
        let reasons = lanes.into_iter().chain(by_hand).collect();
        Ok(WgpuKernel { op, weight, x, out, kv, inner, columns, variant, reasons })
    }

    /// Whether attention is ever taken in tiles.
    pub fn has_tiles(&self) -> bool {
        !self.software || self.eager
    }

    /// Heads that share keys in a tile of attention, where tiles pay: not on the CPU; there must be enough of
    /// them, and their slots must find heads of a group or rows of a sequence. No bit depends on it.
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

    /// How a matmul of `rows` rows runs, whose rows begin at multiples of four elements or not, in `groups`
    /// workgroups at most.
    pub fn matmul(&self, variant: Variant, rows: usize, aligned: bool, groups: bool) -> Matmul {
        let reduce = variant.sums();
        let wide = reduce != Reduce::Leaves;
        if wide && rows <= FEW_ROWS && aligned && groups {
            let subgroups = reduce == Reduce::Subgroups;
            return Matmul::Lanes { rows: if rows <= 1 { 1 } else { 4 }, subgroups };
        }
        Matmul::Tiles { rows: self.tile_rows(rows), wide }
    }

    /// Rows of a tile: more of them use a weight oftener once it is read. No bit depends on it. Drivers that
    /// run on the CPU gain nothing beyond 4 and compile twice as long: there the tile of 8 runs only where a
    /// test names how sums are reduced.
    pub fn tile_rows(&self, rows: usize) -> u32 {
        match rows {
            0..=1 => 1,
            2..=4 => 4,
            _ if self.software && !self.eager => 4,
            _ => 8,
        }
    }
}

/// Whether attention has room for heads.
fn heads_fit(heads: Heads) -> Result<(), String> {
    let most = usize::from(u16::MAX);
    let Heads { heads, kv_heads, k_dim, v_dim } = heads;
    if v_dim > WIDEST_VALUES {
        return Err(format!("value heads of {v_dim} columns; at most {WIDEST_VALUES} are possible"));
    }
    match k_dim > most || kv_heads > most || heads / kv_heads.max(1) > most {
        true => {
            Err(format!("{heads} heads of {k_dim} columns, {kv_heads} of keys; at most {most} are possible"))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use engraft_core::mem::Block;
    use engraft_core::ops::{AttentionOpKind, LinearOpKind, SampleOpKind};

    fn config(mode: Mode, reduce: Option<Reduce>) -> WgpuConfig {
        WgpuConfig { mode, reduce, ..WgpuConfig::default() }
    }

    fn of(op: impl Into<OpKind>) -> Signature {
        Signature::new(op.into(), Float::F32, 64, 64)
    }

    #[test]
    fn the_mode_and_the_adapter_decide() {
        let wanted = |mode, kind| Select::wanted(&config(mode, None), kind).unwrap();
        let variants = |select: &Select| {
            let choose = |op: OpKind| select.choose(&of(op)).unwrap();
            [choose(LinearOpKind::Linear.into()), choose(AttentionOpKind::Attend.into())]
        };
        let gpu = wanted(Mode::Invariant, AdapterKind::Discrete);
        let [sums, largest] = variants(&gpu);
        assert_eq!((sums, largest.largest_in_subgroups()), (Variant::Sums(Reduce::Subgroups), true));
        assert_eq!(gpu.choose(&of(NormOpKind::Norm)).unwrap(), sums);
        assert_eq!(gpu.matmul(sums, 1, true, true), Matmul::Lanes { rows: 1, subgroups: true });
        assert_eq!(gpu.matmul(sums, 3, true, true), Matmul::Lanes { rows: 4, subgroups: true });
        // The same order for any number of rows and any layout.
        assert_eq!(gpu.matmul(sums, 3, false, true), Matmul::Tiles { rows: 4, wide: true });
        assert_eq!(gpu.matmul(sums, 9, true, true), Matmul::Tiles { rows: 8, wide: true });
        let bytes = Variant::Bytes { dot: true };
        assert_eq!(gpu.matmul(bytes, 1, true, true), Matmul::Tiles { rows: 1, wide: false });
        // One sequence decoded, a prompt, a batch decoded with shared keys and without.
        let tile = |rows, sequences, kv_heads| {
            gpu.tile_heads(rows, sequences, &Heads { heads: 32, kv_heads, k_dim: 64, v_dim: 64 })
        };
        let all = [tile(1, 1, 8), tile(512, 1, 32), tile(64, 64, 4), tile(64, 64, 32)];
        assert_eq!(all, [None, Some(1), Some(4), None]);
        let strict = wanted(Mode::Reference, AdapterKind::Discrete);
        let [sums, largest] = variants(&strict);
        assert_eq!((sums, largest.largest_in_subgroups()), (Variant::Sums(Reduce::Leaves), true));
        assert_eq!(strict.matmul(sums, 1, true, true), Matmul::Tiles { rows: 1, wide: false });
        let software = wanted(Mode::Invariant, AdapterKind::Software);
        assert!(software.keeps_order() && !software.subgroups());
        let refused = Select::wanted(&config(Mode::Reference, Some(Reduce::Shared)), AdapterKind::Discrete);
        assert!(refused.unwrap_err().to_string().contains("Shared in reference mode"));
    }

    #[test]
    fn a_fallback_says_why() {
        let auto = config(Mode::Invariant, None);
        let gpu = Select::wanted(&auto, AdapterKind::Discrete).unwrap();
        let name = |select: &Select, signature: Signature| select.kernel(&signature).unwrap().to_string();
        let (linear, attend) = (of(LinearOpKind::Linear), of(AttentionOpKind::Attend));
        assert_eq!(name(&gpu, of(NormOpKind::Norm)), "norm_f32_wgsl_subgroups");
        let plain = gpu.clone().without_subgroups(&auto, "wgpu:x", "the adapter offers none").unwrap();
        let sums = plain.choose(&linear).unwrap();
        assert_eq!(plain.matmul(sums, 1, true, true), Matmul::Lanes { rows: 1, subgroups: false });
        let q4 = Signature { weight: Some(WeightFormat::Block(Block::Q4_0)), ..linear };
        let why = "(no subgroups: the adapter offers none)";
        assert_eq!(name(&plain, q4), format!("linear_q4_0_f32_wgsl_shared {why}"));
        assert_eq!(name(&plain, attend), format!("attend_f32_wgsl {why}"));
        assert_eq!(name(&plain, of(RopeOpKind::Rope)), "rope_f32_wgsl");
        assert_eq!(name(&plain, of(RopeOpKind::QkvRopeAppend)), "qkv_rope_append_f32_wgsl");
        let mut by_hand = gpu;
        by_hand.unpack_by_hand("the adapter has no shader-f16");
        let halves = Signature { x: Float::F16, ..of(RopeOpKind::Rope) };
        assert_eq!(name(&by_hand, halves), "rope_f16_wgsl (f16 by hand: the adapter has no shader-f16)");
        assert_eq!(name(&by_hand, of(RopeOpKind::Rope)), "rope_f32_wgsl");
        let bytes = Signature { weight: Some(WeightFormat::W8A8), ..linear };
        assert_eq!(name(&by_hand, bytes), "linear_w8a8_f32_wgsl_dot4");
        let forced = config(Mode::Invariant, Some(Reduce::Subgroups));
        let gpu = Select::wanted(&forced, AdapterKind::Software).unwrap();
        let refused = gpu.without_subgroups(&forced, "wgpu:x", "the adapter offers none").unwrap_err();
        assert!(refused.to_string().contains("offers none"));
    }

    #[test]
    fn dxc_gets_no_dot4_of_bytes() {
        let config = config(Mode::Invariant, None);
        let bytes = Signature { weight: Some(WeightFormat::W8A8), ..of(LinearOpKind::Linear) };
        let name = |backend: wgpu::Backend| {
            let (api, driver) = (format!("{backend:?}"), String::new());
            let (name, kind) = ("Arc".to_string(), AdapterKind::Integrated);
            let listed = Listed { name, kind, api, driver, f16: true, subgroups: Some((8, 32)) };
            Select::offered(&config, &listed).unwrap().kernel(&bytes).unwrap().to_string()
        };
        assert_eq!(name(wgpu::Backend::Dx12), "linear_w8a8_f32_wgsl_by_bytes");
        assert_eq!(name(wgpu::Backend::Vulkan), "linear_w8a8_f32_wgsl_dot4");
    }

    #[test]
    fn what_has_no_kernel_says_why() {
        let gpu = Select::wanted(&config(Mode::Invariant, None), AdapterKind::Discrete).unwrap();
        let of_values = |v_dim| {
            let heads = Heads { heads: 1, kv_heads: 1, k_dim: 64, v_dim };
            gpu.kernel(&Signature { heads: Some(heads), ..of(AttentionOpKind::Attend) })
        };
        let said = of_values(WIDEST_VALUES + 1).unwrap_err();
        assert!(said.contains("value heads of 513 columns; at most 512"), "{said}");
        let columns = [WIDEST_VALUES - 1, WIDEST_VALUES].map(|v_dim| of_values(v_dim).map(|k| k.columns));
        assert_eq!(columns, [Ok(8), Ok(8)]);
        let from = |inner| gpu.kernel(&Signature { inner, ..of(SampleOpKind::Sample) });
        assert!(from(MOST_TOKENS - 1).is_ok() && from(MOST_TOKENS).is_ok());
        let said = from(MOST_TOKENS + 1).unwrap_err();
        assert!(said.contains("4194305 tokens"), "{said}");
        let pairs =
            |k_dim, kv_heads, share| heads_fit(Heads { heads: kv_heads * share, kv_heads, k_dim, v_dim: 8 });
        let most = usize::from(u16::MAX);
        for by in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
            assert_eq!(pairs(most - by[0], most - by[1], most - by[2]), Ok(()), "{by:?} less");
            assert!(pairs(most + by[0], most + by[1], most + by[2]).is_err(), "{by:?} more");
        }
    }

    /// One less, as many, and one more.
    #[test]
    fn every_number_that_decides_does_so_at_its_bound() {
        let gpu = Select::wanted(&config(Mode::Invariant, None), AdapterKind::Discrete).unwrap();
        let busy = BUSY_TILES * ATTENTION_SLOTS;
        let tile = |heads: usize, rows: usize| {
            gpu.tile_heads(rows, 1, &Heads { heads, kv_heads: heads, k_dim: 64, v_dim: 64 })
        };
        assert_eq!([busy - 1, busy, busy + 1].map(|rows| tile(1, rows)), [None, Some(1), Some(1)]);
        let of_eight = [busy / 8 - 1, busy / 8, busy / 8 + 1].map(|rows| tile(8, rows));
        assert_eq!(of_eight, [None, Some(1), Some(1)]);
        // Slots find rows of a sequence from two of each on, or heads of a group.
        let many = |rows, sequences, kv_heads| {
            gpu.tile_heads(rows, sequences, &Heads { heads: 600, kv_heads, k_dim: 64, v_dim: 64 })
        };
        assert_eq!([19, 20, 21].map(|rows| many(rows, 10, 600)), [None, Some(1), Some(1)]);
        assert_eq!([600, 300, 200, 150].map(|kv| many(20, 10, kv)), [Some(1), Some(2), Some(4), Some(4)]);
        assert_eq!([300, 200].map(|kv| many(19, 10, kv)), [None, Some(4)]);
        let sums = gpu.choose(&of(LinearOpKind::Linear)).unwrap();
        let matmul = |rows| gpu.matmul(sums, rows, true, true);
        let lanes = |rows| Matmul::Lanes { rows, subgroups: true };
        assert_eq!([0, 1, 2].map(matmul), [lanes(1), lanes(1), lanes(4)]);
        let tiles = Matmul::Tiles { rows: 8, wide: true };
        assert_eq!([FEW_ROWS - 1, FEW_ROWS, FEW_ROWS + 1].map(matmul), [lanes(4), lanes(4), tiles]);
        let apart = [1, 2, 4, 5].map(|rows| gpu.matmul(sums, rows, false, true));
        assert_eq!(apart, [1, 4, 4, 8].map(|rows| Matmul::Tiles { rows, wide: true }));
    }
}
