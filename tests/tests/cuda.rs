//! Whole models on CUDA: the laws, bit for bit; in reference mode the CPU's bits, logits and hidden states; the tokens that
//! the CPU draws. Faults and what they leave alone are in the backend's own tests.
//!
//! `ENGRAFT_REQUIRE=cuda:soft` runs them on the software driver; without that and without a device nothing runs, and the
//! test says so.
#![allow(clippy::unwrap_used, clippy::panic)]

mod whole;

use conformance::backends::{self, cuda, cuda_names};
use engraft_core::mem::Float;
use engraft_core::numerics::{Madd, Mode};
use engraft_cpu::{Cpu, CpuConfig};
use whole::{CASES, laws};

#[test]
fn models_keep_the_laws_and_equal_the_cpu() {
    let missing = backends::missing_here();
    assert!(missing.is_empty(), "{} asks for {}", backends::REQUIRE, missing.join(", "));
    let here = cuda_names();
    println!("{} CUDA devices: {}", here.len(), here.join(", "));
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here {
        let strict = cuda(name, Mode::Reference).unwrap();
        for case in CASES {
            laws(&strict, &cpu, case, Float::F32);
        }
        laws(&strict, &cpu, CASES[0], Float::Bf16);
        let invariant = cuda(name, Mode::Invariant).unwrap();
        laws(&invariant, &cpu, CASES[0], Float::F32);
        laws(&invariant, &cpu, CASES[0], Float::Bf16);
        laws(&invariant, &cpu, CASES[1], Float::F16);
    }
}
