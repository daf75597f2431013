//! Ops that touch each element once: activation, gate, add, cast; and argmax over rows.
//!
//! Each value is widened to f32, computed, and rounded once. Outputs may be the memory of an input of the same dtype.

use super::{Activation, Machine, Rows, RowsMut, over};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::{Error, Result};
use std::ops::Range;

/// What is computed.
#[derive(Clone, Copy)]
enum Op {
    /// `act(x)`.
    Activate(Activation),
    /// `act(x) * other`.
    Gate(Activation, Rows),
    /// `x + other`.
    Add(Rows),
    /// `x * factor`.
    Scale(f32),
}

/// `y = act(x)`.
pub fn activate(machine: &Machine, x: Rows, y: RowsMut, act: Activation) -> Result<()> {
    start(machine, x, y, Op::Activate(act))
}

/// `y = act(gate) * up`.
pub fn gate(machine: &Machine, gate: Rows, up: Rows, y: RowsMut, act: Activation) -> Result<()> {
    start(machine, gate, y, Op::Gate(act, up))
}

/// `y = a + b`.
pub fn add(machine: &Machine, a: Rows, b: Rows, y: RowsMut) -> Result<()> {
    start(machine, a, y, Op::Add(b))
}

/// `y = x` in y's dtype.
pub fn cast(machine: &Machine, x: Rows, y: RowsMut) -> Result<()> {
    start(machine, x, y, Op::Activate(Activation::Identity))
}

/// `y = x * factor`.
pub fn scale(machine: &Machine, x: Rows, y: RowsMut, factor: f32) -> Result<()> {
    start(machine, x, y, Op::Scale(factor))
}

fn start(machine: &Machine, x: Rows, y: RowsMut, op: Op) -> Result<()> {
    let same = |what, got, want| {
        if got == want { Ok(()) } else { Err(Error::Shape { op: "elementwise", what, got, want }) }
    };
    same("rows of y", y.rows, x.rows)?;
    same("columns of y", y.cols, x.cols)?;
    if let Op::Gate(_, o) | Op::Add(o) = op {
        same("rows of the second operand", o.rows, x.rows)?;
        same("columns of the second operand", o.cols, x.cols)?;
    }
    let step = (16_384 / x.cols.max(1)).max(1);
    over(machine, x.rows, step, |rows, _| {
        simd::run(machine.isa, machine.madd, Body { x, y, op, rows });
    })
}

struct Body {
    x: Rows,
    y: RowsMut,
    op: Op,
    rows: Range<usize>,
}

impl Kernel for Body {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (mut a, mut b) = ([0f32; 256], [0f32; 256]);
        for r in self.rows {
            let mut c = 0;
            while c < self.x.cols {
                let n = (self.x.cols - c).min(256);
                // SAFETY: in range, checked by `start`; buffers of 256; this call alone writes these rows.
                unsafe {
                    self.x.widen::<V>(r, c, n, a.as_mut_ptr());
                    if let Op::Gate(_, o) | Op::Add(o) = self.op {
                        o.widen::<V>(r, c, n, b.as_mut_ptr());
                    }
                    let v = &mut a[..n];
                    match self.op {
                        Op::Activate(act) => act.apply::<V::M>(v),
                        Op::Gate(act, _) => {
                            act.apply::<V::M>(v);
                            v.iter_mut().zip(&b).for_each(|(v, b)| *v *= b);
                        }
                        Op::Add(_) => v.iter_mut().zip(&b).for_each(|(v, b)| *v += b),
                        Op::Scale(f) => v.iter_mut().for_each(|v| *v *= f),
                    }
                    self.y.narrow::<V>(r, c, n, v.as_ptr());
                }
                c += n;
            }
        }
    }
}

/// `out[t]` = index of the largest value of row t, the lowest on ties; NaN never wins, and a row of NaN alone gives 0.
pub fn argmax(machine: &Machine, x: Rows, out: &mut [u32]) -> Result<()> {
    if out.len() != x.rows {
        return Err(Error::Shape {
            op: "argmax",
            what: "length of the output",
            got: out.len(),
            want: x.rows,
        });
    }
    // SAFETY: a view of `out` as opaque 4-byte elements, one per row, alive for this call.
    let y = unsafe { RowsMut::new(out.as_mut_ptr().cast(), engraft_core::mem::Float::F32, out.len(), 1, 1) };
    over(machine, x.rows, 1, |rows, _| simd::run(machine.isa, machine.madd, Argmax { x, y, rows }))
}

struct Argmax {
    x: Rows,
    y: RowsMut,
    rows: Range<usize>,
}

impl Kernel for Argmax {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut a = [0f32; 256];
        for r in self.rows {
            let (mut best, mut at, mut found) = (0f32, 0usize, false);
            let mut c = 0;
            while c < self.x.cols {
                let n = (self.x.cols - c).min(256);
                // SAFETY: in range; a buffer of 256.
                unsafe { self.x.widen::<V>(r, c, n, a.as_mut_ptr()) };
                // Few blocks hold a new maximum: look whether there is one, which vectorises, before looking where.
                if !found || a[..n].iter().fold(false, |any, v| any | (*v > best)) {
                    for (i, v) in a[..n].iter().enumerate() {
                        if if found { *v > best } else { !v.is_nan() } {
                            (best, at, found) = (*v, c + i, true);
                        }
                    }
                }
                c += n;
            }
            // SAFETY: row r of the output is one u32, and this call's alone.
            unsafe { self.y.row(r).cast::<u32>().write(at as u32) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kernels::testing::{aligned, bits, bytes, loaded, machines, stored, values};
    use engraft_core::math::{self, FusedMadd, MulAdd, SeparateMadd};
    use engraft_core::mem::Float;

    fn equals<M: MulAdd>() {
        let (t, n) = (70, 301);
        for m in machines(M::FORM) {
            for dtype in [Float::F32, Float::F16, Float::Bf16] {
                let round = |v: &[f32]| loaded(&stored(v, dtype), dtype);
                let (a, b) = (round(&values(t * n, 1)), round(&values(t * n, 2)));
                let (xa, xb) = (aligned(&stored(&a, dtype)), aligned(&stored(&b, dtype)));
                let mut ys = aligned(&stored(&a, dtype));
                // SAFETY: the memory outlives the calls.
                let (va, vb, y) = unsafe {
                    (
                        Rows::new(xa.as_ptr(), dtype, t, n, n),
                        Rows::new(xb.as_ptr(), dtype, t, n, n),
                        RowsMut::new(ys.as_mut_ptr(), dtype, t, n, n),
                    )
                };
                let check = |want: Vec<f32>, ys: &crate::kernels::AlignedBytes| {
                    assert_eq!(bits(&loaded(bytes(ys), dtype)), bits(&round(&want)), "{dtype} {:?}", m.isa);
                };
                activate(&m, va, y, Activation::GeluErf).unwrap();
                check(a.iter().map(|v| math::gelu_erf::<M>(*v)).collect(), &ys);
                gate(&m, va, vb, y, Activation::Silu).unwrap();
                check(a.iter().zip(&b).map(|(g, u)| math::silu::<M>(*g) * u).collect(), &ys);
                cast(&m, va, y).unwrap();
                add(&m, y.as_rows(), vb, y).unwrap();
                check(a.iter().zip(&b).map(|(a, b)| a + b).collect(), &ys);
            }
        }
    }

    #[test]
    fn elementwise_ops_equal_the_scalar_functions() {
        equals::<FusedMadd>();
        equals::<SeparateMadd>();
    }

    #[test]
    fn argmax_takes_the_lowest_of_equals_and_ignores_nan() {
        let mut x = vec![-1f32; 4 * 700];
        x[5] = 3.0;
        x[600] = 3.0;
        x[700] = f32::NAN;
        x[1000] = 0.5;
        x[1400..2100].fill(f32::NAN);
        x[2100..].fill(f32::NEG_INFINITY);
        for m in machines(engraft_core::numerics::Madd::Fused) {
            let mut out = [9u32; 4];
            // SAFETY: the slice outlives the call.
            argmax(&m, unsafe { Rows::of(&x, 700) }, &mut out).unwrap();
            assert_eq!(out, [5, 300, 0, 0]);
        }
    }
}
