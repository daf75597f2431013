//! Parameters of every kernel, one file per stem: the same layout as the struct of that name in
//! `cuda/<stem>.cu`.
//!
//! All are plain data that is copied into a launch. Views carry device addresses as integers; whoever
//! launches keeps what they point to alive. Next to each struct stands `launch`, which knows the entry and
//! its shape; a launch of nothing (no rows, no columns) has an empty grid and must be left out
//! ([`crate::Launch::is_empty`]).
//!
//! Element types, activations and weight formats are numbers here ([`Elem`], [`Activation`], [`Format`]),
//! since the package knows no engine types.

use crate::Launch;
use bytemuck::{Pod, Zeroable};

pub mod attention;
pub mod elementwise;
pub mod embed;
pub mod exchange;
pub mod flash;
pub mod gemm;
pub mod grouped;
pub mod index;
pub mod int8;
pub mod kv;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod picture;
pub mod rope;
pub mod rows;
pub mod sample;

/// A matrix in device memory, unit inner stride.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct MatView {
    /// Address of the first element.
    pub ptr: u64,
    /// Elements from one row to the next.
    pub pitch: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
}

impl MatView {
    /// No matrix: what an operand that is left out looks like.
    pub const NONE: MatView = MatView { ptr: 0, pitch: 0, rows: 0, cols: 0 };
}

/// A weight `[rows, cols]` in its file layout (rows one after the other), in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct WeightView {
    /// Address of the first row.
    pub ptr: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u64,
    /// Rows (outputs).
    pub rows: u32,
    /// Columns (inputs).
    pub cols: u32,
    /// Values of a whole group, in the group formats; else 0.
    pub group: u32,
    /// Zero.
    pub reserved: u32,
}

/// Leaves of a matmul's sums.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Leaves {
    /// Where each begins, and the end.
    at: [u32; 9],
    /// A bit for each that the sum has; the others are empty, and -0.
    own: u32,
    /// Values of the widest.
    widest: u32,
}

impl Leaves {
    /// Leaves that begin there and end where the next does; `own` says which of them are this rank's.
    pub fn new(at: [u32; 9], own: impl Fn(usize) -> bool) -> Self {
        let widest = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
        let own = (0..8).filter(|leaf| own(*leaf)).fold(0, |all, leaf| all | 1 << leaf);
        Self { at, own, widest }
    }

    /// First column of every leaf, and the end.
    pub fn bounds(&self) -> [u32; 9] {
        self.at
    }

    /// A bit for each leaf that is this rank's.
    pub fn own(&self) -> u32 {
        self.own
    }
}

/// Element type of activations and of keys and values; these may be codes with scales, too.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Pod, Zeroable)]
pub struct Elem(u32);

impl Elem {
    /// IEEE binary32.
    pub const F32: Elem = Elem(0);
    /// IEEE binary16.
    pub const F16: Elem = Elem(1);
    /// bfloat16.
    pub const BF16: Elem = Elem(2);
    /// Signed bytes, a scale for each head's row: keys and values alone.
    pub const INT8: Elem = Elem(3);
    /// e4m3, likewise.
    pub const FP8: Elem = Elem(4);
    /// Every element type of activations.
    pub const ALL: [Elem; 3] = [Elem::F32, Elem::F16, Elem::BF16];
    /// Every type of keys and values.
    pub const KEPT: [Elem; 5] = [Elem::F32, Elem::F16, Elem::BF16, Elem::INT8, Elem::FP8];

    /// Whether keys and values of it are codes with scales.
    pub const fn is_coded(self) -> bool {
        self.0 >= Self::INT8.0
    }

    /// Bytes of an element or a code.
    pub const fn bytes(self) -> u32 {
        match self.0 {
            0 => 4,
            1 | 2 => 2,
            _ => 1,
        }
    }

    /// Its place in [`Elem::KEPT`], which begins with [`Elem::ALL`].
    pub const fn index(self) -> usize {
        match self.0 {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => 3,
            _ => 4,
        }
    }

    /// `f32`, `f16`, `bf16`, `int8` or `fp8`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "f32",
            1 => "f16",
            2 => "bf16",
            3 => "int8",
            _ => "fp8",
        }
    }
}

/// An activation; formulas in `device.cuh`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Activation(u32);

impl Activation {
    /// `max(x, 0)`.
    pub const RELU: Activation = Activation(0);
    /// `x / (1 + e^-x)`.
    pub const SILU: Activation = Activation(1);
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    pub const GELU: Activation = Activation(2);
    /// The tanh approximation of GELU.
    pub const GELU_TANH: Activation = Activation(3);
    /// `x sigmoid(1.702 x)`.
    pub const QUICK_GELU: Activation = Activation(4);
    /// Hyperbolic tangent.
    pub const TANH: Activation = Activation(5);
    /// `x`.
    pub const NONE: Activation = Activation(6);
    /// `max(x, 0)^2`.
    pub const RELU_SQUARED: Activation = Activation(7);
    /// `1 / (1 + e^-x)`.
    pub const SIGMOID: Activation = Activation(8);
    /// `ln(1 + e^x)`.
    pub const SOFTPLUS: Activation = Activation(9);
}

/// What a weight is stored in (`weight.cuh` says how each is laid out).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Plain elements.
    F32,
    /// Plain elements.
    F16,
    /// Plain elements.
    Bf16,
    /// GGUF block.
    Q4_0,
    /// GGUF block.
    Q4_1,
    /// GGUF block.
    Q5_0,
    /// GGUF block.
    Q5_1,
    /// GGUF block.
    Q8_0,
    /// GGUF block of 256.
    Q2K,
    /// GGUF block of 256.
    Q3K,
    /// GGUF block of 256.
    Q4K,
    /// GGUF block of 256.
    Q5K,
    /// GGUF block of 256.
    Q6K,
    /// Own groups of signed bytes.
    Int8,
    /// Own groups of signed bytes with an offset.
    Int8a,
    /// Own groups of nibbles.
    Int4,
    /// Own groups of nibbles with an offset.
    Int4a,
    /// Own groups of FP8 with four bits of exponent.
    Fp8,
    /// Own groups of FP8 with five bits of exponent.
    Fp8E5m2,
    /// Own groups of FP6.
    Fp6,
    /// Own groups of FP4.
    Fp4,
    /// MXFP4's groups of FP4.
    Mxfp4,
    /// Own groups of NF4.
    Nf4,
    /// GGUF block.
    Iq4Nl,
    /// GGUF block of 256.
    Iq4Xs,
}

impl Format {
    /// Every format, in the order of its number.
    pub const ALL: [Format; 25] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Int8,
        Format::Int8a,
        Format::Int4,
        Format::Int4a,
        Format::Fp8,
        Format::Fp8E5m2,
        Format::Fp6,
        Format::Fp4,
        Format::Mxfp4,
        Format::Nf4,
        Format::Iq4Nl,
        Format::Iq4Xs,
    ];

    /// The name in entries.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q8_0 => "q8_0",
            Format::Q2K => "q2_k",
            Format::Q3K => "q3_k",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Int8 => "int8",
            Format::Int8a => "int8a",
            Format::Int4 => "int4",
            Format::Int4a => "int4a",
            Format::Fp8 => "fp8",
            Format::Fp8E5m2 => "fp8_e5m2",
            Format::Fp6 => "fp6",
            Format::Fp4 => "fp4",
            Format::Mxfp4 => "mxfp4",
            Format::Nf4 => "nf4",
            Format::Iq4Nl => "iq4_nl",
            Format::Iq4Xs => "iq4_xs",
        }
    }
}

/// The entry of a family that has one per weight format.
macro_rules! by_format {
    ($family:literal, $format:expr) => {{
        const ENTRIES: [&str; 25] = [
            concat!($family, "f32"),
            concat!($family, "f16"),
            concat!($family, "bf16"),
            concat!($family, "q4_0"),
            concat!($family, "q4_1"),
            concat!($family, "q5_0"),
            concat!($family, "q5_1"),
            concat!($family, "q8_0"),
            concat!($family, "q2_k"),
            concat!($family, "q3_k"),
            concat!($family, "q4_k"),
            concat!($family, "q5_k"),
            concat!($family, "q6_k"),
            concat!($family, "int8"),
            concat!($family, "int8a"),
            concat!($family, "int4"),
            concat!($family, "int4a"),
            concat!($family, "fp8"),
            concat!($family, "fp8_e5m2"),
            concat!($family, "fp6"),
            concat!($family, "fp4"),
            concat!($family, "mxfp4"),
            concat!($family, "nf4"),
            concat!($family, "iq4_nl"),
            concat!($family, "iq4_xs"),
        ];
        ENTRIES[$format as usize]
    }};
}
use by_format;

/// Most blocks of a grid in y and z.
const MOST_BLOCKS: u32 = 65_535;

fn launch(entry: &str, grid: [u32; 3], block: [u32; 3]) -> Launch {
    Launch { entry: entry.into(), grid, block, shared_bytes: 0 }
}

/// Blocks of `[units of a row, rows]` over `[rows, cols]`, `unit` columns a thread: as many rows in a block
/// as short rows leave room for.
fn over_rows(entry: &str, rows: u32, cols: u32, unit: u32) -> Launch {
    const THREADS: u32 = 256;
    let units = cols.div_ceil(unit);
    let across = units.next_power_of_two().clamp(1, THREADS);
    let down = (THREADS / across).min(rows.next_power_of_two()).max(1);
    let grid = [units.div_ceil(across), rows.div_ceil(down).min(MOST_BLOCKS), 1];
    launch(entry, grid, [across, down, 1])
}

/// One of three entries by element type.
fn by_elem(elem: Elem, entries: [&'static str; 3]) -> &'static str {
    match elem {
        Elem::F32 => entries[0],
        Elem::F16 => entries[1],
        _ => entries[2],
    }
}
