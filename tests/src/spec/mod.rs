//! Cases of every op, one file per stem: how one is generated from dice, how it runs, which laws hold for it.

pub mod attention;
mod attention_bugs;
pub mod conv;
pub mod disentangled;
pub mod elementwise;
pub mod embed;
pub mod index;
pub mod int8;
pub mod kv;
pub mod kv_codes;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod packed;
pub mod picture;
pub mod rope;
pub mod rows;
pub mod sample;
pub mod weight;
