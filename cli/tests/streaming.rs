//! Loading streams: what is held besides a checkpoint. A small one always; one of two gigabytes takes minutes
//! and 5 GB of disk, so it runs when asked for: `cargo test --release -p engraft-cli --test streaming --
//! --ignored --nocapture`.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../core/tests/support/meter.rs"]
mod meter;

use engraft::engraft_core::checkpoint::{self, Access};
use engraft::engraft_core::inject::describe;
use engraft::engraft_core::mem::Weight;
use engraft::engraft_core::policy::{Catalog, Registry, resolve};
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::engraft_core::weights::{LoadOptions, Uses, load};
use engraft_cpu::{Cpu, CpuConfig};
use std::path::Path;
use std::process::Command;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

const MB: f64 = 1e6;

#[test]
#[ignore = "writes 2 GB; run by hand"]
fn two_gigabytes_in_one_tensors_memory() {
    streams("llama-1b", 2_000_000_000, 64.0 * MB, 2);
}

/// Half of this one is its token table: next to that and the slack there is no room for the model a second
/// time.
#[test]
fn thirty_megabytes_in_one_tensors_memory() {
    // Two ranks would split groups of 64.
    streams("S", 30_000_000, 8.0 * MB, 1);
}

/// Loads a checkpoint of at least `least` bytes and converts it for `world` ranks; `slack` bytes may be held
/// besides its largest operand.
fn streams(shape: &str, least: u64, slack: f64, world: usize) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("streaming-{shape}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("out")).unwrap();
    let program = env!("CARGO_BIN_EXE_engraft");
    let args = ["write-shape", "--shape", shape, "--weights", "bf16", "--out"];
    assert!(Command::new(program).args(args).arg(&folder).status().unwrap().success());
    let files = checkpoint::open(&folder, Access::default()).unwrap();
    let total = files.source.total_bytes();
    assert!(total >= least, "{total}");
    let (spec, policy, config) = describe(&files, &Registry::default()).unwrap();
    let resolved = resolve(policy.as_ref(), &spec, &config, Catalog::new(files.source.tensors())).unwrap();
    let operand = |bytes: fn(usize) -> usize| {
        let sizes = resolved.iter().map(|r| r.tensors.iter().map(|t| bytes(t.elements())).sum::<usize>());
        sizes.max().unwrap() as f64 / MB
    };
    let largest = operand(|n| 2 * n);
    println!("checkpoint {:.0} MB, largest operand {largest:.0} MB", total as f64 / MB);

    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    for format in [None, Some("int8:64"), Some("int4a:64")] {
        let options = LoadOptions { quantize: format.map(|f| f.parse().unwrap()), ..LoadOptions::default() };
        let mut seen = Vec::new();
        let (operands, peak, left) = meter::peak_and_left(|| {
            load(
                cpu.as_ref(),
                files.source.as_ref(),
                &spec,
                &resolved,
                options,
                &Uses::default(),
                &mut |done, all| seen.push((done, all)),
            )
            .unwrap()
        });
        let model: usize = operands.prepared.values().flatten().map(|w| w.info().bytes()).sum();
        drop(operands);
        let extra = peak - left;
        assert!(
            seen.windows(2).all(|w| w[0].0 <= w[1].0) && seen.last() == Some(&(total, total)),
            "progress"
        );
        println!(
            "load as {}: model {:.0} MB, at most {:.0} MB besides",
            format.unwrap_or("stored"),
            model as f64 / MB,
            extra as f64 / MB
        );
        assert!((extra as f64) < largest * MB + slack, "{extra} bytes for operands of {largest} MB");
    }
    for format in [None, Some("int8:64")] {
        let options = ConvertOptions { world, quantize: format.map(|f| f.parse().unwrap()) };
        let out = folder.join("out");
        let (done, peak) = meter::peak(|| {
            convert_model(&files, &Registry::default(), &out, options, &mut |_, _| {}).unwrap()
        });
        println!(
            "convert as {} for {world} ranks: {:.0} MB written, peak {:.0} MB",
            format.unwrap_or("stored"),
            done.bytes as f64 / MB,
            peak as f64 / MB
        );
        assert!((peak as f64) < 1.5 * largest * MB + slack, "{peak} bytes for operands of {largest} MB");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
