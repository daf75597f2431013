//! Element by element: sum, activation, gated activation, modulation, conversion.

use super::{Activation, Floats, Machine, RawMat, RawMatMut, over_rows, same, same_shape};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::params::Clamp;
use engraft_core::{Result, math, math::MulAdd};

/// What is done to a row.
#[derive(Clone, Copy)]
enum Step<'a> {
    Add(RawMat),
    Activate(Activation),
    Xielu([f32; 4]),
    Gate(Activation, Option<Clamp>),
    Modulate(ByItem<'a>),
    Limit(f32),
    Scale(f32, Option<f32>),
    Convert(Option<&'a [f32]>),
}

/// What rows are modulated by.
#[derive(Clone, Copy)]
struct ByItem<'a> {
    scale: RawMat,
    shift: Option<RawMat>,
    /// Of every row that is modulated the row of `scale` and `shift`.
    rows: &'a [u32],
    base: f32,
}

/// `acc += x`.
pub fn add(machine: &Machine, acc: RawMatMut, x: RawMat) -> Result<()> {
    same_shape("add", x, acc.as_raw())?;
    each_row(machine, acc.as_raw(), acc, Step::Add(x))
}

/// `x = act(x)`.
pub fn activate(machine: &Machine, x: RawMatMut, act: Activation) -> Result<()> {
    each_row(machine, x.as_raw(), x, Step::Activate(act))
}

/// `x = xielu(x)` of four constants.
pub fn xielu(machine: &Machine, x: RawMatMut, constants: &[f32]) -> Result<()> {
    same("xielu", "length of the constants", constants.len(), 4)?;
    let mut four = [0.0; 4];
    four.copy_from_slice(constants);
    each_row(machine, x.as_raw(), x, Step::Xielu(four))
}

/// `x` within `limit` of 0.
pub fn limit(machine: &Machine, x: RawMatMut, limit: f32) -> Result<()> {
    each_row(machine, x.as_raw(), x, Step::Limit(limit))
}

/// `y = factor * x`, then `cap * tanh(y * (1 / cap))` where a cap is given.
pub fn scale(machine: &Machine, x: RawMatMut, factor: f32, cap: Option<f32>) -> Result<()> {
    each_row(machine, x.as_raw(), x, Step::Scale(factor, cap))
}

/// `out = act(g) * u` of `[g | u]`, or what a clamp makes of them, rounded once.
pub fn gate(
    machine: &Machine,
    gate_up: RawMat,
    (act, clamp): (Activation, Option<Clamp>),
    out: RawMatMut,
) -> Result<()> {
    same("gate", "rows", out.rows, gate_up.rows)?;
    same("gate", "columns of gate and up", gate_up.cols, out.cols.saturating_mul(2))?;
    each_row(machine, gate_up, out, Step::Gate(act, clamp))
}

/// `x[r] = (scale[rows[r]], plus one) * x[r] + shift[rows[r]]`; a row number beyond `scale` leaves its row.
pub fn modulate(
    machine: &Machine,
    x: RawMatMut,
    (scale, shift): (RawMat, Option<RawMat>),
    (rows, plus_one): (&[u32], bool),
) -> Result<()> {
    same("modulate", "row numbers", rows.len(), x.rows)?;
    same("modulate", "columns of the scale", scale.cols, x.cols)?;
    if let Some(shift) = shift {
        same_shape("modulate", shift, scale)?;
    }
    let base = if plus_one { 1.0 } else { 0.0 };
    each_row(machine, x.as_raw(), x, Step::Modulate(ByItem { scale, shift, rows, base }))
}

/// `out = x`, or `x + bias`, rounded to `out`'s element type.
pub fn convert(machine: &Machine, x: RawMat, bias: Option<&[f32]>, out: RawMatMut) -> Result<()> {
    same_shape("convert", out.as_raw(), x)?;
    if let Some(bias) = bias {
        same("convert", "length of the bias", bias.len(), x.cols)?;
    }
    each_row(machine, x, out, Step::Convert(bias))
}

fn each_row(machine: &Machine, x: RawMat, out: RawMatMut, step: Step<'_>) -> Result<()> {
    if x.is_empty() {
        return Ok(());
    }
    over_rows(machine, [x.rows, x.cols], 8192, 3, |range, scratch| {
        simd::run(machine.isa, machine.madd, Part { x, out, step, range, scratch });
    })
}

impl ByItem<'_> {
    /// Modulates row `r`; false where it stays as it is.
    ///
    /// # Safety
    /// Both rows of scratch have room for as many values.
    #[inline(always)]
    unsafe fn apply<V: Lanes>(&self, r: usize, values: &mut [f32], scratch: [*mut f32; 2]) -> bool {
        let ([factors, added], cols, from) = (scratch, values.len(), self.rows[r] as usize);
        if from >= self.scale.rows {
            return false;
        }
        // SAFETY: the caller's; scale and shift have this row, with as many columns.
        let (factors, added) = unsafe {
            self.scale.widen::<V>(from, 0, cols, factors);
            if let Some(shift) = self.shift {
                shift.widen::<V>(from, 0, cols, added);
            }
            (std::slice::from_raw_parts_mut(factors, cols), std::slice::from_raw_parts(added, cols))
        };
        if self.base != 0.0 {
            factors.iter_mut().for_each(|f| *f += self.base);
        }
        match self.shift {
            None => values.iter_mut().zip(factors).for_each(|(v, f)| *v *= *f),
            Some(_) => {
                let terms = factors.iter().zip(added);
                values.iter_mut().zip(terms).for_each(|(v, (f, s))| *v = V::M::madd(*f, *v, *s));
            }
        }
        true
    }
}

struct Part<'a> {
    x: RawMat,
    out: RawMatMut,
    step: Step<'a>,
    range: std::ops::Range<usize>,
    scratch: Floats,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let cols = self.x.cols;
        // SAFETY: three rows of scratch; the views go together, `each_row`'s callers have checked that.
        unsafe {
            let [row, other, third] = [0, 1, 2].map(|i| self.scratch.at(i * cols.next_multiple_of(16)));
            let values = std::slice::from_raw_parts_mut(row, cols);
            for r in self.range {
                self.x.widen::<V>(r, 0, cols, row);
                let mut written = cols;
                match self.step {
                    Step::Add(x) => {
                        x.widen::<V>(r, 0, cols, other);
                        let other = std::slice::from_raw_parts(other, cols);
                        values.iter_mut().zip(other).for_each(|(v, o)| *v += o);
                    }
                    Step::Activate(act) => act.apply::<V::M>(values),
                    Step::Xielu(constants) => {
                        values.iter_mut().for_each(|v| *v = math::xielu::<V::M>(*v, constants));
                    }
                    Step::Gate(act, clamp) => {
                        let (gate, up) = values.split_at_mut(cols / 2);
                        match clamp {
                            None => {
                                act.apply::<V::M>(gate);
                                gate.iter_mut().zip(up).for_each(|(g, u)| *g *= *u);
                            }
                            Some(Clamp { slope, limit, shift }) => {
                                gate.iter_mut().zip(up).for_each(|(g, u)| {
                                    *g = math::clamped::<V::M>(*g, *u, (slope, limit, shift))
                                });
                            }
                        }
                        written = cols / 2;
                    }
                    Step::Modulate(by) => {
                        if !by.apply::<V>(r, values, [other, third]) {
                            continue;
                        }
                    }
                    Step::Limit(limit) => {
                        values.iter_mut().for_each(|v| *v = math::clamp(*v, -limit, limit));
                    }
                    Step::Scale(factor, cap) => {
                        values.iter_mut().for_each(|v| *v *= factor);
                        if let Some(cap) = cap {
                            let inverse = 1.0 / cap;
                            values.iter_mut().for_each(|v| *v = cap * math::tanh::<V::M>(*v * inverse));
                        }
                    }
                    Step::Convert(None) => {}
                    Step::Convert(Some(bias)) => values.iter_mut().zip(bias).for_each(|(v, b)| *v += b),
                }
                self.out.narrow::<V>(r, 0, written, row);
            }
        }
    }
}
