//! Eight f32 in what every processor of an architecture has: two SSE2 registers on x86-64, an array
//! elsewhere.
//!
//! As an array, the unrolled kernels would be eight instructions for every one of these, which took most of
//! this crate's compile time on x86-64, where they are the fallback of old machines.

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;

    /// The lanes.
    #[derive(Clone, Copy)]
    pub struct Eight(__m128, __m128);

    // SAFETY of this impl: SSE2 is part of the architecture.
    impl Eight {
        /// All lanes `v`.
        #[inline(always)]
        pub fn splat(v: f32) -> Self {
            // SAFETY: as above (so in all methods).
            let v = unsafe { _mm_set1_ps(v) };
            Self(v, v)
        }

        /// 8 f32.
        ///
        /// # Safety
        /// They are at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller's promise on 8 elements.
            unsafe { Self(_mm_loadu_ps(p), _mm_loadu_ps(p.add(4))) }
        }

        /// Writes 8 f32.
        ///
        /// # Safety
        /// There is room for them at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's promise on 8 elements.
            unsafe {
                _mm_storeu_ps(p, self.0);
                _mm_storeu_ps(p.add(4), self.1);
            }
        }

        /// Lane-wise sum.
        #[inline(always)]
        pub fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm_add_ps(self.0, b.0), _mm_add_ps(self.1, b.1)) }
        }

        /// Lane-wise product.
        #[inline(always)]
        pub fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm_mul_ps(self.0, b.0), _mm_mul_ps(self.1, b.1)) }
        }

        /// 8 bfloat16 values, widened exactly.
        ///
        /// # Safety
        /// They are at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: the caller's promise on 8 elements. Behind 16 bits of zeros, each is an f32.
            unsafe {
                let (all, zero) = (_mm_loadu_si128(p.cast()), _mm_setzero_si128());
                let (low, high) = (_mm_unpacklo_epi16(zero, all), _mm_unpackhi_epi16(zero, all));
                Self(_mm_castsi128_ps(low), _mm_castsi128_ps(high))
            }
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
mod array {
    /// The lanes.
    #[derive(Clone, Copy)]
    pub struct Eight([f32; 8]);

    impl Eight {
        /// Written out: `array::from_fn` passes through layers that the optimiser leaves as calls in large
        /// kernels.
        #[inline(always)]
        fn each(f: impl Fn(usize) -> f32) -> Self {
            Self([f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)])
        }

        /// All lanes `v`.
        #[inline(always)]
        pub fn splat(v: f32) -> Self {
            Self::each(|_| v)
        }

        /// 8 f32.
        ///
        /// # Safety
        /// They are at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller's promise on 8 elements.
            Self::each(|i| unsafe { p.add(i).read_unaligned() })
        }

        /// Writes 8 f32.
        ///
        /// # Safety
        /// There is room for them at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn store(self, p: *mut f32) {
            for (i, v) in self.0.iter().enumerate() {
                // SAFETY: the caller's promise on 8 elements.
                unsafe { p.add(i).write_unaligned(*v) };
            }
        }

        /// Lane-wise sum.
        #[inline(always)]
        pub fn add(self, b: Self) -> Self {
            Self::each(|i| self.0[i] + b.0[i])
        }

        /// Lane-wise product.
        #[inline(always)]
        pub fn mul(self, b: Self) -> Self {
            Self::each(|i| self.0[i] * b.0[i])
        }

        /// 8 bfloat16 values, widened exactly.
        ///
        /// # Safety
        /// They are at `p`, at any alignment.
        #[inline(always)]
        pub unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: the caller's promise on 8 elements.
            Self::each(|i| f32::from_bits(u32::from(unsafe { p.add(i).read_unaligned() }) << 16))
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use array::Eight;
#[cfg(target_arch = "x86_64")]
pub use registers::Eight;

impl Eight {
    /// The lanes of an array.
    #[inline(always)]
    pub fn new(lanes: [f32; 8]) -> Self {
        // SAFETY: the array has 8 elements.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// The lanes as an array.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        // SAFETY: the array has 8 elements.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{array, registers};

    /// Numbers of every size, zeros of both signs, infinities.
    fn numbers() -> Vec<f32> {
        let own = [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NEG_INFINITY, 1e-45, -1e-40, 3e38, 65504.0];
        own.iter().copied().chain((0..246u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)))).collect()
    }

    /// Equal bits, or both not a number.
    fn same(a: [f32; 8], b: [f32; 8]) {
        let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(a.iter().zip(&b).all(equal), "{a:?} {b:?}");
    }

    #[test]
    fn registers_have_the_bits_of_the_array() {
        let all = numbers();
        let halves: Vec<u16> = all.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        for at in 0..all.len() - 16 {
            let (p, q) = (all[at..].as_ptr(), all[at + 8..].as_ptr());
            let lanes = |a: array::Eight, r: registers::Eight| {
                let (mut x, mut y) = ([0.0; 8], [0.0; 8]);
                // SAFETY: both have 8 elements.
                unsafe {
                    a.store(x.as_mut_ptr());
                    r.store(y.as_mut_ptr());
                }
                same(x, y);
            };
            // SAFETY: 16 elements are there.
            let (a, b, c, d) = unsafe {
                (
                    array::Eight::load(p),
                    array::Eight::load(q),
                    registers::Eight::load(p),
                    registers::Eight::load(q),
                )
            };
            lanes(a, c);
            lanes(a.add(b), c.add(d));
            lanes(a.mul(b), c.mul(d));
            lanes(array::Eight::splat(all[at]), registers::Eight::splat(all[at]));
            let h = halves[at..].as_ptr();
            // SAFETY: as above.
            lanes(unsafe { array::Eight::load_bf16(h) }, unsafe { registers::Eight::load_bf16(h) });
        }
    }
}
