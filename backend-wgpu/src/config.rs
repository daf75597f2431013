//! What a user asks of an adapter.

use engraft_core::numerics::Mode;
use engraft_shaders::Reduce;
use std::path::PathBuf;

/// How an adapter is chosen and opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WgpuConfig {
    /// Place of the adapter in the order of [`list`](crate::list), which counts before its name: two adapters
    /// may have one name, as a GPU has that two APIs list.
    pub index: Option<usize>,
    /// Part of the adapter's name, behind the name of an API and a colon where that matters (`vulkan`,
    /// `metal`, `dx12`; also alone), `#1` behind it for the second of those that fit; none: the strongest one
    /// that is hardware.
    pub adapter: Option<String>,
    /// Take a software adapter without being given its name.
    pub software: bool,
    /// Pass parameters through a uniform arena even where immediates exist (as browsers must).
    pub uniform_parameters: bool,
    /// The promise wanted. `Reference` keeps the contract's order everywhere; above it sums may be split over
    /// the invocations of a workgroup, where that pays.
    pub mode: Mode,
    /// How sums are brought together; none: as the mode and the adapter suggest.
    pub reduce: Option<Reduce>,
    /// Unpack halves by hand even where shaders know the type f16. No bit depends on it.
    pub f16_by_hand: bool,
    /// Multiply bytes one by one even where shaders multiply four at once. No bit depends on it.
    pub bytes_by_hand: bool,
    /// Bytes that one binding may span, where less than the adapter allows is wanted: weights are split into
    /// more pieces. No bit depends on it.
    pub binding_bytes: Option<u64>,
    /// Folder that keeps compiled pipelines from start to start, where the API lets a program have them
    /// (Vulkan); none: nothing is kept. Elsewhere drivers keep them by themselves, and nothing is written.
    pub kernel_cache: Option<PathBuf>,
    /// Workgroups that one command buffer may have, whatever they have to do; none: as much work as takes 75
    /// ms, by what the device took for those before, so that no watchdog gives one up. A dispatch of a
    /// matmul, of attention or of scores of an index that has more is split; other ops, and attention with
    /// terms by distance, are dispatched as a whole. No bit depends on it.
    pub submit_groups: Option<u64>,
}
