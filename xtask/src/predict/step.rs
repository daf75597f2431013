//! A step, and one of its launches.
//!
//! A test of the conformance suite holds the launches that are made here of a step ([`super::llama`],
//! [`super::mixture`]) to those that an engine makes, by kernel, number and grid.

pub use super::shapes::{SHAPES, Shape};
use engraft_kernels::Launch;
use engraft_kernels::params::Format;
use engraft_kernels::params::gemm::TileMap;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// bf16.
    Bf16,
    /// int8, a scale a row.
    Int8,
    /// int4, a scale every 64 values.
    Int4,
    /// FP8, a scale every 128 values.
    Fp8,
    /// MXFP4.
    Mxfp4,
    /// GGUF's Q4_K.
    Q4K,
    /// GGUF's Q6_K.
    Q6K,
}

impl Weights {
    /// All of them, and their names.
    pub const ALL: [(Self, &str); 7] = [
        (Weights::Bf16, "bf16"),
        (Weights::Int8, "int8"),
        (Weights::Int4, "int4"),
        (Weights::Fp8, "fp8"),
        (Weights::Mxfp4, "mxfp4"),
        (Weights::Q4K, "q4_k"),
        (Weights::Q6K, "q6_k"),
    ];

    /// The kernels' number and the size of a group.
    pub fn format(self) -> (Format, usize) {
        match self {
            Weights::Bf16 => (Format::Bf16, 0),
            Weights::Int8 => (Format::Int8, 0),
            Weights::Int4 => (Format::Int4, 64),
            Weights::Fp8 => (Format::Fp8, 128),
            Weights::Mxfp4 => (Format::Mxfp4, 32),
            Weights::Q4K => (Format::Q4K, 0),
            Weights::Q6K => (Format::Q6K, 0),
        }
    }
}

/// A step to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The model.
    pub shape: Shape,
    /// How its matrices are stored.
    pub weights: Weights,
    /// Mode `Fast` instead of `Invariant`.
    pub fast: bool,
    /// Sequences.
    pub seqs: usize,
    /// New tokens of each sequence: 1 in a decode step.
    pub queries: usize,
    /// Positions of each sequence, those of this step included.
    pub context: usize,
    /// Positions that the launches have room for: of a captured step the engine's `max_context`.
    pub max_keys: usize,
    /// Sequences whose table of pages changes.
    pub table_edits: usize,
    /// Rows that get logits and a token.
    pub wanted: usize,
    /// Ranks that share the model: the launches are those of one of them.
    pub ranks: usize,
}

impl Step {
    /// What one rank has of the model: its heads, its columns of gate and up, its tokens of the head.
    pub fn share(&self) -> Shape {
        let (Shape { heads, kv_heads, inner, vocab, .. }, ranks) = (self.shape, self.ranks);
        let kv_heads = (kv_heads / ranks).max(1);
        Shape { heads: heads / ranks, kv_heads, inner: inner / ranks, vocab: vocab / ranks, ..self.shape }
    }

    /// Columns of a head.
    pub fn width(&self) -> usize {
        self.shape.hidden / self.shape.heads
    }
}

/// What ranks exchange in a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// How many they are.
    pub ranks: usize,
    /// Whether each sums a part, and all read the sums in a second round.
    pub shared: bool,
    /// Bytes that come into a rank.
    pub bytes: f64,
}

/// How the work of blocks differs along one axis of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axis {
    /// Blocks between these bounds do alike.
    Alike(Vec<u32>),
    /// Work grows evenly from the first block to the last.
    Grows(u32),
    /// These blocks, each with how many it stands for.
    Picked(Vec<(u32, u32)>),
}

impl Axis {
    /// All but the last do alike.
    pub fn edge(n: u32) -> Axis {
        Axis::Alike(vec![n.saturating_sub(1), n])
    }

    /// Blocks to run along this axis, each with how many it stands for.
    pub fn sampled(&self) -> Vec<(u32, f64)> {
        match self {
            Axis::Alike(bounds) => {
                let begins = std::iter::once(0).chain(bounds.iter().copied());
                let some = begins.zip(bounds).filter(|(begin, end)| begin < end);
                some.map(|(begin, end)| (begin, f64::from(end - begin))).collect()
            }
            Axis::Picked(some) => some.iter().map(|(block, n)| (*block, f64::from(*n))).collect(),
            Axis::Grows(n @ 0..=GROWING) => (0..*n).map(|i| (i, 1.0)).collect(),
            // Blocks walk whole chunks of keys, so work grows in steps: four neighbours hold a step of each
            // kernel.
            Axis::Grows(n) => {
                (0..4).chain(n - 4..*n).map(|i| (i, f64::from(*n) / f64::from(GROWING))).collect()
            }
        }
    }
}

/// Blocks that stand for an axis along which work grows.
const GROWING: u32 = 8;

/// One launch, and how often a step makes it.
#[derive(Debug, Clone)]
pub struct Item {
    /// What it is for.
    pub role: &'static str,
    /// Its kernel and grid.
    pub launch: Launch,
    /// Parameters.
    pub params: Vec<u8>,
    /// The tensor maps that the driver would encode into the parameters.
    pub maps: Vec<TileMap>,
    /// Launches of a step.
    pub times: usize,
    /// How blocks differ along x, y and z.
    pub axes: [Axis; 3],
    /// Blocks of a cluster along x; the first axis counts clusters.
    pub cluster: u32,
    /// Operations that the result needs, padding and recomputation left out.
    pub flops: f64,
    /// What comes from other ranks; none for launches that need none.
    pub exchange: Option<Exchange>,
}
