//! What a cache makes of a head's row: in f64, and codes of e4m3 from the formula of its specification.

use crate::dice::round;
use engraft_core::mem::{KvCode, KvFormat};

/// Rows of `width` values as they are read back.
pub fn rounded(format: KvFormat, width: usize, values: &[f32]) -> Vec<f32> {
    match format {
        KvFormat::Plain(dtype) => values.iter().map(|v| round(*v, dtype)).collect(),
        KvFormat::Coded(code) => values.chunks(width.max(1)).flat_map(|row| coded(code, row)).collect(),
    }
}

/// `code * scale` of every value of a row, both as `engraft_core::quant::kv_row` says.
fn coded(code: KvCode, row: &[f32]) -> Vec<f32> {
    let largest =
        |all: f64, v: &f32| if all.is_nan() || v.is_nan() { f64::NAN } else { all.max(f64::from(*v).abs()) };
    let step = f64::from(match code {
        KvCode::Int8 => 1f32 / 127.0,
        KvCode::Fp8 => 1f32 / 448.0,
    });
    let scale = of_sixteen_bits(f64::from((row.iter().fold(0.0, largest) * step) as f32));
    match scale {
        _ if scale < f64::powi(2.0, -100) => return vec![0.0; row.len()],
        _ if scale <= f64::powi(2.0, 100) => {}
        _ => return vec![f32::NAN; row.len()],
    }
    let inverse = f64::from((1.0 / scale) as f32);
    let value = |v: &f32| {
        let times = f64::from((f64::from(*v) * inverse) as f32);
        (scale * nearest(code, times)) as f32
    };
    row.iter().map(value).collect()
}

/// The nearest number of 16 significant bits, of two the larger one; NaN and infinities stay.
fn of_sixteen_bits(v: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let unit = f64::powi(2.0, v.log2().floor() as i32 - 15);
    (v / unit + 0.5).floor() * unit
}

/// The value that the nearest code stands for, of two the one with an even code.
fn nearest(code: KvCode, v: f64) -> f64 {
    match code {
        // No negative zero.
        KvCode::Int8 => v.round_ties_even() + 0.0,
        KvCode::Fp8 => {
            let size = |code: u32| match (code >> 3, f64::from(code & 7) / 8.0) {
                (0, part) => part * f64::powi(2.0, -6),
                (exponent, part) => (1.0 + part) * f64::powi(2.0, exponent as i32 - 7),
            };
            let far = |code: &u32| ((size(*code) - v.abs()).abs(), code & 1);
            let best =
                (0..0x7f).min_by(|a, b| far(a).partial_cmp(&far(b)).unwrap_or(std::cmp::Ordering::Equal));
            best.map_or(f64::NAN, size).copysign(v)
        }
    }
}
