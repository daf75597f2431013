//! Loading streams: what is held besides a checkpoint. A small one always; one of two gigabytes takes minutes
//! and 5 GB of disk, so it runs when asked for: `cargo test --release -p engraft-cli --test streaming --
//! --ignored --nocapture`.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../core/tests/support/meter.rs"]
mod meter;

use engraft::engraft_core::checkpoint::{self, Access};
use engraft::engraft_core::inject::{describe, inject};
use engraft::engraft_core::mem::Weight;
use engraft::engraft_core::policy::{Catalog, Registry, resolve};
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::engraft_core::weights::{LoadOptions, Uses, load};
use engraft_cpu::{Cpu, CpuConfig};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

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

/// A new folder with a model of a shape.
fn written(shape: &str, purpose: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{purpose}-{shape}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let program = env!("CARGO_BIN_EXE_engraft");
    let args = ["write-shape", "--shape", shape, "--weights", "bf16", "--out"];
    assert!(Command::new(program).args(args).arg(&folder).status().unwrap().success());
    folder
}

/// A source that looks at how much of its files is in memory, whenever something may leave.
#[cfg(target_os = "linux")]
struct Watched {
    inner: Box<dyn checkpoint::Source>,
    folder: PathBuf,
    most: Arc<AtomicU64>,
}

/// Bytes of the files of a folder that this process has in memory.
#[cfg(target_os = "linux")]
fn in_memory(folder: &Path) -> u64 {
    let (text, folder) = (std::fs::read_to_string("/proc/self/smaps").unwrap(), folder.display().to_string());
    let mut lines = text.lines();
    let mut all = 0;
    while let Some(line) = lines.next() {
        if line.contains(&folder) {
            let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
            all += resident.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
        }
    }
    all
}

#[cfg(target_os = "linux")]
impl checkpoint::Source for Watched {
    fn file(&self) -> &str {
        self.inner.file()
    }
    fn tensors(&self) -> &[checkpoint::TensorInfo] {
        self.inner.tensors()
    }
    fn bytes(&self, name: &str) -> engraft::Result<std::borrow::Cow<'_, [u8]>> {
        self.inner.bytes(name)
    }
    fn release(&self, name: &str) {
        self.most.fetch_max(in_memory(&self.folder), SeqCst);
        self.inner.release(name);
    }
    fn release_bytes(&self, bytes: &[u8]) {
        self.most.fetch_max(in_memory(&self.folder), SeqCst);
        self.inner.release_bytes(bytes);
    }
    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }
}

/// A mapped token table of 16 MB is packed, or quantized, with a few of them in memory.
#[cfg(target_os = "linux")]
#[test]
fn pages_of_a_tensor_leave_memory_behind_the_packer() {
    let folder = written("S", "released");
    let mut files = checkpoint::open(&folder, Access::default()).unwrap();
    let sizes = files.source.tensors().iter().map(|t| 2 * t.elements());
    assert!(sizes.max().unwrap() > 15_000_000);
    let seen = Arc::new(AtomicU64::new(0));
    files.source = Box::new(Watched { inner: files.source, folder: folder.clone(), most: seen.clone() });
    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    for quantize in [None, Some("int8:64".parse().unwrap())] {
        let options = LoadOptions { quantize, quantize_embeddings: true, ..LoadOptions::default() };
        seen.store(0, SeqCst);
        inject(&cpu, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
        let most = seen.load(SeqCst);
        println!("{quantize:?}: {:.1} MB of the file in memory at most", most as f64 / MB);
        assert!(most < 9_000_000, "{quantize:?}: {most} bytes of the file are in memory");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Loads a checkpoint of at least `least` bytes and converts it for `world` ranks; `slack` bytes may be held
/// besides its largest operand.
fn streams(shape: &str, least: u64, slack: f64, world: usize) {
    let folder = written(shape, "streaming");
    std::fs::create_dir_all(folder.join("out")).unwrap();
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
        let options = ConvertOptions {
            world,
            quantize: format.map(|f| f.parse().unwrap()),
            quantize_embeddings: false,
        };
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
