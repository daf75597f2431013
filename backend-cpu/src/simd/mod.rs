//! Eight lanes of f32, twice: what every processor of the architecture has, and AVX2 registers with the same
//! bits.
//!
//! A kernel is a struct that implements [`Kernel`]: one `#[inline(always)]` body, generic over [`Lanes`].
//! [`run`] compiles it four times (portable or AVX2, fused or separate multiply-add) and picks one at run
//! time; inside the AVX2 instance everything is inlined into a function with the target features, so plain
//! loops vectorise there as well.
//!
//! Invariant: every operation here is exact or correctly rounded, so all instruction sets give the same bits,
//! always; tests hold this for each operation and for each kernel. Lanes are outputs, never terms of one sum.
//!
//! Depends on no other file of this package: `tests/kernels` compiles it with its tests.

pub mod codes;
mod eight;
#[cfg(target_arch = "x86_64")]
mod vnni;
pub mod wide;

use eight::Eight;
use engraft_core::math::{FusedMadd, MulAdd, SeparateMadd};
use engraft_core::numerics::Madd;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Lanes of one vector.
pub const WIDTH: usize = 8;

/// Instruction set that kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// What the compiler's baseline has.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// The same, and AVX-512 (F, VL, BW, DQ): for matmuls, and for the plain loops of attention and norms
    /// (`wide::run_loops`).
    Avx512,
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Isa {
        Isa::Avx512.here()
    }

    /// This one, or the best below it that this processor has.
    #[inline]
    pub fn here(self) -> Isa {
        #[cfg(target_arch = "x86_64")]
        if self != Isa::Portable
            && std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c")
        {
            let wide = self == Isa::Avx512
                && std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512dq");
            return if wide { Isa::Avx512 } else { Isa::Avx2 };
        }
        Isa::Portable
    }

    /// `portable`, `avx2` or `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// A computation with one body for all instruction sets and both multiply-adds.
pub trait Kernel {
    /// The body; implementations mark it `#[inline(always)]`.
    fn run<V: Lanes>(self);
}

/// Runs `kernel` compiled for `isa` (AVX-512 counts as AVX2 here) and `madd`. Where the processor lacks it,
/// the best below it runs ([`Isa::here`]): AVX2 where AVX-512 is asked for, or the portable variant.
#[inline]
pub fn run<K: Kernel>(isa: Isa, madd: Madd, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if isa.here() != Isa::Portable {
        // SAFETY: the processor has the features, checked on the line above.
        return unsafe {
            match madd {
                Madd::Fused => avx2::enter::<FusedMadd, K>(kernel),
                Madd::Separate => avx2::enter::<SeparateMadd, K>(kernel),
            }
        };
    }
    let _ = isa;
    match madd {
        Madd::Fused => kernel.run::<Portable<FusedMadd>>(),
        Madd::Separate => kernel.run::<Portable<SeparateMadd>>(),
    }
}

/// Eight f32 lanes with one kind of multiply-add.
///
/// # Safety of the loads and stores
/// Each reads or writes exactly 8 elements (of the width in its name) at the pointer, which needs no
/// alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Lanes: Copy + 'static {
    /// The kind of multiply-add, for scalar code next to the vectors.
    type M: MulAdd;
    /// Eight nibbles a lane, the first one in the lowest bits.
    type Packed: Copy;
    /// All lanes `v`.
    fn splat(v: f32) -> Self;
    /// 8 f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Writes 8 f32.
    unsafe fn store(self, p: *mut f32);
    /// 8 binary16 values, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// 8 bfloat16 values, widened exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// 8 signed bytes.
    unsafe fn load_i8(p: *const u8) -> Self;
    /// 8 words of 32 bits.
    unsafe fn packed(p: *const u8) -> Self::Packed;
    /// Nibble J of each lane.
    fn nibble<const J: usize>(q: Self::Packed) -> Self;
    /// Nibble J as a number with a sign, times 2^28.
    fn signed<const J: usize>(q: Self::Packed) -> Self;
    /// Nibble J with bit i of `fifth` as bit 4 of lane i, and minus `offset`.
    fn five_bits<const J: usize>(q: Self::Packed, fifth: u8, offset: i32) -> Self;
    /// What stands in a table at nibble J.
    fn entry<const J: usize>(q: Self::Packed, table: &[f32; 16]) -> Self;
    /// 8 bytes of e5m2, widened exactly; with `E4M3` of that type, times 2^-8, and NaN as 480 times that.
    unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self;
    /// Rounds to binary16 (nearest even) and writes 8.
    unsafe fn store_f16(self, p: *mut u16);
    /// Rounds to bfloat16 (nearest even) and writes 8.
    unsafe fn store_bf16(self, p: *mut u16);
    /// `self * b + c` by the kind `M`.
    fn madd(self, b: Self, c: Self) -> Self;
    /// Lane-wise sum.
    fn add(self, b: Self) -> Self;
    /// Lane-wise product.
    fn mul(self, b: Self) -> Self;
    /// Sums of 32 products of signed bytes, exact as f32: of R rows, `x` being `[8][R][4]` bytes in
    /// -127..=127, with 16 columns, `w` being `[8][16][4]` bytes. The R `offsets` are -128 times the sums of
    /// the rows' bytes.
    unsafe fn dots<const R: usize>(x: *const i8, offsets: *const i32, w: *const u8) -> [[Self; 2]; R];
    /// Lane i of row j becomes lane j of row i.
    fn transpose(rows: [Self; WIDTH]) -> [Self; WIDTH];
    /// Asks for the cache line at `p`, which may lie anywhere.
    fn prefetch(p: *const u8);
}

/// Lanes in what the compiler's baseline has.
#[derive(Clone, Copy)]
pub struct Portable<M>(Eight, PhantomData<M>);

/// What the portable lanes do in many instructions stays out of line on processors that have [`avx2`]
/// instead: there the portable variant is the fallback of old machines, and the unrolled kernels would repeat
/// these hundreds of times (they took most of this crate's compile time). Elsewhere it is inlined and
/// vectorised.
mod many {
    use super::{WIDTH, bf16, f16};

    macro_rules! outlined {
        ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty $body:block)*) => {$(
            $(#[$doc])*
            #[cfg_attr(all(target_arch = "x86_64", not(target_feature = "fma")), inline(never))]
            #[cfg_attr(not(all(target_arch = "x86_64", not(target_feature = "fma"))), inline(always))]
            pub fn $name($($arg: $ty),*) -> $out $body
        )*};
    }

    outlined! {
        fn fused(a: [f32; WIDTH], b: [f32; WIDTH], c: [f32; WIDTH]) -> [f32; WIDTH] {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        }
        fn widen_f16(h: [u16; WIDTH]) -> [f32; WIDTH] {
            h.map(|b| f16::from_bits(b).to_f32_const())
        }
        /// The upper byte of binary16; of e4m3 all but the sign goes one place down.
        fn widen_f8(q: [u8; WIDTH], e4m3: bool) -> [f32; WIDTH] {
            let half = |q: u8| if e4m3 { (i16::from(q as i8) << 7) as u16 & 0xbf80 } else { u16::from(q) << 8 };
            q.map(|q| f16::from_bits(half(q)).to_f32_const())
        }
        fn entry(q: [u32; WIDTH], place: usize, table: [f32; 16]) -> [f32; WIDTH] {
            q.map(|q| table[(q >> (4 * place) & 15) as usize])
        }
        fn narrow_f16(v: [f32; WIDTH]) -> [u16; WIDTH] {
            v.map(|v| f16::from_f32_const(v).to_bits())
        }
        fn narrow_bf16(v: [f32; WIDTH]) -> [u16; WIDTH] {
            v.map(|v| bf16::from_f32_const(v).to_bits())
        }
        /// Sums of 32 products of bytes, of one row and 16 columns.
        fn dots(x: [[i8; 4]; 8], w: [[[i8; 4]; 16]; 8]) -> [[f32; WIDTH]; 2] {
            let mut sums = [0i32; 16];
            for (four, quad) in x.iter().zip(&w) {
                for (sum, column) in sums.iter_mut().zip(quad) {
                    *sum += four.iter().zip(column).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum::<i32>();
                }
            }
            [std::array::from_fn(|i| sums[i] as f32), std::array::from_fn(|i| sums[WIDTH + i] as f32)]
        }
        fn signed(q: [u8; WIDTH]) -> [f32; WIDTH] {
            q.map(|q| f32::from(q as i8))
        }
        /// Nibbles with a sign times 2^28.
        fn signed_nibble(q: [u32; WIDTH], place: usize) -> [f32; WIDTH] {
            q.map(|q| (q >> (4 * place) << 28) as i32 as f32)
        }
        /// Nibbles with a fifth bit, minus `offset`.
        fn five_bits(q: [u32; WIDTH], place: usize, fifth: u8, offset: i32) -> [f32; WIDTH] {
            let bit = |i: usize| u32::from(fifth >> i & 1) << 4;
            std::array::from_fn(|i| ((q[i] >> (4 * place) & 15 | bit(i)) as i32 - offset) as f32)
        }
    }
}

impl<M> Portable<M> {
    #[inline(always)]
    fn new(lanes: [f32; WIDTH]) -> Self {
        Portable(Eight::new(lanes), PhantomData)
    }
}

impl<M: MulAdd> Lanes for Portable<M> {
    type M = M;
    type Packed = [u32; WIDTH];
    #[inline(always)]
    fn splat(v: f32) -> Self {
        Portable(Eight::splat(v), PhantomData)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise on 8 elements (here and in every load and store below).
        Portable(unsafe { Eight::load(p) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { self.0.store(p) };
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: as above.
        Self::new(many::widen_f16(unsafe { p.cast::<[u16; WIDTH]>().read_unaligned() }))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: as above.
        Portable(unsafe { Eight::load_bf16(p) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: as above.
        Self::new(many::signed(unsafe { p.cast::<[u8; WIDTH]>().read() }))
    }
    #[inline(always)]
    unsafe fn packed(p: *const u8) -> [u32; WIDTH] {
        // SAFETY: as above.
        unsafe { p.cast::<[u32; WIDTH]>().read_unaligned() }.map(u32::from_le)
    }
    #[inline(always)]
    fn nibble<const J: usize>(q: [u32; WIDTH]) -> Self {
        Self::five_bits::<J>(q, 0, 0)
    }
    #[inline(always)]
    fn signed<const J: usize>(q: [u32; WIDTH]) -> Self {
        Self::new(many::signed_nibble(q, J))
    }
    #[inline(always)]
    fn five_bits<const J: usize>(q: [u32; WIDTH], fifth: u8, offset: i32) -> Self {
        Self::new(many::five_bits(q, J, fifth, offset))
    }
    #[inline(always)]
    fn entry<const J: usize>(q: [u32; WIDTH], table: &[f32; 16]) -> Self {
        Self::new(many::entry(q, J, *table))
    }
    #[inline(always)]
    unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self {
        // SAFETY: as above.
        let q = unsafe { p.cast::<[u8; WIDTH]>().read() };
        Self::new(many::widen_f8(q, E4M3))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe { p.cast::<[u16; WIDTH]>().write_unaligned(many::narrow_f16(self.0.lanes())) };
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe { p.cast::<[u16; WIDTH]>().write_unaligned(many::narrow_bf16(self.0.lanes())) };
    }
    #[inline(always)]
    fn madd(self, b: Self, c: Self) -> Self {
        match M::KIND {
            Madd::Fused => Self::new(many::fused(self.0.lanes(), b.0.lanes(), c.0.lanes())),
            Madd::Separate => self.mul(b).add(c),
        }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Portable(self.0.add(b.0), PhantomData)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Portable(self.0.mul(b.0), PhantomData)
    }
    #[inline(always)]
    unsafe fn dots<const R: usize>(x: *const i8, _: *const i32, w: *const u8) -> [[Self; 2]; R] {
        // SAFETY: 32 bytes a row and 512 of w, the caller's promise.
        let (x, w) = unsafe { (x.cast::<[[[i8; 4]; R]; 8]>().read(), w.cast::<[[[i8; 4]; 16]; 8]>().read()) };
        std::array::from_fn(|r| many::dots(x.map(|quad| quad[r]), w).map(Self::new))
    }
    #[inline(always)]
    fn transpose(rows: [Self; WIDTH]) -> [Self; WIDTH] {
        let rows = rows.map(|row| row.0.lanes());
        std::array::from_fn(|i| Self::new(std::array::from_fn(|j| rows[j][i])))
    }
    #[inline(always)]
    fn prefetch(_: *const u8) {}
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The AVX2 lanes. Every method is only reached from [`enter`], `wide::avx512::enter_pairs` and
    //! `wide::avx512::enter_loops`, which have the target features.
    use super::{Kernel, Lanes, Madd, MulAdd, PhantomData, vnni};
    use std::arch::x86_64::*;

    /// Lanes in a register.
    #[derive(Clone, Copy)]
    pub struct Avx2<M, const BYTES: u8 = { vnni::PAIRS }>(__m256, PhantomData<M>);

    /// Runs the kernel with the features on.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn enter<M: MulAdd, K: Kernel>(kernel: K) {
        kernel.run::<Avx2<M>>();
    }

    #[inline(always)]
    fn wrap<M, const BYTES: u8>(v: __m256) -> Avx2<M, BYTES> {
        Avx2(v, PhantomData)
    }

    /// Brings nibble J to the lowest bits.
    #[inline(always)]
    fn right<const J: usize>(q: __m256i) -> __m256i {
        // SAFETY: features: called by the lanes below alone.
        unsafe {
            match J {
                0 => q,
                1 => _mm256_srli_epi32::<4>(q),
                2 => _mm256_srli_epi32::<8>(q),
                3 => _mm256_srli_epi32::<12>(q),
                4 => _mm256_srli_epi32::<16>(q),
                5 => _mm256_srli_epi32::<20>(q),
                6 => _mm256_srli_epi32::<24>(q),
                _ => _mm256_srli_epi32::<28>(q),
            }
        }
    }

    /// Brings nibble J to the highest bits.
    #[inline(always)]
    fn left<const J: usize>(q: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            match J {
                0 => _mm256_slli_epi32::<28>(q),
                1 => _mm256_slli_epi32::<24>(q),
                2 => _mm256_slli_epi32::<20>(q),
                3 => _mm256_slli_epi32::<16>(q),
                4 => _mm256_slli_epi32::<12>(q),
                5 => _mm256_slli_epi32::<8>(q),
                6 => _mm256_slli_epi32::<4>(q),
                _ => q,
            }
        }
    }

    // SAFETY of this impl: intrinsics of AVX2, FMA and F16C, reached only below `enter`,
    // `wide::avx512::enter_pairs` and `wide::avx512::enter_loops` (the module is private and `Avx2` is named
    // nowhere else); memory as the trait says.
    impl<M: MulAdd, const BYTES: u8> Lanes for Avx2<M, BYTES> {
        type M = M;
        type Packed = __m256i;
        #[inline(always)]
        fn splat(v: f32) -> Self {
            // SAFETY: features, see above.
            wrap(unsafe { _mm256_set1_ps(v) })
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: features and 8 elements, see above (so in all methods).
            wrap(unsafe { _mm256_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: as above.
            wrap(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: as above.
            wrap(unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
        #[inline(always)]
        unsafe fn load_i8(p: *const u8) -> Self {
            // SAFETY: as above.
            wrap(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) })
        }
        #[inline(always)]
        unsafe fn packed(p: *const u8) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        fn nibble<const J: usize>(q: __m256i) -> Self {
            // SAFETY: features, as above.
            wrap(unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(right::<J>(q), _mm256_set1_epi32(15))) })
        }
        #[inline(always)]
        fn signed<const J: usize>(q: __m256i) -> Self {
            // SAFETY: features, as above.
            wrap(unsafe { _mm256_cvtepi32_ps(_mm256_and_si256(left::<J>(q), _mm256_set1_epi32(-1 << 28))) })
        }
        #[inline(always)]
        fn five_bits<const J: usize>(q: __m256i, fifth: u8, offset: i32) -> Self {
            // SAFETY: features, as above.
            unsafe {
                let lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                let on = _mm256_and_si256(_mm256_set1_epi32(i32::from(fifth)), lane);
                let bit = _mm256_and_si256(_mm256_cmpeq_epi32(on, lane), _mm256_set1_epi32(16));
                let q = _mm256_or_si256(_mm256_and_si256(right::<J>(q), _mm256_set1_epi32(15)), bit);
                wrap(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(offset))))
            }
        }
        #[inline(always)]
        fn entry<const J: usize>(q: __m256i, table: &[f32; 16]) -> Self {
            // SAFETY: features, as above; 16 values. Bit 3 of a place says which half, the lower ones where
            // in it.
            unsafe {
                let (l, h) = (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8)));
                let at = right::<J>(q);
                let (low, high) = (_mm256_permutevar8x32_ps(l, at), _mm256_permutevar8x32_ps(h, at));
                wrap(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(left::<J>(q))))
            }
        }
        #[inline(always)]
        unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self {
            // SAFETY: as above.
            wrap(unsafe {
                let half = _mm_slli_epi16::<8>(_mm_cvtepu8_epi16(_mm_loadl_epi64(p.cast())));
                let down = _mm_and_si128(_mm_srai_epi16::<1>(half), _mm_set1_epi16(0xbf80_u16 as i16));
                _mm256_cvtph_ps(if E4M3 { down } else { half })
            })
        }
        #[inline(always)]
        unsafe fn store_f16(self, p: *mut u16) {
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, p: *mut u16) {
            // SAFETY: as above. Round to nearest even by integers; a NaN keeps its top bits and becomes
            // quiet.
            unsafe {
                let bits = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
                let r = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
                let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(r, r));
                _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
            }
        }
        #[inline(always)]
        fn madd(self, b: Self, c: Self) -> Self {
            // SAFETY: features, as above.
            wrap(unsafe {
                match M::KIND {
                    Madd::Fused => _mm256_fmadd_ps(self.0, b.0, c.0),
                    Madd::Separate => _mm256_add_ps(_mm256_mul_ps(self.0, b.0), c.0),
                }
            })
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: features, as above.
            wrap(unsafe { _mm256_add_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: features, as above.
            wrap(unsafe { _mm256_mul_ps(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn dots<const R: usize>(x: *const i8, offsets: *const i32, w: *const u8) -> [[Self; 2]; R] {
            // SAFETY: features; 32 bytes of each row, R offsets and 512 bytes of w, the caller's promise.
            unsafe {
                if BYTES != vnni::PAIRS {
                    return vnni::fours::<R, BYTES>(x, offsets, w).map(|row| row.map(wrap));
                }
                let ones = _mm256_set1_epi16(1);
                let mut sums = [[_mm256_setzero_si256(); 2]; R];
                for quad in 0..8 {
                    let p = w.add(quad * 64).cast::<__m256i>();
                    let columns = [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))];
                    for (r, row) in sums.iter_mut().enumerate() {
                        let four = _mm256_set1_epi32(x.cast::<i32>().add(quad * R + r).read_unaligned());
                        for (sum, column) in row.iter_mut().zip(columns) {
                            // One factor is unsigned: |w| and x with the sign of w. Two products stay within
                            // 16 bits, 2 * 128 * 127, since x has no -128.
                            let twos =
                                _mm256_maddubs_epi16(_mm256_abs_epi8(column), _mm256_sign_epi8(four, column));
                            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(twos, ones));
                        }
                    }
                }
                sums.map(|row| row.map(|sum| wrap(_mm256_cvtepi32_ps(sum))))
            }
        }
        #[inline(always)]
        fn transpose(r: [Self; 8]) -> [Self; 8] {
            // SAFETY: features, as above. Pairs of lanes, then fours, then halves change places.
            unsafe {
                let low = |i: usize| _mm256_unpacklo_ps(r[i].0, r[i + 1].0);
                let high = |i: usize| _mm256_unpackhi_ps(r[i].0, r[i + 1].0);
                let (l, h) = ([low(0), low(2), low(4), low(6)], [high(0), high(2), high(4), high(6)]);
                let first = |a, b| _mm256_shuffle_ps::<0x44>(a, b);
                let second = |a, b| _mm256_shuffle_ps::<0xee>(a, b);
                let top = [first(l[0], l[1]), second(l[0], l[1]), first(h[0], h[1]), second(h[0], h[1])];
                let end = [first(l[2], l[3]), second(l[2], l[3]), first(h[2], h[3]), second(h[2], h[3])];
                let front = |i: usize| wrap(_mm256_permute2f128_ps::<0x20>(top[i], end[i]));
                let back = |i: usize| wrap(_mm256_permute2f128_ps::<0x31>(top[i], end[i]));
                [front(0), front(1), front(2), front(3), back(0), back(1), back(2), back(3)]
            }
        }
        #[inline(always)]
        fn prefetch(p: *const u8) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
