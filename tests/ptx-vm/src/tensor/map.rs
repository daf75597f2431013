//! The tensor map: its parts, the rules they follow, and the 128 bytes they travel in.

use thiserror::Error;

/// Bytes of an encoded map.
pub const BYTES: usize = 128;
/// Alignment of an encoded map in memory.
pub const ALIGNMENT: u64 = 64;
/// Greatest number of dimensions.
pub const MAX_RANK: usize = 5;

/// First bytes of every encoded map.
const MAGIC: [u8; 8] = *b"engraft1";

/// What is wrong with a tensor map.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// An argument outside its range.
    #[error("tensor map: {what} is {found}, allowed is {allowed}")]
    Argument {
        /// The argument, with its dimension.
        what: String,
        /// The value found.
        found: String,
        /// What would be right.
        allowed: String,
    },
    /// The 128 bytes were not written by [`TensorMap::encode`], or have been changed since.
    #[error("tensor map: the 128 bytes are not a tensor map ({0})")]
    NotAMap(&'static str),
    /// A legal map that this machine cannot copy through.
    #[error("tensor map: {0} is not supported")]
    Unsupported(String),
}

fn argument(what: impl Into<String>, found: impl ToString, allowed: impl Into<String>) -> MapError {
    MapError::Argument { what: what.into(), found: found.to_string(), allowed: allowed.into() }
}

macro_rules! driver_enum {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $code:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),* }

        impl $name {
            /// The value of the driver's enum.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// Reads the driver's value.
            ///
            /// # Errors
            /// [`MapError::Argument`] for a value that the driver's enum does not have.
            pub fn from_code(code: u32) -> Result<Self, MapError> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(argument($what, code, concat!("one of", $(" ", stringify!($code)),*))),
                }
            }
        }
    };
}

driver_enum! {
    /// `CUtensorMapDataType`.
    DataType, "data type" {
        /// 1 byte.
        U8 = 0,
        /// 2 bytes.
        U16 = 1,
        /// 4 bytes.
        U32 = 2,
        /// 4 bytes.
        S32 = 3,
        /// 8 bytes.
        U64 = 4,
        /// 8 bytes.
        S64 = 5,
        /// 2 bytes.
        F16 = 6,
        /// 4 bytes.
        F32 = 7,
        /// 8 bytes.
        F64 = 8,
        /// 2 bytes.
        Bf16 = 9,
        /// 4 bytes, subnormals flushed to zero.
        F32Flush = 10,
        /// 4 bytes, rounded to tf32.
        Tf32 = 11,
        /// 4 bytes, rounded to tf32, subnormals flushed to zero.
        Tf32Flush = 12,
    }
}

driver_enum! {
    /// `CUtensorMapInterleave`.
    Interleave, "interleave" {
        /// Plain tensors.
        None = 0,
        /// Slices of 16 bytes of channels.
        Bytes16 = 1,
        /// Slices of 32 bytes of channels.
        Bytes32 = 2,
    }
}

driver_enum! {
    /// `CUtensorMapSwizzle`.
    Swizzle, "swizzle" {
        /// Rows as they are.
        None = 0,
        /// 16-byte chunks move within 32 bytes.
        Bytes32 = 1,
        /// 16-byte chunks move within 64 bytes.
        Bytes64 = 2,
        /// 16-byte chunks move within 128 bytes.
        Bytes128 = 3,
    }
}

driver_enum! {
    /// `CUtensorMapL2promotion`: no effect on results.
    Promotion, "L2 promotion" {
        /// None.
        None = 0,
        /// 64 bytes.
        Bytes64 = 1,
        /// 128 bytes.
        Bytes128 = 2,
        /// 256 bytes.
        Bytes256 = 3,
    }
}

driver_enum! {
    /// `CUtensorMapFloatOOBfill`.
    OobFill, "out-of-bounds fill" {
        /// Zeros.
        Zeros = 0,
        /// NaN, floating-point types only.
        Nan = 1,
    }
}

impl DataType {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::S32 | Self::U64 | Self::S64)
    }
}

impl Swizzle {
    /// Width of the pattern in bytes, 16 (one chunk, nothing moves) for none.
    pub const fn width(self) -> u32 {
        match self {
            Self::None => 16,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }

    /// The place of a linear shared address: address bits from 4 on XORed with as many bits from 7 on.
    pub const fn apply(self, address: u32) -> u32 {
        let mask = self.width() / 16 - 1;
        address ^ (address >> 7 & mask) << 4
    }
}

/// A tiled tensor map: the arguments of `cuTensorMapEncodeTiled`. Dimension 0 is the innermost; entries
/// beyond the rank are zero (one in `element_strides`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Element type.
    pub data_type: DataType,
    /// Number of dimensions, 1 to 5.
    pub rank: u32,
    /// Global address of element (0, ..., 0).
    pub address: u64,
    /// Elements along each dimension, 1 to 2^32.
    pub dims: [u64; 5],
    /// Bytes from one index to the next of dimensions 1 to `rank - 1`.
    pub strides: [u64; 4],
    /// Elements of the box along each dimension, 1 to 256.
    pub box_dims: [u32; 5],
    /// Step of the box through each dimension, 1 to 8; dimension 0 has none without interleave.
    pub element_strides: [u32; 5],
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Swizzle in shared memory.
    pub swizzle: Swizzle,
    /// L2 hint.
    pub promotion: Promotion,
    /// What fills the box outside the tensor.
    pub fill: OobFill,
}

impl TensorMap {
    /// A plain map: no interleave, no swizzle, zeros outside, steps of one.
    ///
    /// # Arguments
    /// `dims`, `box_dims`: one per dimension; `strides`: one per dimension but the first. Too many are
    /// dropped, missing ones stay zero and [`TensorMap::check`] names them.
    pub fn tiled(data_type: DataType, address: u64, dims: &[u64], strides: &[u64], box_dims: &[u32]) -> Self {
        fn fill<T: Copy, const N: usize>(values: &[T], rest: T) -> [T; N] {
            std::array::from_fn(|i| values.get(i).copied().unwrap_or(rest))
        }
        Self {
            data_type,
            rank: dims.len() as u32,
            address,
            dims: fill(dims, 0),
            strides: fill(strides, 0),
            box_dims: fill(box_dims, 0),
            element_strides: [1; 5],
            interleave: Interleave::None,
            swizzle: Swizzle::None,
            promotion: Promotion::None,
            fill: OobFill::Zeros,
        }
    }

    /// Holds the map to the driver's rules.
    ///
    /// # Errors
    /// The first rule broken, with the dimension, the value and what is allowed.
    pub fn check(&self) -> Result<(), MapError> {
        let interleaved = self.interleave != Interleave::None;
        let ranks = if interleaved { 3..=5 } else { 1..=5 };
        if !ranks.contains(&self.rank) {
            let allowed = if interleaved { "3 to 5 with interleave" } else { "1 to 5" };
            return Err(argument("rank", self.rank, allowed));
        }
        let wide = self.interleave == Interleave::Bytes32;
        let unit = if wide { 32 } else { 16 };
        if !self.address.is_multiple_of(unit) {
            return Err(argument(
                "global address",
                format!("{:#x}", self.address),
                format!("a multiple of {unit}"),
            ));
        }
        self.check_dims(unit)?;
        self.check_box()?;
        if wide && self.swizzle != Swizzle::Bytes32 {
            return Err(argument(
                "swizzle",
                format!("{:?}", self.swizzle),
                "Bytes32 with 32-byte interleave",
            ));
        }
        if self.fill == OobFill::Nan && !self.data_type.is_float() {
            let found = format!("NaN for {:?}", self.data_type);
            return Err(argument("out-of-bounds fill", found, "zeros, for a type that is no float"));
        }
        Ok(())
    }

    fn check_dims(&self, unit: u64) -> Result<(), MapError> {
        let rank = self.rank as usize;
        for (i, &dim) in self.dims.iter().take(rank).enumerate() {
            if !(1..=1 << 32).contains(&dim) {
                return Err(argument(format!("dimension {i}"), dim, "1 to 2^32"));
            }
        }
        for (i, &stride) in self.strides.iter().take(rank - 1).enumerate() {
            if !stride.is_multiple_of(unit) || stride >= 1 << 40 {
                let what = format!("stride of dimension {}", i + 1);
                return Err(argument(what, stride, format!("a multiple of {unit} below 2^40")));
            }
        }
        Ok(())
    }

    fn check_box(&self) -> Result<(), MapError> {
        for (i, (&size, &step)) in
            self.box_dims.iter().zip(&self.element_strides).take(self.rank as usize).enumerate()
        {
            if !(1..=256).contains(&size) {
                return Err(argument(format!("box dimension {i}"), size, "1 to 256"));
            }
            if !(1..=8).contains(&step) {
                return Err(argument(format!("element stride {i}"), step, "1 to 8"));
            }
        }
        let inner = self.box_dims[0] * self.data_type.bytes();
        if self.interleave == Interleave::None {
            if !inner.is_multiple_of(16) {
                return Err(argument("inner box dimension in bytes", inner, "a multiple of 16"));
            }
            if self.swizzle != Swizzle::None && inner > self.swizzle.width() {
                let allowed = format!("at most the swizzle's {}", self.swizzle.width());
                return Err(argument("inner box dimension in bytes", inner, allowed));
            }
        }
        Ok(())
    }

    /// The 128 bytes of a map that follows the rules.
    ///
    /// # Errors
    /// See [`TensorMap::check`].
    pub fn encode(&self) -> Result<[u8; BYTES], MapError> {
        self.check()?;
        let mut out = [0; BYTES];
        let mut writer = Writer { out: &mut out, at: 0 };
        writer.put(&MAGIC);
        writer.put(&self.address.to_le_bytes());
        for i in 0..MAX_RANK {
            // A dimension of 2^32 is stored as 2^32 - 1.
            writer.put(&(self.dims[i].saturating_sub(1) as u32).to_le_bytes());
            writer.put(&(self.box_dims[i] as u16).to_le_bytes());
            writer.put(&[self.element_strides[i] as u8]);
        }
        self.strides.iter().for_each(|stride| writer.put(&stride.to_le_bytes()));
        let codes =
            [self.data_type.code(), self.interleave.code(), self.swizzle.code(), self.promotion.code()];
        writer.put(&[self.rank as u8]);
        codes.iter().for_each(|&code| writer.put(&[code as u8]));
        writer.put(&[self.fill.code() as u8]);
        let sum = checksum(&out[..BYTES - 8]);
        out[BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// Reads the bytes of a map back.
    ///
    /// # Errors
    /// [`MapError::NotAMap`] for other bytes, or a map that was changed after it was written.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Self, MapError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take::<8>() != MAGIC {
            return Err(MapError::NotAMap("its first bytes are not those of one"));
        }
        if checksum(&bytes[..BYTES - 8]).to_le_bytes() != bytes[BYTES - 8..] {
            return Err(MapError::NotAMap("its checksum is wrong: it was changed after it was encoded"));
        }
        let address = u64::from_le_bytes(reader.take());
        let (mut dims, mut box_dims, mut element_strides) = ([0; 5], [0; 5], [0; 5]);
        for i in 0..MAX_RANK {
            dims[i] = u64::from(u32::from_le_bytes(reader.take())) + 1;
            box_dims[i] = u32::from(u16::from_le_bytes(reader.take()));
            element_strides[i] = u32::from(u8::from_le_bytes(reader.take()));
        }
        let strides = std::array::from_fn(|_| u64::from_le_bytes(reader.take()));
        let [rank, data_type, interleave, swizzle, promotion, fill] = reader.take().map(u32::from);
        for dim in dims.iter_mut().skip(rank as usize) {
            *dim = 0;
        }
        let map = Self {
            data_type: DataType::from_code(data_type)?,
            rank,
            address,
            dims,
            strides,
            box_dims,
            element_strides,
            interleave: Interleave::from_code(interleave)?,
            swizzle: Swizzle::from_code(swizzle)?,
            promotion: Promotion::from_code(promotion)?,
            fill: OobFill::from_code(fill)?,
        };
        map.check()?;
        Ok(map)
    }
}

struct Writer<'a> {
    out: &'a mut [u8; BYTES],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8; BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let out = std::array::from_fn(|i| self.bytes[self.at + i]);
        self.at += N;
        out
    }
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
