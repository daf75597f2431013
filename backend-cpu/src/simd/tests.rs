//! All instruction sets give the same bits.

use super::*;

/// All conversions of one vector, as bits.
struct Probe<'a>(&'a [f32; 8], &'a [u16; 8], &'a [u8; 8], &'a mut Vec<u32>);

impl Kernel for Probe<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Probe(f, h, q, out) = self;
        let mut put = |v: V| {
            let mut o = [0f32; 8];
            // SAFETY: 8 elements.
            unsafe { v.store(o.as_mut_ptr()) };
            out.extend(o.map(f32::to_bits));
        };
        // SAFETY: arrays of 8.
        unsafe {
            let v = V::load(f.as_ptr());
            put(V::load_f16(h.as_ptr()));
            put(V::load_bf16(h.as_ptr()));
            put(V::load_i8(q.as_ptr()));
            let words = h.map(u32::from).map(|word| word.wrapping_mul(0x9E37_79B1));
            let words = V::packed(words.as_ptr().cast());
            let table = std::array::from_fn(|i| f[i % 8] + i as f32);
            for v in [V::nibble::<0>(words), V::nibble::<3>(words), V::nibble::<7>(words)] {
                put(v);
            }
            for v in [V::signed::<0>(words), V::signed::<4>(words), V::signed::<7>(words)] {
                put(v);
            }
            for v in [V::entry::<1>(words, &table), V::entry::<6>(words, &table)] {
                put(v);
            }
            for v in [V::five_bits::<2>(words, q[0], 16), V::five_bits::<5>(words, q[1], 0)] {
                put(v);
            }
            put(V::load_f8::<true>(q.as_ptr()));
            put(V::load_f8::<false>(q.as_ptr()));
            let x: [i8; 32] = std::array::from_fn(|i| (q[i % 8] as i8).wrapping_add(i as i8).max(-127));
            // Every byte that a weight may have, -128 too.
            let w: [u8; 512] =
                std::array::from_fn(|i| q[i % 7].wrapping_mul(i as u8 | 1).wrapping_add(q[i / 64]));
            let two: [_; 8] = std::array::from_fn(|quad| [x.as_chunks::<4>().0[quad], [-127; 4]]);
            let offset = |row: &[i8]| -128 * row.iter().map(|v| i32::from(*v)).sum::<i32>();
            let offsets = [offset(&x), offset(&[-127; 32])];
            let dots = V::dots::<2>(two.as_ptr().cast(), offsets.as_ptr(), w.as_ptr());
            dots.into_iter().flatten().for_each(&mut put);
            let dots = V::dots::<1>(x.as_ptr(), offsets.as_ptr(), [128; 512].as_ptr());
            dots.into_iter().flatten().for_each(&mut put);
            put(v.madd(V::splat(1.1), V::splat(0.3)));
            let rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| v.add(V::splat(f[i])));
            V::transpose(rows).into_iter().for_each(&mut put);
            let mut h = [0u16; 8];
            v.store_f16(h.as_mut_ptr());
            put(V::load_f16(h.as_ptr()));
            v.store_bf16(h.as_mut_ptr());
            put(V::load_bf16(h.as_ptr()));
        }
    }
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    let mut s = 1u64;
    for _ in 0..20_000 {
        let mut word = || {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 33) as u32
        };
        let finite = |b: u32| {
            let v = f32::from_bits(b << 1 ^ b);
            if v.is_nan() { 1.0 } else { v }
        };
        let f: [f32; 8] = std::array::from_fn(|_| finite(word()));
        let h: [u16; 8] = std::array::from_fn(|_| word() as u16)
            .map(|b| if f16::from_bits(b).is_nan() || bf16::from_bits(b).is_nan() { 0 } else { b });
        let q: [u8; 8] = std::array::from_fn(|_| word() as u8);
        for madd in [Madd::Fused, Madd::Separate] {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            run(Isa::Portable, madd, Probe(&f, &h, &q, &mut a));
            run(Isa::detect(), madd, Probe(&f, &h, &q, &mut b));
            assert_eq!(a, b, "{f:?} {h:?} {q:?}");
        }
    }
}
