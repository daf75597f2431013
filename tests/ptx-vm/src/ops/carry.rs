//! Sums and differences with a carry: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`. Source: PTX ISA
//! 8.7, 9.7.2.

use super::Decoder;
use crate::Error;
use crate::code::Op;
use crate::registers::{Lanewise, Registers, Slots, map2};
use crate::text::types::Type;

/// `add.cc`, `addc`, `sub.cc`, `subc`, `madc` keep their carry next to the registers.
pub(crate) fn carry(d: &mut Decoder<'_, '_>, ty: Type) -> Result<Op, Error> {
    let set = d.variant.take("cc");
    let base = d.variant.base;
    let uses = base.ends_with('c') && base != "mad";
    macro_rules! with {
        ($t:ty, $set:expr, $uses:expr, $sub:expr) => {{
            fn run(r: &mut Registers, s: &Slots, m: u32) {
                let (carries, mut out, lane) = (r.carry, 0u32, std::cell::Cell::new(0u32));
                let flags = std::cell::Cell::new(0u32);
                map2::<$t, $t, $t>(r, s, m, |a, b| {
                    let i = lane.get();
                    lane.set(i + 1);
                    let c = <$t>::from($uses && carries >> i & 1 != 0);
                    let (x, o1) = if $sub { a.overflowing_sub(b) } else { a.overflowing_add(b) };
                    let (x, o2) = if $sub { x.overflowing_sub(c) } else { x.overflowing_add(c) };
                    flags.set(flags.get() | u32::from(o1 || o2) << i);
                    x
                });
                out |= flags.get();
                if $set {
                    r.carry = carries & !m | out & m;
                }
            }
            run as Lanewise
        }};
    }
    macro_rules! pick {
        ($t:ty) => {
            match (base, set, uses) {
                ("add", true, _) => with!($t, true, false, false),
                ("addc", true, _) => with!($t, true, true, false),
                ("addc", false, _) => with!($t, false, true, false),
                ("sub", true, _) => with!($t, true, false, true),
                ("subc", true, _) => with!($t, true, true, true),
                ("subc", false, _) => with!($t, false, true, true),
                _ => return d.refuse("this carry variant is unknown"),
            }
        };
    }
    match ty.bits() {
        32 => {
            let f = pick!(u32);
            d.lanewise(f, ty, &[ty, ty])
        }
        64 => {
            let f = pick!(u64);
            d.lanewise(f, ty, &[ty, ty])
        }
        _ => d.refuse("carries exist for 32 and 64 bits"),
    }
}

/// `mad.cc`, `madc`: a product into a scratch register, then the addition with its carry.
pub(crate) fn mad_carry(d: &mut Decoder<'_, '_>, part: &str, ty: Type) -> Result<Op, Error> {
    let multiplied = match super::integer::binary(if part == "hi" { "mul.hi" } else { "mul.lo" }, ty) {
        Some(f) => f,
        None => return d.refuse("this `madc` variant is unknown"),
    };
    d.count(4)?;
    let operands = d.operands;
    let (a, b) = (d.l.source(&operands[1], ty)?, d.l.source(&operands[2], ty)?);
    let scratch = d.l.scratch(ty.bits() > 32);
    d.l.extra(d.guard, Op::Lanewise(multiplied, [scratch, a, b, scratch]));
    d.variant.base = if d.variant.base == "madc" { "addc" } else { "add" };
    let (to, c) = (d.l.destination(&operands[0], ty)?, d.l.source(&operands[3], ty)?);
    let all = d.operands;
    d.operands = &all[..3];
    let op = carry(d, ty)?;
    d.operands = all;
    match op {
        Op::Lanewise(f, _) => Ok(Op::Lanewise(f, [to, scratch, c, to])),
        other => Ok(other),
    }
}
