//! Sixteen lanes of f32, the columns of one panel: a pair of vectors, or one AVX-512 register with the same
//! bits.
//!
//! For matmuls of several rows, where the processor is the limit and not memory: [`run`] compiles a
//! [`Kernel16`] once more for AVX-512, with a larger register tile, [`Tile`], [`run_both`] a kernel of which
//! a part takes sixteen lanes, and [`run_loops`] one of eight lanes whose time goes into plain loops, which
//! the compiler then splits into sixteen. All else gains too little from it to be compiled a third time.

use super::{Isa, Kernel, Lanes, Portable};
use engraft_core::math::{FusedMadd, SeparateMadd};
use engraft_core::numerics::Madd;

/// The largest tile of accumulators that stays in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Panels of 16 columns side by side.
    pub panels: usize,
}

/// Twelve of 16 registers of 8 lanes.
const PAIRS: Tile = Tile { rows: 6, panels: 1 };
/// Twenty-eight of 32 registers of 16 lanes: two loads of weights then serve 14 rows, whose values come
/// straight from memory.
const REGISTERS: Tile = Tile { rows: 14, panels: 2 };

/// The tile of what [`run`] makes of an instruction set.
pub fn tile(isa: Isa) -> Tile {
    match isa.here() {
        Isa::Portable | Isa::Avx2 => PAIRS,
        Isa::Avx512 => REGISTERS,
    }
}

/// A computation on sixteen lanes, one body for all instruction sets and both multiply-adds.
pub trait Kernel16 {
    /// The body; implementations mark it `#[inline(always)]`.
    fn run<W: Lanes16>(self);
}

/// Runs `kernel` compiled for `isa` and `madd`; what the processor does not have falls back as in
/// [`super::run`].
#[inline]
pub fn run<K: Kernel16>(isa: Isa, madd: Madd, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    match isa.here() {
        // SAFETY: the processor has the features, `here` has seen to that.
        Isa::Avx512 => unsafe {
            return match madd {
                Madd::Fused => avx512::enter::<FusedMadd, K>(kernel),
                Madd::Separate => avx512::enter::<SeparateMadd, K>(kernel),
            };
        },
        // SAFETY: as above.
        Isa::Avx2 => unsafe {
            return match madd {
                Madd::Fused => avx512::enter_pairs::<FusedMadd, K>(kernel),
                Madd::Separate => avx512::enter_pairs::<SeparateMadd, K>(kernel),
            };
        },
        Isa::Portable => {}
    }
    let _ = isa;
    match madd {
        Madd::Fused => kernel.run::<[Portable<FusedMadd>; 2]>(),
        Madd::Separate => kernel.run::<[Portable<SeparateMadd>; 2]>(),
    }
}

/// A computation on sixteen lanes whose terms are products of bytes.
pub trait KernelOfBytes {
    /// The body; implementations mark it `#[inline(always)]`.
    fn run<W: Bytes16>(self);
}

/// What [`run_bytes`] makes of an instruction set: AVX-512 where the processor has its VNNI, too.
pub fn for_bytes(isa: Isa) -> Isa {
    match isa.here() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if !std::arch::is_x86_feature_detected!("avx512vnni") => Isa::Avx2,
        here => here,
    }
}

/// Runs `kernel` compiled for `isa` and `madd`: with AVX-512's VNNI on registers of sixteen lanes, else on
/// pairs of eight.
#[inline]
pub fn run_bytes<K: KernelOfBytes>(isa: Isa, madd: Madd, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    match for_bytes(isa) {
        Isa::Avx512 => {
            // SAFETY: the processor has the features.
            return unsafe {
                match madd {
                    Madd::Fused => avx512::enter_bytes::<FusedMadd, K>(kernel),
                    Madd::Separate => avx512::enter_bytes::<SeparateMadd, K>(kernel),
                }
            };
        }
        Isa::Avx2 => {
            // SAFETY: as above.
            return unsafe {
                match madd {
                    Madd::Fused => avx512::enter_byte_pairs::<FusedMadd, K>(kernel),
                    Madd::Separate => avx512::enter_byte_pairs::<SeparateMadd, K>(kernel),
                }
            };
        }
        Isa::Portable => {}
    }
    let _ = isa;
    match madd {
        Madd::Fused => kernel.run::<[Portable<FusedMadd>; 2]>(),
        Madd::Separate => kernel.run::<[Portable<SeparateMadd>; 2]>(),
    }
}

/// Runs a kernel of eight lanes; with AVX-512 its plain loops have sixteen.
#[inline]
pub fn run_loops<K: Kernel>(isa: Isa, madd: Madd, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if isa.here() == Isa::Avx512 {
        // SAFETY: the processor has the features, `here` has seen to that.
        return unsafe {
            match madd {
                Madd::Fused => avx512::enter_loops::<FusedMadd, K>(kernel),
                Madd::Separate => avx512::enter_loops::<SeparateMadd, K>(kernel),
            }
        };
    }
    super::run(isa, madd, kernel);
}

/// A computation on eight lanes and, where it pays, on sixteen.
pub trait KernelOfBoth {
    /// The body; implementations mark it `#[inline(always)]`.
    fn run<V: Lanes, W: Lanes16>(self);
}

/// Runs `kernel` compiled for `isa` and `madd`: sixteen lanes are one register with AVX-512, a pair else.
#[inline]
pub fn run_both<K: KernelOfBoth>(isa: Isa, madd: Madd, kernel: K) {
    /// The kernel on pairs of its eight lanes.
    struct Pairs<K>(K);
    impl<K: KernelOfBoth> Kernel for Pairs<K> {
        #[inline(always)]
        fn run<V: Lanes>(self) {
            self.0.run::<V, [V; 2]>();
        }
    }
    #[cfg(target_arch = "x86_64")]
    if isa.here() == Isa::Avx512 {
        // SAFETY: the processor has the features, `here` has seen to that.
        return unsafe {
            match madd {
                Madd::Fused => avx512::enter_both::<FusedMadd, K>(kernel),
                Madd::Separate => avx512::enter_both::<SeparateMadd, K>(kernel),
            }
        };
    }
    super::run(isa, madd, Pairs(kernel));
}

/// Sixteen f32 lanes with one kind of multiply-add.
///
/// # Safety of the loads and stores
/// Each reads or writes exactly 16 elements at the pointer, which needs no alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Lanes16: Copy + 'static {
    /// What of it fits the registers.
    const TILE: Tile;
    /// Whether the lanes are one register. Where they are not, code behind `if W::WIDE` is not even compiled.
    const WIDE: bool;
    /// All lanes `v`.
    fn splat(v: f32) -> Self;
    /// 16 f32.
    unsafe fn load(p: *const f32) -> Self;
    /// 16 binary16 values, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// 16 bfloat16 values, widened exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Writes 16 f32.
    unsafe fn store(self, p: *mut f32);
    /// `self * b + c`.
    fn madd(self, b: Self, c: Self) -> Self;
    /// Lane-wise sum.
    fn add(self, b: Self) -> Self;
    /// Lane-wise product.
    fn mul(self, b: Self) -> Self;
    /// Asks for the cache line at `p`, which may lie anywhere.
    fn prefetch(p: *const u8);
}

impl<V: Lanes> Lanes16 for [V; 2] {
    const TILE: Tile = PAIRS;
    const WIDE: bool = false;
    #[inline(always)]
    fn splat(v: f32) -> Self {
        [V::splat(v); 2]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 16 elements, the caller's promise.
        unsafe { [V::load(p), V::load(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { [V::load_f16(p), V::load_f16(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { [V::load_bf16(p), V::load_bf16(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe {
            self[0].store(p);
            self[1].store(p.add(8));
        }
    }
    #[inline(always)]
    fn madd(self, b: Self, c: Self) -> Self {
        [self[0].madd(b[0], c[0]), self[1].madd(b[1], c[1])]
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        [self[0].add(b[0]), self[1].add(b[1])]
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        [self[0].mul(b[0]), self[1].mul(b[1])]
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        V::prefetch(p);
    }
}

/// Lanes of sums whose terms are products of bytes.
///
/// # Safety of the methods
/// As in [`Lanes16`].
#[allow(clippy::missing_safety_doc)]
pub trait Bytes16: Lanes16 {
    /// Half of the lanes.
    type Half: Lanes;
    /// Rows that advance together: their sums stay in registers.
    const ROWS: usize;
    /// Sums of 32 products of signed bytes, exact as f32: of R rows `x[r]` (32 bytes in -127..=127 each),
    /// which add up to `sums[r]`, with 16 columns, `w` being `[8][16][4]` bytes.
    unsafe fn dots<const R: usize>(x: [*const i8; R], sums: [i32; R], w: *const u8) -> [Self; R];
}

impl<V: Lanes> Bytes16 for [V; 2] {
    type Half = V;
    const ROWS: usize = 4;
    #[inline(always)]
    unsafe fn dots<const R: usize>(x: [*const i8; R], _: [i32; R], w: *const u8) -> [Self; R] {
        // SAFETY: the caller's promise.
        unsafe { V::dots(x, w) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! One register. Every method is only reached from [`enter`], which has the target features. The other
    //! two ways in are for the AVX2 lanes.
    use super::super::avx2::Avx2;
    use super::{Bytes16, Kernel, Kernel16, KernelOfBoth, KernelOfBytes, Lanes16, REGISTERS, Tile};
    use engraft_core::math::MulAdd;
    use engraft_core::numerics::Madd;
    use std::arch::x86_64::*;
    use std::marker::PhantomData;

    /// Lanes in a register.
    #[derive(Clone, Copy)]
    pub struct Avx512<M>(__m512, PhantomData<M>);

    /// Runs the kernel with the features on.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    pub fn enter<M: MulAdd, K: Kernel16>(kernel: K) {
        kernel.run::<Avx512<M>>();
    }

    /// Runs the kernel on pairs of eight lanes.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn enter_pairs<M: MulAdd, K: Kernel16>(kernel: K) {
        kernel.run::<[Avx2<M>; 2]>();
    }

    /// Runs a kernel of eight lanes with the features on.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    pub fn enter_loops<M: MulAdd, K: Kernel>(kernel: K) {
        kernel.run::<Avx2<M>>();
    }

    /// Runs a kernel of eight and sixteen lanes with the features on.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    pub fn enter_both<M: MulAdd, K: KernelOfBoth>(kernel: K) {
        kernel.run::<Avx2<M>, Avx512<M>>();
    }

    /// Runs a kernel of bytes with the features on.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub fn enter_bytes<M: MulAdd, K: KernelOfBytes>(kernel: K) {
        kernel.run::<Avx512<M>>();
    }

    /// Runs a kernel of bytes on pairs of eight lanes.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn enter_byte_pairs<M: MulAdd, K: KernelOfBytes>(kernel: K) {
        kernel.run::<[Avx2<M>; 2]>();
    }

    // SAFETY of this impl: intrinsics of AVX-512F and VNNI, reached only below `enter_bytes`; memory as the
    // trait says.
    impl<M: MulAdd> Bytes16 for Avx512<M> {
        type Half = Avx2<M>;
        /// Twelve integer sums and as many of f32, of 32 registers.
        const ROWS: usize = 12;
        // Of closures intrinsics are calls.
        #[allow(clippy::needless_range_loop)]
        #[inline(always)]
        unsafe fn dots<const R: usize>(x: [*const i8; R], sums: [i32; R], w: *const u8) -> [Self; R] {
            // SAFETY: features; 32 bytes of each row and 512 of w, the caller's promise.
            unsafe {
                // One factor is unsigned: w + 128, whose sum is 128 times that of x too large. Integers do
                // not saturate.
                let high = _mm512_set1_epi8(-128);
                let mut all = [high; R];
                for r in 0..R {
                    all[r] = _mm512_set1_epi32(-128 * sums[r]);
                }
                for quad in 0..8 {
                    let columns = _mm512_xor_si512(_mm512_loadu_si512(w.add(quad * 64).cast()), high);
                    for r in 0..R {
                        let four = _mm512_set1_epi32(x[r].cast::<i32>().add(quad).read_unaligned());
                        all[r] = _mm512_dpbusd_epi32(all[r], columns, four);
                    }
                }
                let mut floats = [Self(_mm512_setzero_ps(), PhantomData); R];
                for r in 0..R {
                    floats[r] = Self(_mm512_cvtepi32_ps(all[r]), PhantomData);
                }
                floats
            }
        }
    }

    // SAFETY of this impl: intrinsics of AVX-512F, reached only below `enter` and `enter_bytes` (the module
    // is private and `Avx512` is named nowhere else); memory as the trait says.
    impl<M: MulAdd> Lanes16 for Avx512<M> {
        const TILE: Tile = REGISTERS;
        const WIDE: bool = true;
        #[inline(always)]
        fn splat(v: f32) -> Self {
            // SAFETY: features, see above.
            Self(unsafe { _mm512_set1_ps(v) }, PhantomData)
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: features and 16 elements, see above (so in all methods).
            Self(unsafe { _mm512_loadu_ps(p) }, PhantomData)
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }, PhantomData)
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: as above.
            let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) };
            // SAFETY: features, as above.
            Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)) }, PhantomData)
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        fn madd(self, b: Self, c: Self) -> Self {
            // SAFETY: features, as above.
            let v = unsafe {
                match M::KIND {
                    Madd::Fused => _mm512_fmadd_ps(self.0, b.0, c.0),
                    Madd::Separate => _mm512_add_ps(_mm512_mul_ps(self.0, b.0), c.0),
                }
            };
            Self(v, PhantomData)
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: features, as above.
            Self(unsafe { _mm512_add_ps(self.0, b.0) }, PhantomData)
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: features, as above.
            Self(unsafe { _mm512_mul_ps(self.0, b.0) }, PhantomData)
        }
        #[inline(always)]
        fn prefetch(p: *const u8) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Probe<'a>(&'a [[f32; 16]; 3], &'a mut [f32; 48]);

    impl Kernel16 for Probe<'_> {
        #[inline(always)]
        fn run<W: Lanes16>(self) {
            // SAFETY: arrays of 16.
            unsafe {
                let [a, b, c] = [0, 1, 2].map(|i: usize| W::load(self.0[i].as_ptr()));
                let out = self.1.as_mut_ptr();
                a.madd(b, c).store(out);
                a.add(b).store(out.add(16));
                W::splat(self.0[0][3]).madd(a, c).store(out.add(32));
            }
        }
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let mut s = 1u64;
        for _ in 0..10_000 {
            let mut value = || {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let v = f32::from_bits((s >> 33) as u32 ^ (s >> 63 << 31) as u32);
                if v.is_nan() { 1.0 } else { v }
            };
            let x: [[f32; 16]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| value()));
            for madd in [Madd::Fused, Madd::Separate] {
                let [mut want, mut got] = [[0.0; 48]; 2];
                run(Isa::Portable, madd, Probe(&x, &mut want));
                for isa in [Isa::Avx2, Isa::Avx512] {
                    run(isa, madd, Probe(&x, &mut got));
                    // The payload of a NaN is not promised.
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(want.iter().zip(&got).all(same), "{x:?} {isa:?}");
                }
            }
        }
    }

    /// Twelve rows of 32 bytes, their sums, and 16 columns.
    struct Bytes<'a>(&'a [[i8; 32]; 12], &'a [u8; 512], &'a mut Vec<f32>);

    impl Bytes<'_> {
        #[inline(always)]
        fn rows<W: Bytes16, const R: usize>(&mut self) {
            let x: [*const i8; R] = std::array::from_fn(|r| self.0[r].as_ptr());
            let sums: [i32; R] = std::array::from_fn(|r| self.0[r].iter().map(|v| i32::from(*v)).sum());
            // SAFETY: arrays of 32, of 512 and of 16.
            unsafe {
                for sum in W::dots(x, sums, self.1.as_ptr()) {
                    let mut to = [0.0; 16];
                    sum.store(to.as_mut_ptr());
                    self.2.extend(to);
                }
            }
        }
    }

    impl KernelOfBytes for Bytes<'_> {
        #[inline(always)]
        fn run<W: Bytes16>(mut self) {
            self.rows::<W, 1>();
            self.rows::<W, 5>();
            self.rows::<W, 12>();
        }
    }

    #[test]
    fn sums_of_bytes_are_exact() {
        let mut s = 9u64;
        for case in 0..2000 {
            let mut byte = || {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Now and then nothing but the ends.
                if case % 5 == 0 { [-128, 127][(s >> 63) as usize] } else { (s >> 40) as i8 }
            };
            let x: [[i8; 32]; 12] = std::array::from_fn(|_| std::array::from_fn(|_| byte().max(-127)));
            let w: [u8; 512] = std::array::from_fn(|_| byte() as u8);
            let sum = |r: usize, j: usize| -> i32 {
                (0..32).map(|k| i32::from(x[r][k]) * i32::from(w[k / 4 * 64 + 4 * j + k % 4] as i8)).sum()
            };
            let rows = [1, 5, 12].into_iter().flat_map(|rows| 0..rows);
            let want: Vec<f32> =
                rows.flat_map(|r| (0..16).map(move |j| (r, j))).map(|(r, j)| sum(r, j) as f32).collect();
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                let mut got = Vec::new();
                run_bytes(isa, Madd::Fused, Bytes(&x, &w, &mut got));
                assert_eq!(got, want, "{isa:?}");
            }
        }
    }
}
