//! `cvt` in every combination of types and rounding modes, against a model that knows no rounding algorithm:
//! it searches the codes of the target format for the two neighbours of the exact value and picks one, as the
//! manual defines the mode.

use std::cmp::Ordering;

use crate::harness::{Dice, results};

/// A floating-point format: bits of exponent and fraction, and its largest finite code.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    fraction: u32,
    max: u64,
}

const fn ieee(exponent: u32, fraction: u32) -> Format {
    Format { exponent, fraction, max: (((1 << exponent) - 1) << fraction) - 1 }
}

const F16: Format = ieee(5, 10);
const BF16: Format = ieee(8, 7);
const TF32: Format = ieee(8, 10);
const F32: Format = ieee(8, 23);
const F64: Format = ieee(11, 52);
const E5M2: Format = ieee(5, 2);
const E4M3: Format = Format { exponent: 4, fraction: 3, max: 0x7e };

/// `magnitude * 2^exponent`, exactly.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    magnitude: u128,
    exponent: i32,
}

#[derive(Clone, Copy)]
enum Value {
    Number(Exact),
    Infinite(bool),
    Nan,
}

/// Compares magnitudes.
fn order(a: (u128, i32), b: (u128, i32)) -> Ordering {
    let top = |(m, e): (u128, i32)| if m == 0 { i32::MIN } else { 128 - m.leading_zeros() as i32 + e };
    let left = |(m, _): (u128, i32)| if m == 0 { 0 } else { m << m.leading_zeros() };
    top(a).cmp(&top(b)).then(left(a).cmp(&left(b)))
}

impl Format {
    fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// The magnitude of a finite code without its sign.
    fn magnitude(self, code: u64) -> (u128, i32) {
        let (e, f) = (code >> self.fraction, code & ((1 << self.fraction) - 1));
        let least = 1 - ((1 << (self.exponent - 1)) - 1) - self.fraction as i32;
        if e == 0 { (f.into(), least) } else { ((f | 1 << self.fraction).into(), least + e as i32 - 1) }
    }

    fn decode(self, bits: u64) -> Value {
        let (negative, code) = (bits & self.sign() != 0, bits & (self.sign() - 1));
        match code.cmp(&(self.max + 1)) {
            Ordering::Less => {
                let (magnitude, exponent) = self.magnitude(code);
                Value::Number(Exact { negative, magnitude, exponent })
            }
            Ordering::Equal => Value::Infinite(negative),
            Ordering::Greater => Value::Nan,
        }
    }

    /// The code of an exact value; beyond the largest one comes the code of infinity.
    fn encode(self, x: Exact, mode: &str) -> u64 {
        let value = (x.magnitude, x.exponent);
        let (mut low, mut high) = (0, self.max);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if order(self.magnitude(middle), value) == Ordering::Greater {
                high = middle - 1
            } else {
                low = middle
            }
        }
        let below = self.magnitude(low);
        let up = match (mode, order(value, below)) {
            (_, Ordering::Equal) | ("rz", _) => false,
            ("rm", _) => x.negative,
            ("rp", _) => !x.negative,
            (_, _) => match order(value, (below.0 * 2 + 1, below.1 - 1)) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => mode == "rna" || low & 1 != 0,
            },
        };
        (low + u64::from(up)) | if x.negative { self.sign() } else { 0 }
    }

    fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.max + 1
    }

    /// Subnormal numbers become zero with their sign.
    fn flush(self, bits: u64) -> u64 {
        if bits & (self.sign() - 1) < 1 << self.fraction { bits & self.sign() } else { bits }
    }
}

/// The integer that a mode makes of a number.
fn whole(x: Exact, mode: &str) -> i128 {
    let (m, e) = (x.magnitude, x.exponent);
    let magnitude = if m == 0 {
        0
    } else if e >= 0 {
        // Far beyond every integer type is far enough.
        if e > 70 { 1 << 100 } else { (m << e).min(1 << 100) }
    } else {
        let (low, down) = (m.checked_shr(-e as u32).unwrap_or(0), -e as u32);
        let rest = down >= 128 || m & ((1 << down) - 1) != 0;
        let half = order((m, e), (low * 2 + 1, -1));
        let up = match mode {
            "rzi" => false,
            "rmi" => rest && x.negative,
            "rpi" => rest && !x.negative,
            _ => half == Ordering::Greater || half == Ordering::Equal && low & 1 != 0,
        };
        low + u128::from(up)
    };
    if x.negative { -(magnitude as i128) } else { magnitude as i128 }
}

/// A scalar type of the instruction.
#[derive(Clone, Copy)]
enum Kind {
    Integer { bits: u32, signed: bool },
    Float(Format),
}

fn kind(name: &str) -> Kind {
    match name {
        "f16" => Kind::Float(F16),
        "bf16" => Kind::Float(BF16),
        "f32" => Kind::Float(F32),
        "f64" => Kind::Float(F64),
        _ => Kind::Integer { bits: name[1..].parse().unwrap(), signed: name.starts_with('s') },
    }
}

impl Kind {
    fn bits(self) -> u32 {
        match self {
            Kind::Integer { bits, .. } => bits,
            Kind::Float(f) => 1 + f.exponent + f.fraction,
        }
    }

    fn truncate(self, x: u64) -> u64 {
        if self.bits() == 64 { x } else { x & ((1 << self.bits()) - 1) }
    }
}

fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The modifiers of an instruction.
#[derive(Clone, Copy, Default)]
struct Variant<'a> {
    mode: &'a str,
    ftz: bool,
    sat: bool,
}

/// What the manual says of one lane; none for "a NaN".
fn model(to: Kind, from: Kind, variant: Variant<'_>, bits: u64) -> Option<u64> {
    let value = match from {
        Kind::Integer { bits: n, signed } => {
            let x = from.truncate(bits);
            let x = if signed { i128::from((x << (64 - n)) as i64 >> (64 - n)) } else { x.into() };
            Value::Number(Exact { negative: x < 0, magnitude: x.unsigned_abs(), exponent: 0 })
        }
        Kind::Float(f) => f.decode(if variant.ftz && f.exponent == 8 && f.fraction == 23 {
            f.flush(from.truncate(bits))
        } else {
            from.truncate(bits)
        }),
    };
    match to {
        Kind::Integer { bits: n, signed } => {
            let (low, high) = range(n, signed);
            let x = match value {
                // NaN: zero, except from f64 and to 64 bits, where it is the most negative number's pattern.
                Value::Nan => {
                    let zero = from.bits() != 64 && n != 64;
                    return Some(if zero { 0 } else { extend(1 << (n - 1), n, signed) });
                }
                Value::Infinite(negative) => {
                    if negative {
                        low
                    } else {
                        high
                    }
                }
                Value::Number(x) if matches!(from, Kind::Float(_)) => whole(x, variant.mode).clamp(low, high),
                Value::Number(x) => {
                    let x = whole(x, "rzi");
                    if variant.sat { x.clamp(low, high) } else { x }
                }
            };
            Some(extend(to.truncate(x as u64), n, signed))
        }
        Kind::Float(f) => {
            let out = match value {
                Value::Nan if variant.sat => return Some(0),
                Value::Nan => return None,
                Value::Infinite(negative) => (f.max + 1) | if negative { f.sign() } else { 0 },
                Value::Number(x) if variant.mode.ends_with('i') => {
                    let n = whole(x, variant.mode);
                    // Beyond the fraction every number is whole.
                    let x = if n.unsigned_abs() >= 1 << 60 {
                        x
                    } else {
                        Exact { negative: x.negative, magnitude: n.unsigned_abs(), exponent: 0 }
                    };
                    f.encode(x, "rn")
                }
                Value::Number(x) => f.encode(x, variant.mode),
            };
            let out = if variant.ftz && f.exponent == 8 && f.fraction == 23 { f.flush(out) } else { out };
            let one = ((1 << (f.exponent - 1)) - 1) << f.fraction;
            Some(match (variant.sat, out & f.sign() != 0) {
                (false, _) => out,
                (true, true) => 0,
                (true, false) => out.min(one),
            })
        }
    }
}

/// A result as its register shows it: 8-bit types live in 32-bit registers here, extended.
fn extend(x: u64, bits: u32, signed: bool) -> u64 {
    match (bits, signed) {
        (8, true) => u64::from(x as u8 as i8 as i32 as u32),
        _ => x,
    }
}

/// Register of a type as source or destination, and the harness's letter for the latter.
fn register(name: &str, number: u32) -> (String, char) {
    let (class, letter) = match name {
        "f32" => ("f", 'f'),
        "f64" => ("fd", 'g'),
        "f16" | "bf16" | "u16" | "s16" => ("h", 'h'),
        "u64" | "s64" => ("rd", 'd'),
        _ => ("r", 'r'),
    };
    (format!("%{class}{number}"), letter)
}

/// Bit patterns in which conversions of a type have their edges: small numbers with fractions, ends of the
/// integers, any bits.
fn operands(from: Kind, seed: u64) -> Vec<[u64; 3]> {
    let mut dice = Dice(seed);
    let mut random = || {
        let Kind::Float(f) = from else { return dice.operand() };
        if dice.below(3) == 0 {
            return dice.operand();
        }
        let bias = (1u64 << (f.exponent - 1)) - 1;
        let exponent = (bias + dice.below(70)).saturating_sub(4).min((1 << f.exponent) - 2);
        let keep = dice.below(u64::from(f.fraction) + 1);
        let fraction = dice.next() & ((1 << f.fraction) - 1) & !((1u64 << keep) - 1);
        dice.below(2) * f.sign() | exponent << f.fraction | fraction
    };
    (0..384).map(|_| [random(), random(), 0]).collect()
}

fn check(to: &str, from: &str, variant: Variant<'_>) {
    let ((d, letter), (a, _)) = (register(to, 10), register(from, 0));
    let dot = |on: bool, name: &str| if on { format!(".{name}") } else { String::new() };
    let modifiers =
        [dot(!variant.mode.is_empty(), variant.mode), dot(variant.ftz, "ftz"), dot(variant.sat, "sat")]
            .concat();
    let text = format!("cvt{modifiers}.{to}.{from} {d}, {a};");
    let (target, source) = (kind(to), kind(from));
    let operands = operands(source, text.len() as u64);
    for (got, [x, _, _]) in results(&text, letter, &operands).into_iter().zip(&operands) {
        let fine = match model(target, source, variant, *x) {
            Some(want) => got == want,
            None => matches!(target, Kind::Float(f) if f.is_nan(got)),
        };
        assert!(
            fine,
            "{text} of {:#x}: {got:#x}, the manual says {:x?}",
            source.truncate(*x),
            model(target, source, variant, *x)
        );
    }
}

const INTEGERS: [&str; 8] = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
const FLOATS: [&str; 4] = ["f16", "bf16", "f32", "f64"];

#[test]
fn integers_to_integers() {
    for to in INTEGERS {
        for from in INTEGERS.into_iter().filter(|from| *from != to) {
            check(to, from, Variant::default());
            check(to, from, Variant { sat: true, ..Variant::default() });
        }
    }
}

#[test]
fn floats_to_integers() {
    for to in INTEGERS {
        for from in FLOATS {
            for mode in ["rni", "rzi", "rmi", "rpi"] {
                check(to, from, Variant { mode, ..Variant::default() });
            }
        }
        check(to, "f32", Variant { mode: "rpi", ftz: true, sat: true });
    }
}

#[test]
fn integers_to_floats() {
    for to in FLOATS {
        for from in INTEGERS {
            for mode in ["rn", "rz", "rm", "rp"] {
                check(to, from, Variant { mode, ..Variant::default() });
            }
        }
        check(to, "s32", Variant { mode: "rn", sat: true, ftz: false });
    }
}

#[test]
fn floats_to_floats() {
    for (to, from) in [
        ("f16", "f32"),
        ("bf16", "f32"),
        ("f16", "f64"),
        ("bf16", "f64"),
        ("f32", "f64"),
        ("bf16", "f16"),
        ("f16", "bf16"),
    ] {
        for mode in ["rn", "rz", "rm", "rp"] {
            check(to, from, Variant { mode, ..Variant::default() });
        }
        check(to, from, Variant { mode: "rn", sat: true, ftz: false });
    }
    for (to, from) in [("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")] {
        check(to, from, Variant::default());
        check(to, from, Variant { sat: true, ..Variant::default() });
    }
    for ty in ["f16", "f32", "f64"] {
        for mode in ["rni", "rzi", "rmi", "rpi"] {
            check(ty, ty, Variant { mode, ..Variant::default() });
        }
        check(ty, ty, Variant { sat: true, ..Variant::default() });
    }
    check("f32", "f32", Variant { ftz: true, ..Variant::default() });
    check("f32", "f32", Variant { mode: "rpi", ftz: true, sat: false });
    check("f16", "f32", Variant { mode: "rn", ftz: true, sat: false });
    check("f32", "f16", Variant { ftz: true, ..Variant::default() });
    check("f32", "f64", Variant { mode: "rn", ftz: true, sat: true });
    check("f64", "f32", Variant { ftz: true, ..Variant::default() });
    check("f32", "s64", Variant { mode: "rm", ftz: false, sat: true });
}

/// One element of a conversion with `.satfinite` and `.relu`; none for "a NaN".
fn element(f: Format, x: Value, mode: &str, finite: bool, relu: bool) -> Option<u64> {
    let code = match x {
        Value::Nan => return None,
        Value::Infinite(negative) => (f.max + 1) | if negative { f.sign() } else { 0 },
        Value::Number(x) => f.encode(x, mode),
    };
    let sign = code & f.sign();
    let code = if finite { (code & !sign).min(f.max) | sign } else { code };
    Some(if relu && sign != 0 { 0 } else { code })
}

/// Two lanes' elements of `f`, the second operand in the lower half, at `shift` bits from each other.
fn pairs(text: &str, letter: char, f: Format, shift: u32, of: impl Fn(u64, u64) -> [Option<u64>; 2]) {
    let operands: Vec<[u64; 3]> = operands(Kind::Float(F32), text.len() as u64 * 31);
    let mask = (f.sign() << 1) - 1;
    for (got, [a, b, _]) in results(text, letter, &operands).into_iter().zip(&operands) {
        for (i, want) in of(*a, *b).into_iter().enumerate() {
            let got = got >> (shift * i as u32) & mask;
            let fine = match want {
                Some(want) => got == want,
                // E4M3's NaN is all ones.
                None => f.is_nan(got) || f.max == 0x7e && got & 0x7f == 0x7f,
            };
            assert!(fine, "{text} of {a:#x} {b:#x}, element {i}: {got:#x}, want {want:x?}");
        }
    }
}

#[test]
fn packed_and_narrow_types() {
    let single = |x: u64| F32.decode(x & 0xffff_ffff);
    for relu in [false, true] {
        let r = if relu { ".relu" } else { "" };
        for finite in [false, true] {
            let s = if finite { ".satfinite" } else { "" };
            for mode in ["rn", "rz"] {
                for (name, f) in [("f16", F16), ("bf16", BF16)] {
                    let each = |x: u64| element(f, single(x), mode, finite, relu);
                    let text = format!("cvt.{mode}{r}{s}.{name}x2.f32 %r10, %f0, %f1;");
                    pairs(&text, 'r', f, 16, |a, b| [each(b), each(a)]);
                    let text = format!("cvt.{mode}{r}{s}.{name}.f32 %h10, %f0;");
                    pairs(&text, 'h', f, 0, |a, _| [each(a), each(a)]);
                }
            }
            for mode in ["rn", "rz", "rna"] {
                // The element lies in the upper 19 bits of its register.
                let text = format!("cvt.{mode}{r}{s}.tf32.f32 %r10, %f0; shr.u32 %r10, %r10, 13;");
                let each = |x: u64| element(TF32, single(x), mode, finite, relu);
                pairs(&text, 'r', TF32, 0, |a, _| [each(a), each(a)]);
            }
        }
        for (name, f) in [("e4m3", E4M3), ("e5m2", E5M2)] {
            let each = |x: Value| element(f, x, "rn", true, relu);
            let text = format!("cvt.rn.satfinite{r}.{name}x2.f32 %h10, %f0, %f1;");
            pairs(&text, 'h', f, 8, |a, b| [each(single(b)), each(single(a))]);
            let half = |x: u64| F16.decode(x & 0xffff);
            let text = format!("cvt.rn.satfinite{r}.{name}x2.f16x2 %h10, %r0;");
            pairs(&text, 'h', f, 8, |a, _| [each(half(a)), each(half(a >> 16))]);
            // Every code is an f16.
            let back = |code: u64| {
                let value =
                    if f.max == 0x7e && code & 0x7f == 0x7f { Value::Nan } else { f.decode(code & 0xff) };
                element(F16, value, "rn", false, relu)
            };
            let text = format!("cvt.rn{r}.f16x2.{name}x2 %r10, %h0;");
            pairs(&text, 'r', F16, 16, |a, _| [back(a), back(a >> 8)]);
        }
    }
}

#[test]
fn pack() {
    let operands: Vec<[u64; 3]> = {
        let mut dice = Dice(77);
        (0..256).map(|_| [dice.operand(), dice.operand(), dice.operand()]).collect()
    };
    for (name, bits, signed) in [("u8", 8, false), ("s8", 8, true), ("u16", 16, false), ("s16", 16, true)] {
        let with_c = bits == 8;
        let (c, ty) = if with_c { (", %r2", ".b32") } else { ("", "") };
        let text = format!("cvt.pack.sat.{name}.s32{ty} %r10, %r0, %r1{c};");
        let (low, high) = range(bits, signed);
        let part = |x: u64| i128::from(x as u32 as i32).clamp(low, high) as u64 & ((1 << bits) - 1);
        for (got, [a, b, c]) in results(&text, 'r', &operands).into_iter().zip(&operands) {
            let above = if with_c { (c & 0xffff) << 16 } else { 0 };
            assert_eq!(got, part(*b) | part(*a) << bits | above, "{text} of {a:#x} {b:#x} {c:#x}");
        }
    }
}
