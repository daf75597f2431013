//! Sixteen lanes of f32, the columns of one panel: a pair of vectors, or one AVX-512 register with the same
//! bits.
//!
//! For matmuls, where the processor is the limit and not memory: [`run`] compiles a [`Kernel16`] once more
//! for AVX-512, with a larger register tile, [`Tile`], [`run_both`] a kernel of which a part takes sixteen
//! lanes (one row of packed weights spends its time on widening, too), and [`run_loops`] one of eight lanes
//! whose time goes into plain loops, which the compiler then splits into sixteen. All else gains too little
//! from it to be compiled a third time.

use super::codes::Codes16;
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

/// Rows that advance together at most in what [`run_bytes`] makes of an instruction set.
pub fn rows_of_bytes(isa: Isa) -> usize {
    match for_bytes(isa) {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => <avx512::Avx512<FusedMadd> as Bytes16>::ROWS,
        _ => <[Portable<FusedMadd>; 2] as Bytes16>::ROWS,
    }
}

/// Runs `kernel` compiled for `isa` and `madd`: with AVX-512's VNNI on registers of sixteen lanes, else on
/// pairs of eight, by AVX-VNNI where the processor has that.
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
        Isa::Avx2 if std::arch::is_x86_feature_detected!("avxvnni") => {
            // SAFETY: as above.
            return unsafe {
                match madd {
                    Madd::Fused => avx512::enter_byte_fours::<FusedMadd, K>(kernel),
                    Madd::Separate => avx512::enter_byte_fours::<SeparateMadd, K>(kernel),
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
pub trait Lanes16: Codes16 {
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
    /// Sums of 32 products of signed bytes, exact as f32: of R rows, `x` being `[8][R][4]` bytes in
    /// -127..=127, with 16 columns, `w` being `[8][16][4]` bytes. The R `offsets` are -128 times the sums of
    /// the rows' bytes.
    unsafe fn dots<const R: usize>(x: *const i8, offsets: *const i32, w: *const u8) -> [Self; R];
}

impl<V: Lanes> Bytes16 for [V; 2] {
    type Half = V;
    const ROWS: usize = 4;
    #[inline(always)]
    unsafe fn dots<const R: usize>(x: *const i8, offsets: *const i32, w: *const u8) -> [Self; R] {
        // SAFETY: the caller's promise.
        unsafe { V::dots(x, offsets, w) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! One register. Every method is only reached from functions here that have the target features.
    use super::super::avx2::Avx2;
    use super::super::vnni;
    use super::{Bytes16, Codes16, Kernel, Kernel16, KernelOfBoth, KernelOfBytes, Lanes16, REGISTERS, Tile};
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

    /// The same by AVX-VNNI.
    #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
    pub fn enter_byte_fours<M: MulAdd, K: KernelOfBytes>(kernel: K) {
        kernel.run::<[Avx2<M, { vnni::FOURS }>; 2]>();
    }

    /// The same by the instruction that tests find on processors without AVX-VNNI.
    #[cfg(test)]
    #[target_feature(enable = "avx512f,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub fn enter_byte_fours_of_512<M: MulAdd, K: KernelOfBytes>(kernel: K) {
        kernel.run::<[Avx2<M, { vnni::FOURS_OF_512 }>; 2]>();
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
        unsafe fn dots<const R: usize>(x: *const i8, offsets: *const i32, w: *const u8) -> [Self; R] {
            // SAFETY: features; 32 bytes of each row, R offsets and 512 bytes of w, the caller's promise.
            unsafe {
                // One factor is unsigned: w + 128, whose sum is 128 times that of x too large. Integers do
                // not saturate.
                let high = _mm512_set1_epi8(-128);
                let mut all = [high; R];
                for r in 0..R {
                    all[r] = _mm512_set1_epi32(*offsets.add(r));
                }
                for quad in 0..8 {
                    let columns = _mm512_xor_si512(_mm512_loadu_si512(w.add(quad * 64).cast()), high);
                    for r in 0..R {
                        let four = _mm512_set1_epi32(x.cast::<i32>().add(quad * R + r).read_unaligned());
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

    /// What nibbles are: without a sign, minus 16, and with a sign times 2^28.
    const PLAIN: [f32; 16] = table(0, 0, 1.0);
    const BELOW: [f32; 16] = table(16, 16, 1.0);
    const SIGNED: [f32; 16] = table(0, 16, (1u32 << 28) as f32);

    /// `scale` times the number, minus `low` for those below 8, `high` for the others.
    const fn table(low: i32, high: i32, scale: f32) -> [f32; 16] {
        let (mut all, mut i) = ([0.0; 16], 0);
        while i < 16 {
            all[i as usize] = (i - if i < 8 { low } else { high }) as f32 * scale;
            i += 1;
        }
        all
    }

    /// Brings nibble J to the lowest bits.
    #[inline(always)]
    fn right<const J: usize>(q: __m512i) -> __m512i {
        // SAFETY: features: called by the lanes below alone.
        unsafe {
            match J {
                0 => q,
                1 => _mm512_srli_epi32::<4>(q),
                2 => _mm512_srli_epi32::<8>(q),
                3 => _mm512_srli_epi32::<12>(q),
                4 => _mm512_srli_epi32::<16>(q),
                5 => _mm512_srli_epi32::<20>(q),
                6 => _mm512_srli_epi32::<24>(q),
                _ => _mm512_srli_epi32::<28>(q),
            }
        }
    }

    #[inline(always)]
    fn wrap<M>(v: __m512) -> Avx512<M> {
        Avx512(v, PhantomData)
    }

    // SAFETY of this impl: intrinsics of AVX-512F and BW, reached only below `enter`, `enter_both` and
    // `enter_bytes` (the module is private and `Avx512` is named nowhere else); memory as the trait says.
    impl<M: MulAdd> Codes16 for Avx512<M> {
        type Packed = __m512i;
        #[inline(always)]
        unsafe fn load_i8(p: *const u8) -> Self {
            // SAFETY: features and 16 elements, see above (so in all methods).
            wrap(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) })
        }
        #[inline(always)]
        unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self {
            // SAFETY: as above.
            wrap(unsafe {
                let half = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
                let down =
                    _mm256_and_si256(_mm256_srai_epi16::<1>(half), _mm256_set1_epi16(0xbf80_u16 as i16));
                _mm512_cvtph_ps(if E4M3 { down } else { half })
            })
        }
        #[inline(always)]
        unsafe fn packed(p: *const u8) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        fn nibble<const J: usize>(q: __m512i) -> Self {
            Self::entry::<J>(q, &PLAIN)
        }
        #[inline(always)]
        fn signed<const J: usize>(q: __m512i) -> Self {
            Self::entry::<J>(q, &SIGNED)
        }
        #[inline(always)]
        fn five_bits<const J: usize>(q: __m512i, fifth: u16, offset: i32) -> Self {
            let low = Self::entry::<J>(q, if offset == 16 { &BELOW } else { &PLAIN });
            // SAFETY: features, as above. The sum of two small integers.
            wrap(unsafe { _mm512_mask_add_ps(low.0, fifth, low.0, _mm512_set1_ps(16.0)) })
        }
        #[inline(always)]
        fn entry<const J: usize>(q: __m512i, table: &[f32; 16]) -> Self {
            // SAFETY: features, as above; 16 values. A place is the lowest four bits of its lane.
            wrap(unsafe { _mm512_permutexvar_ps(right::<J>(q), _mm512_loadu_ps(table.as_ptr())) })
        }
    }

    // SAFETY of this impl: as that of `Codes16`, with AVX-512F alone.
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
mod tests;
