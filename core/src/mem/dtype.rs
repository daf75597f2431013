//! Element types: of activations (`Float`), of what checkpoints store (`Stored`), of prepared weights (`WeightFormat`).

use crate::{Error, Result};

/// Element type of activations and KV: a run-time tag, since one model mixes them by configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Float {
    /// IEEE binary32.
    #[default]
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Float {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// `f32`, `f16`, `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Float::F32 => "f32",
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
        }
    }
}

impl From<Float> for Stored {
    fn from(dtype: Float) -> Self {
        match dtype {
            Float::F32 => Stored::F32,
            Float::F16 => Stored::F16,
            Float::Bf16 => Stored::Bf16,
        }
    }
}

impl std::fmt::Display for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Float {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "f32" | "fp32" | "float32" => Ok(Float::F32),
            "f16" | "fp16" | "float16" | "half" => Ok(Float::F16),
            "bf16" | "bfloat16" => Ok(Float::Bf16),
            _ => Err(Error::config("dtype", format!("\"{s}\""), "f32, f16, bf16")),
        }
    }
}

/// Element type of a tensor in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stored {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
    /// GGUF blocks along the last dimension.
    Block(Block),
}

/// Block formats of GGUF: 32 values along K share one f16 scale `d` (and, in the `_1` forms, one f16 minimum `m`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Block {
    /// `d * (q - 8)`, 4-bit q: 18 bytes.
    Q4_0,
    /// `d * q + m`, 4-bit q: 20 bytes.
    Q4_1,
    /// `d * (q - 16)`, 5-bit q: 22 bytes.
    Q5_0,
    /// `d * q + m`, 5-bit q: 24 bytes.
    Q5_1,
    /// `d * q`, signed 8-bit q: 34 bytes.
    Q8_0,
}

impl Block {
    /// Values in one block.
    pub const VALUES: usize = 32;

    /// Bytes of one block in a file.
    pub const fn bytes(self) -> usize {
        match self {
            Block::Q4_0 => 18,
            Block::Q4_1 => 20,
            Block::Q5_0 => 22,
            Block::Q5_1 => 24,
            Block::Q8_0 => 34,
        }
    }

    /// The name in upper case, as GGUF files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Block::Q4_0 => "Q4_0",
            Block::Q4_1 => "Q4_1",
            Block::Q5_0 => "Q5_0",
            Block::Q5_1 => "Q5_1",
            Block::Q8_0 => "Q8_0",
        }
    }
}

impl Stored {
    /// Bytes of `values` consecutive elements; blocks must divide them, overflow is `None`.
    pub fn bytes(self, values: usize) -> Option<usize> {
        let size = match self {
            Stored::F64 | Stored::I64 => 8,
            Stored::F32 | Stored::I32 => 4,
            Stored::F16 | Stored::Bf16 | Stored::I16 => 2,
            Stored::I8 | Stored::U8 | Stored::Bool => 1,
            Stored::Block(b) => {
                return values
                    .is_multiple_of(Block::VALUES)
                    .then(|| (values / Block::VALUES).checked_mul(b.bytes()))
                    .flatten();
            }
        };
        values.checked_mul(size)
    }

    /// Name for messages: `f32`, `i64`, `Q8_0`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Stored::F64 => "f64",
            Stored::F32 => "f32",
            Stored::F16 => "f16",
            Stored::Bf16 => "bf16",
            Stored::I64 => "i64",
            Stored::I32 => "i32",
            Stored::I16 => "i16",
            Stored::I8 => "i8",
            Stored::U8 => "u8",
            Stored::Bool => "bool",
            Stored::Block(b) => b.name(),
        }
    }
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Format of a prepared weight: what is multiplied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightFormat {
    /// Plain elements.
    Plain(Float),
    /// GGUF blocks, kept packed and decoded while multiplying.
    Block(Block),
}

impl WeightFormat {
    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::Plain(f) => f.name(),
            WeightFormat::Block(b) => b.name(),
        }
    }

    /// Bytes of a `[rows, cols]` weight as stored.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            WeightFormat::Plain(f) => rows * cols * f.bytes(),
            WeightFormat::Block(b) => rows * cols.div_ceil(Block::VALUES) * b.bytes(),
        }
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
