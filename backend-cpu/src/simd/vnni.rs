//! Sums of products of bytes four at a time, on registers of eight lanes.

use std::arch::x86_64::*;

/// Products of bytes two at a time, as AVX2 has them.
pub const PAIRS: u8 = 0;
/// Four at a time, by AVX-VNNI.
pub const FOURS: u8 = 1;
/// The same by the instruction that processors with AVX-512 have.
#[cfg(test)]
pub const FOURS_OF_512: u8 = 2;

/// [`super::Lanes::dots`] by VNNI. One factor is unsigned: w + 128, whose sum is too large by 128 times
/// that of x.
///
/// # Safety
/// As there; the processor has the instruction of `BYTES`.
#[inline(always)]
pub unsafe fn fours<const R: usize, const BYTES: u8>(
    x: *const i8,
    offsets: *const i32,
    w: *const u8,
) -> [[__m256; 2]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let high = _mm256_set1_epi8(-128);
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for (r, row) in sums.iter_mut().enumerate() {
            *row = [_mm256_set1_epi32(*offsets.add(r)); 2];
        }
        for quad in 0..8 {
            let p = w.add(quad * 64).cast::<__m256i>();
            let columns = [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))];
            for (r, row) in sums.iter_mut().enumerate() {
                let four = _mm256_set1_epi32(x.cast::<i32>().add(quad * R + r).read_unaligned());
                for (sum, column) in row.iter_mut().zip(columns) {
                    let column = _mm256_xor_si256(column, high);
                    *sum = match BYTES {
                        FOURS => _mm256_dpbusd_avx_epi32(*sum, column, four),
                        _ => _mm256_dpbusd_epi32(*sum, column, four),
                    };
                }
            }
        }
        sums.map(|row| row.map(|sum| _mm256_cvtepi32_ps(sum)))
    }
}
