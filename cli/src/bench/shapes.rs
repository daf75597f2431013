//! The shapes that `engraft bench` writes and `cargo xtask predict` predicts, one list for both.
//!
//! Nothing is imported here, so that `xtask` and the conformance suite can include this file.

/// The sizes of a LLaMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// As `engraft bench --shape` names it.
    pub name: &'static str,
    /// Columns of the residual.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Columns of gate and up.
    pub inner: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Whether the head shares the token table.
    pub tied: bool,
}

/// All shapes that have a name.
pub const SHAPES: [Shape; 6] = [
    Shape { name: "tiny", hidden: 64, layers: 2, heads: 4, kv_heads: 2, inner: 128, vocab: 256, tied: true },
    // What the conformance suite counts a step's bytes at.
    Shape {
        name: "narrow",
        hidden: 512,
        layers: 2,
        heads: 8,
        kv_heads: 2,
        inner: 1408,
        vocab: 1024,
        tied: false,
    },
    Shape { name: "S", hidden: 288, layers: 6, heads: 6, kv_heads: 6, inner: 768, vocab: 32000, tied: true },
    Shape {
        name: "M",
        hidden: 768,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        inner: 2048,
        vocab: 32000,
        tied: true,
    },
    Shape {
        name: "llama-1b",
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        inner: 8192,
        vocab: 128256,
        tied: true,
    },
    Shape {
        name: "llama-8b",
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        inner: 14336,
        vocab: 128256,
        tied: false,
    },
];
