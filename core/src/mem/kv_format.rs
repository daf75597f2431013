//! Element type of cached keys and values: a float, or codes of eight bits with a scale for each head of each
//! position.

use super::Float;
use crate::{Error, Result};

/// What keys and values are kept in.
///
/// ```
/// use engraft_core::mem::{Float, KvFormat};
///
/// let format: KvFormat = "int8".parse()?;
/// assert_eq!((format, format.head_bytes(128)), (KvFormat::INT8, 132));
/// assert_eq!(KvFormat::from(Float::Bf16).head_bytes(128), 256);
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum KvFormat {
    /// Elements, each rounded once.
    Plain(Float),
    /// Codes: a head's row at a position has one scale in f32 (`quant::kv_row`).
    Coded(KvCode),
}

/// What the codes of [`KvFormat::Coded`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvCode {
    /// Signed integers, -127 to 127.
    Int8,
    /// e4m3 without infinities (OCP), -448 to 448.
    Fp8,
}

impl KvFormat {
    /// `int8`.
    pub const INT8: KvFormat = KvFormat::Coded(KvCode::Int8);
    /// `fp8`.
    pub const FP8: KvFormat = KvFormat::Coded(KvCode::Fp8);
    /// Those without scales.
    pub const PLAIN: [KvFormat; 3] =
        [KvFormat::Plain(Float::F32), KvFormat::Plain(Float::F16), KvFormat::Plain(Float::Bf16)];
    /// Every format.
    pub const ALL: [KvFormat; 5] = [
        KvFormat::Plain(Float::F32),
        KvFormat::Plain(Float::F16),
        KvFormat::Plain(Float::Bf16),
        KvFormat::INT8,
        KvFormat::FP8,
    ];
    /// Bytes of a scale.
    pub const SCALE: usize = 4;

    /// The element type of a format without scales.
    pub const fn float(self) -> Option<Float> {
        match self {
            KvFormat::Plain(dtype) => Some(dtype),
            KvFormat::Coded(_) => None,
        }
    }

    /// The same for a backend that has no kernels for codes.
    ///
    /// # Errors
    /// `Unsupported`, naming the format.
    pub fn plain(self, op: &str, backend: &str) -> Result<Float> {
        let reason = format!("no kernel for keys and values in {self}");
        self.float().ok_or_else(|| Error::Unsupported { op: op.into(), backend: backend.into(), reason })
    }

    /// The element type of plain rows that hold every value exactly.
    pub const fn widened(self) -> Float {
        match self {
            KvFormat::Plain(dtype) => dtype,
            KvFormat::Coded(_) => Float::F32,
        }
    }

    /// Bytes of a head's row of so many columns at one position.
    pub const fn head_bytes(self, width: usize) -> usize {
        match self {
            KvFormat::Plain(dtype) => width * dtype.bytes(),
            // No columns, no scale.
            KvFormat::Coded(_) if width == 0 => 0,
            KvFormat::Coded(_) => width + Self::SCALE,
        }
    }

    /// `f32`, `f16`, `bf16`, `int8`, `fp8`.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::Plain(dtype) => dtype.name(),
            KvFormat::Coded(KvCode::Int8) => "int8",
            KvFormat::Coded(KvCode::Fp8) => "fp8",
        }
    }
}

impl Default for KvFormat {
    fn default() -> Self {
        Float::default().into()
    }
}

impl From<Float> for KvFormat {
    fn from(dtype: Float) -> Self {
        KvFormat::Plain(dtype)
    }
}

impl From<KvFormat> for &'static str {
    fn from(format: KvFormat) -> Self {
        format.name()
    }
}

impl TryFrom<String> for KvFormat {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for KvFormat {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "int8" => Ok(KvFormat::INT8),
            "fp8" => Ok(KvFormat::FP8),
            _ => s.parse::<Float>().map(KvFormat::Plain).map_err(|_| {
                Error::config("kv_dtype", format!("\"{s}\""), KvFormat::ALL.map(KvFormat::name).join(", "))
            }),
        }
    }
}
