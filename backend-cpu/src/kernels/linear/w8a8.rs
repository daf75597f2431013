//! Panels of `w8a8` weights: bytes with one scale per 32 k.
//!
//! A panel holds, per block: the scales (f16 x 16), then the bytes `[8][16 outputs][4 k]`, so that one vector
//! has four consecutive k of 8 outputs, which is what instructions that add four products want.

use super::panel::PANEL;
use engraft_core::quant::activation::SPAN;
use half::f16;

/// Bytes of a panel's block: scales and codes.
pub(super) const BLOCK_BYTES: usize = 2 * PANEL + SPAN * PANEL;

/// Bytes of a panel over `k` values, whole blocks.
pub(super) fn panel_bytes(k: usize) -> Option<usize> {
    k.is_multiple_of(SPAN).then_some(k / SPAN * BLOCK_BYTES)
}

/// Spreads a stored row over column `j` of a panel.
pub(super) fn pack(row: &[u8], panel: &mut [u8], j: usize) {
    for (stored, out) in row.chunks_exact(2 + SPAN).zip(panel.chunks_exact_mut(BLOCK_BYTES)) {
        out[2 * j..2 * j + 2].copy_from_slice(&stored[..2]);
        let codes = out[2 * PANEL..].chunks_exact_mut(4 * PANEL);
        for (four, quad) in stored[2..].chunks_exact(4).zip(codes) {
            quad[4 * j..4 * j + 4].copy_from_slice(four);
        }
    }
}

/// Column `j` of a panel as f32: an embedding that shares its memory with the head.
pub(super) fn unpack(panel: &[u8], j: usize, out: &mut [f32]) {
    for (block, values) in panel.chunks_exact(BLOCK_BYTES).zip(out.chunks_exact_mut(SPAN)) {
        let d = f16::from_le_bytes([block[2 * j], block[2 * j + 1]]).to_f32();
        for (i, v) in values.iter_mut().enumerate() {
            *v = d * f32::from(block[2 * PANEL + i / 4 * 4 * PANEL + 4 * j + i % 4] as i8);
        }
    }
}
