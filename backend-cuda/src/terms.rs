//! What the choice of a kernel depends on besides the op.

use engraft_core::numerics::Mode;

/// What a choice depends on besides the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The promise about bits.
    pub mode: Mode,
    /// Shared memory that a block may have on the device, in bytes.
    pub shared_bytes: u32,
    /// Whether the device has wgmma and bulk copies (compute capability 9.0).
    pub hopper: bool,
    /// Whether cuBLASLt is there.
    pub blaslt: bool,
}
