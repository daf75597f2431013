//! What serving may do to a request without changing a bit of it, one file for each law; `support` is what
//! they share.
//!
//! One program: each of these builds engines of every backend, which takes the compiler longer than the tests
//! run.

mod ahead;
mod continuations;
mod encoder_decoder;
mod fork;
mod prefix;
mod ranks;
mod rules;
mod serving;
mod session;
mod support;
mod swap;
