//! All instruction sets give the same bits.

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
        let x: [[[i8; 4]; R]; 8] =
            std::array::from_fn(|quad| std::array::from_fn(|r| self.0[r].as_chunks().0[quad]));
        let sum = |row: &[i8; 32]| row.iter().map(|v| i32::from(*v)).sum::<i32>();
        let offsets: [i32; R] = std::array::from_fn(|r| -128 * sum(&self.0[r]));
        // SAFETY: arrays of 32 a row, of 512 and of 16.
        unsafe {
            for sum in W::dots::<R>(x.as_ptr().cast(), offsets.as_ptr(), self.1.as_ptr()) {
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
        // Few processors have both: AVX-VNNI's code by the instruction of AVX-512.
        #[cfg(target_arch = "x86_64")]
        if for_bytes(Isa::Avx512) == Isa::Avx512 {
            let mut got = Vec::new();
            // SAFETY: the processor has the features.
            unsafe { avx512::enter_byte_fours_of_512::<FusedMadd, _>(Bytes(&x, &w, &mut got)) };
            assert_eq!(got, want, "AVX-VNNI");
        }
    }
}

/// What codes are widened to: bytes, and nibbles of words with fifth bits.
struct Codes<'a>(&'a [u8; 64], u16, &'a [f32; 16], &'a mut Vec<u32>);

impl Codes<'_> {
    #[inline(always)]
    fn place<W: Lanes16, const J: usize>(&mut self) {
        // SAFETY: 16 words.
        let q = unsafe { W::packed(self.0.as_ptr()) };
        let five = [0, 16].map(|offset| W::five_bits::<J>(q, self.1, offset));
        self.put([W::nibble::<J>(q), W::signed::<J>(q), five[0], five[1], W::entry::<J>(q, self.2)]);
    }

    #[inline(always)]
    fn put<W: Lanes16, const N: usize>(&mut self, all: [W; N]) {
        for v in all {
            let mut o = [0f32; 16];
            // SAFETY: 16 elements.
            unsafe { v.store(o.as_mut_ptr()) };
            self.3.extend(o.map(f32::to_bits));
        }
    }
}

impl Kernel16 for Codes<'_> {
    #[inline(always)]
    fn run<W: Lanes16>(mut self) {
        self.place::<W, 0>();
        self.place::<W, 1>();
        self.place::<W, 2>();
        self.place::<W, 3>();
        self.place::<W, 4>();
        self.place::<W, 5>();
        self.place::<W, 6>();
        self.place::<W, 7>();
        let q = self.0.as_ptr();
        // SAFETY: 16 bytes.
        self.put(unsafe { [W::load_i8(q), W::load_f8::<true>(q), W::load_f8::<false>(q)] });
    }
}

/// Every byte in every place, next to others.
#[test]
fn codes_are_widened_alike_by_all_instruction_sets() {
    for start in 0..=255u8 {
        let q: [u8; 64] = std::array::from_fn(|i| start.wrapping_add(37u8.wrapping_mul(i as u8)));
        let fifth = u16::from(start).wrapping_mul(40503).rotate_left(5);
        let table: [f32; 16] = std::array::from_fn(|i| i as f32 - 7.25 + f32::from(start));
        let mut want = Vec::new();
        for place in 0..8 {
            let nibble = |i: usize| i32::from(q[4 * i + place / 2] >> (place % 2 * 4) & 15);
            let bit = |i: usize| i32::from(fifth >> i & 1) * 16;
            let mut add = |of: &dyn Fn(usize) -> f32| want.extend((0..16).map(|i| of(i).to_bits()));
            add(&|i| nibble(i) as f32);
            add(&|i| (nibble(i) - nibble(i) / 8 * 16) as f32 * (1 << 28) as f32);
            add(&|i| (nibble(i) + bit(i)) as f32);
            add(&|i| (nibble(i) + bit(i) - 16) as f32);
            add(&|i| table[nibble(i) as usize]);
        }
        want.extend((0..16).map(|i| f32::from(q[i] as i8).to_bits()));
        let (nibbles, mut portable) = (want.len(), Vec::new());
        run(Isa::Portable, Madd::Fused, Codes(&q, fifth, &table, &mut portable));
        assert_eq!(portable[..nibbles], want, "from {start}");
        for isa in [Isa::Avx2, Isa::Avx512] {
            let mut got = Vec::new();
            run(isa, Madd::Fused, Codes(&q, fifth, &table, &mut got));
            assert_eq!(got, portable, "from {start}, {isa:?}");
        }
    }
}
