//! Engraft's engine: a published checkpoint goes in, tokens come out.
//!
//! The modules follow the data:
//!
//! ```text
//! config -> checkpoint -> policy -> weights (fuse, shard, quantize) -> inject -> model
//!                                                                                  |
//! requests -> text -> schedule -> kv -> engine.step -> graph? -> ops -> backend <--+
//!                                            |                             |
//!                                            +-------- sample <------------+ -> tokens -> text
//! ```
//!
//! Imports go down (a test follows every path to the file that defines it): `ops` never sees a backend,
//! `backend` never sees a model, `schedule` and `kv` see neither, `policy` never sees a tensor's bytes. No
//! backend lives here, no HTTP, no async runtime, no thread: what a backend is, [`backend`] says;
//! `engraft-cpu` is the first one.

pub mod backend;
pub mod checkpoint;
pub mod config;
pub mod engine;
pub mod error;
pub mod file;
pub mod graph;
pub mod inject;
pub mod kv;
pub mod math;
pub mod mem;
pub mod model;
pub mod numerics;
pub mod ops;
pub mod params;
pub mod policy;
pub mod profile;
pub mod quant;
pub mod sample;
pub mod schedule;
#[cfg(feature = "text")]
pub mod text;
pub mod weights;

pub use error::{Error, Result};
