//! The two roads against each other, against the `half` crate, and against models that share no code with
//! either.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::exact::{self, Value};
use super::float::{self, Extremum};
use super::half::{self, Binary16, Brain16, Half};
use super::packed::{self, Fp8};
use super::*;

/// A small generator of bit patterns that visits every exponent equally often.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// An f32 pattern; every fourth has a short fraction, so that ties happen.
    fn single(&mut self) -> u32 {
        let x = self.next();
        if x & 3 == 0 { (x >> 32) as u32 & 0xffff_f000 } else { (x >> 32) as u32 }
    }

    fn double(&mut self) -> u64 {
        let (x, y) = (self.next(), self.next());
        if x & 3 == 0 { y & 0xffff_ffff_ff00_0000 } else { y }
    }
}

fn same(a: u32, b: u32) -> bool {
    a == b || (f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan())
}

#[test]
fn sixteen_bit_formats_widen_to_the_number_they_mean() {
    for bits in 0..=u16::MAX {
        let model = ::half::f16::from_bits(bits).to_f32().to_bits();
        assert!(same(half::f32_from_f16(bits).to_bits(), model), "f16 {bits:#06x}");
        assert!(same((F16.to_f64(bits.into()) as f32).to_bits(), model), "f16 {bits:#06x}, exact road");
        let model = ::half::bf16::from_bits(bits).to_f32().to_bits();
        assert!(same(half::f32_from_bf16(bits).to_bits(), model), "bf16 {bits:#06x}");
        assert!(same((BF16.to_f64(bits.into()) as f32).to_bits(), model), "bf16 {bits:#06x}, exact road");
    }
}

#[test]
fn narrowing_rounds_to_the_nearest_of_the_two_neighbours() {
    // Every f16 and the points around the middle between it and the next one.
    for bits in 0..0x7c00u16 {
        let (low, high) = (half::f32_from_f16(bits), half::f32_from_f16(bits + 1));
        let high = if high.is_finite() { high } else { 65536.0 };
        let middle = (f64::from(low) + f64::from(high)) / 2.0;
        let tie = if bits & 1 == 0 { bits } else { bits + 1 };
        for sign in [0, 0x8000u16] {
            let signed = |x: f32| if sign == 0 { x } else { -x };
            let m = middle as f32;
            assert_eq!(half::f16_from_f32(signed(m)), tie | sign);
            assert_eq!(half::f16_from_f32(signed(m.next_down())), bits | sign);
            assert_eq!(half::f16_from_f32(signed(m.next_up())), (bits + 1) | sign);
            assert_eq!(half::f16_from_f32(signed(low)), bits | sign);
        }
    }
    let mut bits = Bits(1);
    for _ in 0..2_000_000 {
        let x = f32::from_bits(bits.single());
        let (a, b) = (half::f16_from_f32(x), ::half::f16::from_f32(x).to_bits());
        assert!(a == b || x.is_nan() && a == 0x7fff, "f16 of {x:e}: {a:#x} {b:#x}");
        let (a, b) = (half::bf16_from_f32(x), ::half::bf16::from_f32(x).to_bits());
        assert!(a == b || x.is_nan() && a == 0x7fff, "bf16 of {x:e}: {a:#x} {b:#x}");
        assert_eq!(
            u64::from(half::f16_from_f32(x)),
            F16.from_f64(x.into(), Rounding::Even, Overflow::Infinity)
        );
        assert_eq!(
            u64::from(half::bf16_from_f32(x)),
            BF16.from_f64(x.into(), Rounding::Even, Overflow::Infinity)
        );
    }
}

/// Rounds by looking at all numbers of a small format: no exponent arithmetic at all.
fn nearest_by_search(format: Format, value: f64, rounding: Rounding, overflow: Overflow) -> u64 {
    let sign = if value.is_sign_negative() { format.sign_bit() } else { 0 };
    let magnitude = value.abs();
    if value.is_nan() {
        return format.nan_bits();
    }
    let number = |bits: u64| format.to_f64(bits);
    let above = (0..=format.max_bits()).find(|&bits| number(bits) >= magnitude);
    let away = |up: bool, down: bool| up && sign == 0 || down && sign != 0;
    let Some(above) = above else {
        let last = number(format.max_bits());
        let step = last - number(format.max_bits() - 1);
        let to_infinity = match rounding {
            Rounding::Even => {
                magnitude > last + step / 2.0
                    || (magnitude == last + step / 2.0 && format.max_bits() & 1 == 1)
            }
            Rounding::Away => magnitude >= last + step / 2.0,
            Rounding::Zero => false,
            Rounding::Up => away(true, false),
            Rounding::Down => away(false, true),
        };
        let infinite = to_infinity || magnitude.is_infinite();
        return sign
            | if infinite && overflow == Overflow::Infinity {
                format.infinity_bits()
            } else {
                format.max_bits()
            };
    };
    if number(above) == magnitude {
        return sign | above;
    }
    let below = above - 1;
    let middle = (number(below) + number(above)) / 2.0;
    let up = match rounding {
        Rounding::Even => magnitude > middle || (magnitude == middle && above & 1 == 0),
        Rounding::Away => magnitude >= middle,
        Rounding::Zero => false,
        Rounding::Up => away(true, false),
        Rounding::Down => away(false, true),
    };
    sign | if up { above } else { below }
}

#[test]
fn eight_bit_formats_round_as_a_search_over_all_their_numbers_does() {
    let mut bits = Bits(2);
    let mut values = vec![
        0.0,
        f64::INFINITY,
        f64::NAN,
        1e-40,
        448.0,
        463.9,
        464.0,
        464.1,
        480.0,
        57344.0,
        61439.0,
        61440.0,
        61441.0,
    ];
    for format in [E4M3, E5M2] {
        values.extend((0..format.max_bits()).map(|b| (format.to_f64(b) + format.to_f64(b + 1)) / 2.0));
        values.extend((0..=format.max_bits()).map(|b| format.to_f64(b)));
    }
    for _ in 0..3000 {
        let scale = 2f64.powi((bits.next() % 40) as i32 - 22);
        values.push((bits.next() % 4096) as f64 / 1024.0 * scale);
    }
    for &value in &values {
        for value in [value, -value, value * (1.0 + f64::EPSILON), value * (1.0 - f64::EPSILON)] {
            for format in [E4M3, E5M2] {
                for rounding in Rounding::ALL {
                    for overflow in [Overflow::Infinity, Overflow::Finite] {
                        let got = format.from_f64(value, rounding, overflow);
                        let want = nearest_by_search(format, value, rounding, overflow);
                        // Without infinity, IEEE overflow is NaN of either sign.
                        let nan = format.is_nan(got) && format.is_nan(want);
                        assert!(
                            nan || got == want,
                            "{format:?} {value:e} {rounding:?} {overflow:?}: {got:#x} {want:#x}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn fp8_codes_have_the_values_of_the_ocp_tables() {
    let e4m3 = |code: u8| {
        let (e, m) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = if e == 0 { m / 8.0 * 2f32.powi(-6) } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
        if code & 0x7f == 0x7f {
            f32::NAN
        } else if code & 0x80 != 0 {
            -magnitude
        } else {
            magnitude
        }
    };
    for code in 0..=255u8 {
        assert!(same(Fp8::E4m3.to_f32(code).to_bits(), e4m3(code).to_bits()), "e4m3 {code:#x}");
        let model = half::f32_from_f16(u16::from(code) << 8);
        assert!(same(Fp8::E5m2.to_f32(code).to_bits(), model.to_bits()), "e5m2 {code:#x}");
        for kind in [Fp8::E4m3, Fp8::E5m2] {
            let back = kind.from_f32(kind.to_f32(code));
            let nan = kind.format().is_nan(code.into());
            let infinite = kind == Fp8::E5m2 && code & 0x7f == 0x7c;
            let want = if nan {
                0x7f
            } else if infinite {
                code - 1
            } else {
                code
            };
            assert_eq!(back, want, "{kind:?} {code:#x}");
        }
    }
    assert_eq!([Fp8::E4m3.to_f32(0x7e), Fp8::E5m2.to_f32(0x7b)], [448.0, 57344.0]);
}

#[test]
fn fp8_from_f16_agrees_with_fp8_from_f32_on_every_pattern() {
    for bits in 0..=u16::MAX {
        for kind in [Fp8::E4m3, Fp8::E5m2] {
            assert_eq!(kind.from_f16(bits), kind.from_f32(half::f32_from_f16(bits)), "{kind:?} {bits:#06x}");
        }
    }
}

#[test]
fn packed_conversions_put_the_first_operand_on_top() {
    assert_eq!(packed::fp8x2_from_f32(Fp8::E4m3, 1.0, -2.0, false), 0x38c0);
    assert_eq!(packed::fp8x2_from_f32(Fp8::E4m3, 1.0, -2.0, true), 0x3800);
    assert_eq!(packed::fp8x2_from_f32(Fp8::E5m2, 1e9, f32::NAN, true), 0x7b7f);
    assert_eq!(packed::fp8x2_from_f16x2(Fp8::E4m3, 0x3c00_c000, false), 0x38c0);
    assert_eq!(packed::f16x2_from_fp8x2(Fp8::E4m3, 0x38c0, false), 0x3c00_c000);
    assert_eq!(packed::f16x2_from_fp8x2(Fp8::E4m3, 0x38c0, true), 0x3c00_0000);
    assert_eq!(packed::bf16x2_from_f32(1.0, 2.0), 0x3f80_4000);
    assert_eq!(packed::f16x2_from_f32(1.0, 2.0), 0x3c00_4000);
    let pair = |x, y, r, o, relu| packed::half2_from_f32(F16, x, y, r, o, relu);
    assert_eq!(pair(1e6, -1e6, Rounding::Even, Overflow::Infinity, false), 0x7c00_fc00);
    assert_eq!(pair(1e6, -1e6, Rounding::Zero, Overflow::Infinity, false), 0x7bff_fbff);
    assert_eq!(pair(f32::INFINITY, -1e6, Rounding::Even, Overflow::Finite, true), 0x7bff_0000);
}

#[test]
fn tf32_keeps_ten_fraction_bits() {
    let mut bits = Bits(3);
    for _ in 0..300_000 {
        let x = f32::from_bits(bits.single());
        let exact = half::tf32_from_f32_rounded(x, Rounding::Away, Overflow::Infinity);
        assert_eq!(half::tf32_from_f32(x), exact, "{x:e}");
        if x.is_finite() {
            let truncated = half::tf32_from_f32_rounded(x, Rounding::Zero, Overflow::Infinity);
            assert_eq!(truncated, half::f32_from_tf32(x.to_bits()).to_bits());
        }
    }
    assert_eq!(half::tf32_from_f32(f32::from_bits(0x3f80_1000)), 0x3f80_2000);
    assert_eq!(
        half::tf32_from_f32_rounded(f32::from_bits(0x3f80_1000), Rounding::Even, Overflow::Infinity),
        0x3f80_0000
    );
    assert_eq!(half::tf32_from_f32(f32::MAX), f32::INFINITY.to_bits());
    assert_eq!(half::tf32_from_f32_rounded(f32::MAX, Rounding::Away, Overflow::Finite), 0x7f7f_e000);
    assert_eq!(half::tf32_from_f32(f32::NAN), 0x7fff_ffff);
}

fn half_pairs_agree<H: Half>(seed: u64) {
    let mut bits = Bits(seed);
    let f = H::FORMAT;
    let pack = |v| f.pack(v, Rounding::Even, Overflow::Infinity) as u16;
    for round in 0..1_500_000u64 {
        let x = bits.next();
        let (a, b, mut c) = (x as u16, (x >> 16) as u16, (x >> 32) as u16);
        let [va, vb] = [a, b].map(|x| f.unpack(x.into()));
        assert_eq!(
            half::add::<H>(a, b),
            canonical16::<H>(pack(exact::add(va, vb, Rounding::Even))),
            "{a:#x} + {b:#x}"
        );
        let multiplied = pack(exact::mul(va, vb));
        assert_eq!(half::mul::<H>(a, b), multiplied, "{a:#x} * {b:#x}");
        // Every other third operand nearly cancels the product.
        if round % 2 == 0 {
            c = multiplied ^ 0x8000 ^ (x >> 48) as u16 & 3;
        }
        let want = pack(exact::fma(va, vb, f.unpack(c.into()), Rounding::Even));
        assert_eq!(half::fma::<H>(a, b, c), want, "{a:#x} * {b:#x} + {c:#x}");
    }
}

fn canonical16<H: Half>(bits: u16) -> u16 {
    if H::widen(bits).is_nan() { 0x7fff } else { bits }
}

#[test]
fn half_arithmetic_is_correctly_rounded() {
    half_pairs_agree::<Binary16>(4);
    half_pairs_agree::<Brain16>(5);
}

#[test]
fn a_multiply_just_off_a_tie_is_not_rounded_twice() {
    // bf16: 1.0078125^2 = 1.015686..., whose 16-bit product is a tie of 8 bits once scaled; a tiny addend
    // decides.
    let (a, b) = (0x3f81u16, 0x3fc0);
    let multiplied = half::f32_from_bf16(a) * half::f32_from_bf16(b);
    assert_eq!(half::bf16_from_f32(multiplied), 0x3fc2, "a tie to even on its own");
    assert_eq!(half::fma::<Brain16>(a, b, 0x0001), 0x3fc2, "the tie broken upward");
    assert_eq!(half::fma::<Brain16>(a, b, 0x8001), 0x3fc1, "the tie broken downward");
}

#[test]
fn exact_arithmetic_equals_the_hosts_in_f32_and_f64() {
    let mut bits = Bits(6);
    let single = |v| F32.pack(v, Rounding::Even, Overflow::Infinity) as u32;
    let double = |v| F64.pack(v, Rounding::Even, Overflow::Infinity);
    for round in 0..400_000u64 {
        let (a, b, mut c) = (bits.single(), bits.single(), bits.single());
        let [x, y] = [a, b].map(f32::from_bits);
        if round % 2 == 0 {
            c = (x * y).to_bits() ^ 0x8000_0000 ^ (c & 3);
        }
        let [va, vb, vc] = [a, b, c].map(|x| F32.unpack(x.into()));
        assert!(same(single(exact::add(va, vb, Rounding::Even)), (x + y).to_bits()), "{x:e} + {y:e}");
        assert!(same(single(exact::mul(va, vb)), (x * y).to_bits()), "{x:e} * {y:e}");
        assert!(same(single(exact::div(va, vb)), (x / y).to_bits()), "{x:e} / {y:e}");
        assert!(same(single(exact::sqrt(va)), x.sqrt().to_bits()), "sqrt {x:e}");
        let fused = x.mul_add(y, f32::from_bits(c)).to_bits();
        assert!(same(single(exact::fma(va, vb, vc, Rounding::Even)), fused), "{x:e} * {y:e} + {c:#x}");

        let (a, b, mut c) = (bits.double(), bits.double(), bits.double());
        let [x, y] = [a, b].map(f64::from_bits);
        if round % 2 == 0 {
            c = (x * y).to_bits() ^ 1 << 63 ^ (c & 3);
        }
        let [va, vb, vc] = [a, b, c].map(|x| F64.unpack(x));
        let same = |a: u64, b: f64| a == b.to_bits() || (f64::from_bits(a).is_nan() && b.is_nan());
        assert!(same(double(exact::add(va, vb, Rounding::Even)), x + y), "{x:e} + {y:e}");
        assert!(same(double(exact::mul(va, vb)), x * y), "{x:e} * {y:e}");
        assert!(same(double(exact::div(va, vb)), x / y), "{x:e} / {y:e}");
        assert!(same(double(exact::sqrt(va)), x.sqrt()), "sqrt {x:e}");
        let fused = x.mul_add(y, f64::from_bits(c));
        assert!(same(double(exact::fma(va, vb, vc, Rounding::Even)), fused), "{x:e} * {y:e} + {c:#x}");
    }
}

#[test]
fn directed_modes_bracket_the_nearest_result() {
    let mut bits = Bits(7);
    for _ in 0..200_000 {
        let (a, b) = (bits.single(), bits.single());
        let [x, y] = [a, b].map(f32::from_bits);
        let exact = f64::from(x) * f64::from(y);
        if exact.is_nan() {
            assert_eq!(float::mul(a, b, Rounding::Zero), 0x7fff_ffff);
            continue;
        }
        let [down, up, zero] =
            [Rounding::Down, Rounding::Up, Rounding::Zero].map(|r| f32::from_bits(float::mul(a, b, r)));
        assert!(f64::from(down) <= exact && exact <= f64::from(up), "{x:e} * {y:e}");
        assert!(down == up || down.next_up() == up, "{x:e} * {y:e}: {down:e} {up:e}");
        assert_eq!(zero, if exact > 0.0 { down } else { up });
    }
    // The sign of an exact zero is the one thing a mode decides without rounding.
    assert_eq!(float::add(1.0f32.to_bits(), (-1.0f32).to_bits(), Rounding::Down), 0x8000_0000);
    assert_eq!(float::add(1.0f32.to_bits(), (-1.0f32).to_bits(), Rounding::Up), 0);
    let third = float::div(1.0f32.to_bits(), 3.0f32.to_bits(), Rounding::Up);
    assert_eq!(third, float::div(1.0f32.to_bits(), 3.0f32.to_bits(), Rounding::Down) + 1);
    assert_eq!(float::sqrt(2.0f32.to_bits(), Rounding::Zero), 0x3fb5_04f3);
    assert_eq!(float::sqrt(2.0f32.to_bits(), Rounding::Up), 0x3fb5_04f4);
    let tiny = float::fma64(1.0f64.to_bits(), 1.0f64.to_bits(), 1, Rounding::Up);
    assert_eq!(tiny, 1.0f64.next_up().to_bits());
}

#[test]
fn minima_ignore_or_propagate_nan() {
    let nan = 0x7fc0_0000u64;
    let min = Extremum::default();
    let max = Extremum { max: true, ..min };
    let f = |x: f32| u64::from(x.to_bits());
    assert_eq!(float::extremum(F32, f(1.0), nan, min), f(1.0));
    assert_eq!(float::extremum(F32, nan, f(1.0), max), f(1.0));
    assert_eq!(float::extremum(F32, nan, nan | 1, max), 0x7fff_ffff);
    assert_eq!(float::extremum(F32, f(1.0), nan, Extremum { nan: true, ..min }), 0x7fff_ffff);
    assert_eq!(float::extremum(F32, f(0.0), f(-0.0), min), f(-0.0));
    assert_eq!(float::extremum(F32, f(-0.0), f(0.0), max), f(0.0));
    let xorsign = Extremum { xorsign: true, ..max };
    assert_eq!(float::extremum(F32, f(-3.0), f(2.0), xorsign), f(-3.0));
    assert_eq!(float::extremum(F32, f(-3.0), f(-2.0), xorsign), f(3.0));
    let mut bits = Bits(8);
    for _ in 0..200_000 {
        let (a, b) = (bits.next() as u16, bits.next() as u16);
        let (x, y) = (::half::f16::from_bits(a), ::half::f16::from_bits(b));
        if x.is_nan() || y.is_nan() {
            continue;
        }
        let want = if x.total_cmp(&y).is_le() { (a, b) } else { (b, a) };
        assert_eq!(float::extremum(F16, a.into(), b.into(), min), u64::from(want.0));
        assert_eq!(float::extremum(F16, a.into(), b.into(), max), u64::from(want.1));
    }
}

#[test]
fn flushing_and_saturating() {
    assert_eq!(float::flush(0x8000_0001), 0x8000_0000);
    assert_eq!(float::flush(0x0080_0000), 0x0080_0000);
    assert_eq!(float::saturate(f32::NAN.to_bits()), 0);
    assert_eq!(float::saturate(0x8000_0000), 0);
    assert_eq!(float::saturate(7f32.to_bits()), 1f32.to_bits());
    assert_eq!(float::saturate(0.25f32.to_bits()), 0.25f32.to_bits());
    assert_eq!(half::saturate::<Binary16>(half::f16_from_f32(2.0)), half::f16_from_f32(1.0));
    assert_eq!(half::relu::<Brain16>(0x8000), 0);
    assert_eq!(half::relu::<Brain16>(0xffc0), 0x7fff);
    assert_eq!(half::neg::<Binary16>(0x3c00), 0xbc00);
}

#[test]
fn integers_from_floats_clamp_and_round() {
    let to = |kind: &str, rounding, from: &str, bits: u64| {
        let c = Conversion::new(Scalar::parse(from).unwrap(), Scalar::parse(kind).unwrap());
        Conversion { rounding, ..c }.apply(bits)
    };
    let mut bits = Bits(9);
    for _ in 0..300_000 {
        let x = bits.single();
        let v = f32::from_bits(x);
        assert_eq!(to("s32", Rounding::Zero, "f32", x.into()), i64::from(v as i32) as u64, "{v:e}");
        assert_eq!(to("u32", Rounding::Zero, "f32", x.into()), u64::from(v as u32), "{v:e}");
        assert_eq!(to("s8", Rounding::Zero, "f32", x.into()), i64::from(v as i8) as u64, "{v:e}");
        assert_eq!(to("u16", Rounding::Up, "f32", x.into()), u64::from(v.ceil() as u16), "{v:e}");
        assert_eq!(to("s32", Rounding::Even, "f32", x.into()), i64::from(v.round_ties_even() as i32) as u64);
        assert_eq!(to("s16", Rounding::Down, "f32", x.into()), i64::from(v.floor() as i16) as u64);
        let d = f64::from_bits(bits.double());
        if !d.is_nan() {
            assert_eq!(to("s64", Rounding::Zero, "f64", d.to_bits()), d as i64 as u64, "{d:e}");
            assert_eq!(to("u64", Rounding::Even, "f64", d.to_bits()), d.round_ties_even() as u64, "{d:e}");
        }
    }
    let nan = u64::from(f32::NAN.to_bits());
    assert_eq!(to("u32", Rounding::Zero, "f32", nan), 0);
    assert_eq!(to("s64", Rounding::Zero, "f32", nan), 1 << 63);
    assert_eq!(to("u64", Rounding::Zero, "f32", nan), 1 << 63);
    assert_eq!(to("s32", Rounding::Zero, "f64", f64::NAN.to_bits()), 0xffff_ffff_8000_0000);
    assert_eq!(to("u8", Rounding::Even, "f16", 0x7e00), 0);
}

#[test]
fn floats_from_integers_round_once() {
    let from = |kind: &str, to: &str, rounding, bits: u64| {
        let c = Conversion::new(Scalar::parse(kind).unwrap(), Scalar::parse(to).unwrap());
        Conversion { rounding, ..c }.apply(bits)
    };
    let mut bits = Bits(10);
    for _ in 0..200_000 {
        let shift = bits.next() % 64;
        let x = bits.next() >> shift;
        assert_eq!(from("u64", "f32", Rounding::Even, x), u64::from((x as f32).to_bits()));
        assert_eq!(from("s64", "f32", Rounding::Even, x), u64::from((x as i64 as f32).to_bits()));
        assert_eq!(from("s32", "f64", Rounding::Even, x), (x as i32 as f64).to_bits());
        assert_eq!(from("s64", "f64", Rounding::Even, x), (x as i64 as f64).to_bits());
        let down = f32::from_bits(from("u64", "f32", Rounding::Down, x) as u32);
        assert!(down as f64 <= x as f64 && x as u128 >= down as u128);
        assert_eq!(
            from("s16", "f16", Rounding::Even, x),
            u64::from(::half::f16::from_f32(x as i16 as f32).to_bits())
        );
    }
    assert_eq!(from("s32", "f16", Rounding::Even, 100_000), 0x7c00);
    assert_eq!(from("s32", "f16", Rounding::Zero, 100_000), 0x7bff);
    assert_eq!(from("s32", "bf16", Rounding::Even, 257), u64::from(half::bf16_from_f32(256.0)));
}

#[test]
fn conversions_among_floats_and_among_integers() {
    let new =
        |from: &str, to: &str| Conversion::new(Scalar::parse(from).unwrap(), Scalar::parse(to).unwrap());
    let integral = |rounding| Conversion { integral: true, rounding, ..new("f32", "f32") };
    let mut bits = Bits(11);
    for _ in 0..200_000 {
        let x = f32::from_bits(bits.single());
        for (rounding, want) in [
            (Rounding::Even, x.round_ties_even()),
            (Rounding::Zero, x.trunc()),
            (Rounding::Down, x.floor()),
            (Rounding::Up, x.ceil()),
        ] {
            assert!(
                same(integral(rounding).apply(x.to_bits().into()) as u32, want.to_bits()),
                "{rounding:?} {x:e}"
            );
        }
        let d = bits.double();
        let narrowed = new("f64", "f32").apply(d) as u32;
        assert!(same(narrowed, (f64::from_bits(d) as f32).to_bits()));
        assert_eq!(f64::from_bits(new("f32", "f64").apply(x.to_bits().into())).to_bits(), {
            let wide = f64::from(x);
            if wide.is_nan() { F64.nan_bits() } else { wide.to_bits() }
        });
    }
    assert_eq!(
        Conversion { saturate: true, ..new("f32", "f32") }.apply(u64::from(7f32.to_bits())),
        u64::from(1f32.to_bits())
    );
    assert_eq!(Conversion { saturate: true, ..new("f32", "f16") }.apply(u64::from(f32::NAN.to_bits())), 0);
    assert_eq!(Conversion { ftz: true, ..new("f32", "f64") }.apply(0x8000_0001), 1 << 63);
    assert_eq!(Conversion { ftz: true, ..new("f64", "f32") }.apply(1e-40f64.to_bits()), 0);
    assert_eq!(Conversion { relu: true, ..new("f32", "bf16") }.apply(u64::from((-2f32).to_bits())), 0);
    assert_eq!(
        Conversion { finite: true, ..new("f32", "f16") }.apply(u64::from(f32::INFINITY.to_bits())),
        0x7bff
    );
    assert_eq!(new("s32", "s8").apply(0x180), (-128i64) as u64);
    assert_eq!(Conversion { saturate: true, ..new("s32", "s8") }.apply(0x180), 127);
    assert_eq!(Conversion { saturate: true, ..new("s32", "u8") }.apply((-5i64) as u64), 0);
    assert_eq!(new("s16", "u64").apply(0xffff), u64::MAX);
    assert_eq!(new("u16", "s64").apply(0xffff), 0xffff);
    assert_eq!(new("u64", "u32").apply(u64::MAX), 0xffff_ffff);
}

#[test]
fn fast_conversions_are_the_general_ones() {
    let names = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"];
    let mut bits = Bits(12);
    let mut seen = 0;
    for from in names {
        for to in names {
            for rounding in Rounding::ALL {
                let c = Conversion::new(Scalar::parse(from).unwrap(), Scalar::parse(to).unwrap());
                let c = Conversion { rounding, ..c };
                let Some(fast) = c.fast() else { continue };
                seen += 1;
                for _ in 0..20_000 {
                    let x = u64::from(bits.single());
                    assert_eq!(fast(x), c.apply(x), "{from} to {to} {rounding:?} of {x:#x}");
                }
            }
        }
    }
    assert!(seen >= 9, "{seen} fast conversions");
}

#[test]
fn nothing_panics_on_any_pattern_in_any_mode() {
    let mut bits = Bits(13);
    for _ in 0..100_000 {
        let (a, b, c) = (bits.next(), bits.next(), bits.next());
        for format in [F16, BF16, TF32, F32, F64, E4M3, E5M2] {
            let [a, b, c] = [a, b, c].map(|x| format.unpack(x));
            for rounding in Rounding::ALL {
                let fused = exact::fma(a, b, c, rounding);
                let bits = format.pack(fused, rounding, Overflow::Infinity);
                assert_eq!(bits & !(format.sign_bit() | (format.sign_bit() - 1)), 0, "{format:?}");
                assert!(matches!(exact::div(a, b), Value::Nan | Value::Infinite { .. } | Value::Finite(_)));
            }
        }
    }
}
