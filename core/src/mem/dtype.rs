//! Element types: of activations (`Float`), of what checkpoints store (`Stored`), of prepared weights
//! (`WeightFormat`).

use super::Groups;
use crate::{Error, Result};

/// Element type of activations and KV: a run-time tag, since one model mixes them by configuration.
///
/// ```
/// use engraft_core::mem::Float;
///
/// let dtype: Float = "bf16".parse()?;
/// assert_eq!((dtype, dtype.bytes(), dtype.name()), (Float::Bf16, 2, "bf16"));
/// # Ok::<(), engraft_core::Error>(())
/// ```
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
    /// Eight bits: four of exponent, three of mantissa, no infinities (`float8_e4m3fn`).
    F8E4m3,
    /// Eight bits: five of exponent, two of mantissa.
    F8E5m2,
    /// GGUF blocks along the last dimension.
    Block(Block),
    /// Own groups in rows of so many values: what published packed matrices become, never in files.
    Group(Groups, u32),
}

/// Block formats of GGUF: 32 values along K share one f16 scale `d` (and, in the `_1` formats, one f16
/// minimum `m`); in the K-quants 256 values share them, with small scales per 16 or 32 values inside.
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
    /// 2-bit q in parts of 16 with 4-bit scales and minima: 84 bytes.
    Q2K,
    /// 3-bit q in parts of 16 with 6-bit scales: 110 bytes.
    Q3K,
    /// 4-bit q in parts of 32 with 6-bit scales and minima: 144 bytes.
    Q4K,
    /// 5-bit q in parts of 32 with 6-bit scales and minima: 176 bytes.
    Q5K,
    /// 6-bit q in parts of 16 with 8-bit scales: 210 bytes.
    Q6K,
    /// `d * table[q]`, 4-bit q: 18 bytes.
    Iq4Nl,
    /// The same table, 256 values in parts of 32 with 6-bit scales: 136 bytes.
    Iq4Xs,
}

impl Block {
    /// Every format.
    pub const ALL: [Block; 12] = [
        Block::Q4_0,
        Block::Q4_1,
        Block::Q5_0,
        Block::Q5_1,
        Block::Q8_0,
        Block::Q2K,
        Block::Q3K,
        Block::Q4K,
        Block::Q5K,
        Block::Q6K,
        Block::Iq4Nl,
        Block::Iq4Xs,
    ];

    /// Values in one block of the formats without K.
    pub const VALUES: usize = 32;
    /// Values in one block of the K-quants.
    pub const LARGE: usize = 256;

    /// Values in one block.
    pub const fn values(self) -> usize {
        if self.is_large() { Self::LARGE } else { Self::VALUES }
    }

    /// Whether blocks have 256 values: the K-quants and IQ4_XS.
    pub const fn is_large(self) -> bool {
        matches!(self, Block::Q2K | Block::Q3K | Block::Q4K | Block::Q5K | Block::Q6K | Block::Iq4Xs)
    }

    /// Whether codes are places in a table (`quant::small_float::IQ4`).
    pub const fn is_table(self) -> bool {
        matches!(self, Block::Iq4Nl | Block::Iq4Xs)
    }

    /// What takes the place of a format of 256 values in rows that are no whole blocks of it: blocks of 32
    /// values, as llama.cpp's `llama-quantize` chooses them.
    pub const fn narrow(self) -> Block {
        match self {
            Block::Q2K | Block::Q3K => Block::Q4_0,
            Block::Q4K => Block::Q5_0,
            Block::Q5K => Block::Q5_1,
            Block::Q6K => Block::Q8_0,
            Block::Iq4Xs => Block::Iq4Nl,
            narrow => narrow,
        }
    }

    /// Bytes of one block in a file.
    pub const fn bytes(self) -> usize {
        match self {
            Block::Q4_0 => 18,
            Block::Q4_1 => 20,
            Block::Q5_0 => 22,
            Block::Q5_1 => 24,
            Block::Q8_0 => 34,
            Block::Q2K => 84,
            Block::Q3K => 110,
            Block::Q4K => 144,
            Block::Q5K => 176,
            Block::Q6K => 210,
            Block::Iq4Nl => 18,
            Block::Iq4Xs => 136,
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
            Block::Q2K => "Q2_K",
            Block::Q3K => "Q3_K",
            Block::Q4K => "Q4_K",
            Block::Q5K => "Q5_K",
            Block::Q6K => "Q6_K",
            Block::Iq4Nl => "IQ4_NL",
            Block::Iq4Xs => "IQ4_XS",
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
            Stored::I8 | Stored::U8 | Stored::Bool | Stored::F8E4m3 | Stored::F8E5m2 => 1,
            Stored::Group(groups, cols) => {
                let (cols, size) = (cols as usize, groups.row_bytes(cols as usize));
                let rows = values.is_multiple_of(cols).then(|| values.checked_div(cols)).flatten();
                return rows.and_then(|rows| rows.checked_mul(size));
            }
            Stored::Block(b) => {
                return values
                    .is_multiple_of(b.values())
                    .then(|| (values / b.values()).checked_mul(b.bytes()))
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
            Stored::F8E4m3 => "f8_e4m3",
            Stored::F8E5m2 => "f8_e5m2",
            Stored::Block(b) => b.name(),
            Stored::Group(groups, _) => groups.name(),
        }
    }
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Format of a prepared weight: what is multiplied from.
///
/// ```
/// use engraft_core::mem::WeightFormat;
///
/// for name in ["f16", "int8", "int8a:64", "int4:32", "fp8", "fp6:128", "mxfp4", "Q8_0", "w8a8"] {
///     let format: WeightFormat = name.parse()?;
///     assert_eq!(format.to_string(), name);
/// }
/// assert!("int5".parse::<WeightFormat>().is_err());
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightFormat {
    /// Plain elements.
    Plain(Float),
    /// GGUF blocks, kept packed and decoded while multiplying.
    Block(Block),
    /// Own formats in groups, kept packed and decoded while multiplying.
    Group(Groups),
    /// Blocks of [`Block::Q8_0`], multiplied with activations that are quantized on the way in
    /// (`quant::activation`): sums of integers. Never chosen silently: whoever asks for it trades accuracy of
    /// the activations for speed.
    W8A8,
}

impl WeightFormat {
    /// Every format that weights can be brought into while they are loaded; groups have their usual size.
    pub fn all() -> impl Iterator<Item = WeightFormat> {
        let plain = [Float::F32, Float::F16, Float::Bf16].map(WeightFormat::Plain);
        let blocks = Block::ALL.map(WeightFormat::Block);
        let own = [WeightFormat::W8A8].into_iter().chain(Groups::ALL.map(WeightFormat::Group));
        plain.into_iter().chain(blocks).chain(own)
    }

    /// The blocks that rows are stored in, where they are.
    pub const fn block(self) -> Option<Block> {
        match self {
            WeightFormat::Block(b) => Some(b),
            WeightFormat::W8A8 => Some(Block::Q8_0),
            WeightFormat::Plain(_) | WeightFormat::Group(_) => None,
        }
    }

    /// The grain of a sum's leaves where the model asks for `grain`: a leaf of [`WeightFormat::W8A8`] has
    /// whole blocks.
    pub fn grain(self, grain: usize) -> usize {
        match self {
            WeightFormat::W8A8 => self.whole_units(grain),
            _ => grain,
        }
    }

    /// The least common multiple of `grain` and the values of a row that ranks cannot divide: a block, or a
    /// group that has a scale of its own and is not the whole row.
    pub fn whole_units(self, grain: usize) -> usize {
        let unit = match self {
            WeightFormat::Group(Groups { size, .. }) => (size as usize).max(1),
            _ => self.block().map_or(1, Block::values),
        };
        let (grain, mut divisor, mut rest) = (grain.max(1), grain.max(1), unit);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        grain.saturating_mul(unit / divisor)
    }

    /// The format of rows of `cols` values: another where they are whole blocks of [`Block::narrow`] and none
    /// of this one.
    pub const fn of_columns(self, cols: usize) -> WeightFormat {
        match self {
            WeightFormat::Block(b)
                if !cols.is_multiple_of(b.values()) && cols.is_multiple_of(b.narrow().values()) =>
            {
                WeightFormat::Block(b.narrow())
            }
            format => format,
        }
    }

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::Plain(f) => f.name(),
            WeightFormat::Block(b) => b.name(),
            WeightFormat::Group(g) => g.name(),
            WeightFormat::W8A8 => "w8a8",
        }
    }

    /// Bytes of a `[rows, cols]` weight as stored.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            WeightFormat::Plain(f) => rows * cols * f.bytes(),
            WeightFormat::Block(b) => rows * cols.div_ceil(b.values()) * b.bytes(),
            WeightFormat::Group(g) => rows * g.row_bytes(cols),
            WeightFormat::W8A8 => WeightFormat::Block(Block::Q8_0).bytes(rows, cols),
        }
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightFormat::Group(g) => g.fmt(f),
            other => f.write_str(other.name()),
        }
    }
}

impl std::str::FromStr for WeightFormat {
    type Err = Error;

    /// `f32`, `f16`, `bf16`; GGUF's blocks in any case (`q4_0`); `w8a8`; the own groups ([`Groups`]): `int8`
    /// and `int4`, with `a` for asymmetric, floats (`fp8`, `fp8-e5m2`, `fp6`, `fp4`, `nf4`, `mxfp4`), with
    /// `:N` for groups of N values (`int4a:64`).
    fn from_str(s: &str) -> Result<Self> {
        if let Ok(float) = s.parse::<Float>() {
            return Ok(WeightFormat::Plain(float));
        }
        if let Some(block) = Block::ALL.into_iter().find(|b| b.name().eq_ignore_ascii_case(s)) {
            return Ok(WeightFormat::Block(block));
        }
        if s.eq_ignore_ascii_case(WeightFormat::W8A8.name()) {
            return Ok(WeightFormat::W8A8);
        }
        let groups = Groups::parse(s).map(WeightFormat::Group);
        groups.ok_or_else(|| {
            let names: Vec<&str> = WeightFormat::all().map(WeightFormat::name).collect();
            let sizes = "from int8 on also with the values of a group, a multiple of 32 up to 65536: int4:64; of fp4 \
                         also 16";
            Error::config("weight format", format!("\"{s}\""), format!("{} ({sizes})", names.join(", ")))
        })
    }
}
