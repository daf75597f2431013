//! Sum, activation, gated activation, modulation, scaling, conversion: `cuda/elementwise.cu`.

use super::{Activation, Elem, MatView, by_elem, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Elements of 16 bytes.
fn wide(elem: Elem) -> u32 {
    16 / elem.bytes()
}

/// `acc += x`: both `[rows, cols]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Add {
    /// Read and written.
    pub acc: MatView,
    /// Added.
    pub x: MatView,
    /// Element type of both.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Add {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_add_f32", "elementwise_add_f16", "elementwise_add_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.acc.rows, self.acc.cols, wide(self.elem))
    }
}

/// `x = act(x)` in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Activate {
    /// `[rows, cols]`, read and written.
    pub x: MatView,
    /// Element type.
    pub elem: Elem,
    /// Which.
    pub act: Activation,
}

impl Activate {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_activate_f32", "elementwise_activate_f16", "elementwise_activate_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.x.rows, self.x.cols, wide(self.elem))
    }
}

/// `x = xielu(x)` in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Xielu {
    /// `[rows, cols]`, read and written.
    pub x: MatView,
    /// `[4]` f32.
    pub constants: u64,
    /// Element type.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Xielu {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_xielu_f32", "elementwise_xielu_f16", "elementwise_xielu_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.x.rows, self.x.cols, wide(self.elem))
    }
}

/// `out = act(g) * u` of `[g | u]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Gate {
    /// `[rows, 2 inner]`.
    pub gate_up: MatView,
    /// `[rows, inner]`.
    pub out: MatView,
    /// Element type of both.
    pub elem: Elem,
    /// Which, without a limit.
    pub act: Activation,
    /// Factor of the gate inside the sigmoid.
    pub slope: f32,
    /// Largest gate and size of the other branch; 0: `act(g) * u`.
    pub limit: f32,
    /// Added to the other branch.
    pub shift: f32,
    /// Zero.
    pub reserved: u32,
}

impl Gate {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_gate_f32", "elementwise_gate_f16", "elementwise_gate_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.out.rows, self.out.cols, wide(self.elem))
    }
}

/// `x[r] = (base + scale[rows[r]]) * x[r] + shift[rows[r]]` in place; a row number beyond `scale` leaves its
/// row.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Modulate {
    /// `[rows, cols]`, read and written.
    pub x: MatView,
    /// `[any, cols]`.
    pub scale: MatView,
    /// As large as `scale`; where nothing is added any view.
    pub shift: MatView,
    /// `[rows]` u32.
    pub rows: u64,
    /// Element type of all.
    pub elem: Elem,
    /// 1 where `shift` is added.
    pub shifted: u32,
    /// Added to the scale: 0 or 1.
    pub base: f32,
    /// Zero.
    pub reserved: u32,
}

impl Modulate {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_modulate_f32", "elementwise_modulate_f16", "elementwise_modulate_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.x.rows, self.x.cols, wide(self.elem))
    }
}

/// `x` within `limit` of 0, in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Limit {
    /// `[rows, cols]`, read and written.
    pub x: MatView,
    /// Element type.
    pub elem: Elem,
    /// Largest size.
    pub limit: f32,
}

impl Limit {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_limit_f32", "elementwise_limit_f16", "elementwise_limit_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.x.rows, self.x.cols, wide(self.elem))
    }
}

/// `y = factor * x`, then `cap * tanh(y / cap)` where capped, in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Scale {
    /// `[rows, cols]`, read and written.
    pub x: MatView,
    /// Element type.
    pub elem: Elem,
    /// Factor.
    pub factor: f32,
    /// 1 where `cap` counts.
    pub capped: u32,
    /// The cap (any number where it does not count).
    pub cap: f32,
}

impl Scale {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["elementwise_scale_f32", "elementwise_scale_f16", "elementwise_scale_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        over_rows(entry, self.x.rows, self.x.cols, wide(self.elem))
    }
}

/// `out = x`, or `x + bias`, in another element type: both `[rows, cols]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Convert {
    /// Read.
    pub x: MatView,
    /// Written.
    pub out: MatView,
    /// `[cols]` f32; 0: none.
    pub bias: u64,
    /// Element type of `x`.
    pub from: Elem,
    /// Element type of `out`.
    pub to: Elem,
}

impl Convert {
    /// The entry from one element type to another.
    pub fn entry(from: Elem, to: Elem) -> &'static str {
        let f32s =
            ["elementwise_convert_f32_f32", "elementwise_convert_f32_f16", "elementwise_convert_f32_bf16"];
        let f16s =
            ["elementwise_convert_f16_f32", "elementwise_convert_f16_f16", "elementwise_convert_f16_bf16"];
        let bf16s =
            ["elementwise_convert_bf16_f32", "elementwise_convert_bf16_f16", "elementwise_convert_bf16_bf16"];
        let entries = match from {
            Elem::F32 => f32s,
            Elem::F16 => f16s,
            _ => bf16s,
        };
        by_elem(to, entries)
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        over_rows(Self::entry(self.from, self.to), self.x.rows, self.x.cols, 8)
    }
}
