//! Small random data and machines of all kinds.

use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_cpu::Isa;
use engraft_cpu::kernels::{AlignedBytes, Machine};

/// Deterministic values in about (-1, 1), a few of them larger.
pub fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let v = ((s >> 40) as f32) / (1u32 << 23) as f32 - 1.0;
            if s >> 33 & 63 == 0 { v * 8.0 } else { v }
        })
        .collect()
}

/// Values and their bytes in a dtype, rounded to it.
pub fn stored(v: &[f32], dtype: Float) -> Vec<u8> {
    v.iter()
        .flat_map(|x| match dtype {
            Float::F32 => x.to_le_bytes().to_vec(),
            Float::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
            Float::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        })
        .collect()
}

/// Values back from bytes.
pub fn loaded(b: &[u8], dtype: Float) -> Vec<f32> {
    match dtype {
        Float::F32 => b.chunks(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        Float::F16 => b.chunks(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
        Float::Bf16 => b.chunks(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
    }
}

/// Memory with a view's element alignment.
pub fn aligned(b: &[u8]) -> AlignedBytes {
    let mut a = AlignedBytes::zeroed(b.len());
    // SAFETY: as long as `b`.
    unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), a.as_mut_ptr(), b.len()) };
    a
}

/// Bytes of aligned memory.
pub fn bytes(a: &AlignedBytes) -> &[u8] {
    // SAFETY: its own length.
    unsafe { std::slice::from_raw_parts(a.as_ptr(), a.len()) }
}

/// Bit patterns, for comparisons that see -0 and NaN.
pub fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

/// One and two threads, all instruction sets that are here, one kind of multiply-add.
pub fn machines(madd: Madd) -> Vec<Machine> {
    let mut all: Vec<Machine> =
        [Isa::Portable, Isa::Avx2, Isa::Avx512].map(|isa| Machine::with_isa(1, madd, isa)).into();
    all.dedup_by_key(|m| m.isa);
    all.push(Machine::with_isa(2, madd, Isa::detect()));
    all
}
