//! How many experts a step is expected to read: one place for `engraft bench` and `cargo xtask predict`.
//!
//! Nothing is imported here, so that `xtask` and the conformance suite can include this file.

/// The share of a block's experts that a step of so many tokens reads, where every expert is as likely as any
/// other and tokens choose for themselves: of one that a token chooses with probability `p`,
/// `1 - (1 - p)^tokens`.
pub fn share_read(p: f64, tokens: usize) -> f64 {
    1.0 - (1.0 - p).powf(tokens as f64)
}
