//! A warp's registers: one row of 32 lanes per register.
//!
//! Registers of up to 32 bits take one unit (32 lanes of `u32`), 64-bit registers two (32 lanes of `u64`); a
//! [`Slot`] is the first unit. Predicates are masks. Literals and special registers live in slots as well,
//! written once, so an arithmetic instruction is a loop over three rows ([`map1`], [`map2`], [`map3`]) that
//! the compiler can vectorise. Narrow values are kept zero-extended in their unit.

use std::cell::RefCell;
use std::thread::AccessError;

use crate::Row;

/// First unit of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot(pub(crate) u32);

/// Index of a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pred(pub(crate) u32);

/// Destination and up to three sources of a lane-wise instruction.
pub(crate) type Slots = [Slot; 4];

/// A lane-wise instruction: reads rows, writes the lanes of the mask.
pub(crate) type Lanewise = fn(&mut Registers, &Slots, u32);

/// What registers hold before anything is written: a value that looks like nothing.
const UNSET: u64 = 0x7fff_dead_7fff_dead;

/// Units of registers that a thread keeps for its next launches, at most: 8 MB. Small launches would spend an
/// eighth of their time on pages that the system takes back and clears.
const KEPT: usize = 1 << 16;

/// What a thread keeps, and how many units that is.
#[derive(Default)]
struct Kept {
    all: Vec<Vec<[u64; 16]>>,
    units: usize,
}

thread_local! {
    static UNITS: RefCell<Kept> = RefCell::default();
}

/// The registers of one warp.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    units: Vec<[u64; 16]>,
    pub(crate) preds: Vec<u32>,
    /// The carry flag of `add.cc` and the like.
    pub(crate) carry: u32,
    /// `*.approx` functions err as far as the manual lets them.
    pub(crate) worst: bool,
}

impl Registers {
    pub(crate) fn new(units: u32, preds: u32, worst: bool) -> Self {
        // A thread that ends has none any more.
        let kept = UNITS.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let one = kept.all.pop()?;
            kept.units -= one.capacity();
            Some(one)
        });
        let mut all = kept.ok().flatten().unwrap_or_default();
        all.clear();
        all.resize(units as usize, [UNSET; 16]);
        Registers { units: all, preds: vec![0; preds as usize], carry: 0, worst }
    }

    #[inline(always)]
    pub(crate) fn row(&self, s: Slot) -> &Row {
        bytemuck::cast_ref(&self.units[s.0 as usize])
    }

    #[inline(always)]
    pub(crate) fn row_mut(&mut self, s: Slot) -> &mut Row {
        bytemuck::cast_mut(&mut self.units[s.0 as usize])
    }

    #[inline(always)]
    pub(crate) fn wide(&self, s: Slot) -> &[u64; 32] {
        let at = s.0 as usize;
        // Two units are one row of 64-bit lanes: the cast gives exactly one.
        &bytemuck::cast_slice::<_, [u64; 32]>(&self.units[at..at + 2])[0]
    }

    #[inline(always)]
    pub(crate) fn wide_mut(&mut self, s: Slot) -> &mut [u64; 32] {
        let at = s.0 as usize;
        &mut bytemuck::cast_slice_mut::<_, [u64; 32]>(&mut self.units[at..at + 2])[0]
    }

    /// Writes the lanes of a mask.
    #[inline(always)]
    pub(crate) fn put(&mut self, s: Slot, value: &Row, mask: u32) {
        let row = self.row_mut(s);
        if mask == !0 {
            *row = *value;
        } else {
            for (i, lane) in row.iter_mut().enumerate() {
                *lane = if mask >> i & 1 != 0 { value[i] } else { *lane };
            }
        }
    }

    /// Writes the lanes of a mask.
    #[inline(always)]
    pub(crate) fn put_wide(&mut self, s: Slot, value: &[u64; 32], mask: u32) {
        let row = self.wide_mut(s);
        if mask == !0 {
            *row = *value;
        } else {
            for (i, lane) in row.iter_mut().enumerate() {
                *lane = if mask >> i & 1 != 0 { value[i] } else { *lane };
            }
        }
    }

    #[inline(always)]
    pub(crate) fn put_pred(&mut self, p: Pred, value: u32, mask: u32) {
        let old = &mut self.preds[p.0 as usize];
        *old = *old & !mask | value & mask;
    }

    #[inline(always)]
    pub(crate) fn pred(&self, p: Pred) -> u32 {
        self.preds[p.0 as usize]
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        let units = std::mem::take(&mut self.units);
        let keep = |kept: &RefCell<Kept>| {
            let mut kept = kept.borrow_mut();
            if units.capacity() != 0 && kept.units + units.capacity() <= KEPT {
                kept.units += units.capacity();
                kept.all.push(units);
            }
        };
        // A thread that ends keeps nothing any more.
        let _: Result<(), AccessError> = UNITS.try_with(keep);
    }
}

/// A value as one lane of a register holds it.
pub(crate) trait Lane: Copy {
    const ZERO: Self;
    fn load(r: &Registers, s: Slot) -> [Self; 32];
    fn store(r: &mut Registers, s: Slot, v: &[Self; 32], mask: u32);
}

/// `map` of an array as a plain loop, which the compiler turns into vectors.
#[inline(always)]
fn each<A: Copy, B: Copy + Default>(from: &[A; 32], f: impl Fn(A) -> B) -> [B; 32] {
    let mut to = [B::default(); 32];
    for i in 0..32 {
        to[i] = f(from[i]);
    }
    to
}

macro_rules! narrow {
    ($($t:ty, $from:expr, $to:expr;)*) => {$(
        impl Lane for $t {
            const ZERO: Self = 0 as $t;
            #[inline(always)]
            fn load(r: &Registers, s: Slot) -> [Self; 32] {
                each(r.row(s), $from)
            }
            #[inline(always)]
            fn store(r: &mut Registers, s: Slot, v: &[Self; 32], mask: u32) {
                r.put(s, &each(v, $to), mask);
            }
        }
    )*};
}

narrow! {
    u32, |x| x, |x| x;
    i32, |x| x as i32, |x| x as u32;
    u16, |x| x as u16, u32::from;
    i16, |x| x as i16, |x| u32::from(x as u16);
    u8, |x| x as u8, u32::from;
    f32, f32::from_bits, f32::to_bits;
}

macro_rules! wide {
    ($($t:ty, $from:expr, $to:expr;)*) => {$(
        impl Lane for $t {
            const ZERO: Self = 0 as $t;
            #[inline(always)]
            fn load(r: &Registers, s: Slot) -> [Self; 32] {
                each(r.wide(s), $from)
            }
            #[inline(always)]
            fn store(r: &mut Registers, s: Slot, v: &[Self; 32], mask: u32) {
                r.put_wide(s, &each(v, $to), mask);
            }
        }
    )*};
}

wide! {
    u64, |x| x, |x| x;
    i64, |x| x as i64, |x| x as u64;
    f64, f64::from_bits, f64::to_bits;
}

/// `d[i] = f(a[i])`.
#[inline(always)]
pub(crate) fn map1<A: Lane, D: Lane>(r: &mut Registers, s: &Slots, mask: u32, f: impl Fn(A) -> D) {
    let a = A::load(r, s[1]);
    let mut d = [D::ZERO; 32];
    for i in 0..32 {
        d[i] = f(a[i]);
    }
    D::store(r, s[0], &d, mask);
}

/// `d[i] = f(a[i], b[i])`.
#[inline(always)]
pub(crate) fn map2<A: Lane, B: Lane, D: Lane>(
    r: &mut Registers,
    s: &Slots,
    mask: u32,
    f: impl Fn(A, B) -> D,
) {
    let (a, b) = (A::load(r, s[1]), B::load(r, s[2]));
    let mut d = [D::ZERO; 32];
    for i in 0..32 {
        d[i] = f(a[i], b[i]);
    }
    D::store(r, s[0], &d, mask);
}

/// `d[i] = f(a[i], b[i], c[i])`.
#[inline(always)]
pub(crate) fn map3<A: Lane, B: Lane, C: Lane, D: Lane>(
    r: &mut Registers,
    s: &Slots,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    let (a, b, c) = (A::load(r, s[1]), B::load(r, s[2]), C::load(r, s[3]));
    let mut d = [D::ZERO; 32];
    for i in 0..32 {
        d[i] = f(a[i], b[i], c[i]);
    }
    D::store(r, s[0], &d, mask);
}

/// A [`Lanewise`] from a closure-like expression: `lanes!(|a: u32, b: u32| -> u32 { a + b })`.
macro_rules! lanes {
    (|$a:ident: $ta:ty| -> $d:ty $e:block) => {{
        fn run(r: &mut $crate::registers::Registers, s: &$crate::registers::Slots, m: u32) {
            $crate::registers::map1::<$ta, $d>(r, s, m, |$a| $e)
        }
        run as $crate::registers::Lanewise
    }};
    (|$a:ident: $ta:ty, $b:ident: $tb:ty| -> $d:ty $e:block) => {{
        fn run(r: &mut $crate::registers::Registers, s: &$crate::registers::Slots, m: u32) {
            $crate::registers::map2::<$ta, $tb, $d>(r, s, m, |$a, $b| $e)
        }
        run as $crate::registers::Lanewise
    }};
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty| -> $d:ty $e:block) => {{
        fn run(r: &mut $crate::registers::Registers, s: &$crate::registers::Slots, m: u32) {
            $crate::registers::map3::<$ta, $tb, $tc, $d>(r, s, m, |$a, $b, $c| $e)
        }
        run as $crate::registers::Lanewise
    }};
}
pub(crate) use lanes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_that_were_kept_begin_as_new_ones() {
        let mut used = Registers::new(8, 1, false);
        used.row_mut(Slot(3)).fill(5);
        drop(used);
        let again = Registers::new(6, 1, false);
        assert!(again.units.capacity() >= 8, "the memory of the first ones");
        assert_eq!(again.units, [[UNSET; 16]; 6]);
    }

    #[test]
    fn a_thread_keeps_no_more_than_its_share() {
        let many: Vec<Registers> = (0..5).map(|_| Registers::new(KEPT as u32 / 3, 0, false)).collect();
        drop(many);
        UNITS.with_borrow(|kept| {
            assert!(kept.units <= KEPT && kept.all.len() == 3, "{} units", kept.units);
            assert_eq!(kept.units, kept.all.iter().map(Vec::capacity).sum::<usize>());
        });
    }
}
