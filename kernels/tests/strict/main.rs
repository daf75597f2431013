//! Every strict kernel on a virtual GPU, with all of its checks, under three schedules, against a plain
//! model: bit for bit.
//!
//! The models are straight loops over `engraft_core::math` and `numerics`; sizes are odd, rows have gaps,
//! views begin off alignment, what may not be written is poison.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attention;
mod attention_features;
mod attention_rows;
mod codes;
mod elementwise;
mod embed;
mod index;
mod int8;
mod kv;
mod kv_fused;
mod linear;
mod linear_formats;
mod machine;
mod moe;
mod moe_formats;
mod norm;
mod picture;
mod rows;
mod sample;
mod sizes;
mod waits;
mod wild;
