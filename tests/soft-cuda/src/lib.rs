//! # soft-cuda: a CUDA driver without a GPU
//!
//! This crate builds a shared library whose SONAME is `libcuda.so`. A process that loads it by path, before
//! anything asks for
//! `libcuda.so` by name, has a CUDA driver whose devices are called "Engraft software CUDA": kernels are
//! executed by [`ptx_vm`] from their PTX, and everything around them (contexts, streams, events, memory,
//! graphs, errors) is here. It exists to run a program's *host* code unchanged where there is no GPU, and to
//! break it where it is wrong: work that is not ordered by a stream or an event runs in a hostile order, a
//! buffer that is reused too early holds the new data, memory that was freed in stream order is gone.
//!
//! ```text
//!   ffi/*  thin extern "C" functions: read arguments, call a module, return a code; no panic passes them
//!     |
//!   context  module  memory  stream  event  capture  graph       tables of plain data in `state`
//!     |         \______________  |  ______________/
//!     |                        queue                             work not yet done, in any order that is legal
//!     |                          |
//!   fault  <------------------  work  ------------------> ptx_vm  doing it
//! ```
//!
//! ## The one global
//!
//! A driver is a global by nature: C functions without an object to call them on. There is one mutex
//! (`state`) around one
//! `Driver`; a thread has its context stack and its capture mode (`context`, `capture`). Nothing else is
//! global.
//!
//! ## What is not here
//!
//! Speed of a device, textures, arrays, interprocess memory, virtual memory management:
//! `README.md` lists them, and every symbol of the interface that is not implemented is exported and answers
//! `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! The only public module is [`preload`], for test programs that want the library; the rest is the library.
//! (The feature `fuzzing` shows this repository's fuzzer what reads images of code.)

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Pages;

mod abi;
mod called;
mod capture;
mod code;
mod context;
mod copy;
mod device;
mod event;
mod exit;
mod fatbin;
mod fault;
mod ffi;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod graph;
mod hazard;
mod jitlink;
mod launch;
mod link;
mod memory;
mod module;
mod occupancy;
mod order;
mod per_thread;
pub mod preload;
mod print;
mod queue;
mod refusal;
pub mod settings;
mod state;
mod statistics;
mod stream;
mod user;
mod work;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
