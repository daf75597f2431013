//! Comparison, selection and logic of predicates. Source: PTX ISA 8.7, 9.7.6 and 9.7.7.

use super::{Decoder, Done, Flow};
use crate::Error;
use crate::code::{Op, Test};
use crate::number::half::{Binary16, Brain16, Half};
use crate::registers::{Lane, Lanewise, Pred, Registers, Slot, lanes};
use crate::text::syntax::Operand;
use crate::text::types::Type;

/// A mask of the lanes for which the comparison holds; the second mask is for the upper halves of pairs.
type Holds = fn(&Registers, Slot, Slot) -> (u32, u32);

/// `setp`, `set`.
#[derive(Debug, Clone)]
pub(crate) struct Compare {
    holds: Holds,
    a: Slot,
    b: Slot,
    /// Combined with the result.
    with: Option<(Boolean, Test)>,
    to: Target,
    /// The comparison is of pairs: the second predicate is that of the upper halves, not the complement.
    pair: bool,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Preds(Pred, Option<Pred>),
    /// All ones or 1.0 where it holds; the second value is that of the upper halves of pairs.
    Value(Slot, [u32; 2]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boolean {
    And,
    Or,
    Xor,
    Not,
    Copy,
}

impl Boolean {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "and" => Boolean::And,
            "or" => Boolean::Or,
            "xor" => Boolean::Xor,
            _ => return None,
        })
    }

    fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Boolean::And => a & b,
            Boolean::Or => a | b,
            Boolean::Xor => a ^ b,
            Boolean::Not => !a,
            Boolean::Copy => a,
        }
    }
}

#[inline(always)]
fn gather<T: Lane>(r: &Registers, a: Slot, b: Slot, f: impl Fn(T, T) -> bool) -> (u32, u32) {
    let (a, b) = (T::load(r, a), T::load(r, b));
    let mut m = 0;
    for i in 0..32 {
        m |= u32::from(f(a[i], b[i])) << i;
    }
    (m, 0)
}

macro_rules! holds {
    ($t:ty, |$a:ident, $b:ident| $e:expr) => {{
        fn run(r: &Registers, a: Slot, b: Slot) -> (u32, u32) {
            gather::<$t>(r, a, b, |$a, $b| $e)
        }
        run as Holds
    }};
}

macro_rules! ordered {
    ($t:ty, $op:expr) => {
        match $op {
            "eq" => holds!($t, |a, b| a == b),
            "ne" => holds!($t, |a, b| a != b),
            "lt" | "lo" => holds!($t, |a, b| a < b),
            "le" | "ls" => holds!($t, |a, b| a <= b),
            "gt" | "hi" => holds!($t, |a, b| a > b),
            "ge" | "hs" => holds!($t, |a, b| a >= b),
            _ => return None,
        }
    };
}

/// Floating point: the plain comparisons are false with a NaN, those with `u` true.
macro_rules! floating {
    ($t:ty, $op:expr, $w:expr) => {
        match $op {
            "eq" => holds!($t, |a, b| $w(a) == $w(b)),
            "ne" => holds!($t, |a, b| $w(a) < $w(b) || $w(a) > $w(b)),
            "lt" => holds!($t, |a, b| $w(a) < $w(b)),
            "le" => holds!($t, |a, b| $w(a) <= $w(b)),
            "gt" => holds!($t, |a, b| $w(a) > $w(b)),
            "ge" => holds!($t, |a, b| $w(a) >= $w(b)),
            "equ" => holds!($t, |a, b| !($w(a) < $w(b) || $w(a) > $w(b))),
            "neu" => holds!($t, |a, b| $w(a) != $w(b)),
            "ltu" => holds!($t, |a, b| !($w(a) >= $w(b))),
            "leu" => holds!($t, |a, b| !($w(a) > $w(b))),
            "gtu" => holds!($t, |a, b| !($w(a) <= $w(b))),
            "geu" => holds!($t, |a, b| !($w(a) < $w(b))),
            "num" => holds!($t, |a, b| !$w(a).is_nan() && !$w(b).is_nan()),
            "nan" => holds!($t, |a, b| $w(a).is_nan() || $w(b).is_nan()),
            _ => return None,
        }
    };
}

macro_rules! pairs {
    ($h:ty, $op:expr) => {{
        macro_rules! both {
            ($f:expr) => {{
                fn run(r: &Registers, a: Slot, b: Slot) -> (u32, u32) {
                    let w = <$h>::widen;
                    let f: fn(f32, f32) -> bool = $f;
                    let low = gather::<u32>(r, a, b, |a, b| f(w(a as u16), w(b as u16))).0;
                    (low, gather::<u32>(r, a, b, |a, b| f(w((a >> 16) as u16), w((b >> 16) as u16))).0)
                }
                run as Holds
            }};
        }
        match $op {
            "eq" => both!(|a, b| a == b),
            "ne" => both!(|a, b| a < b || a > b),
            "lt" => both!(|a, b| a < b),
            "le" => both!(|a, b| a <= b),
            "gt" => both!(|a, b| a > b),
            "ge" => both!(|a, b| a >= b),
            "neu" => both!(|a, b| a != b),
            "ltu" => both!(|a, b| !(a >= b)),
            "leu" => both!(|a, b| !(a > b)),
            "gtu" => both!(|a, b| !(a <= b)),
            "geu" => both!(|a, b| !(a < b)),
            "equ" => both!(|a, b| !(a < b || a > b)),
            "num" => both!(|a: f32, b: f32| !a.is_nan() && !b.is_nan()),
            "nan" => both!(|a: f32, b: f32| a.is_nan() || b.is_nan()),
            _ => return None,
        }
    }};
}

/// The comparison of that name for a type.
// Unordered comparisons are the negation of ordered ones.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::nonminimal_bool, clippy::double_comparisons)]
fn comparison(op: &str, ty: Type, ftz: bool) -> Option<Holds> {
    fn same<T>(x: T) -> T {
        x
    }
    fn flushed(x: f32) -> f32 {
        f32::from_bits(crate::number::float::flush(x.to_bits()))
    }
    let signed_names = !matches!(op, "lo" | "ls" | "hi" | "hs");
    Some(match ty {
        Type::Bits(_) if !matches!(op, "eq" | "ne") => return None,
        Type::Signed(16) if signed_names => ordered!(i16, op),
        Type::Signed(32) if signed_names => ordered!(i32, op),
        Type::Signed(64) if signed_names => ordered!(i64, op),
        Type::Unsigned(16) | Type::Bits(16) => ordered!(u16, op),
        Type::Unsigned(32) | Type::Bits(32) => ordered!(u32, op),
        Type::Unsigned(64) | Type::Bits(64) => ordered!(u64, op),
        Type::F32 if ftz => floating!(f32, op, flushed),
        Type::F32 => floating!(f32, op, same),
        Type::F64 => floating!(f64, op, same),
        Type::F16 => floating!(u16, op, Binary16::widen),
        Type::Bf16 => floating!(u16, op, Brain16::widen),
        Type::F16x2 => pairs!(Binary16, op),
        Type::Bf16x2 => pairs!(Brain16, op),
        _ => return None,
    })
}

/// What `set` gives where it holds, of one comparison or of a pair. Source: PTX ISA 8.7, 9.7.7.1.
fn truth_value(to: Type, of: Type) -> Option<[u32; 2]> {
    const ONE_F16: u32 = 0x3c00;
    const ONE_BF16: u32 = 0x3f80;
    let halves = |x: u32| Some([x, x << 16]);
    match (to, of) {
        (Type::F16x2, Type::F16x2) => halves(ONE_F16),
        (Type::Bf16x2, Type::Bf16x2) => halves(ONE_BF16),
        (Type::Unsigned(32) | Type::Signed(32), Type::F16x2 | Type::Bf16x2) => halves(0xffff),
        (_, Type::F16x2 | Type::Bf16x2) => None,
        (Type::F16, _) => Some([ONE_F16, 0]),
        (Type::Bf16, _) => Some([ONE_BF16, 0]),
        (Type::Unsigned(16) | Type::Signed(16), Type::F16 | Type::Bf16) => Some([0xffff, 0]),
        (Type::F32, _) => Some([1f32.to_bits(), 0]),
        (Type::Unsigned(32) | Type::Signed(32) | Type::Bits(32), _) => Some([!0, 0]),
        _ => None,
    }
}

/// Decodes `setp` and `set`.
pub(crate) fn setp(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    const NAMES: [&str; 18] = [
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
        "num", "nan",
    ];
    let set = d.variant.base == "set";
    let ty = d.ty()?;
    let to_type = if set { Some(d.ty()?) } else { None };
    let Some(op) = d.variant.one_of(&NAMES) else { return d.refuse("this comparison is unknown") };
    let boolean = d.variant.next(Boolean::parse);
    let ftz = d.variant.take("ftz");
    d.finish()?;
    d.count(if boolean.is_some() { 4 } else { 3 })?;
    let Some(holds) = comparison(op, ty, ftz) else {
        return d.refuse(format!("`{op}` does not exist for this type"));
    };
    let operands = d.operands;
    let to = match (to_type, &operands[0]) {
        (Some(t), o) => {
            let Some(values) = truth_value(t, ty) else {
                return d
                    .refuse("`set` gives .u32, .s32, .f32, and of halves their own type or 16 bits each");
            };
            Target::Value(d.l.destination(o, t)?, values)
        }
        (None, Operand::Pair(p, q)) => Target::Preds(d.l.pred(p)?, Some(d.l.pred(q)?)),
        (None, o) => Target::Preds(d.l.pred(o)?, None),
    };
    let (a, b) = (d.l.source(&operands[1], ty)?, d.l.source(&operands[2], ty)?);
    let with = match boolean {
        Some(op) => Some((op, d.l.test(&operands[3])?)),
        None => None,
    };
    let pair = matches!(ty, Type::F16x2 | Type::Bf16x2);
    Ok(Op::Compare(Box::new(Compare { holds, a, b, with, to, pair })))
}

/// The lanes for which a predicate operand is true.
pub(crate) fn truth(r: &Registers, t: Test) -> u32 {
    r.pred(t.pred) ^ if t.negated { !0 } else { 0 }
}

/// Executes `setp` and `set`.
#[inline]
pub(crate) fn compare(r: &mut Registers, c: &Compare, active: u32) -> Done<Flow> {
    let (low, high) = (c.holds)(r, c.a, c.b);
    let combine = |x: u32, r: &Registers| match c.with {
        Some((op, t)) => op.apply(x, truth(r, t)),
        None => x,
    };
    match c.to {
        Target::Preds(p, q) => {
            let first = combine(low, r);
            let second = combine(if c.pair { high } else { !low }, r);
            r.put_pred(p, first, active);
            if let Some(q) = q {
                r.put_pred(q, second, active);
            }
        }
        Target::Value(d, [first, second]) => {
            let (m, upper) = (combine(low, r), combine(high, r));
            let row = std::array::from_fn(|i| ((m >> i & 1) * first) | ((upper >> i & 1) * second));
            r.put(d, &row, active);
        }
    }
    Ok(Flow::Next)
}

/// `and.pred` and the like.
#[derive(Debug, Clone)]
pub(crate) struct Logic {
    op: Boolean,
    d: Pred,
    a: Test,
    b: Test,
}

/// Decodes predicate logic; `mov.pred` comes here as well.
pub(crate) fn logic(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    d.ty()?;
    d.finish()?;
    let op = match d.variant.base {
        "not" => Boolean::Not,
        "mov" => Boolean::Copy,
        name => match Boolean::parse(name) {
            Some(op) => op,
            None => return d.refuse("this opcode is unknown for predicates"),
        },
    };
    let single = matches!(op, Boolean::Not | Boolean::Copy);
    d.count(if single { 2 } else { 3 })?;
    let to = d.l.pred(d.operand(0)?)?;
    let a = d.l.test(d.operand(1)?)?;
    let b = if single { a } else { d.l.test(d.operand(2)?)? };
    Ok(Op::Logic(Box::new(Logic { op, d: to, a, b })))
}

/// Executes predicate logic.
pub(crate) fn execute_logic(r: &mut Registers, l: &Logic, active: u32) -> Done<Flow> {
    let value = l.op.apply(truth(r, l.a), truth(r, l.b));
    r.put_pred(l.d, value, active);
    Ok(Flow::Next)
}

/// `selp`, `slct`.
#[derive(Debug, Clone)]
pub(crate) struct Select {
    d: Slot,
    a: Slot,
    b: Slot,
    by: By,
    wide: bool,
}

#[derive(Debug, Clone, Copy)]
enum By {
    Test(Test),
    /// Not negative, as an integer or a float.
    Sign(Slot, bool),
}

/// Decodes `selp` and `slct`.
pub(crate) fn selp(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let last = d.ty()?;
    let (ty, slct) = if d.variant.base == "slct" { (d.ty()?, Some(last)) } else { (last, None) };
    d.variant.take("ftz");
    d.finish()?;
    d.count(4)?;
    let operands = d.operands;
    let to = d.l.destination(&operands[0], ty)?;
    let (a, b) = (d.l.source(&operands[1], ty)?, d.l.source(&operands[2], ty)?);
    let by = match slct {
        Some(t) => By::Sign(d.l.source(&operands[3], t)?, t == Type::F32),
        None => By::Test(d.l.test(&operands[3])?),
    };
    Ok(Op::Select(Box::new(Select { d: to, a, b, by, wide: ty.bits() > 32 })))
}

/// Executes `selp` and `slct`.
pub(crate) fn select(r: &mut Registers, s: &Select, active: u32) -> Done<Flow> {
    let m = match s.by {
        By::Test(t) => truth(r, t),
        By::Sign(c, float) => {
            let row = r.row(c);
            let yes = |x: u32| if float { f32::from_bits(x) >= 0.0 } else { x as i32 >= 0 };
            row.iter().enumerate().fold(0, |m, (i, &x)| m | u32::from(yes(x)) << i)
        }
    };
    if s.wide {
        let (a, b) = (r.wide(s.a), r.wide(s.b));
        let row = std::array::from_fn(|i| if m >> i & 1 != 0 { a[i] } else { b[i] });
        r.put_wide(s.d, &row, active);
    } else {
        let (a, b) = (r.row(s.a), r.row(s.b));
        let row = std::array::from_fn(|i| if m >> i & 1 != 0 { a[i] } else { b[i] });
        r.put(s.d, &row, active);
    }
    Ok(Flow::Next)
}

/// `testp`: a property of one number. The property becomes 1 or 0 in a scratch register, which is compared
/// with zero.
pub(crate) fn testp(d: &mut Decoder<'_, '_>, ty: Type) -> Result<Op, Error> {
    let Some(what) = d.variant.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])
    else {
        return d.refuse("this property is unknown");
    };
    d.finish()?;
    d.count(2)?;
    macro_rules! property {
        ($t:ty) => {
            match what {
                "finite" => lanes!(|a: $t| -> u32 { u32::from(a.is_finite()) }),
                "infinite" => lanes!(|a: $t| -> u32 { u32::from(a.is_infinite()) }),
                "number" => lanes!(|a: $t| -> u32 { u32::from(!a.is_nan()) }),
                "notanumber" => lanes!(|a: $t| -> u32 { u32::from(a.is_nan()) }),
                // Zero counts as normal (PTX ISA, `testp`).
                "normal" => lanes!(|a: $t| -> u32 { u32::from(a.is_normal() || a == 0.0) }),
                _ => lanes!(|a: $t| -> u32 { u32::from(a.is_subnormal()) }),
            }
        };
    }
    let f: Lanewise = if ty == Type::F64 { property!(f64) } else { property!(f32) };
    let a = d.l.source(d.operand(1)?, ty)?;
    let scratch = d.l.scratch(false);
    d.l.extra(d.guard, Op::Lanewise(f, [scratch, a, a, a]));
    let zero = d.l.constant(crate::code::Constant::Bits(0), false);
    let to = Target::Preds(d.l.pred(d.operand(0)?)?, None);
    let holds = holds!(u32, |a, b| a != b);
    Ok(Op::Compare(Box::new(Compare { holds, a: scratch, b: zero, with: None, to, pair: false })))
}
