//! Matrix instructions as pure functions: who holds which element, and what is computed.
//!
//! Nothing here knows of warps' state, memory or faults. A fragment is a slice of [`Row`](crate::Row)s (one
//! 32-bit register over 32 lanes) in the order of the instruction's operand list; shared memory comes in
//! through a reader.
//!
//! ## Who holds which element
//!
//! All fragments follow one rule. Lane `l` has the group `g = l / 4` and the place `t = l % 4`; a register
//! holds `e` neighbouring elements, lowest bits first (`e = 32 / bits`: tf32 1, f16 and bf16 2, 8-bit types
//! 4, 4-bit types 8, single bits 32; f64 has 64-bit registers and `e = 1`).
//!
//! | fragment | register | row | column |
//! | --- | --- | --- | --- |
//! | A of 16 rows (`mma`, one warp of `wgmma`) | `j` | `g + 8 (j % 2)` | `k = 4e (j / 2) + e t + i`, `i < e` |
//! | A of 8 rows | `j` | `g` | `k = 4e j + e t + i` |
//! | B of 8 columns | `j` | `k = 4e j + e t + i` | `n = g` |
//! | C, D in f32, s32 (f64) | `j` | `g + 8 (j / 2)` | `n = 2t + j % 2` |
//! | C, D in f16 | `j` | `g + 8 j` | `n = 2t` (low half), `2t + 1` (high half) |
//! | D of `wgmma` in f32, s32, warp `w` | `j` | `16w + g + 8 (j / 2 % 2)` | `n = 8 (j / 4) + 2t + j % 2` |
//! | D of `wgmma` in f16, warp `w` | `j` | `16w + g + 8 (j % 2)` | `n = 8 (j / 2) + 2t + half` |
//! | 8x8 matrix of `ldmatrix`, `stmatrix`, `movmatrix` | one | `g` | `2t` (low half), `2t + 1` (high half) |
//!
//! ## What is computed
//!
//! Products are exact. [`Summation::Plain`], the stated model: an accumulator starts at `c` (or zero) and the
//! products are added in ascending `k`, each sum rounded to nearest f32; f16 accumulators are rounded once,
//! at the end of the instruction. Hardware does something else, and [`sum`] has what is known of it. Integers
//! are exact in both.
//!
//! | module | instruction |
//! | --- | --- |
//! | [`mma`] | `mma.sync` |
//! | [`wmma`] | `wmma.load`, `wmma.store`, `wmma.mma` |
//! | [`wgmma`], [`descriptor`] | `wgmma.mma_async` and its shared-memory operands |
//! | [`bits`] | both of these with single-bit elements |
//! | [`tile`] | `ldmatrix`, `stmatrix`, `movmatrix` |
//! | [`element`], [`sum`] | element types, accumulation |

pub mod bits;
pub mod descriptor;
pub mod element;
mod halves;
pub mod mma;
pub mod sum;
pub mod tile;
pub mod wgmma;
pub mod wmma;

pub use bits::BitOp;
pub use descriptor::{Descriptor, Major};
pub use element::{Accumulator, Element};
pub use mma::Mma;
pub use sum::Summation;
pub use wgmma::{Reader, Side, Wgmma, WgmmaA, WgmmaError};

#[cfg(test)]
pub(crate) mod tests;
