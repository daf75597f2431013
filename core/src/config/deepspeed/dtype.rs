//! Spellings of element types.

use crate::mem::Float;
use crate::{Error, Result};
use std::str::FromStr;

/// Element type of an inference configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DataType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    #[default]
    F16,
    /// bfloat16.
    Bf16,
    /// Signed bytes in groups for weights, f16 for activations.
    Int8,
}

const SPELLINGS: [(DataType, &[&str]); 4] = [
    (DataType::F16, &["fp16", "float16", "half", "f16"]),
    (DataType::F32, &["fp32", "float32", "float", "f32"]),
    (DataType::Bf16, &["bf16", "bfloat16", "bfloat"]),
    (DataType::Int8, &["int8"]),
];

impl DataType {
    /// Element type of activations and KV.
    pub fn activations(self) -> Float {
        match self {
            DataType::F32 => Float::F32,
            DataType::Bf16 => Float::Bf16,
            DataType::F16 | DataType::Int8 => Float::F16,
        }
    }

    /// The name as PyTorch spells it: `torch.float16`.
    pub fn name(self) -> &'static str {
        match self {
            DataType::F32 => "torch.float32",
            DataType::F16 => "torch.float16",
            DataType::Bf16 => "torch.bfloat16",
            DataType::Int8 => "torch.int8",
        }
    }
}

impl From<Float> for DataType {
    fn from(float: Float) -> Self {
        match float {
            Float::F32 => DataType::F32,
            Float::F16 => DataType::F16,
            Float::Bf16 => DataType::Bf16,
        }
    }
}

impl FromStr for DataType {
    type Err = Error;

    /// DeepSpeed's spellings, with or without `torch.`, and ours.
    fn from_str(text: &str) -> Result<Self> {
        let bare = text.strip_prefix("torch.").unwrap_or(text);
        let found = SPELLINGS.iter().find(|(_, names)| names.contains(&bare));
        found.map(|(dtype, _)| *dtype).ok_or_else(|| {
            let all: Vec<&str> = SPELLINGS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
            Error::config(
                "dtype",
                format!("\"{text}\""),
                format!("{} (each also with torch. in front)", all.join(", ")),
            )
        })
    }
}
