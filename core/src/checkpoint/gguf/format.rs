//! The format's own numbers, and bounds on what a file may claim.

use crate::mem::{Block, Stored};

/// First four bytes of a file.
pub const MAGIC: &[u8] = b"GGUF";
/// Most tensors in one file.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Most metadata pairs.
pub const MAX_PAIRS: u64 = 1 << 14;
/// Longest key, tensor names included.
pub const MAX_KEY: u64 = 1 << 16;
/// Longest string value.
pub const MAX_STRING: u64 = 1 << 24;
/// Most elements of a list; lists do not nest.
pub const MAX_ARRAY: u64 = 1 << 24;
/// Most dimensions of a tensor.
pub const MAX_RANK: u32 = 4;
/// Largest `general.alignment`.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

/// ggml's number of a type; `write` needs the way back.
pub(super) const TYPES: &[(u32, Stored)] = &[
    (0, Stored::F32),
    (1, Stored::F16),
    (2, Stored::Block(Block::Q4_0)),
    (3, Stored::Block(Block::Q4_1)),
    (6, Stored::Block(Block::Q5_0)),
    (7, Stored::Block(Block::Q5_1)),
    (8, Stored::Block(Block::Q8_0)),
    (10, Stored::Block(Block::Q2K)),
    (11, Stored::Block(Block::Q3K)),
    (12, Stored::Block(Block::Q4K)),
    (13, Stored::Block(Block::Q5K)),
    (14, Stored::Block(Block::Q6K)),
    (20, Stored::Block(Block::Iq4Nl)),
    (23, Stored::Block(Block::Iq4Xs)),
    (24, Stored::I8),
    (25, Stored::I16),
    (26, Stored::I32),
    (27, Stored::I64),
    (28, Stored::F64),
    (30, Stored::Bf16),
];

/// llama.cpp's number of a file whose matrices have mostly this type (`general.file_type`).
const FILE_TYPES: &[(u32, Stored)] = &[
    (0, Stored::F32),
    (1, Stored::F16),
    (2, Stored::Block(Block::Q4_0)),
    (3, Stored::Block(Block::Q4_1)),
    (7, Stored::Block(Block::Q8_0)),
    (8, Stored::Block(Block::Q5_0)),
    (9, Stored::Block(Block::Q5_1)),
    (10, Stored::Block(Block::Q2K)),
    (12, Stored::Block(Block::Q3K)),
    (15, Stored::Block(Block::Q4K)),
    (17, Stored::Block(Block::Q5K)),
    (18, Stored::Block(Block::Q6K)),
    (25, Stored::Block(Block::Iq4Nl)),
    (30, Stored::Block(Block::Iq4Xs)),
    (32, Stored::Bf16),
];

/// llama.cpp's number of a file whose matrices have mostly this type.
pub(crate) fn file_type(stored: Stored) -> Option<u32> {
    FILE_TYPES.iter().find(|(_, known)| *known == stored).map(|(number, _)| *number)
}

/// Whether tensors of this type can be in a file.
pub(crate) fn holds(stored: Stored) -> bool {
    TYPES.iter().any(|(_, known)| *known == stored)
}

/// Types that exist and cannot be read, for the message.
const UNREAD: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
];

/// The number of MXFP4, which is read as another type.
pub(super) const MXFP4: u32 = 39;

/// The type of ggml's number.
pub(super) fn stored(kind: u32) -> Result<Stored, String> {
    if kind == MXFP4 {
        return Ok(Stored::Block(Block::Q5_0));
    }
    if let Some((_, stored)) = TYPES.iter().find(|(n, _)| *n == kind) {
        return Ok(*stored);
    }
    let supported = "supported: F32, F16, BF16, F64, I8, I16, I32, I64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, \
                     Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4";
    Err(match UNREAD.iter().find(|(n, _)| *n == kind) {
        Some((_, name)) => format!("{name} is not supported yet; {supported}"),
        None => format!("type number {kind} is unknown; {supported}"),
    })
}
