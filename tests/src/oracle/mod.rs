//! What ops should give, in f64 and integers, written as plainly as possible and without a look at any
//! backend.

pub mod attention;
pub mod disentangled;
pub mod elementwise;
pub mod embed;
pub mod index;
pub mod int8;
pub mod kv;
pub mod kv_row;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod order;
pub mod picture;
pub mod rope;
pub mod rows;
pub mod sample;
pub mod weight;

use crate::dice::round;
use engraft_core::mem::Float;

/// `a + b` in f32, rounded to `dtype`: what an addition op gives to the bit.
pub fn added(a: f32, b: f32, dtype: Float) -> f32 {
    round(a + b, dtype)
}
