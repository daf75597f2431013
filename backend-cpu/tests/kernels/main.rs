//! All tests of this package: kernels against scalar definitions, bit for bit; the backend by its contract;
//! pool, lanes and limits.
//!
//! Unit tests would compile the library twice (see `Cargo.toml`), so it is used as others use it. What has to
//! be seen from inside lies in files that depend on no other file of the library; they are compiled here once
//! more, with the tests that are in them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../src/kernels/choice.rs"]
mod choice;
// What the tests of these files do not use is used by the library.
#[allow(dead_code)]
#[path = "../../src/free.rs"]
mod free;
#[path = "../../src/kernels/linear/pieces.rs"]
mod pieces;
#[allow(dead_code)]
#[path = "../../src/simd/mod.rs"]
mod simd;

mod attention;
mod contract;
mod elementwise;
mod kv;
mod limits;
mod linear;
mod norm;
mod picture;
mod pool;
mod rope;
mod sum;
mod testing;
