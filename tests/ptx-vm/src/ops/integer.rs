//! Integer arithmetic, shifts, bit fields, permutations. Source: PTX ISA 8.7, 9.7.1 and 9.7.8.

use super::Decoder;
use super::carry::{carry, mad_carry};
use crate::Error;
use crate::code::Op;
use crate::registers::{Lanewise, Registers, Slots, lanes, map1};
use crate::text::types::Type;

const U32: Type = Type::Unsigned(32);

/// One row per width and signedness.
macro_rules! by_type {
    ($ty:expr, |$a:ident, $b:ident| $e:expr) => {
        match $ty {
            Type::Signed(16) => lanes!(|$a: i16, $b: i16| -> i16 { $e }),
            Type::Signed(32) => lanes!(|$a: i32, $b: i32| -> i32 { $e }),
            Type::Signed(64) => lanes!(|$a: i64, $b: i64| -> i64 { $e }),
            Type::Unsigned(16) | Type::Bits(16) => lanes!(|$a: u16, $b: u16| -> u16 { $e }),
            Type::Unsigned(32) | Type::Bits(32) => lanes!(|$a: u32, $b: u32| -> u32 { $e }),
            Type::Unsigned(64) | Type::Bits(64) => lanes!(|$a: u64, $b: u64| -> u64 { $e }),
            _ => return None,
        }
    };
    ($ty:expr, |$a:ident| $e:expr) => {
        match $ty {
            Type::Signed(16) => lanes!(|$a: i16| -> i16 { $e }),
            Type::Signed(32) => lanes!(|$a: i32| -> i32 { $e }),
            Type::Signed(64) => lanes!(|$a: i64| -> i64 { $e }),
            Type::Unsigned(16) | Type::Bits(16) => lanes!(|$a: u16| -> u16 { $e }),
            Type::Unsigned(32) | Type::Bits(32) => lanes!(|$a: u32| -> u32 { $e }),
            Type::Unsigned(64) | Type::Bits(64) => lanes!(|$a: u64| -> u64 { $e }),
            _ => return None,
        }
    };
}

/// Two operands of one type, one result of it.
pub(crate) fn binary(name: &str, ty: Type) -> Option<Lanewise> {
    Some(match name {
        "add" => by_type!(ty, |a, b| a.wrapping_add(b)),
        "sub" => by_type!(ty, |a, b| a.wrapping_sub(b)),
        "mul.lo" => by_type!(ty, |a, b| a.wrapping_mul(b)),
        "min" => by_type!(ty, |a, b| a.min(b)),
        "max" => by_type!(ty, |a, b| a.max(b)),
        // Division by zero gives all ones, as the hardware's own sequence does; the manual leaves it open.
        "div" => by_type!(ty, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => by_type!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "and" => by_type!(ty, |a, b| a & b),
        "or" => by_type!(ty, |a, b| a | b),
        "xor" => by_type!(ty, |a, b| a ^ b),
        "mul.hi" => match ty {
            Type::Signed(16) => {
                lanes!(|a: i16, b: i16| -> i16 { ((i32::from(a) * i32::from(b)) >> 16) as i16 })
            }
            Type::Unsigned(16) => {
                lanes!(|a: u16, b: u16| -> u16 { ((u32::from(a) * u32::from(b)) >> 16) as u16 })
            }
            Type::Signed(32) => {
                lanes!(|a: i32, b: i32| -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 })
            }
            Type::Unsigned(32) => {
                lanes!(|a: u32, b: u32| -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 })
            }
            Type::Signed(64) => {
                lanes!(|a: i64, b: i64| -> i64 { ((i128::from(a) * i128::from(b)) >> 64) as i64 })
            }
            Type::Unsigned(64) => {
                lanes!(|a: u64, b: u64| -> u64 { ((u128::from(a) * u128::from(b)) >> 64) as u64 })
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn unary(name: &str, ty: Type) -> Option<Lanewise> {
    Some(match (name, ty) {
        ("not", _) => by_type!(ty, |a| !a),
        ("neg", _) => by_type!(ty, |a| a.wrapping_neg()),
        ("abs", Type::Signed(16)) => lanes!(|a: i16| -> i16 { a.wrapping_abs() }),
        ("abs", Type::Signed(32)) => lanes!(|a: i32| -> i32 { a.wrapping_abs() }),
        ("abs", Type::Signed(64)) => lanes!(|a: i64| -> i64 { a.wrapping_abs() }),
        ("cnot", Type::Bits(16)) => lanes!(|a: u16| -> u16 { u16::from(a == 0) }),
        ("cnot", Type::Bits(32)) => lanes!(|a: u32| -> u32 { u32::from(a == 0) }),
        ("cnot", Type::Bits(64)) => lanes!(|a: u64| -> u64 { u64::from(a == 0) }),
        ("brev", Type::Bits(32)) => lanes!(|a: u32| -> u32 { a.reverse_bits() }),
        ("brev", Type::Bits(64)) => lanes!(|a: u64| -> u64 { a.reverse_bits() }),
        ("popc", Type::Bits(32)) => lanes!(|a: u32| -> u32 { a.count_ones() }),
        ("popc", Type::Bits(64)) => lanes!(|a: u64| -> u32 { a.count_ones() }),
        ("clz", Type::Bits(32)) => lanes!(|a: u32| -> u32 { a.leading_zeros() }),
        ("clz", Type::Bits(64)) => lanes!(|a: u64| -> u32 { a.leading_zeros() }),
        _ => return None,
    })
}

/// Highest bit that differs from the sign (all ones when there is none); `shift` counts from the top.
fn bfind(ty: Type, shift: bool) -> Option<Lanewise> {
    macro_rules! find {
        ($t:ty, $bits:expr, $prepare:expr) => {
            if shift {
                lanes!(|a: $t| -> u32 {
                    match $prepare(a).leading_zeros() {
                        $bits => !0,
                        n => n,
                    }
                })
            } else {
                lanes!(|a: $t| -> u32 {
                    match $prepare(a).leading_zeros() {
                        $bits => !0,
                        n => $bits - 1 - n,
                    }
                })
            }
        };
    }
    Some(match ty {
        Type::Unsigned(32) => find!(u32, 32, |a: u32| a),
        Type::Signed(32) => find!(i32, 32, |a: i32| if a < 0 { !a } else { a }),
        Type::Unsigned(64) => find!(u64, 64, |a: u64| a),
        Type::Signed(64) => find!(i64, 64, |a: i64| if a < 0 { !a } else { a }),
        _ => return None,
    })
}

/// Shifts clamp their amount (a 32-bit register) at the width.
fn shift(left: bool, ty: Type) -> Option<Lanewise> {
    Some(match (left, ty) {
        (true, Type::Bits(16)) => lanes!(|a: u16, b: u32| -> u16 { a.checked_shl(b).unwrap_or(0) }),
        (true, Type::Bits(32)) => lanes!(|a: u32, b: u32| -> u32 { if b > 31 { 0 } else { a << (b & 31) } }),
        (true, Type::Bits(64)) => lanes!(|a: u64, b: u32| -> u64 { if b > 63 { 0 } else { a << (b & 63) } }),
        (false, Type::Signed(16)) => lanes!(|a: i16, b: u32| -> i16 { a >> b.min(15) }),
        (false, Type::Signed(32)) => lanes!(|a: i32, b: u32| -> i32 { a >> b.min(31) }),
        (false, Type::Signed(64)) => lanes!(|a: i64, b: u32| -> i64 { a >> b.min(63) }),
        (false, Type::Unsigned(16) | Type::Bits(16)) => {
            lanes!(|a: u16, b: u32| -> u16 { a.checked_shr(b).unwrap_or(0) })
        }
        (false, Type::Unsigned(32) | Type::Bits(32)) => {
            lanes!(|a: u32, b: u32| -> u32 { if b > 31 { 0 } else { a >> (b & 31) } })
        }
        (false, Type::Unsigned(64) | Type::Bits(64)) => {
            lanes!(|a: u64, b: u32| -> u64 { if b > 63 { 0 } else { a >> (b & 63) } })
        }
        _ => return None,
    })
}

fn funnel(left: bool, clamp: bool) -> Lanewise {
    match (left, clamp) {
        (true, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32
        }),
        (true, false) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
        }),
        (false, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
        }),
        (false, false) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32
        }),
    }
}

/// `mad`: the product as in `mul`, plus c.
fn mad(part: &str, ty: Type) -> Option<Lanewise> {
    Some(match (part, ty) {
        ("lo", Type::Signed(16) | Type::Unsigned(16)) => {
            lanes!(|a: u16, b: u16, c: u16| -> u16 { a.wrapping_mul(b).wrapping_add(c) })
        }
        ("lo", Type::Signed(32) | Type::Unsigned(32)) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { a.wrapping_mul(b).wrapping_add(c) })
        }
        ("lo", Type::Signed(64) | Type::Unsigned(64)) => {
            lanes!(|a: u64, b: u64, c: u64| -> u64 { a.wrapping_mul(b).wrapping_add(c) })
        }
        ("hi", Type::Signed(32)) => lanes!(|a: i32, b: i32, c: i32| -> i32 {
            ((i64::from(a) * i64::from(b)) >> 32).wrapping_add(i64::from(c)) as i32
        }),
        ("hi", Type::Unsigned(32)) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        ("hi", Type::Signed(64)) => lanes!(|a: i64, b: i64, c: i64| -> i64 {
            (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)
        }),
        ("hi", Type::Unsigned(64)) => lanes!(|a: u64, b: u64, c: u64| -> u64 {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        ("wide", Type::Signed(16)) => {
            lanes!(|a: i16, b: i16, c: i32| -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) })
        }
        ("wide", Type::Unsigned(16)) => {
            lanes!(|a: u16, b: u16, c: u32| -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) })
        }
        ("wide", Type::Signed(32)) => {
            lanes!(|a: i32, b: i32, c: i64| -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) })
        }
        ("wide", Type::Unsigned(32)) => {
            lanes!(|a: u32, b: u32, c: u64| -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) })
        }
        _ => return None,
    })
}

fn mul_wide(ty: Type) -> Option<Lanewise> {
    Some(match ty {
        Type::Signed(16) => lanes!(|a: i16, b: i16| -> i32 { i32::from(a) * i32::from(b) }),
        Type::Unsigned(16) => lanes!(|a: u16, b: u16| -> u32 { u32::from(a) * u32::from(b) }),
        Type::Signed(32) => lanes!(|a: i32, b: i32| -> i64 { i64::from(a) * i64::from(b) }),
        Type::Unsigned(32) => lanes!(|a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) }),
        _ => return None,
    })
}

/// `mul24`, `mad24`: products of the low 24 bits.
fn mul24(high: bool, signed: bool) -> Lanewise {
    match (high, signed) {
        (false, false) => lanes!(|a: u32, b: u32| -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) }),
        (false, true) => lanes!(|a: i32, b: i32| -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8) }),
        (true, false) => lanes!(|a: u32, b: u32| -> u32 {
            ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32
        }),
        (true, true) => lanes!(|a: i32, b: i32| -> i32 {
            ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32
        }),
    }
}

fn bfe(ty: Type) -> Option<Lanewise> {
    // The field is read bit by bit as the manual defines it: beyond the top it repeats the sign (signed) or
    // zero.
    fn field(a: u64, top: u32, pos: u32, len: u32, signed: bool) -> u64 {
        let (pos, len) = (pos & 0xff, len & 0xff);
        let bits = top + 1;
        let sign_at = (pos + len).saturating_sub(1).min(top);
        let sign = signed && len > 0 && a >> sign_at & 1 != 0;
        let taken = bits.saturating_sub(pos).min(len);
        let value = if taken == 0 { 0 } else { a >> pos & (!0 >> (64 - taken)) };
        let high = if taken >= 64 { 0 } else { !0 << taken };
        value | if sign { high } else { 0 }
    }
    Some(match ty {
        Type::Unsigned(32) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { field(a.into(), 31, b, c, false) as u32 })
        }
        Type::Signed(32) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { field(a.into(), 31, b, c, true) as u32 })
        }
        Type::Unsigned(64) => lanes!(|a: u64, b: u32, c: u32| -> u64 { field(a, 63, b, c, false) }),
        Type::Signed(64) => lanes!(|a: u64, b: u32, c: u32| -> u64 { field(a, 63, b, c, true) }),
        _ => return None,
    })
}

/// Bits `pos .. pos + len`, as far as they exist.
fn mask(pos: u32, len: u32, bits: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let len = len.min(bits.saturating_sub(pos));
    if len == 0 { 0 } else { (!0 >> (64 - len)) << pos }
}

/// `bfi`: inserts the low bits of a into b. Four sources, so the two last share a slot pair made at decoding.
fn bfi(d: &mut Decoder<'_, '_>, ty: Type) -> Result<Op, Error> {
    d.finish()?;
    d.count(5)?;
    // Position and length become one row: the first lanewise instruction packs them.
    let operands = d.operands;
    let (pos, len) = (d.l.source(&operands[3], U32)?, d.l.source(&operands[4], U32)?);
    let packed = d.l.scratch(false);
    let pack = lanes!(|p: u32, l: u32| -> u32 { (p & 0xff) | (l & 0xff) << 8 });
    d.l.extra(d.guard, Op::Lanewise(pack, [packed, pos, len, packed]));
    let [to, a, b, _] = d.slots(ty, &[ty, ty])?;
    let f = match ty {
        Type::Bits(32) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            let m = mask(c, c >> 8, 32) as u32;
            b & !m | a.wrapping_shl(c & 0xff) & m
        }),
        Type::Bits(64) => lanes!(|a: u64, b: u64, c: u32| -> u64 {
            let m = mask(c, c >> 8, 64);
            b & !m | a.wrapping_shl(c & 0xff) & m
        }),
        _ => return d.refuse("`bfi` has `.b32` and `.b64`"),
    };
    Ok(Op::Lanewise(f, [to, a, b, packed]))
}

/// `prmt`: picks four bytes of the eight of b:a. Modes other than the default are tables of selectors.
fn prmt(mode: Option<&str>) -> Option<Lanewise> {
    fn pick(a: u32, b: u32, selector: u32) -> u32 {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        let one = |i: u32| {
            let s = selector >> (4 * i);
            let byte = bytes[(s & 7) as usize];
            u32::from(if s & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte }) << (8 * i)
        };
        one(0) | one(1) | one(2) | one(3)
    }
    fn by(table: [u32; 4], a: u32, b: u32, c: u32) -> u32 {
        pick(a, b, table[(c & 3) as usize])
    }
    Some(match mode {
        None => lanes!(|a: u32, b: u32, c: u32| -> u32 { pick(a, b, c) }),
        Some("f4e") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x3210, 0x4321, 0x5432, 0x6543], a, b, c) })
        }
        Some("b4e") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x5670, 0x6701, 0x7012, 0x0123], a, b, c) })
        }
        Some("rc8") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x0000, 0x1111, 0x2222, 0x3333], a, b, c) })
        }
        Some("ecl") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x3210, 0x3211, 0x3222, 0x3333], a, b, c) })
        }
        Some("ecr") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x0000, 0x1110, 0x2210, 0x3210], a, b, c) })
        }
        Some("rc16") => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { by([0x1010, 0x3232, 0x1010, 0x3232], a, b, c) })
        }
        _ => return None,
    })
}

/// `lop3`: the table is a literal, folded into a row of its eight bits.
fn lop3(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if d.variant.take("or") || d.variant.take("and") {
        return d.refuse("`lop3` with a predicate result");
    }
    d.finish()?;
    d.count(5)?;
    let table = d.immediate(4)? as u32;
    if table > 255 {
        return d.refuse(format!("a table of {table}"));
    }
    // d = sum over the minterms; a first instruction leaves the table in a scratch row.
    let operands = d.operands;
    let [to, a, b, _] = d.slots(Type::Bits(32), &[Type::Bits(32), Type::Bits(32)])?;
    let c = d.l.source(&operands[3], Type::Bits(32))?;
    let table = d.l.constant(crate::code::Constant::Bits(table.into()), false);
    let (low, high) = (d.l.scratch(false), d.l.scratch(false));
    // low: the function with c = 0; high: with c = 1. Bits of the table are indexed by a * 4 + b * 2 + c.
    fn half(a: u32, b: u32, t: u32, c: u32) -> u32 {
        let bit = |i: u32| (t >> i & 1).wrapping_neg();
        (!a & !b & bit(c)) | (!a & b & bit(2 + c)) | (a & !b & bit(4 + c)) | (a & b & bit(6 + c))
    }
    let f0 = lanes!(|a: u32, b: u32, t: u32| -> u32 { half(a, b, t, 0) });
    let f1 = lanes!(|a: u32, b: u32, t: u32| -> u32 { half(a, b, t, 1) });
    d.l.extra(d.guard, Op::Lanewise(f0, [low, a, b, table]));
    d.l.extra(d.guard, Op::Lanewise(f1, [high, a, b, table]));
    let join = lanes!(|l: u32, h: u32, c: u32| -> u32 { l & !c | h & c });
    Ok(Op::Lanewise(join, [to, low, high, c]))
}

/// Saturating 32-bit variants.
fn saturating(name: &str) -> Option<Lanewise> {
    Some(match name {
        "add" => lanes!(|a: i32, b: i32| -> i32 { a.saturating_add(b) }),
        "sub" => lanes!(|a: i32, b: i32| -> i32 { a.saturating_sub(b) }),
        _ => return None,
    })
}

/// Decodes `prmt.b32{.mode}`: the mode stands behind the type.
pub(crate) fn permute(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let mode = d.variant.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
    let b32 = d.ty()?;
    match prmt(mode) {
        Some(f) if b32 == Type::Bits(32) => d.lanewise(f, b32, &[b32, b32, U32]),
        _ => d.refuse("this variant is unknown"),
    }
}

/// Decodes every integer opcode.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let base = d.variant.base;
    let found = match base {
        "add" | "sub" if d.variant.rest().contains(&"cc") => return carry(d, ty),
        "addc" | "subc" => return carry(d, ty),
        "add" | "sub" if d.variant.take("sat") && ty == Type::Signed(32) => saturating(base),
        "add" | "sub" | "min" | "max" | "div" | "rem" | "and" | "or" | "xor" => binary(base, ty),
        "mul" if d.variant.take("wide") => {
            let wide =
                if ty.is_signed() { Type::Signed(ty.bits() * 2) } else { Type::Unsigned(ty.bits() * 2) };
            return match mul_wide(ty) {
                Some(f) => d.lanewise(f, wide, &[ty, ty]),
                None => d.refuse("this `mul.wide` variant is unknown"),
            };
        }
        "mul" => match d.variant.one_of(&["lo", "hi"]) {
            Some("hi") => binary("mul.hi", ty),
            Some(_) => binary("mul.lo", ty),
            None => None,
        },
        "mul24" => d.variant.one_of(&["lo", "hi"]).map(|part| mul24(part == "hi", ty.is_signed())),
        "mad" | "madc" => {
            let Some(part) = d.variant.one_of(&["lo", "hi", "wide"]) else {
                return d.refuse("`mad` needs .lo, .hi or .wide");
            };
            if base == "madc" || d.variant.rest().contains(&"cc") {
                return mad_carry(d, part, ty);
            }
            let c = match (part, ty) {
                ("wide", Type::Signed(n)) => Type::Signed(n * 2),
                ("wide", _) => Type::Unsigned(ty.bits() * 2),
                _ => ty,
            };
            return match mad(part, ty) {
                Some(f) => d.lanewise(f, c, &[ty, ty, c]),
                None => d.refuse("this `mad` variant is unknown"),
            };
        }
        "shl" | "shr" => {
            return match shift(base == "shl", ty) {
                Some(f) => d.lanewise(f, ty, &[ty, U32]),
                None => d.refuse("this shift variant is unknown"),
            };
        }
        "shf" => {
            let left = d.variant.one_of(&["l", "r"]);
            let mode = d.variant.one_of(&["clamp", "wrap"]);
            return match (left, mode) {
                (Some(l), Some(m)) => d.lanewise(funnel(l == "l", m == "clamp"), ty, &[ty, ty, U32]),
                _ => d.refuse("`shf` needs .l or .r and .clamp or .wrap"),
            };
        }
        "not" | "neg" | "abs" | "cnot" | "brev" => {
            return match unary(base, ty) {
                Some(f) => d.lanewise(f, ty, &[ty]),
                None => d.refuse("this variant is unknown"),
            };
        }
        "popc" | "clz" => {
            return match unary(base, ty) {
                Some(f) => d.lanewise(f, U32, &[ty]),
                None => d.refuse("this variant is unknown"),
            };
        }
        "bfind" => {
            let shift = d.variant.take("shiftamt");
            return match bfind(ty, shift) {
                Some(f) => d.lanewise(f, U32, &[ty]),
                None => d.refuse("this variant is unknown"),
            };
        }
        "bfe" => {
            return match bfe(ty) {
                Some(f) => d.lanewise(f, ty, &[ty, U32, U32]),
                None => d.refuse("this variant is unknown"),
            };
        }
        "bfi" => return bfi(d, ty),
        "lop3" if ty == Type::Bits(32) => return lop3(d),
        "sad" => match ty {
            Type::Unsigned(32) => {
                return d.lanewise(
                    lanes!(|a: u32, b: u32, c: u32| -> u32 { c.wrapping_add(a.abs_diff(b)) }),
                    ty,
                    &[ty, ty, ty],
                );
            }
            Type::Signed(32) => {
                return d.lanewise(
                    lanes!(|a: i32, b: i32, c: i32| -> i32 { c.wrapping_add(a.abs_diff(b) as i32) }),
                    ty,
                    &[ty, ty, ty],
                );
            }
            _ => None,
        },
        "bmsk" => {
            let clamp = match d.variant.one_of(&["clamp", "wrap"]) {
                Some(m) => m == "clamp",
                None => return d.refuse("`bmsk` needs .clamp or .wrap"),
            };
            let f = if clamp {
                lanes!(|a: u32, b: u32| -> u32 {
                    if a > 31 { 0 } else { (((1u64 << b.min(32)) - 1) << a) as u32 }
                })
            } else {
                lanes!(|a: u32, b: u32| -> u32 { (((1u64 << (b & 31)) - 1) << (a & 31)) as u32 })
            };
            return d.lanewise(f, ty, &[U32, U32]);
        }
        "fns" => return fns(d),
        _ => None,
    };
    match found {
        Some(f) => d.lanewise(f, ty, &[ty, ty]),
        None => d.refuse("this integer opcode is unknown"),
    }
}

/// `fns`: the n-th set bit from a base position, up or down.
fn fns(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    fn find(mask: u32, base: u32, offset: i32) -> u32 {
        let (mut pos, mut left) = (i64::from(base & 31), i64::from(offset).abs());
        let step = if offset < 0 { -1 } else { 1 };
        if offset == 0 {
            return if mask >> pos & 1 != 0 { pos as u32 } else { !0 };
        }
        while (0..32).contains(&pos) {
            if mask >> pos & 1 != 0 {
                left -= 1;
                if left == 0 {
                    return pos as u32;
                }
            }
            pos += step;
        }
        !0
    }
    let b = Type::Bits(32);
    d.lanewise(lanes!(|a: u32, p: u32, o: i32| -> u32 { find(a, p, o) }), b, &[b, b, Type::Signed(32)])
}

/// `mov` of a register or constant.
pub(crate) fn copy(wide: bool) -> Lanewise {
    fn narrow(r: &mut Registers, s: &Slots, m: u32) {
        map1::<u32, u32>(r, s, m, |a| a);
    }
    fn broad(r: &mut Registers, s: &Slots, m: u32) {
        map1::<u64, u64>(r, s, m, |a| a);
    }
    if wide { broad } else { narrow }
}
