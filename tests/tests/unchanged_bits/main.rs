//! What serving may do to a request without changing a bit of it, one file for each law; `support` is what
//! they share. Laws that hold on the CPU are [`TESTS`](fork::TESTS) of their file; those that need a device
//! are listed by themselves, so that a summary names them where there is none.
//!
//! One program: each of these builds engines of every backend, which takes the compiler longer than the tests
//! run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod ahead;
mod codes;
mod continuations;
// Reason: shared with the tests of models, which use more of it.
#[allow(dead_code)]
#[path = "../models/described.rs"]
mod described;
mod encoder_decoder;
mod fork;
mod prefix;
mod ranks;
mod rules;
mod serving;
mod session;
mod sound;
mod support;
mod swap;
mod switch;
// Reason: shared with the tests of wgpu, which use more of it.
#[allow(dead_code)]
#[path = "../whole/mod.rs"]
mod whole;
mod yuan;

use conformance::trials::{self, Named};
use std::process::ExitCode;

fn main() -> ExitCode {
    let anywhere: Vec<Named> = [
        ahead::TESTS,
        codes::TESTS,
        continuations::TESTS,
        encoder_decoder::TESTS,
        fork::TESTS,
        prefix::TESTS,
        ranks::TESTS,
        rules::TESTS,
        serving::TESTS,
        session::TESTS,
        sound::TESTS,
        swap::TESTS,
        switch::TESTS,
        yuan::TESTS,
    ]
    .concat();
    let on_cuda: Vec<Named> = [
        ahead::ON_CUDA,
        codes::ON_CUDA,
        continuations::ON_CUDA,
        encoder_decoder::ON_CUDA,
        fork::ON_CUDA,
        prefix::ON_CUDA,
        ranks::ON_CUDA,
        rules::ON_CUDA,
        serving::ON_CUDA,
        session::ON_CUDA,
        sound::ON_CUDA,
        swap::ON_CUDA,
        yuan::ON_CUDA,
    ]
    .concat();
    let on_wgpu: Vec<Named> = [
        ahead::ON_WGPU,
        continuations::ON_WGPU,
        encoder_decoder::ON_WGPU,
        fork::ON_WGPU,
        prefix::ON_WGPU,
        ranks::ON_WGPU,
        rules::ON_WGPU,
        serving::ON_WGPU,
        session::ON_WGPU,
        sound::ON_WGPU,
        swap::ON_WGPU,
        yuan::ON_WGPU,
    ]
    .concat();
    let groups = [
        (&anywhere[..], None),
        (&on_cuda[..], trials::missing_cuda()),
        (&on_wgpu[..], trials::missing_wgpu()),
    ];
    trials::run(&groups, std::env::args().collect())
}
