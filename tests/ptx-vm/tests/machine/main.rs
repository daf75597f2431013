//! The machine against plain models: every opcode variant on random and edge operands, collectives, memory,
//! copies, planted bugs, and compiler output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Reason: the models are written as the manual's formulas are, shifts and products side by side.
#![allow(clippy::precedence)]

mod aliases;
mod atomics;
mod bugs;
mod calls;
mod compare;
mod conversions;
mod convert;
mod cooperative;
mod copies;
mod data;
mod float;
mod fragments;
mod harness;
mod heap;
mod integer;
mod kernels;
mod options;
mod print;
mod program;
mod refused;
mod reports;
mod threads;
mod waiting;
mod warp;
