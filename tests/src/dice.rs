//! Random cases from a seed: the same seed gives the same case on every machine.

use engraft_core::mem::Float;
use half::{bf16, f16};

/// Sizes that kernels trip over: one, two, around 32 and 64, odd ones.
pub const SIZES: [usize; 10] = [1, 2, 3, 31, 32, 33, 63, 64, 65, 111];

/// Random numbers, and random cases.
#[derive(Debug, Clone)]
pub struct Dice {
    numbers: sample::Dice,
    seed: u64,
}

impl std::ops::Deref for Dice {
    type Target = sample::Dice;

    fn deref(&self) -> &sample::Dice {
        &self.numbers
    }
}

impl std::ops::DerefMut for Dice {
    fn deref_mut(&mut self) -> &mut sample::Dice {
        &mut self.numbers
    }
}

impl Dice {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        let mut numbers = sample::Dice::new(seed);
        numbers.bits();
        Self { numbers, seed }
    }

    /// One of `items`, which are not empty: consecutive seeds get all of them in turn.
    pub fn turn<T: Copy>(&self, items: &[T]) -> T {
        items[(self.seed % items.len() as u64) as usize]
    }

    /// The same, beginning with number `first` (counted around): runs of few seeds that begin apart get all
    /// of them together.
    pub fn turn_from<T: Copy>(&self, first: usize, items: &[T]) -> T {
        items[((self.seed % items.len() as u64) as usize + first) % items.len()]
    }

    /// One of [`SIZES`].
    pub fn size(&mut self) -> usize {
        self.pick(&SIZES)
    }

    /// Rows of a batch: mostly few.
    pub fn rows(&mut self) -> usize {
        self.pick(&[1, 1, 2, 3, 5, 8, 17, 33])
    }

    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// `n` values of magnitude `scale`, each representable in `dtype`; now and then a zero or a spike.
    pub fn values(&mut self, n: usize, scale: f32, dtype: Float) -> Vec<f32> {
        (0..n)
            .map(|_| match self.below(50) {
                0 => 0.0,
                1 => round(self.unit() * scale * 8.0, dtype),
                _ => round(self.unit() * scale, dtype),
            })
            .collect()
    }

    /// A magnitude: mostly 1, sometimes tiny or large, always far from `dtype`'s ends.
    pub fn scale(&mut self, dtype: Float) -> f32 {
        match (self.below(6), dtype) {
            (0, Float::F16) => 1e-3,
            (1, Float::F16) => 30.0,
            (0, _) => 1e-6,
            (1, _) => 1e4,
            _ => 1.0,
        }
    }

    /// `0..n` in random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// `v` rounded to `dtype` and widened again.
pub fn round(v: f32, dtype: Float) -> f32 {
    match dtype {
        Float::F32 => v,
        Float::F16 => f16::from_f32(v).to_f32(),
        Float::Bf16 => bf16::from_f32(v).to_f32(),
    }
}

/// The bytes of values in `dtype`.
pub fn to_bytes(values: &[f32], dtype: Float) -> Vec<u8> {
    match dtype {
        Float::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Float::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Float::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
    }
}

/// The value that begins at byte `at`.
pub fn from_bytes(bytes: &[u8], at: usize, dtype: Float) -> f32 {
    match dtype {
        Float::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
        Float::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Float::Bf16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
    }
}
